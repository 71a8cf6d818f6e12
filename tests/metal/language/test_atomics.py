"""<metal_atomic>: every operation on every type that it is for, by a thousand threads at once."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch

from metal_inductor.metal import compile_shader
from metal_inductor.metal.frontend import MetalSyntaxError

HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"
COUNT, GROUP = 1000, 100
VALUES = np.random.default_rng(0).integers(-(2**31), 2**31 - 1, COUNT)
WORDS = VALUES & 0xFFFFFFFF
RELAXED = "memory_order_relaxed"
# name: (atomic type, initial value, operation on p with t and v = VALUES[t], expected value). All commute.
OPERATIONS = {
    "add_int": ("int", 5, f"atomic_fetch_add_explicit(p, v, {RELAXED})", (5 + VALUES.sum() + 2**31) % 2**32 - 2**31),
    "add_uint": ("uint", 5, f"atomic_fetch_add_explicit(p, uint(v), {RELAXED})", (5 + WORDS.sum()) % 2**32),
    "add_float": ("float", 0.5, f"atomic_fetch_add_explicit(p, float(t), {RELAXED})", 0.5 + COUNT * (COUNT - 1) / 2),
    "sub_int": ("int", 5, f"atomic_fetch_sub_explicit(p, int(t), {RELAXED})", 5 - COUNT * (COUNT - 1) // 2),
    "sub_float": ("float", 0, f"atomic_fetch_sub_explicit(p, 2.0f, {RELAXED})", -2.0 * COUNT),
    "min_int": ("int", 2**31 - 1, f"atomic_fetch_min_explicit(p, v, {RELAXED})", VALUES.min()),
    "max_int": ("int", -(2**31), f"atomic_fetch_max_explicit(p, v, {RELAXED})", VALUES.max()),
    "min_uint": ("uint", 2**32 - 1, f"atomic_fetch_min_explicit(p, uint(v), {RELAXED})", WORDS.min()),
    "max_uint": ("uint", 0, f"atomic_fetch_max_explicit(p, uint(v), {RELAXED})", WORDS.max()),
    "and_uint": ("uint", 2**32 - 1, f"atomic_fetch_and_explicit(p, ~(1u << (t % 7)), {RELAXED})", 2**32 - 1 - 127),
    "or_int": ("int", 0, f"atomic_fetch_or_explicit(p, 1 << (t % 9), {RELAXED})", 511),
    "xor_uint": ("uint", 3, f"atomic_fetch_xor_explicit(p, uint(v), {RELAXED})", 3 ^ np.bitwise_xor.reduce(WORDS)),
    "max_ulong": ("ulong", 0, f"atomic_max_explicit(p, ulong(t) << 33, {RELAXED})", (COUNT - 1) << 33),
    "min_ulong": ("ulong", 2**64 - 1, f"atomic_min_explicit(p, (ulong(t) << 33) + 7, {RELAXED})", 7),
    "store_bool": ("bool", 0, f"atomic_store_explicit(p, true, {RELAXED})", 1),
    "exchange_int": ("int", 7, f"atomic_exchange_explicit(p, 42, {RELAXED})", 42),
    "exchange_float": ("float", 7, f"atomic_exchange_explicit(p, 2.5f, {RELAXED})", 2.5),
    "compare_exchange_float": (
        "float",
        1,
        f"float e = atomic_load_explicit(p, {RELAXED});"
        f" while (!atomic_compare_exchange_weak_explicit(p, &e, e + 2.0f, {RELAXED}, {RELAXED})) {{}}",
        1 + 2.0 * COUNT,
    ),
    "compare_exchange_uint": (
        "uint",
        2,
        f"uint e = atomic_load_explicit(p, {RELAXED});"
        f" while (!atomic_compare_exchange_weak_explicit(p, &e, max(e, uint(v)), {RELAXED}, {RELAXED})) {{}}",
        WORDS.max(),
    ),
    "compare_exchange_bool": (
        "bool",
        0,
        f"bool e = false; atomic_compare_exchange_weak_explicit(p, &e, true, {RELAXED}, {RELAXED})",
        1,
    ),
}
SHARED = [name for name, (metal, *_) in OPERATIONS.items() if metal in ("int", "uint", "bool")]
DTYPES = {"int": torch.int32, "uint": torch.int32, "float": torch.float32, "ulong": torch.int64, "bool": torch.uint8}
ONCE = """
kernel void numbered(device atomic_uint& next, device uint* taken, uint t [[thread_position_in_grid]]) {
  taken[t] = atomic_fetch_add_explicit(&next, 1u, memory_order_relaxed);
}
kernel void elected(device atomic_bool* flag, device atomic_int* winners) {
  if (!atomic_exchange_explicit(flag, true, memory_order_relaxed))
    atomic_fetch_add_explicit(winners, 1, memory_order_relaxed);
}
kernel void failed(device atomic_int* p, device int* o) {
  int expected = 5;
  o[0] = atomic_compare_exchange_weak_explicit(p, &expected, 6, memory_order_relaxed, memory_order_relaxed);
  o[1] = expected;
  o[2] = atomic_load_explicit(p, memory_order_relaxed);
}
kernel void last_group(device atomic_uint& done, device float* partial, device float* total,
    uint t [[thread_index_in_threadgroup]], uint g [[threadgroup_position_in_grid]],
    uint n [[threadgroups_per_grid]]) {
  threadgroup bool last;
  if (t == 0) {
    partial[g] = float(g + 1);
    atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst, thread_scope_device);
    last = atomic_fetch_add_explicit(&done, 1u, memory_order_relaxed) == n - 1;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (last && t == 0) {
    atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst);
    float sum = 0;
    for (uint i = 0; i < n; ++i) sum += partial[i];
    total[0] = sum;
  }
}
"""


@functools.cache
def library(device: str):
    text = "".join(
        f"kernel void device_{name}(device atomic_{metal}* p, device const int* values,"
        f" uint t [[thread_position_in_grid]]) {{ int v = values[t]; {operation}; }}\n"
        for name, (metal, _, operation, _) in OPERATIONS.items()
    )
    text += "".join(
        f"kernel void shared_{name}(device {metal}* o, device const int* values,"
        f" uint t [[thread_index_in_threadgroup]]) {{ threadgroup atomic_{metal} s; int v = values[t];"
        f" threadgroup atomic_{metal}* p = &s;"
        f" if (t == 0) atomic_store_explicit(p, o[0], {RELAXED}); threadgroup_barrier(mem_flags::mem_threadgroup);"
        f" {operation}; threadgroup_barrier(mem_flags::mem_threadgroup);"
        f" if (t == 0) o[0] = atomic_load_explicit(p, {RELAXED}); }}\n"
        for name, (metal, _, operation, _) in OPERATIONS.items()
        if name in SHARED
    )
    return compile_shader(HEAD + text + ONCE, device=device)


def cell(metal: str, value: object) -> np.ndarray:
    types = {"int": np.int32, "uint": np.uint32, "float": np.float32, "ulong": np.uint64, "bool": np.uint8}
    return np.array([value], types[metal])


def run(device: str, name: str, kind: str, threads: int, group: int) -> None:
    metal, initial, _, expected = OPERATIONS[name]
    memory = torch.from_numpy(cell(metal, initial).view(np.uint8).copy()).view(DTYPES[metal]).to(device)
    values = torch.from_numpy(VALUES.astype(np.int32)).to(device)
    getattr(library(device), f"{kind}_{name}")(memory, values, threads=threads, group_size=group)
    result = memory.cpu().view(torch.uint8).numpy().view(cell(metal, 0).dtype)
    np.testing.assert_array_equal(result, cell(metal, expected))


@pytest.mark.parametrize("name", OPERATIONS)
def test_device_memory(metal_device, name):
    run(metal_device, name, "device", COUNT, GROUP)


@pytest.mark.parametrize("name", SHARED)
def test_threadgroup_memory(metal_device, name):
    run(metal_device, name, "shared", COUNT, COUNT)


def test_the_value_before_is_returned_to_one_thread_each(metal_device):
    counter, taken = torch.zeros(1, dtype=torch.int32), torch.empty(COUNT, dtype=torch.int32)
    counter, taken = counter.to(metal_device), taken.to(metal_device)
    library(metal_device).numbered(counter, taken, threads=COUNT, group_size=GROUP)
    assert sorted(taken.tolist()) == list(range(COUNT)) and counter.item() == COUNT


def test_one_thread_finds_a_flag_unset(metal_device):
    flag, winners = torch.zeros(4, dtype=torch.uint8, device=metal_device), torch.zeros(1, dtype=torch.int32)
    winners = winners.to(metal_device)
    library(metal_device).elected(flag, winners, threads=COUNT, group_size=GROUP)
    assert (flag[0].item(), winners.item()) == (1, 1)


def test_a_failed_comparison_hands_out_the_value(metal_device):
    memory = torch.tensor([9], dtype=torch.int32, device=metal_device)
    result = torch.empty(3, dtype=torch.int32, device=metal_device)
    library(metal_device).failed(memory, result, threads=1, group_size=1)
    assert result.tolist() == [0, 9, 9]


def test_the_last_threadgroup_sees_what_the_others_wrote(metal_device):
    done, total = torch.zeros(1, dtype=torch.int32, device=metal_device), torch.zeros(1, device=metal_device)
    partial = torch.zeros(50, device=metal_device)
    library(metal_device).last_group(done, partial, total, threads=50 * 32, group_size=32)
    assert total.item() == 50 * 51 / 2


@pytest.mark.parametrize(
    "statement",
    [
        f"atomic_fetch_max_explicit((device atomic_float*)o, 1.0f, {RELAXED})",
        f"atomic_fetch_add_explicit((device atomic_ulong*)o, 1ul, {RELAXED})",
        f"atomic_load_explicit((device atomic_ulong*)o, {RELAXED})",
        f"atomic_fetch_add_explicit((device atomic_bool*)o, true, {RELAXED})",
        f"atomic_max_explicit((device atomic_uint*)o, 1u, {RELAXED})",
        f"threadgroup atomic_float s; atomic_fetch_add_explicit(&s, 1.0f, {RELAXED})",
        f"atomic_fetch_add_explicit((constant atomic_int*)c, 1, {RELAXED})",
    ],
)
def test_no_other_operation(statement):
    with pytest.raises(MetalSyntaxError):
        compile_shader(f"{HEAD}kernel void k(device float* o, constant float* c) {{ {statement}; }}", device="cpu")
