"""Plot the figures of a result file; needs matplotlib, which no benchmark needs itself.

python -m benchmarks.plot RESULTS.json [--out FILE.png]
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

OURS, THEIRS, GOAL = "#4477aa", "#bbbbbb", "#cc6677"
COLOURS = ("#4477aa", "#66ccee", "#228833", "#ccbb44", "#ee6677", "#aa3377", "#bbbbbb", "#000000")


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def kernels(record: dict[str, Any]) -> Any:
    """Torch's time over ours: linear layers by the size of their weight, the other rows as bars."""
    rows = [row for row in record["rows"] if "failed" not in row]
    figure, (left, right) = _pyplot().subplots(1, 2, figsize=(13, 5.5))
    linear = [row for row in rows if row["family"] == "linear"]
    _linear(left, linear, record["summary"])
    _bars(right, [row for row in rows if row["family"] != "linear"][::-1])
    figure.suptitle(_title("Kernels", record), fontsize=10)
    return figure


def _linear(axis: Any, rows: list[dict[str, Any]], summary: dict[str, Any]) -> None:
    megabytes = [row["GB_per_s"] * row["us"] / 1e3 for row in rows]
    axis.scatter(megabytes, [row["ratio"] for row in rows], s=14, color=[_colour(row) for row in rows])
    axis.axhline(1, color="black", linewidth=0.8)
    if rows:
        mean = summary["linear_geometric_mean"]
        axis.axhline(mean, color=OURS, linewidth=0.8, linestyle="--", label=f"geometric mean {mean:.2f}")
        axis.axhline(rows[0]["least_ratio"], color=GOAL, linewidth=0.8, linestyle=":", label="goal of each")
        axis.legend(fontsize=7)
        axis.set_xscale("log")
    axis.set_xlabel("MB that one row reads and writes", fontsize=8)
    axis.set_title("one-row linear + bias, bfloat16: cuBLAS's time / ours", fontsize=9)
    axis.grid(linewidth=0.3)


def _bars(axis: Any, rows: list[dict[str, Any]]) -> None:
    axis.barh(range(len(rows)), [row["ratio"] for row in rows], color=[_colour(row) for row in rows])
    for place, row in enumerate(rows):
        if row["least_ratio"] is not None:
            axis.plot([row["least_ratio"]] * 2, [place - 0.4, place + 0.4], color="black", linewidth=1.5)
    axis.set_yticks(range(len(rows)), [row["name"] for row in rows], fontsize=7)
    axis.set_title("torch's time / ours; a black line is a goal", fontsize=9)
    axis.grid(axis="x", linewidth=0.3)


def _colour(row: dict[str, Any]) -> str:
    return GOAL if row["ok"] is False else OURS


def decode(record: dict[str, Any]) -> Any:
    """Tokens a second of each way of running each model, and where a step's time goes."""
    figure, (left, right) = _pyplot().subplots(1, 2, figsize=(13, 5.5))
    ran = [
        (f"{model['model']}, {mode['mode']}", mode)
        for model in record["models"]
        for mode in model["modes"]
        if "tokens_per_s" in mode
    ][::-1]
    names = [name for name, _ in ran]
    colours = [OURS if mode["mode"] == "metal_inductor" else THEIRS for _, mode in ran]
    left.barh(range(len(ran)), [mode["tokens_per_s"] for _, mode in ran], color=colours)
    for place, (_, mode) in enumerate(ran):
        left.text(mode["tokens_per_s"], place, f" {mode['tokens_per_s']:.0f}", va="center", fontsize=7)
    left.set_yticks(range(len(ran)), names, fontsize=7)
    left.set_title(f"tokens a second, {record['context']} tokens of context", fontsize=9)
    profiled = [(name, mode["step"]) for name, mode in ran if mode.get("step", {}).get("kinds")]
    _stacked(right, profiled)
    figure.suptitle(_title("Decoding", record), fontsize=10)
    return figure


def _stacked(axis: Any, steps: list[tuple[str, dict[str, Any]]]) -> None:
    kinds = sorted({kind for _, step in steps for kind in step["kinds"]})
    left = [0.0] * len(steps)
    for colour, part in zip(COLOURS * 3, [*kinds, "gaps"]):
        widths = [step["gaps_us"] if part == "gaps" else step["kinds"].get(part, {}).get("us", 0) for _, step in steps]
        axis.barh(range(len(steps)), widths, left=left, color="white" if part == "gaps" else colour, label=part)
        left = [begin + width for begin, width in zip(left, widths)]
    for bar in axis.patches:
        bar.set_edgecolor("black")
        bar.set_linewidth(0.3)
    axis.set_yticks(range(len(steps)), [name for name, _ in steps], fontsize=7)
    axis.set_title("microseconds of a step on the GPU", fontsize=9)
    if steps:
        axis.legend(fontsize=7)


def _title(what: str, record: dict[str, Any]) -> str:
    machine = record["machine"]
    name = machine["gpu"] if record["device"] == "cuda" else machine["processor"]
    return f"{what} on {name}, torch {machine['torch']}, {record['date']}"


PLOTS: dict[str, Callable[[dict[str, Any]], Any]] = {"kernels": kernels, "decode": decode}


def draw(record: dict[str, Any], path: Path) -> None:
    """Writes the plot of a record; KeyError for one of a benchmark without a plot."""
    figure = PLOTS[record["benchmark"]](record)
    figure.tight_layout()
    figure.savefig(path, dpi=90, bbox_inches="tight")
    _pyplot().close(figure)


def beside(results: Path) -> None:
    """The plot of a result file next to it, where matplotlib is installed."""
    if importlib.util.find_spec("matplotlib"):
        draw(json.loads(results.read_text()), results.with_suffix(".png"))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plot", description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path)
    parser.add_argument("--out", type=Path, metavar="FILE.png", help="default: the result file's name, as PNG")
    options = parser.parse_args(arguments)
    draw(json.loads(options.results.read_text()), options.out or options.results.with_suffix(".png"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
