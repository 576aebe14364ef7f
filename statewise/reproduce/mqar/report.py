"""What ``mqar`` found: the tables by length, and accuracy against the size of the state."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from statewise.reproduce.mqar.settings import NAMES, POSITIONED, MqarSettings, part_name
from statewise.reproduce.rates import rate_name
from statewise.reproduce.report import Report, drawn
from statewise.train.tasks.base import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def make_report(
    config: MqarSettings, found: Mapping[str, Mapping[str, Any]], tuned: Mapping[str, Mapping[str, Any]]
) -> Report:
    """tuned: the short runs that the rates were chosen by, none if there was one rate."""
    epochs = f"{', '.join(f'{e:g}' for e in config.epochs)} epoch{'' if config.epochs == (1,) else 's'}"
    tables, figures = [], {part: dict(run) for part, run in tuned.items()}
    of_all = "".join(f"{chance:.2%} of all values and " for chance in sorted({run["chance"] for run in _whole(found)}))
    of_attention = "; of attention its keys and values at the full length" if "attention" in config.models else ""
    for i, (length, pairs) in enumerate(zip(config.lengths, config.pairs)):
        rows = []
        for model in config.models:
            for size in range(config.n_sizes):
                name = part_name(config, model, size, i)
                part = found[name]
                figures[name] = {"model": model, "length": length, "pairs": pairs, **part}
                rows.append(
                    (
                        f"{NAMES[model]}, width {part['d_model']}",
                        f"{part['state']:,}",
                        *_accuracies(part),
                        f"{part['parameters']:,}",
                        rate_name(part["lr"]),
                        *_training(part),
                    )
                )
        tables.append(
            Table(
                f"Length {length}, {pairs} pairs: test accuracy by state",
                ("", "state", "accuracy", "whole rows", "parameters", "rate", "steps", "s"),
                rows,
                (
                    f"Chance is {of_all}{1 / pairs:.1%} among those of the row. State: numbers "
                    f"of all layers{of_attention}. Published as a plot, without figures.",
                ),
            )
        )
    return Report(
        title="MQAR: what a state of so many numbers recalls",
        setting=(
            f"Two layers without MLP, pre-norm; vocabulary {config.vocab_size}, {config.n_train:,} rows for training, "
            f"{config.n_test:,} for the test, the loss at the queries. Lengths "
            f"{', '.join(f'{n} with {p} pairs' for n, p in zip(config.lengths, config.pairs))}; at most "
            f"{epochs} of batches of {config.batch_size}, ended at "
            f"{100 * config.stop_at:g}% on rows of their own; one seed."
        ),
        tables=tables,
        differences=_differences(config, found, tuned),
        figures=figures,
        plots=[drawn("mqar", "Accuracy against the size of the state", partial(_draw, config=config, found=found))],
    )


def _whole(found: Mapping[str, Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The runs that did not diverge. Folders of older versions hold no others."""
    return [part for part in found.values() if part.get("diverged") is None]


def _accuracies(part: Mapping[str, Any]) -> tuple[str, str]:
    if part.get("diverged") is not None:
        return "diverged", "-"
    return f"{part['accuracy']:.1%}", f"{part['accuracy_of_examples']:.1%}"


def _training(part: Mapping[str, Any]) -> tuple[str, str]:
    if part.get("diverged") is not None:
        return "-", "-"
    return f"{part['steps']:,}{'' if part['stopped_early'] else ' (all)'}", f"{part['training_seconds']:,.0f}"


def _differences(
    config: MqarSettings, found: Mapping[str, Mapping[str, Any]], tuned: Mapping[str, Mapping[str, Any]]
) -> list[str]:
    lines = [
        "Published (Arora et al. 2023, Zoology, arXiv:2312.04927, figure 2): vocabulary 8,192, 100,000 rows, 64 "
        "epochs, batches of 512, widths of 64 to 512, lengths of 64 to 512, the best of four rates from 1e-4 to 1e-2.",
        _how_the_rate_was_chosen(config),
        "The steps between pairs and queries hold random tokens of the vocabulary, keys of the row among them."
        if config.random_non_queries
        else "The steps between pairs and queries hold the token 0. (random_non_queries=true draws them: with a small "
        "vocabulary they then repeat keys of the row.)",
    ]
    if "h3" in config.models:
        lines.append(
            "H3 has a register of 8 keys and N = 16 here (64 and 64 in its paper), so that its state is the smaller."
        )
    positioned = [NAMES[model] for model in config.models if model in POSITIONED]
    others = [NAMES[model] for model in config.models if model not in POSITIONED]
    if positioned:
        rest = f"; {' and '.join(others)}: none" if others else ""
        lines.append(f"Learned positions: {' and '.join(positioned)}{rest}.")
    if not all(part["stopped_early"] for part in _whole(found)):
        lines.append(
            "An accuracy short of the end may be one that more training would raise: a run that was not ended early "
            "says what this budget gives, not what the state can hold."
        )
    lost = [part for part, run in (*tuned.items(), *found.items()) if run.get("diverged") is not None]
    if lost:
        lines.append(f"Diverged, and not tested: {', '.join(lost)}; result.json says where.")
    return lines


def _how_the_rate_was_chosen(config: MqarSettings) -> str:
    if len(config.rates) == 1:
        return f"One rate for all models, {rate_name(config.rates[0])}, not chosen by any run."
    return (
        f"One rate for each model, as the table has it, of {', '.join(map(rate_name, config.rates))}: the one "
        f"with the least validation loss after {100 * config.tuning:g}% of the epochs, at length {config.lengths[0]} "
        f"with {config.pairs[0]} pairs and one size."
    )


def _draw(drawing: Figure, config: MqarSettings, found: Mapping[str, Mapping[str, Any]]) -> None:
    axes = drawing.subplots()
    styles = ("-", "--", ":", "-.")
    for i, model in enumerate(config.models):
        for j, (length, pairs) in enumerate(zip(config.lengths, config.pairs)):
            names = (part_name(config, model, size, j) for size in range(config.n_sizes))
            parts = sorted(_whole({name: found[name] for name in names}), key=lambda part: part["state"])
            is_history = model == "attention"
            axes.plot(
                [part["state"] for part in parts],
                [part["accuracy"] for part in parts],
                marker="*" if is_history else "o",
                markersize=11 if is_history else 6,
                linestyle="none" if is_history else styles[j % len(styles)],
                fillstyle="full" if j == 0 else "none",
                color=f"C{i}",
                label=f"{NAMES[model]}, length {length}, {pairs} pairs" + (" (history)" if is_history else ""),
            )
    lost = [part["state"] for part in found.values() if part.get("diverged") is not None]
    if lost:
        axes.plot(lost, [0.0] * len(lost), "x", color="black", label="diverged")
    axes.set_xscale("log")
    axes.set(xlabel="numbers in the state", ylabel="test accuracy", ylim=(0, 1.03))
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)
