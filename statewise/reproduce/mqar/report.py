"""What ``mqar`` found: the tables by length, and accuracy against the size of the state."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from statewise.mixers.projection import PUBLISHED_WIDTH, WEIGHT_STD
from statewise.reproduce.mqar.settings import NAMES, POSITIONED, MqarSettings, cell_name
from statewise.reproduce.rates import rate_name
from statewise.reproduce.report import Report, drawn
from statewise.train.tasks.base import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def make_report(config: MqarSettings, tried: Mapping[str, Mapping[float, Mapping[str, Any]]]) -> Report:
    """tried: of each model, size and length the runs by their rate."""
    epochs = f"{', '.join(f'{e:g}' for e in config.epochs)} epoch{'' if config.epochs == (1,) else 's'}"
    found = {cell: _best(runs) for cell, runs in tried.items()}
    tables, figures = [], {}
    of_all = "".join(f"{chance:.2%} of all values and " for chance in sorted({run["chance"] for run in _whole(found)}))
    of_attention = "; of attention its keys and values at the full length" if "attention" in config.models else ""
    for i, (length, pairs) in enumerate(zip(config.lengths, config.pairs)):
        rows = []
        for model in config.models:
            for size in range(config.n_sizes):
                name = cell_name(config, model, size, i)
                part = found[name]
                by_rate = {rate_name(rate): run.get("accuracy") for rate, run in tried[name].items()}
                where = {rate_name(rate): run["diverged"] for rate, run in tried[name].items() if run["diverged"]}
                found_here = {"model": model, "length": length, "pairs": pairs, **part}
                figures[name] = {**found_here, "by_rate": by_rate, "diverged_at": where}
                rows.append(
                    (
                        f"{NAMES[model]}, width {part['d_model']}",
                        f"{part['state']:,}",
                        *_accuracies(part),
                        f"{part['parameters']:,}",
                        rate_name(part["lr"]),
                        ", ".join(
                            f"{rate} {'diverged' if accuracy is None else f'{accuracy:.1%}'}"
                            for rate, accuracy in by_rate.items()
                            if rate != rate_name(part["lr"])
                        )
                        or "-",
                        *_training(part),
                    )
                )
        tables.append(
            Table(
                f"Length {length}, {pairs} pairs: test accuracy by state",
                ("", "state", "accuracy", "whole rows", "parameters", "rate", "others tried", "steps", "s"),
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
        differences=_differences(config, found, tried),
        figures=figures,
        plots=[drawn("mqar", "Accuracy against the size of the state", partial(_draw, config=config, found=found))],
    )


def _best(runs: Mapping[float, Mapping[str, Any]]) -> Mapping[str, Any]:
    """The run that was best on rows of its own; of those that diverged only if all did."""
    whole = [run for run in runs.values() if run["diverged"] is None]
    if not whole:
        return next(iter(runs.values()))
    return max(whole, key=lambda run: max(accuracy for _, accuracy in run["course"]))


def _whole(found: Mapping[str, Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Those that did not diverge."""
    return [part for part in found.values() if part["diverged"] is None]


def _accuracies(part: Mapping[str, Any]) -> tuple[str, str]:
    if part["diverged"] is not None:
        return "diverged", "-"
    return f"{part['accuracy']:.1%}", f"{part['accuracy_of_examples']:.1%}"


def _training(part: Mapping[str, Any]) -> tuple[str, str]:
    if part["diverged"] is not None:
        return "-", "-"
    return f"{part['steps']:,}{'' if part['stopped_early'] else ' (all)'}", f"{part['training_seconds']:,.0f}"


def _differences(
    config: MqarSettings,
    found: Mapping[str, Mapping[str, Any]],
    tried: Mapping[str, Mapping[float, Mapping[str, Any]]],
) -> list[str]:
    lines = [
        "Published (Arora et al. 2023, Zoology, arXiv:2312.04927, figure 2): vocabulary 8,192, 100,000 rows, 64 "
        "epochs, batches of 512, widths of 64 to 512, lengths of 64 to 512, the best of four rates from 1e-4 to 1e-2.",
        _how_the_rate_was_chosen(config),
        *([_how_they_begin(config)] if set(config.models) != {"mamba2"} else []),
        "The steps between pairs and queries hold random tokens of the vocabulary, keys of the row among them."
        if config.random_non_queries
        else "The steps between pairs and queries hold the token 0. (random_non_queries=true draws them: with a small "
        "vocabulary they then repeat keys of the row.)",
    ]
    if len(config.rates) > 1 and (at_an_end := _at_an_end(config, found)):
        lines.append(
            f"Best at an end of the list of rates, so that a better one may lie beyond: {', '.join(at_an_end)}."
        )
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
    lost = [f"{cell} at {rate_name(rate)}" for cell, runs in tried.items() for rate in runs if runs[rate]["diverged"]]
    if lost:
        lines.append(f"Diverged, and not tested: {', '.join(lost)}; result.json says where.")
    return lines


def _at_an_end(config: MqarSettings, found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The models whose best rate is the lowest or the highest of all, and in how many rows of the tables."""
    ends, said = (min(config.rates), max(config.rates)), []
    for model in config.models:
        cells = [cell_name(config, model, k, i) for i in range(len(config.lengths)) for k in range(config.n_sizes)]
        rates = [found[cell]["lr"] for cell in cells if found[cell]["diverged"] is None]
        if n := sum(rate in ends for rate in rates):
            said.append(f"{NAMES[model]} in {n} of {len(rates)} rows")
    return said


def _how_the_rate_was_chosen(config: MqarSettings) -> str:
    if len(config.rates) == 1:
        return f"One rate for all models, {rate_name(config.rates[0])}, not chosen by any run."
    first, *others = map(rate_name, config.rates)
    return (
        f"Each row was trained at {first} and, until a run had {100 * config.stop_at:g}% on rows of its own, "
        f"at {' and then '.join(others)}; it is the best of its runs on these."
    )


def _how_they_begin(config: MqarSettings) -> str:
    *most, last = (NAMES[model] for model in config.models if model != "mamba2")
    whose = f"{', '.join(most)} and {last}" if most else last
    if config.weight_std is not None:
        return f"The projections of {whose} begin with a standard deviation of {config.weight_std:g}."
    return (
        f"The projections of {whose} begin with outputs that vary as much as with the published "
        f"standard deviation, {WEIGHT_STD}, at a width of {PUBLISHED_WIDTH}, and not with {WEIGHT_STD} at every width."
    )


def _draw(drawing: Figure, config: MqarSettings, found: Mapping[str, Mapping[str, Any]]) -> None:
    axes = drawing.subplots()
    styles = ("-", "--", ":", "-.")
    for i, model in enumerate(config.models):
        for j, (length, pairs) in enumerate(zip(config.lengths, config.pairs)):
            names = (cell_name(config, model, size, j) for size in range(config.n_sizes))
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
    lost = [part["state"] for part in found.values() if part["diverged"] is not None]
    if lost:
        axes.plot(lost, [0.0] * len(lost), "x", color="black", label="diverged")
    axes.set_xscale("log")
    axes.set(xlabel="numbers in the state", ylabel="test accuracy", ylim=(0, 1.03))
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)
