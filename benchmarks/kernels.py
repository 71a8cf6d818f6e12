"""Our kernels beside torch's own, in one run: one-row linear layers, softmax, argmax, attention and norms.

    python -m benchmarks.kernels [--device cuda|mps|cpu] [--families linear,softmax] [--output FILE.json]

Ours are the kernels that `torch.compile(..., backend="metal_inductor")` makes of each function. On CUDA both sides are
replayed from CUDA graphs, and inputs rotate, so that none is left in the L2 cache from its last use. Each result is
compared with float64 in the same run. Beside the JSON file goes a plot as PNG where matplotlib is installed;
`python -m benchmarks.plot FILE.json` makes it elsewhere.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import statistics
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks import kernel_rows, machine, plot, timing
from benchmarks.kernel_rows import Inputs, Row
from metal_inductor import report
from metal_inductor.compiler import backend

ERROR_LIMIT = 1.5  # times torch's own error against float64
MEAN_GOAL = 1.23  # geometric mean of cuBLAS's time over ours
MOST_SETS = 1024  # of inputs: beyond it the smallest stay in the cache, which their row says
CACHES = 3  # times the cache's bytes that the sets of inputs make up
ELEMENTS_CHECKED = 4096  # at least, over several sets of inputs where a result is smaller
GUESSED_BYTES_PER_US = 4e6
MOST_JOBS = 16


def compiled(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`function` through the backend, as a user compiles it; forgets what was compiled before."""
    torch._dynamo.reset()
    return torch.compile(function, backend=backend, fullgraph=True, dynamic=False)


def fill_cache(rows: Sequence[Row], device: str, jobs: int) -> None:
    """Compiles the rows' kernels in parallel processes, so that the measuring process finds them on disk."""
    names = [row.name for row in rows]
    parts = [names[start::jobs] for start in range(min(jobs, len(names)))]
    context = multiprocessing.get_context("spawn")  # a forked process could not use CUDA
    with ProcessPoolExecutor(len(parts), mp_context=context) as pool:
        list(pool.map(compile_rows, parts, itertools.repeat(device)))


def compile_rows(names: list[str], device: str) -> None:
    """Compiles and runs rows once. What fails is left for the measuring process to fail on and to report."""
    for row in kernel_rows.by_name(names):
        try:
            with torch.no_grad():
                compiled(row.function)(*row.inputs(device))
        except Exception:
            continue


def input_sets(row: Row, device: str) -> tuple[list[Inputs], bool]:
    """Inputs to take in turn, and whether they exceed the cache together."""
    first = row.inputs(device)
    size, cache = sum(value.nbytes for value in first), timing.cache_bytes(device)
    wanted = max(1, min(MOST_SETS, -(-CACHES * cache // size)))
    return [first, *(row.inputs(device) for _ in range(wanted - 1))], wanted * size >= 2 * cache


def largest_error(function: Callable[..., Tensor], sets: Sequence[Inputs], exact: Sequence[Tensor]) -> float:
    differences = (kernel_rows.in_float64(function(*inputs)) - right for inputs, right in zip(sets, exact))
    return max(difference.abs().max().item() for difference in differences)


def rounding(results: Tensor, exact: Sequence[Tensor]) -> float:
    """Half a unit in the last place of the largest result: what writing it costs however it was computed."""
    if not results.is_floating_point():
        return 0.0
    return torch.finfo(results.dtype).eps / 2 * max(right.abs().max().item() for right in exact)


def accuracy(row: Row, ours: Callable[..., Tensor], sets: Sequence[Inputs]) -> dict[str, Any]:
    """Largest errors against float64, ours and torch's, and whether ours is within the limit."""
    result = row.function(*sets[0])
    some = sets[: max(1, ELEMENTS_CHECKED // max(1, result.numel()))][:16]
    exact = [row.exactly(*inputs) for inputs in some]
    mine, theirs = largest_error(ours, some, exact), largest_error(row.function, some, exact)
    correct = mine <= max(ERROR_LIMIT * theirs, rounding(result, exact))
    return {"error": mine, "torch_error": theirs, "correct": correct}


def measure(row: Row, device: str, rounds: int, ceiling: float) -> dict[str, Any]:
    """Times, errors and goals of one row; `ceiling` is the read ceiling in GB/s."""
    ours, (sets, cold) = compiled(row.function), input_sets(row, device)
    with torch.no_grad(), report.collect() as graphs:
        figures = accuracy(row, ours, sets)
        functions = {"ours": ours, row.function_name: row.function, **row.torch_ways}
        ways = {name: [_call(function, inputs) for inputs in sets] for name, function in functions.items()}
        times = timing.medians(ways, device, rounds, guess_us=2 + row.moved_bytes / GUESSED_BYTES_PER_US)
    mine = times.pop("ours")
    best = min(times, key=times.__getitem__)
    figures |= {
        "kernels": sum(len(graph.kernels) for graph in graphs),
        "aten_calls": dict(sum((graph.extern_calls for graph in graphs), Counter())),
        "input_sets": len(sets),
        "past_cache": cold,
    }
    return judged(row, mine, best, times, ceiling) | figures


def _call(function: Callable[..., Tensor], inputs: Inputs) -> timing.Call:
    return lambda: function(*inputs)


def judged(row: Row, mine: float, best: str, times: dict[str, float], ceiling: float) -> dict[str, Any]:
    """The figures of a row from its microseconds; `best` is the fastest of torch's ways."""
    bandwidth = row.moved_bytes / mine / 1e3
    result = {
        "family": row.family,
        "name": row.name,
        "us": round(mine, 3),
        "torch_us": round(times[best], 3),
        "torch_way": best,
        "torch_ways_us": {name: round(value, 3) for name, value in times.items()},
        "ratio": round(times[best] / mine, 4),
        "GB_per_s": round(bandwidth, 1),
        "share_of_ceiling": round(bandwidth / ceiling, 4),
        "least_ratio": row.least_ratio,
        "least_share": row.least_share,
    }
    if row.flops:
        result["TFLOP_per_s"] = round(row.flops / mine / 1e6, 1)
    return result


def reached(result: dict[str, Any]) -> bool | None:
    """Whether a row's result is right, our own and at its goals; None for a right one without a goal."""
    if "failed" in result or not result["correct"]:
        return False
    goals = [("ratio", result["least_ratio"]), ("share_of_ceiling", result["least_share"])]
    goals = [(key, least) for key, least in goals if least is not None]
    return not result["aten_calls"] and all(result[key] >= least for key, least in goals) if goals else None


def measure_ceiling(device: str, rounds: int, shape: tuple[int, int]) -> float:
    """GB/s at which torch's own matrix-vector product reads its weight."""
    row = kernel_rows.ceiling(*shape)
    sets, _ = input_sets(row, device)
    with torch.no_grad():
        ways = {"torch": [_call(row.function, inputs) for inputs in sets]}
        times = timing.medians(ways, device, rounds, guess_us=row.moved_bytes / GUESSED_BYTES_PER_US)
    return row.moved_bytes / times["torch"] / 1e3


def attempt(row: Row, device: str, rounds: int, ceiling: float) -> dict[str, Any]:
    """`measure`, or what stopped it: one row must not cost the others."""
    try:
        result = measure(row, device, rounds, ceiling)
    except Exception as error:
        first = (str(error).splitlines() or [""])[0]
        result = {"family": row.family, "name": row.name, "failed": f"{type(error).__name__}: {first}"[:300]}
    if device == "cuda":
        torch.cuda.empty_cache()
    return result | {"ok": reached(result)}


def summarise(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The figures that stand for all rows."""
    linear = [row for row in rows if row["family"] == "linear" and "failed" not in row]
    large = [row["share_of_ceiling"] for row in linear if row["least_share"] is not None]
    ratios = [row["ratio"] for row in linear]
    return {
        "rows": len(rows),
        "rows_with_goal": sum(row["ok"] is not None for row in rows),
        "rows_ok": sum(row["ok"] is True for row in rows),
        "wrong": [row["name"] for row in rows if "failed" in row or not row["correct"]],
        "linear_rows": len(linear),
        "linear_geometric_mean": round(statistics.geometric_mean(ratios), 4) if ratios else None,
        "linear_geometric_mean_goal": MEAN_GOAL,
        "linear_more_than_2_percent_slower": sum(row["ratio"] < row["least_ratio"] for row in linear),
        "least_share_of_large_outputs": min(large, default=None),
    }


HEADING = f"{'':44}{'us':>9}{'torch us':>10}{'ratio':>7}{'GB/s':>7}{'share':>7}  {'goal':24}ok"


def line(row: dict[str, Any]) -> str:
    """A row of the table."""
    if "failed" in row:
        return f"{row['name']:44}failed: {row['failed']}"
    goal = " ".join(
        text
        for text, least in (
            (f">= {row['least_ratio']}x", row["least_ratio"]),
            (f">= {row['least_share']} share", row["least_share"]),
        )
        if least is not None
    )
    verdict = {True: "yes", False: "NO", None: "-"}[row["ok"]] + ("" if row["correct"] else " WRONG")
    flops = f" {row['TFLOP_per_s']} TFLOP/s" if "TFLOP_per_s" in row else ""
    way = f" ({row['torch_way']})" if len(row["torch_ways_us"]) > 1 else ""
    way += f" ours calls {', '.join(row['aten_calls'])}" if row["aten_calls"] else ""
    figures = f"{row['us']:9.2f}{row['torch_us']:10.2f}{row['ratio']:7.2f}{row['GB_per_s']:7.0f}"
    return f"{row['name']:44}{figures}{row['share_of_ceiling']:7.2f}  {goal:24}{verdict}{flops}{way}"


def show(record: dict[str, Any], everything: bool) -> None:
    """The table: linear layers only where they miss a goal, unless `everything` is wanted."""
    print(f"read ceiling: {record['read_ceiling_GB_per_s']} GB/s")
    print(HEADING)
    for row in record["rows"]:
        if everything or row["family"] != "linear" or not row["ok"]:
            print(line(row))
    for name, value in record["summary"].items():
        print(f"{name.replace('_', ' ')}: {value}")
    print(f"{record['seconds']} s", flush=True)


def run(families: Sequence[str], device: str, rounds: int, jobs: int, shape: tuple[int, int]) -> dict[str, Any]:
    """All rows of the families as one record."""
    begin = time.perf_counter()
    rows = [row for family in families for row in kernel_rows.FAMILIES[family]]
    if jobs > 1:
        fill_cache(rows, device, jobs)
    compile_seconds = time.perf_counter() - begin
    torch.manual_seed(0)
    ceiling = measure_ceiling(device, rounds, shape)
    results = [attempt(row, device, rounds, ceiling) for row in rows]
    return {
        "benchmark": "kernels",
        **machine.provenance(),
        "device": device,
        "read_ceiling_GB_per_s": round(ceiling, 1),
        "read_ceiling_shape": shape,
        "compile_seconds": round(compile_seconds, 1),
        "seconds": round(time.perf_counter() - begin, 1),
        "summary": summarise(results),
        "rows": results,
    }


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(prog="python -m benchmarks.kernels", description=__doc__.splitlines()[0])
    result.add_argument("--device", choices=("cuda", "mps", "cpu"), default=machine.best_device())
    result.add_argument("--families", default=",".join(kernel_rows.FAMILIES), help="default: %(default)s")
    result.add_argument("--rounds", type=int, default=11, help="time stamps of each run; default: %(default)s")
    result.add_argument("--jobs", type=int, help="processes that compile kernels; default: one a core, up to 16")
    result.add_argument("--all", action="store_true", help="print every linear layer, not only those that miss a goal")
    result.add_argument("--output", type=Path, metavar="FILE.json", help="write the figures, and their plot")
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status is 1 where a result is wrong or could not be measured; a missed goal is a figure, no failure."""
    options = parser().parse_args(arguments)
    families = options.families.split(",")
    for family in families:
        if family not in kernel_rows.FAMILIES:
            parser().error(f"no family {family!r}; valid: {', '.join(kernel_rows.FAMILIES)}")
    warnings.filterwarnings("ignore")
    jobs = options.jobs or (min(MOST_JOBS, os.cpu_count() or 1) if options.device == "cuda" else 1)
    record = run(families, options.device, options.rounds, jobs, kernel_rows.CEILING_SHAPES[options.device])
    show(record, options.all)
    if options.output:
        options.output.write_text(json.dumps(record, indent=1) + "\n")
        plot.beside(options.output)
    return 1 if record["summary"]["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
