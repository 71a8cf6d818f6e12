"""Metal kernels on an NVIDIA GPU beside torch's own: bandwidth, a one-row linear layer, and what a launch costs.

    python -m benchmarks.metal_cuda --out FILE.json

Buffers rotate, so that nothing is read from the L2 cache that an earlier launch left there. Times are CUDA events
around runs of launches; the best and the median run are given. All figures that are compared come from one run.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks import machine
from metal_inductor.metal import compile_shader
from metal_inductor.runtime.cuda import check, driver

SOURCE = """
#include <metal_stdlib>
using namespace metal;

kernel void copy(device float4* y, device const float4* x, uint i [[thread_position_in_grid]]) { y[i] = x[i]; }

kernel void scale(device float4* y, device const float4* x, constant float& factor,
                  uint i [[thread_position_in_grid]]) {
  y[i] = x[i] * factor;
}

kernel void nothing(device float* out, constant int& wanted, uint i [[thread_position_in_grid]]) {
  if (i == uint(wanted)) out[i] = 1;
}

// A pair of bfloat in a word: the first in the low half.
inline float2 pair(uint word) { return float2(as_type<float>(word << 16), as_type<float>(word & 0xffff0000u)); }
inline float add_products(uint4 a, uint4 b, float sum) {
  for (int k = 0; k < 4; k++) {
    float2 x = pair(a[k]), y = pair(b[k]);
    sum = fma(x.y, y.y, fma(x.x, y.x, sum));
  }
  return sum;
}

// y = W x, W [rows, K] in bfloat: each simdgroup computes R rows, each lane reads 8 neighbouring elements at a time.
template <int K, int R>
kernel void linear(device bfloat* y, device const uint4* w, device const uint4* x,
                   uint group [[threadgroup_position_in_grid]], uint lane [[thread_index_in_simdgroup]],
                   uint simdgroup [[simdgroup_index_in_threadgroup]], uint simdgroups [[simdgroups_per_threadgroup]]) {
  uint row = (group * simdgroups + simdgroup) * R;
  w += ulong(row) * (K / 8) + lane;
  x += lane;
  float sums[R] = {0};
#pragma clang loop unroll_count(4)
  for (int k = 0; k < K / 8; k += 32) {
    uint4 right = x[k];
    for (int r = 0; r < R; r++) sums[r] = add_products(w[r * (K / 8) + k], right, sums[r]);
  }
  for (int r = 0; r < R; r++) {
    float sum = simd_sum(sums[r]);
    if (lane == 0) y[row + r] = bfloat(sum);
  }
}
template [[host_name("linear_1")]] kernel void linear<4096, 1>(device bfloat*, device const uint4*, device const uint4*,
                                                               uint, uint, uint, uint);
template [[host_name("linear_2")]] kernel void linear<4096, 2>(device bfloat*, device const uint4*, device const uint4*,
                                                               uint, uint, uint, uint);
template [[host_name("linear_4")]] kernel void linear<4096, 4>(device bfloat*, device const uint4*, device const uint4*,
                                                               uint, uint, uint, uint);
"""
NATIVE = b""".version 7.8
.target sm_80
.address_size 64
.visible .entry nothing() { ret; }
\0"""
ELEMENTS = 1 << 26  # 256 MiB of float, five times the L2 cache of an H200
ROWS, COLUMNS = 14336, 4096
GROUP_SIZES = (256, 512, 1024)
GRAPH_LAUNCHES = 500
CALLS = 3000


def timed(run: Callable[[int], None], launches: int = 12, runs: int = 25) -> dict[str, float]:
    """Microseconds of one launch: `run(k)` makes launch k."""
    for k in range(3):
        run(k)
    times = []
    for _ in range(runs):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begin.record()
        for k in range(launches):
            run(k)
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / launches)
    return {"best_us": round(min(times), 3), "median_us": round(statistics.median(times), 3)}


def as_graph(run: Callable[[int], None], launches: int) -> Callable[[int], None]:
    """The launches as one CUDA graph, so that no time of the host is in the figure."""
    run(0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for k in range(launches):
            run(k)
    return lambda _: graph.replay()


def in_graph(run: Callable[[int], None], launches: int, runs: int = 25) -> dict[str, float]:
    """Microseconds of one launch when a graph holds `launches` of them."""
    whole = timed(as_graph(run, launches), launches=1, runs=runs)
    return {name: round(value / launches, 3) for name, value in whole.items()}


def bandwidth(library: Any) -> dict[str, Any]:
    """Copy and scale of float4 at several threadgroup sizes beside torch's; GB/s counts a read and a write."""
    pairs = [(torch.rand(ELEMENTS, device="cuda"), torch.empty(ELEMENTS, device="cuda")) for _ in range(3)]
    rows: dict[str, Callable[[int], None]] = {
        "torch.mul": lambda k: torch.mul(pairs[k % 3][0], 2, out=pairs[k % 3][1]),
        "torch.copy_": lambda k: pairs[k % 3][1].copy_(pairs[k % 3][0]),
    }
    for size in GROUP_SIZES:
        rows[f"copy, {size} threads"] = lambda k, size=size: library.copy(
            pairs[k % 3][1], pairs[k % 3][0], threads=ELEMENTS // 4, group_size=size
        )
        rows[f"scale, {size} threads"] = lambda k, size=size: library.scale(
            pairs[k % 3][1], pairs[k % 3][0], 2.0, threads=ELEMENTS // 4, group_size=size
        )
    results = {name: in_graph(run, 12) for name, run in rows.items()}
    for x, y in pairs:
        library.scale(y, x, 2.0, threads=ELEMENTS // 4)
        assert torch.equal(y, x * 2)
    for result in results.values():
        result["GB_per_s"] = round(8 * ELEMENTS / result["median_us"] / 1e3)
    return results


def linear(library: Any) -> dict[str, Any]:
    """A row of 4096 times a weight of 14336 x 4096 in bfloat beside cuBLAS, over four weights in turn."""
    weights = [torch.randn(ROWS, COLUMNS, device="cuda", dtype=torch.bfloat16) / 64 for _ in range(4)]
    x = torch.randn(1, COLUMNS, device="cuda", dtype=torch.bfloat16)
    y = torch.empty(1, ROWS, device="cuda", dtype=torch.bfloat16)
    rows: dict[str, Callable[[int], None]] = {"cuBLAS": lambda k: F.linear(x, weights[k % 4])}
    for count in (1, 2, 4):
        for size in (128, 256, 512):
            kernel = getattr(library, f"linear_{count}")
            rows[f"{count} rows, {size} threads"] = lambda k, kernel=kernel, size=size, count=count: kernel(
                y, weights[k % 4], x, threads=ROWS // count * 32, group_size=size
            )
    results = {}
    for name, run in rows.items():
        results[name] = in_graph(run, 16)
        results[name]["GB_per_s"] = round(2 * ROWS * COLUMNS / results[name]["median_us"] / 1e3)
        run(0)
        exact = (x.double() @ weights[0].double().T).abs()
        error = (F.linear(x, weights[0]) if name == "cuBLAS" else y).double().abs() - exact
        results[name]["largest_error"] = round(error.abs().max().item(), 5)
    return results


def native_launch(threads: int) -> Callable[[int], None]:
    """Launches of an empty kernel of our own PTX, through the driver alone."""
    module = check(driver().cuModuleLoadData(NATIVE))
    function = check(driver().cuModuleGetFunction(module, b"nothing"))
    none = (ctypes.c_void_p * 1)()
    blocks = (threads // 256, 1, 1)

    def run(_: int) -> None:
        stream = torch.cuda.current_stream().cuda_stream
        check(driver().cuLaunchKernel(function, *blocks, 256, 1, 1, 0, stream, ctypes.addressof(none), 0))

    return run


def launches(library: Any) -> dict[str, Any]:
    """Microseconds of a kernel that does nothing, inside a graph and called from Python."""
    out = torch.zeros(1 << 16, device="cuda")
    results: dict[str, Any] = {}
    for threads in (256, 1 << 16):
        results[f"{threads} threads in a graph"] = {
            "native": in_graph(native_launch(threads), GRAPH_LAUNCHES),
            "metal": in_graph(
                lambda _, threads=threads: library.nothing(out, -1, threads=threads, group_size=256), GRAPH_LAUNCHES
            ),
        }
    results["call from Python"] = {
        "metal": call_time(lambda: library.nothing(out, -1, threads=256, group_size=256)),
        "torch.mul": call_time(lambda: torch.mul(out[:256], 2, out=out[:256])),
    }
    return results


def call_time(call: Callable[[], Any]) -> dict[str, float]:
    """Microseconds that the host spends on a call, with the GPU never far behind."""
    times = []
    for _ in range(CALLS // 100):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(100):
            call()
        times.append((time.perf_counter() - begin) * 1e4)
    return {"best_us": round(min(times), 3), "median_us": round(statistics.median(times), 3)}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.metal_cuda", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="write the figures, with the machine, to this file")
    options = parser.parse_args(arguments)
    library = compile_shader(SOURCE, "cuda")
    record: dict[str, Any] = {"machine": machine.describe()}
    for name, part in (("bandwidth", bandwidth), ("linear", linear), ("launches", launches)):
        record[name] = part(library)
        print(name, json.dumps(record[name], indent=1), flush=True)
    if options.out:
        options.out.write_text(json.dumps(record, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
