"""Time Metal kernels on the CPU device beside torch eager on one thread.

    python -m benchmarks.metal_cpu [--out RESULTS.json] [--rounds N]

Each round runs every kernel on one core and on all, and eager; the best of all rounds counts. All but the wall times
are processor time, which other programs hardly change: one core beside eager, and beside the busiest thread on all
cores, which is the speedup of an idle machine. A row whose result differs from eager's is an error. Beside the JSON
file goes a plot of the same name as PNG, where matplotlib is installed. Linux only: it reads /proc.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks import machine
from metal_inductor import compile_shader
from metal_inductor.runtime import cpu

SOURCE = Path(__file__).with_suffix(".metal")
POINTWISE_SIZE = 1 << 22
REPETITIONS = 1000
_GELU = "0.5f * x * (1.0f + precise::tanh(0.79788456f * (x + 0.044715f * x * x * x)))"
# name -> (expression of x, eager's function, range of the inputs)
POINTWISE: dict[str, tuple[str, Callable[[torch.Tensor], torch.Tensor], tuple[float, float]]] = {
    "copy": ("x", torch.clone, (-4, 4)),
    "tanh": ("tanh(x)", torch.tanh, (-4, 4)),
    "fast_tanh": ("fast::tanh(x)", torch.tanh, (-4, 4)),
    "exp": ("exp(x)", torch.exp, (-10, 10)),
    "fast_exp": ("fast::exp(x)", torch.exp, (-10, 10)),
    "exp2": ("exp2(x)", torch.exp2, (-10, 10)),
    "log": ("log(x)", torch.log, (0.01, 100)),
    "log2": ("log2(x)", torch.log2, (0.01, 100)),
    "sin": ("sin(x)", torch.sin, (-10, 10)),
    "cos": ("cos(x)", torch.cos, (-10, 10)),
    "sqrt": ("sqrt(x)", torch.sqrt, (0.01, 100)),
    "rsqrt": ("rsqrt(x)", torch.rsqrt, (0.01, 100)),
    "pow": ("pow(x, 1.75f)", lambda x: torch.pow(x, 1.75), (0.01, 100)),
    "fmod": ("fmod(x, 0.75f)", lambda x: torch.fmod(x, 0.75), (-10, 10)),
    "sigmoid": ("1.0f / (1.0f + exp(-x))", torch.sigmoid, (-8, 8)),
    "silu": ("x / (1.0f + exp(-x))", F.silu, (-8, 8)),
    "gelu": (_GELU, lambda x: F.gelu(x, approximate="tanh"), (-8, 8)),
}
TYPES = {"float": torch.float32, "half": torch.float16, "bfloat": torch.bfloat16}


@dataclasses.dataclass
class Row:
    """A kernel on its arguments, and the function of torch that computes the same."""

    name: str
    path: str  # "loop" or "fibers"
    run: Callable[[], torch.Tensor]
    eager: Callable[[], torch.Tensor]
    best: dict[str, float] = dataclasses.field(default_factory=dict)  # seconds

    def check(self) -> None:
        """Raises AssertionError when the kernel's result is not eager's."""
        expected = self.eager()
        torch.testing.assert_close(self.run(), expected, rtol=2 * torch.finfo(expected.dtype).eps + 1e-5, atol=1e-4)

    def sample(self) -> None:
        """One round; the first run after a change of the number of cores is not timed."""
        cpu.configure(threads=0)
        self.run()
        self._note("all_cores_wall", self.run, time.perf_counter)
        self._keep_best("busiest_thread", busiest_thread_seconds(self.run))
        cpu.configure(threads=1)
        self._note("one_core_wall", self.run, time.perf_counter)
        self._note("one_core", self.run, time.process_time)
        self._note("eager", self.eager, time.process_time)

    def _note(self, key: str, function: Callable[[], object], clock: Callable[[], float]) -> None:
        self._keep_best(key, seconds(function, clock))

    def _keep_best(self, key: str, value: float) -> None:
        self.best[key] = min(self.best.get(key, float("inf")), value)

    def result(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "path": self.path,
            **{f"{key}_ms": round(1e3 * value, 4) for key, value in self.best.items()},
            "times_eager": round(self.best["one_core"] / self.best["eager"], 3),
            "speedup": round(self.best["one_core"] / self.best["busiest_thread"], 3),
            "speedup_wall": round(self.best["one_core_wall"] / self.best["all_cores_wall"], 3),
        }


def compiled() -> Any:
    lines = [
        f"POINTWISE({name}_{metal}, {metal}, {expression})"
        for name, (expression, _, _) in POINTWISE.items()
        for metal in TYPES
    ]
    return compile_shader(SOURCE.read_text() + "\n".join(lines) + "\n", device="cpu")


def pointwise_rows(library: Any) -> list[Row]:
    return [
        _pointwise_row(library, name, metal, eager, limits)
        for name, (_, eager, limits) in POINTWISE.items()
        for metal in TYPES
    ]


def _pointwise_row(library: Any, name: str, metal: str, eager: Callable, limits: tuple[float, float]) -> Row:
    x = torch.empty(POINTWISE_SIZE).uniform_(*limits).to(TYPES[metal])
    out = torch.empty_like(x)
    kernel = getattr(library, f"{name}_{metal}")

    def run() -> torch.Tensor:
        kernel(x, out, threads=POINTWISE_SIZE, group_size=1024)
        return out

    return Row(f"{name} of {POINTWISE_SIZE >> 20}M {metal}", "loop", run, lambda: eager(x))


def _row_on_fibers(kernel: Any, name: str, inputs: list[torch.Tensor], n: int, eager: Callable, geometry: dict) -> Row:
    """A kernel whose buffers are the inputs, the output and the int n."""
    out = torch.empty_like(eager(*inputs))

    def run() -> torch.Tensor:
        kernel(*inputs, out, n, arg_casts="int32", **geometry)
        return out

    return Row(name, "fibers", run, lambda: eager(*inputs))


def fiber_rows(library: Any) -> list[Row]:
    x, matrix, square = torch.randn(64, 4000), torch.randn(2048, 2048), torch.randn(256, 256)
    sizes = {width: {"threads": 64 * width, "group_size": width} for width in (256, 1024)}
    return [
        *(
            _row_on_fibers(
                library.softmax, f"softmax 64 x 4000, {width} threads", [x], 4000, lambda x: x.softmax(-1), size
            )
            for width, size in sizes.items()
        ),
        _row_on_fibers(
            library.matrix_times_vector,
            "2048 x 2048 matrix times vector, simd_sum",
            [matrix, torch.randn(2048)],
            2048,
            torch.mv,
            {"threads": 2048 * 32, "group_size": 32},
        ),
        _row_on_fibers(
            library.matrix_product,
            "256 x 256 x 256 product, simdgroup_matrix",
            [square, torch.randn(256, 256)],
            256,
            torch.mm,
            {"threads": (32 * 32, 32), "group_size": (32, 1)},
        ),
        _row_on_fibers(
            library.transpose,
            "transpose 2048 x 2048, threadgroup memory",
            [matrix],
            2048,
            lambda x: x.t().contiguous(),
            {"threads": (2048, 512), "group_size": (32, 8)},
        ),
    ]


def seconds(function: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    begin = clock()
    function()
    return clock() - begin


def thread_seconds() -> dict[int, float]:
    """Processor time of each thread of this process, by its number in Linux: the clock's number is made of it."""
    return {thread: time.clock_gettime(~thread << 3 | 6) for thread in map(int, os.listdir("/proc/self/task"))}


def busiest_thread_seconds(function: Callable[[], object]) -> float:
    before = thread_seconds()
    function()
    return max(after - before.get(thread, 0.0) for thread, after in thread_seconds().items())


def measure(rows: list[Row], rounds: int) -> list[dict[str, Any]]:
    """Rounds over all rows: what another program disturbs is spread over them."""
    for row in rows:
        row.check()
    for done in range(rounds):
        for row in rows:
            row.sample()
        print(f"round {done + 1} of {rounds}", file=sys.stderr, flush=True)
    return [row.result() for row in rows]


def operation_costs(library: Any, rounds: int) -> dict[str, float]:
    """Nanoseconds that one thread spends on one operation, on one core."""
    cpu.configure(threads=1)
    costs = {}
    sizes = {"barrier": (32, 128, 1024)}
    for name in ("barrier", "shuffle", "sum", "max", "prefix", "any", "quad", "product"):
        for size in sizes.get(name, (32,)):
            kernel, out = getattr(library, f"repeat_{name}"), torch.empty(size)

            def run() -> None:
                kernel(out, REPETITIONS, threads=size, group_size=size, arg_casts="int32")  # noqa: B023

            best = min(seconds(run, time.process_time) for _ in range(4 * rounds))
            costs[f"{name}, {size} threads"] = round(best / size / REPETITIONS * 1e9, 2)
    return costs


def plot(record: dict[str, Any], path: Path) -> None:
    """Horizontal bars: times of eager's on one core, and the speedup of all cores."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = record["kernels"][::-1]
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(13, 0.22 * len(rows) + 1.6), sharey=True)
    colours = {"loop": "#4477aa", "fibers": "#cc6677"}
    for axis, key, title in (
        (left, "times_eager", "time on one core / eager's on one thread"),
        (right, "speedup", f"speedup on {record['machine']['cores']} cores"),
    ):
        axis.barh(range(len(rows)), [row[key] for row in rows], color=[colours[row["path"]] for row in rows])
        axis.set_yticks(range(len(rows)), [row["name"] for row in rows], fontsize=7)
        axis.axvline(1, color="black", linewidth=0.8)
        axis.set_title(title, fontsize=9)
        axis.grid(axis="x", linewidth=0.3)
    left.set_xscale("log")
    left.set_ylim(-0.7, len(rows) - 0.3)
    handles = [pyplot.Rectangle((0, 0), 1, 1, color=colour) for colour in colours.values()]
    right.legend(handles, colours, fontsize=7)
    figure.suptitle(f"Metal kernels on {record['machine']['processor']}", fontsize=10)
    figure.tight_layout()
    figure.savefig(path, dpi=90, bbox_inches="tight")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.metal_cpu", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    library = compiled()
    rows = measure(pointwise_rows(library) + fiber_rows(library), options.rounds)
    print(f"{'milliseconds':44}{'one core':>10}{'eager':>10}{'/ eager':>9}{'speedup':>9}{'by wall':>9}")
    for row in rows:
        times = "".join(f"{row[key]:10.3f}" for key in ("one_core_ms", "eager_ms"))
        print(f"{row['name']:44}{times}{row['times_eager']:9.2f}{row['speedup']:9.2f}{row['speedup_wall']:9.2f}")
    costs = operation_costs(library, options.rounds)
    for name, nanoseconds in costs.items():
        print(f"{name:44}{nanoseconds:10.2f} ns a thread")
    record = {
        "machine": machine.describe(),
        "load_average": round(os.getloadavg()[0], 2),
        "kernels": rows,
        "operations_ns": costs,
    }
    if options.out:
        options.out.write_text(json.dumps(record, indent=1) + "\n")
        if importlib.util.find_spec("matplotlib"):
            plot(record, options.out.with_suffix(".png"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
