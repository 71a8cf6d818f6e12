"""Runs, checks and times a Metal kernel on any device: python examples/metal/anywhere.py [cpu|cuda|mps]"""

import sys

import numpy as np
import torch
from torch.utils.benchmark import Timer

import metal_inductor

SOURCE = """
#include <metal_stdlib>
using namespace metal;

// One threadgroup a row: out = x / sqrt(mean(x * x) + epsilon) * weight.
kernel void rms_norm(
    device float* out [[buffer(0)]],
    device const float* x [[buffer(1)]],
    device const float* weight [[buffer(2)]],
    constant long& width [[buffer(3)]],
    constant float& epsilon [[buffer(4)]],
    uint row [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint threads [[threads_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]]) {
  threadgroup float sums[32];
  x += row * width;
  out += row * width;
  float sum = 0;
  for (uint i = thread_index; i < width; i += threads) sum += x[i] * x[i];
  sum = simd_sum(sum);
  if (lane == 0) sums[simdgroup] = sum;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  sum = simd_sum(lane < simdgroups ? sums[lane] : 0.0f);
  const float scale = rsqrt(sum / float(width) + epsilon);
  for (uint i = thread_index; i < width; i += threads) out[i] = x[i] * scale * weight[i];
}
"""
ROWS, WIDTH, THREADS, EPSILON = 512, 4000, 256, 1e-5


def run(kernel, out, x, weight, **options):
    kernel(out, x, weight, WIDTH, EPSILON, threads=ROWS * THREADS, group_size=THREADS, **options)


def main(device: str) -> None:
    # compile: a mistake is a SyntaxError with the line of the text above
    kernel = metal_inductor.compile_shader(SOURCE, device=device).rms_norm

    # run
    x, weight = torch.randn(ROWS, WIDTH, device=device), torch.randn(WIDTH, device=device)
    out = torch.full_like(x, float("nan"))
    run(kernel, out, x, weight)

    # compare with numpy, in double precision
    wide = x.cpu().numpy().astype(np.float64)
    expected = wide / np.sqrt((wide * wide).mean(1, keepdims=True) + EPSILON) * weight.cpu().numpy()
    print(f"largest error       {np.abs(out.cpu().numpy() - expected).max():.1e} of {np.abs(expected).max():.1f}")

    # time
    timer = Timer("run(kernel, out, x, weight)", globals={**globals(), **locals()})
    seconds = timer.blocked_autorange(min_run_time=0.5).median
    print(f"time                {seconds * 1e6:.0f} us, {2 * x.nbytes / seconds / 1e9:.1f} GB/s on {device}")

    # look for races and accesses out of bounds: on the CPU, whatever device the kernel is for
    checked = metal_inductor.compile_shader(SOURCE, device="cpu").rms_norm
    few = [tensor.cpu() for tensor in (out, x, weight)]
    run(checked, *few, checks="all")
    print("checks              clean")

    # what they say when the barrier is forgotten
    barrier = "threadgroup_barrier(mem_flags::mem_threadgroup);"
    broken = metal_inductor.compile_shader(SOURCE.replace(barrier, ""), device="cpu").rms_norm
    try:
        run(broken, *few, checks="all")
    except metal_inductor.MetalCheckError as error:
        print(f"without the barrier {error}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "cpu")
