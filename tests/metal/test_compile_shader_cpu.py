"""What `compile_shader` does on the CPU alone: errors of a running kernel, and the shuffled order of threads."""

from __future__ import annotations

import pytest
import torch

import metal_inductor
from metal_inductor.runtime.cpu import MetalRuntimeError, configure

SOURCE = """
#include <metal_stdlib>
using namespace metal;

kernel void full(device float* out, constant float& value, uint i [[thread_position_in_grid]]) { out[i] = value; }

kernel void deadlock(device float* out, uint i [[thread_position_in_threadgroup]]) {
  if (i < 5) return;
  threadgroup_barrier(mem_flags::mem_none);
  out[i] = 1;
}

kernel void order(device uint* out, device atomic_uint* next, uint i [[thread_position_in_threadgroup]]) {
  threadgroup_barrier(mem_flags::mem_none);
  out[i] = atomic_fetch_add_explicit(next, 1u, memory_order_relaxed);
}
"""


@pytest.fixture(scope="module")
def library():
    return metal_inductor.compile_shader(SOURCE, device="cpu")


def test_a_deadlock_is_an_error_and_the_process_goes_on(library):
    with pytest.raises(MetalRuntimeError, match="'deadlock'.*threadgroup_barrier"):
        library.deadlock(torch.zeros(64), threads=64, group_size=64)
    out = torch.zeros(4)
    library.full(out, 1.0)
    assert out.all()


def test_a_seed_changes_the_order_of_threads(library):
    def order(seed: int) -> list[int]:
        configure(schedule=seed)
        out = torch.zeros(64, dtype=torch.int32)
        library.order(out, torch.zeros(1, dtype=torch.int32), threads=64, group_size=64)
        configure(schedule=0)
        return out.tolist()

    assert order(0) == order(0) and order(5) == order(5) and order(0) != order(5)
    assert sorted(order(7)) == list(range(64))
