"""simdgroup_matrix: where its elements are, loads and stores from every memory, and products in every type."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import metal_inductor

DTYPES = {"float": torch.float32, "half": torch.float16, "bfloat": torch.bfloat16}
SOURCE = """
#include <metal_stdlib>
#include <metal_simdgroup_matrix>
using namespace metal;

kernel void layout(device float* loaded, device float* stored, device const float* in,
                   uint lane [[thread_index_in_simdgroup]]) {
  simdgroup_float8x8 m;
  simdgroup_load(m, in);
  loaded[2 * lane] = m.thread_elements()[0];
  loaded[2 * lane + 1] = m.thread_elements()[1];
  m.thread_elements() = float2(2 * lane, 2 * lane + 1);
  simdgroup_store(m, stored);
}

kernel void filled(device float* out) {
  simdgroup_store(make_filled_simdgroup_matrix<float, 8, 8>(2.5f), out);
  simdgroup_store(simdgroup_float8x8(3.0f), out + 64);
  simdgroup_store(make_diagonal_simdgroup_matrix<float, 8, 8>(4.0f), out + 128);
}

template <typename T>
kernel void moves(device T* out, device const T* in, constant T* table, uint lane [[thread_index_in_simdgroup]]) {
  threadgroup T shared[8 * 11];
  simdgroup_matrix<T, 8, 8> m;
  simdgroup_load(m, in, 20, ulong2(3, 2));
  simdgroup_store(m, out);
  simdgroup_load(m, in, 20, ulong2(3, 2), true);
  simdgroup_store(m, out + 64);
  simdgroup_load(m, table, 20);
  simdgroup_store(m, out + 128, 8, ulong2(0, 0), true);
  for (uint i = lane; i < 88; i += 32) shared[i] = in[i];
  simdgroup_barrier(mem_flags::mem_threadgroup);
  simdgroup_load(m, shared, 11);
  simdgroup_barrier(mem_flags::mem_threadgroup);
  simdgroup_store(m, shared + 1, 10);
  simdgroup_barrier(mem_flags::mem_threadgroup);
  for (uint i = lane; i < 64; i += 32) out[192 + i] = shared[1 + i / 8 * 10 + i % 8];
}

template <typename A, typename B, typename D>
kernel void product(device D* out, device const A* a, device const B* b, constant long& k) {
  simdgroup_matrix<A, 8, 8> left;
  simdgroup_matrix<B, 8, 8> right;
  simdgroup_matrix<D, 8, 8> sum(D(1.0f));
  for (long i = 0; i < k; i += 8) {
    simdgroup_load(left, a, ulong(k), ulong2(i, 0));
    simdgroup_load(right, b, 8, ulong2(0, i));
    simdgroup_multiply_accumulate(sum, left, right, sum);
  }
  simdgroup_store(sum, out);
}

template <typename T>
kernel void forms(device T* out, device const T* a, device const T* b) {
  simdgroup_matrix<T, 8, 8> x, y, z;
  simdgroup_load(x, a);
  simdgroup_load(y, b);
  simdgroup_multiply(z, x, y);
  simdgroup_store(z, out);
  simdgroup_store(x * y, out + 64);
  simdgroup_multiply_accumulate(x, x, y, x);
  simdgroup_store(x, out + 128);
}

// C = A B over several simdgroups, each of which computes a row of 8x8 blocks.
template <typename T>
kernel void gemm(device float* c, device const T* a, device const T* b, constant long& n,
                 uint block [[threadgroup_position_in_grid]], uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  simdgroup_float8x8 sum(0.0f);
  simdgroup_matrix<T, 8, 8> x, y;
  for (long k = 0; k < n; k += 8) {
    simdgroup_load(x, a, ulong(n), ulong2(k, 8 * simdgroup));
    simdgroup_load(y, b, ulong(n), ulong2(8 * block, k));
    simdgroup_multiply_accumulate(sum, x, y, sum);
  }
  simdgroup_store(sum, c, ulong(n), ulong2(8 * block, 8 * simdgroup));
}

#define EACH(T) \\
  template [[host_name("moves_" #T)]] kernel void moves<T>(device T*, device const T*, constant T*, uint); \\
  template [[host_name("forms_" #T)]] kernel void forms<T>(device T*, device const T*, device const T*); \\
  template [[host_name("gemm_" #T)]] kernel void gemm<T>(device float*, device const T*, device const T*, \\
                                                         constant long&, uint, uint);
EACH(float) EACH(half) EACH(bfloat)
#define PRODUCT(A, B, D) \\
  template [[host_name("product_" #A "_" #B "_" #D)]] \\
  kernel void product<A, B, D>(device D*, device const A*, device const B*, constant long&);
PRODUCT(float, float, float) PRODUCT(half, half, float) PRODUCT(half, half, half) PRODUCT(bfloat, bfloat, float)
PRODUCT(bfloat, bfloat, bfloat) PRODUCT(half, float, float) PRODUCT(float, half, float)
"""
PRODUCTS = ("float_float_float", "half_half_float", "half_half_half", "bfloat_bfloat_float", "bfloat_bfloat_bfloat",
            "half_float_float", "float_half_float")  # fmt: skip


@pytest.fixture(scope="module")
def library(metal_device):
    return metal_inductor.compile_shader(SOURCE, device=metal_device)


@pytest.fixture(autouse=True)
def tensors_on_the_device(metal_device):
    with torch.device(metal_device):
        yield


def exactly(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a.double() @ b.double()


def test_a_lane_has_the_elements_that_it_has_on_apples_gpus(library):
    loaded, stored = torch.zeros(32, 2), torch.zeros(8, 8)
    library.layout(loaded, stored, torch.arange(64.0), threads=32, group_size=32)
    lane = np.arange(32)
    row = (lane >> 2 & 4) | (lane >> 1 & 3)
    column = (lane >> 1 & 4) | (lane & 1) << 1
    assert loaded.tolist() == [[8.0 * r + c, 8.0 * r + c + 1] for r, c in zip(row, column, strict=True)]
    assert stored.cpu().numpy()[row, column].tolist() == (2.0 * lane).tolist()
    assert stored.cpu().numpy()[row, column + 1].tolist() == (2.0 * lane + 1).tolist()


def test_filled_and_diagonal_matrices(library):
    out = torch.zeros(3, 8, 8)
    library.filled(out, threads=32, group_size=32)
    assert torch.equal(out, torch.stack([torch.full((8, 8), 2.5), torch.eye(8) * 3, torch.eye(8) * 4]))


@pytest.mark.parametrize("metal", DTYPES)
def test_loads_and_stores_with_strides_origins_and_transposition(library, metal):
    given = torch.arange(300.0).remainder(97).to(DTYPES[metal])
    out = torch.zeros(4, 8, 8, dtype=DTYPES[metal])
    getattr(library, f"moves_{metal}")(out, given, given, threads=32, group_size=32)
    block = given.view(15, 20)[2:10, 3:11]
    assert torch.equal(out[0], block)
    assert torch.equal(out[1], given.view(15, 20)[2:10, 3:11].t())
    assert torch.equal(out[2], given.view(15, 20)[:8, :8].t())
    assert torch.equal(out[3], given[:88].view(8, 11)[:, :8])


@pytest.mark.parametrize("names", PRODUCTS)
@pytest.mark.parametrize("depth", [8, 64])
def test_products_of_every_type(library, names, depth):
    left, right, result = (DTYPES[name] for name in names.split("_"))
    a, b = torch.randn(8, depth).to(left), torch.randn(depth, 8).to(right)
    out = torch.zeros(8, 8, dtype=result)
    getattr(library, f"product_{names}")(out, a, b, depth, threads=32, group_size=32)
    steps = depth // 8  # a narrow sum rounds once for each 8 products
    tolerance = {torch.float32: 2.0**-20, torch.float16: 2.0**-10 * steps, torch.bfloat16: 2.0**-7 * steps}[result]
    error = (out.double() - exactly(a, b) - torch.eye(8)).abs()
    assert (error <= tolerance * (a.double().abs() @ b.double().abs() + 1)).all()


def test_products_of_float_are_rounded_as_float(library):
    a, b = torch.randn(8, 8), torch.randn(8, 8)
    out = torch.zeros(8, 8)
    library.product_float_float_float(out, a, b, 8, threads=32, group_size=32)
    sums = np.eye(8, dtype=np.float32)
    for k in range(8):  # one fused multiply-add after the other: exact in double, but for the rounding
        wide = a[:, k, None].double() * b[None, k].double() + torch.from_numpy(sums).to(a.device).double()
        sums = wide.float().cpu().numpy()
    np.testing.assert_array_max_ulp(out.cpu().numpy(), sums, 1)


@pytest.mark.parametrize("metal", DTYPES)
def test_multiply_operator_and_accumulation_in_place(library, metal):
    a, b = torch.randn(8, 8).to(DTYPES[metal]), torch.randn(8, 8).to(DTYPES[metal])
    out = torch.zeros(3, 8, 8, dtype=DTYPES[metal])
    getattr(library, f"forms_{metal}")(out, a, b, threads=32, group_size=32)
    expected = exactly(a, b)
    tolerance = {"float": 1e-5, "half": 2e-2, "bfloat": 1e-1}[metal]
    for index, exact in enumerate((expected, expected, expected + a.double())):
        torch.testing.assert_close(out[index].double(), exact, rtol=0, atol=tolerance)


@pytest.mark.parametrize("metal", DTYPES)
@pytest.mark.parametrize("values", ["infinite", "nan", "large"])
def test_values_that_are_not_finite_spread_as_in_sums(library, metal, values):
    a, b = torch.eye(8), torch.arange(64.0).view(8, 8) + 1
    a[2, 3] = {"infinite": float("inf"), "nan": float("nan"), "large": 30000.0}[values]
    given, other = a.to(DTYPES[metal]), b.to(DTYPES[metal])
    out = torch.zeros(8, 8)
    name = f"product_{metal}_{metal}_float"
    getattr(library, name)(out, given, other, 8, threads=32, group_size=32)
    torch.testing.assert_close(
        out.double(), exactly(given, other) + torch.eye(8).double(), rtol=1e-5, atol=0, equal_nan=True
    )


@pytest.mark.parametrize("metal", DTYPES)
def test_a_product_over_many_simdgroups(library, metal):
    n = 64
    a, b = torch.randn(n, n).to(DTYPES[metal]), torch.randn(n, n).to(DTYPES[metal])
    c = torch.zeros(n, n)
    getattr(library, f"gemm_{metal}")(c, a, b, n, threads=n // 8 * 32 * (n // 8), group_size=n // 8 * 32)
    torch.testing.assert_close(c.double(), exactly(a, b), rtol=1e-4, atol=1e-4)
