"""Simdgroup operations, where one lane works for all: order of rounding, missing lanes, branches."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from metal_inductor.metal import compile_shader
from metal_inductor.runtime import cpu

SOURCE = """#include <metal_stdlib>
using namespace metal;
float helper(float x) { return simd_sum(x); }
template <typename T> T generic(T x) { return simd_sum(x); }
struct Summing { float value; float sum() const { return simd_sum(value); } };

#define EACH(name, expression) \\
  kernel void name(device const float *in, device float *out, uint i [[thread_position_in_grid]]) { \\
    const float x = in[i]; out[i] = expression; }
EACH(sums, simd_sum(x))
EACH(quad_sums, quad_sum(x))
EACH(inclusive, simd_prefix_inclusive_sum(x))
EACH(exclusive, simd_prefix_exclusive_sum(x))
EACH(several, simd_sum(x) + simd_max(x) * simd_prefix_inclusive_product(x) - simd_sum(x + 1))

#define BRANCHES(name, first, second) \\
  kernel void name(device float *out, uint i [[thread_position_in_grid]]) { \\
    float x; \\
    if (i % 2 == 1) x = first; else x = second; \\
    out[i] = x + 100 * simd_sum(1.0f); }
BRANCHES(branch_builtin, simd_sum(1.0f), simd_sum(2.0f))
BRANCHES(branch_function, helper(1.0f), helper(2.0f))
BRANCHES(branch_template, generic(1.0f), generic(2.0f))
BRANCHES(branch_method, Summing{1.0f}.sum(), Summing{2.0f}.sum())
BRANCHES(branch_kinds, simd_prefix_inclusive_sum(1.0f), simd_max(2.0f))
BRANCHES(branch_conditional, (i % 4 == 1 ? helper(1.0f) : helper(2.0f)), helper(3.0f))
kernel void switch_function(device float *out, uint i [[thread_position_in_grid]]) {
  float x;
  switch (i % 4) {
    case 0: x = helper(1.0f); break;
    case 1: x = helper(2.0f); break;
    case 2: x = simd_max(float(i)); break;
    default: x = helper(4.0f);
  }
  out[i] = x;
}

#define PRODUCT(T) \\
  kernel void product_##T(device const T *a, device const T *b, device const T *c, device T *out, \\
                          constant bool &alone, uint lane [[thread_index_in_simdgroup]]) { \\
    simdgroup_matrix<T, 8> left, right, sum; \\
    simdgroup_load(left, a); simdgroup_load(right, b, 8, ulong2(0), true); simdgroup_load(sum, c); \\
    if (!alone || lane < 16) simdgroup_multiply_accumulate(sum, left, right, sum); \\
    simdgroup_store(sum, out, 8, ulong2(0), true); }
PRODUCT(float) PRODUCT(half) PRODUCT(bfloat)
"""
SEEDS = (0, 1, 9)


@pytest.fixture(scope="module")
def library():
    return compile_shader(SOURCE, device="cpu")


def run(library, name: str, values: np.ndarray, group: int = 64) -> np.ndarray:
    out = torch.full((len(values),), -1.0)
    getattr(library, name)(torch.from_numpy(values), out, threads=len(values), group_size=group)
    return out.numpy()


def butterfly(values: np.ndarray) -> np.ndarray:
    """Sums over the last axis of 32, in float32."""
    while values.shape[-1] > 1:
        half = values.shape[-1] // 2
        values = values[..., :half] + values[..., half:]
    return values[..., 0]


def one_after_the_other(values: np.ndarray) -> np.ndarray:
    return np.cumsum(values, axis=-1, dtype=np.float32)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_whole_simdgroup_sums_like_a_butterfly_of_shuffles(library, seed):
    cpu.configure(schedule=seed)
    values = np.random.default_rng(seed).normal(size=256).astype(np.float32)
    np.testing.assert_array_equal(run(library, "sums", values), np.repeat(butterfly(values.reshape(-1, 32)), 32))


@pytest.mark.parametrize("seed", SEEDS)
def test_quads_and_simdgroups_with_missing_lanes_sum_in_order(library, seed):
    cpu.configure(schedule=seed)
    values = np.random.default_rng(seed).normal(size=32 + 13).astype(np.float32)
    short = one_after_the_other(values[32:])
    np.testing.assert_array_equal(run(library, "sums", values)[32:], np.full(13, short[-1]))
    quads = [one_after_the_other(values[first : first + 4])[-1] for first in range(0, 45, 4)]
    np.testing.assert_array_equal(run(library, "quad_sums", values), np.repeat(quads, 4)[:45])
    inclusive = np.concatenate([one_after_the_other(values[:32]), short])
    np.testing.assert_array_equal(run(library, "inclusive", values), inclusive)
    before = np.concatenate([[0], inclusive[:31], [0], inclusive[32:-1]])
    np.testing.assert_array_equal(run(library, "exclusive", values), before)


@pytest.mark.parametrize("seed", SEEDS)
def test_operations_that_follow_each_other_do_not_mix(library, seed):
    cpu.configure(schedule=seed)
    values = np.random.default_rng(seed).normal(size=64).astype(np.float32)
    rows = values.reshape(2, 32)
    products = np.multiply.accumulate(rows, axis=1, dtype=np.float32)
    expected = (
        butterfly(rows)[:, None] + rows.max(1, keepdims=True) * products - butterfly(rows + np.float32(1))[:, None]
    )
    np.testing.assert_array_equal(run(library, "several", values), expected.ravel())


EVEN, ODD = np.arange(32) % 2 == 0, np.arange(32) % 2 == 1
BRANCHES = {
    "branch_builtin": np.where(ODD, 16, 32),
    "branch_function": np.where(ODD, 16, 32),
    "branch_template": np.where(ODD, 16, 32),
    "branch_method": np.where(ODD, 16, 32),
    "branch_kinds": np.where(ODD, np.arange(32) // 2 + 1, 2),
    "branch_conditional": np.where(ODD, np.where(np.arange(32) % 4 == 1, 8, 16), 48),
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", BRANCHES)
def test_lanes_on_different_paths_work_for_their_own_and_meet_afterwards(library, name, seed):
    cpu.configure(schedule=seed)
    out = torch.zeros(96)
    getattr(library, name)(out, threads=96, group_size=96)
    np.testing.assert_array_equal(out.numpy(), np.tile(BRANCHES[name] + 3200, 3))


def test_arms_of_a_switch_call_one_function_apart(library):
    out = torch.zeros(32)
    library.switch_function(out, threads=32, group_size=32)
    np.testing.assert_array_equal(out.numpy(), np.tile([8, 16, 30, 32], 8))


def fused_chain(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """a @ b + c in float32, the products added one after the other and each step rounded once."""
    sums = c.astype(np.float32)
    for k in range(8):
        exact = a[:, k, None].astype(np.longdouble) * b[None, k].astype(np.longdouble) + sums.astype(np.longdouble)
        sums = exact.astype(np.float32)
    return sums


def multiplied(library, dtype: torch.dtype, name: str, alone: bool = False) -> tuple[np.ndarray, np.ndarray]:
    a, b, c = (torch.randn(8, 8).to(dtype) for _ in range(3))
    out = torch.zeros(8, 8, dtype=dtype)
    getattr(library, f"product_{name}")(a, b.t().contiguous(), c, out, alone, threads=32, group_size=32)
    exact = fused_chain(*(matrix.float().numpy() for matrix in (a, b, c)))
    return out.t().float().numpy(), torch.from_numpy(exact).to(dtype).float().numpy()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("name", "dtype"), [("float", torch.float32), ("half", torch.float16), ("bfloat", torch.bfloat16)]
)
def test_a_matrix_product_rounds_each_step_once_in_the_order_of_k(library, name, dtype, seed):
    cpu.configure(schedule=seed)
    actual, expected = multiplied(library, dtype, name)
    np.testing.assert_array_equal(actual, expected)


def test_a_matrix_product_without_half_of_its_lanes_shows(library):
    actual, _ = multiplied(library, torch.float32, "float", alone=True)
    assert np.isnan(actual[:4]).all() and not np.isnan(actual[4:]).any()
