"""Which task of the Long Range Arena, from which files or drawn how."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, NamedTuple

from statewise.configuration.types import AtLeastTwo, Count, Fraction, Natural, OneOf
from statewise.data.base import DataConfig, absolute
from statewise.errors import ConfigError

OWN_FILES = "<class>/*.txt, or train/<class>/*.txt and test/<class>/*.txt"
OWN_SOURCE = "a folder of your own"
RELEASE = "lra_release.gz of github.com/google-research/long-range-arena"


class TaskFacts(NamedTuple):
    """defaults: of the fields that the task has besides ``task``, ``folder`` and ``seed``.
    files: what is looked for.  folders: where, below ``folder``.  source: where the files come from; "": they are
    drawn, or your own.
    """

    defaults: dict[str, Any]
    files: str = ""
    folders: tuple[str, ...] = ()
    source: str = ""


def _drawn(counts: tuple[int, int, int], **fields: Any) -> TaskFacts:
    return TaskFacts({**dict(zip(("n_train", "n_validation", "n_test"), counts)), **fields})


TASKS: dict[str, TaskFacts] = {
    "listops": TaskFacts(
        {"max_length": 2048},
        "basic_train.tsv, basic_val.tsv and basic_test.tsv",
        (".", "listops-1000", "lra_release/listops-1000", "lra_release/lra_release/listops-1000", "listops"),
        RELEASE,
    ),
    "text": TaskFacts(
        {"max_length": 4096, "validation_fraction": 0.0},
        "train/pos/*.txt, train/neg/*.txt, test/pos/*.txt and test/neg/*.txt",
        (".", "aclImdb"),
        "aclImdb_v1.tar.gz of ai.stanford.edu/~amaas/data/sentiment",
    ),
    "retrieval": TaskFacts(
        {"max_length": 4000},
        "new_aan_pairs.train.tsv, new_aan_pairs.eval.tsv and new_aan_pairs.test.tsv",
        (".", "tsv_data", "lra_release/tsv_data", "lra_release/lra_release/tsv_data", "aan"),
        RELEASE,
    ),
    "image": TaskFacts({}, folders=(".", "cifar10", "cifar-10"), source="www.cs.toronto.edu/~kriz/cifar.html"),
    "pathfinder": TaskFacts(
        {},
        "curv_contour_length_14/metadata/*.npy and curv_contour_length_14/imgs/*/*.png",
        (".", "pathfinder32", "lra_release/pathfinder32", "lra_release/lra_release/pathfinder32"),
        RELEASE,
    ),
    "path-x": TaskFacts(
        {},
        "curv_contour_length_14/metadata/*.npy and curv_contour_length_14/imgs/*/*.png",
        (".", "pathfinder128", "lra_release/pathfinder128", "lra_release/lra_release/pathfinder128"),
        RELEASE,
    ),
    "listops-gen": _drawn((96_000, 2_000, 2_000), min_length=500, max_length=2000, max_depth=10, max_args=10),
    "pathfinder-gen": _drawn((160_000, 20_000, 20_000)),
    "path-x-gen": _drawn((160_000, 20_000, 20_000)),
    "text-folder": TaskFacts(
        {"max_length": 4096, "validation_fraction": 0.1, "test_fraction": 0.1}, OWN_FILES, (".",), OWN_SOURCE
    ),
    "retrieval-folder": TaskFacts(
        {
            "max_length": 4000,
            "validation_fraction": 0.1,
            "test_fraction": 0.1,
            "n_train": None,
            "n_validation": None,
            "n_test": None,
        },
        OWN_FILES,
        (".",),
        OWN_SOURCE,
    ),
}
FIELDS = tuple(sorted({name for facts in TASKS.values() for name in facts.defaults}))
PAIRS = ("retrieval", "retrieval-folder")
SIDES = {"pathfinder": 32, "path-x": 128, "pathfinder-gen": 32, "path-x-gen": 128}  # of an image


@dataclass(frozen=True, kw_only=True)
class LongRangeDataConfig(DataConfig):
    """One of the six tasks from its official files, or a stand-in that needs none. A field that the task does not have
    has to be None; None is the published value.

    task, from the official files, divided and prepared as the published S4 runs had them:
        "listops": the value (10 classes) of nested list operations, at most 2,048 tokens of 18.
        "text": film reviews, 2 classes, at most 4,096 characters of 135. Validation is the test split, as published,
            unless ``validation_fraction`` holds out training rows.
        "retrieval": pairs of papers, 2 classes, at most 4,000 characters of 98 each.
        "image": CIFAR-10 in grey, 10 classes, 1,024 pixels, (x - 122.6) / 61.
        "pathfinder", "path-x": whether two marks are ends of one curve, 1,024 and 16,384 pixels in [0, 1].
    task, without them:
        "listops-gen": lists drawn by the published grammar and limits.
        "pathfinder-gen", "path-x-gen": our own drawings of dashed curves; not the published images.
        "text-folder": documents ``class/*.txt`` (or train/class/*.txt and test/class/*.txt) byte by byte; the classes
            are the folders.
        "retrieval-folder": pairs of such documents, of the same class or of two.
    folder: the task's own folder, or the one that holds it. For drawn rows: where they are kept; None: in the cache.
    max_length: longer rows are cut, the end token counted. For listops-gen: a list has fewer tokens than this.
    min_length: for listops-gen: a list has more tokens than this.
    max_depth: for listops-gen: how deep lists are nested, values counted; at least 2.
    max_args: for listops-gen: the most arguments of an operator; at least 2.
    n_train, n_validation, n_test: how many rows are drawn; for retrieval-folder None: as many pairs as documents.
    validation_fraction, test_fraction: the share of documents held out, the same for each class.
    seed: decides what is drawn and held out. The published divisions do not depend on it.
    """

    task: Annotated[str, OneOf(TASKS)] = "listops-gen"
    folder: str | None = None
    min_length: Count | None = None
    max_length: AtLeastTwo | None = None
    max_depth: AtLeastTwo | None = None
    max_args: AtLeastTwo | None = None
    n_train: Count | None = None
    n_validation: Natural | None = None
    n_test: Natural | None = None
    validation_fraction: Fraction | None = None
    test_fraction: Fraction | None = None
    seed: Natural = 0

    def __post_init__(self) -> None:
        own = TASKS[self.task].defaults
        for name in FIELDS:
            if getattr(self, name) is not None and name not in own:
                raise ConfigError(f"LongRangeDataConfig.{name} is not for the task {self.task!r}; leave it out")
        if self.task == "listops-gen" and self.resolved("min_length") + 1 >= self.resolved("max_length"):
            raise ConfigError(
                f"LongRangeDataConfig.min_length={self.resolved('min_length')} and max_length="
                f"{self.resolved('max_length')} leave no length between them; set them further apart"
            )

    def resolved(self, name: str) -> Any:
        """A field, or the task's default for it; None where the task has no such field."""
        value = getattr(self, name)
        return TASKS[self.task].defaults.get(name) if value is None else value

    def with_absolute_paths(self) -> LongRangeDataConfig:
        return self if self.folder is None else replace(self, folder=absolute(self.folder))
