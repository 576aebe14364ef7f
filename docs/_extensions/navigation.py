"""What stands where on the site: the pages of each section, in order.

Pages stay plain Markdown; the tables of contents are made from this list. A page that is not in it is put under
Guides, so that it is found, and a test asks for its place.
"""

from __future__ import annotations

from pathlib import Path

# Page: the name that it has in the navigation, "" for its own title
SECTIONS: dict[str, dict[str, str]] = {
    "Start": {"start": "Ten minutes"},
    "Tutorials": {
        "tutorials/classify": "Classify",
        "tutorials/forecast": "Forecast",
        "tutorials/language": "Language",
        "tutorials/published-weights": "Published weights",
        "tutorials/long-sequences": "Long sequences",
        "tutorials/encoder-decoder": "An encoder and a decoder",
    },
    "Notebooks": {
        "notebooks/01-lookup": "Looking things up",
        "notebooks/02-linear-attention": "Attention in linear time",
        "notebooks/03-duality": "A layer is a matrix",
        "notebooks/04-systems": "From systems to sequences",
        "notebooks/05-memory": "A memory by design",
        "notebooks/06-selection": "What to let in",
    },
    "Guides: from data to answers": {
        "data": "Your data",
        "sequences": "Classification and regression",
        "forecasting": "Forecasting",
        "texts": "Texts",
        "training": "Training",
        "following": "Following a run",
        "predicting": "Predict with a trained model",
        "evaluation": "Evaluation",
        "generation": "Generation",
        "chat": "Chat models",
        "serving": "Serving",
        "checkpoints": "Checkpoints",
    },
    "Guides: models and mathematics": {
        "layers": "Layers",
        "operators": "Operators",
        "plots": "Pictures",
        "estimation": "Estimation",
        "structural": "Structural time series",
        "synthetic": "Synthetic languages",
        "long-range-arena": "Long Range Arena",
        "long-range-arena-settings": "Long Range Arena: settings",
        "kernels": "Kernels",
        "exact": "One answer: exact mode",
        "gpu": "GPUs",
    },
    "Guides: with other software": {
        "own-code": "Your own code",
        "scikit-learn": "scikit-learn",
        "transformers": "transformers",
        "export": "Export",
        "distributed": "Several processes",
        "safety": "Crashes and memory",
        "security": "Security",
    },
    "Concepts": {
        "concepts": "The mathematics at a glance",
        "explore": "A page to play with",
        "math/discretisation": "Discretisation",
        "math/systems": "Systems in general",
        "math/reduction": "Fewer states",
        "math/hippo": "HiPPO",
        "math/s4": "S4's filter",
        "math/h3": "H3",
        "math/selection": "Selection",
        "math/duality": "Duality",
        "math/delta": "The delta rule",
        "math/kalman": "Kalman filters",
        "glossary": "Glossary",
    },
    "Reference": {"reference/index": "Reference"},
    "Benchmarks": {
        "benchmarks": "Benchmarks",
        "comparison": "Compared with others",
        "reproduce": "Published claims",
        "experiments": "Experiments",
    },
    "Project": {
        "decisions/README": "Decisions",
        "contributing": "Contributing",
        "writing": "Writing",
        "support": "Support",
        "changelog": "Changelog",
    },
}
# Pages below another one
BELOW = {
    "decisions/README": ("decisions/0*",),
    "reference/index": ("reference/api/commands", "reference/api/names", "reference/api/*"),
}
FALLBACK = "Guides: with other software"


def pages(docs: Path) -> set[str]:
    """Every page, by its name without `.md`. Folders of the site's own machinery have none."""
    files = [*docs.rglob("*.md"), *docs.rglob("*.ipynb")]
    names = {path.relative_to(docs).with_suffix("").as_posix() for path in files}
    return {name for name in names if not name.startswith("_")}


def placed() -> set[str]:
    return {name for names in SECTIONS.values() for name in names}


def is_below(name: str) -> bool:
    return any(Path(name).match(pattern) for patterns in BELOW.values() for pattern in patterns)


def without_place(docs: Path) -> list[str]:
    """Pages that no section has."""
    return sorted(name for name in pages(docs) - placed() - {"index"} if not is_below(name))


def contents(docs: Path) -> str:
    """The hidden tables of contents of the first page, as MyST has them. Pages that are not there are left out."""
    there = pages(docs)
    lines = []
    for section, names in SECTIONS.items():
        entries = [f"{title} <{name}>" if title else name for name, title in names.items() if name in there]
        if section == FALLBACK:
            entries += without_place(docs)
        if entries:
            lines += ["", "```{toctree}", ":hidden:", f":caption: {section}", "", *entries, "```"]
    return "\n".join(lines) + "\n"


def contents_below(name: str) -> str:
    """The table of contents of a page that has others below it."""
    inside = [Path(pattern).relative_to(Path(name).parent).as_posix() for pattern in BELOW[name]]
    return "\n".join(["", "```{toctree}", ":hidden:", ":glob:", ":maxdepth: 1", "", *inside, "```", ""])
