"""Threadgroup memory: static, as an argument, in templates, and beginning as zero; barriers between its users."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch

from metal_inductor.metal import compile_shader
from metal_inductor.metal.frontend import MetalSyntaxError, translate

HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"
GROUP, COUNT = 128, 512
PLACE = "uint t [[thread_index_in_threadgroup]], uint i [[thread_position_in_grid]]"
# kernel name: (parameters besides o, a and PLACE; body; expected from a as (groups, GROUP) float)
KERNELS = {
    "reversed_": ("", "threadgroup float s[128]; s[t] = a[i]; BARRIER o[i] = s[127 - t];", lambda a: a[:, ::-1]),
    "two_variables": (
        "",
        "threadgroup float s[128], factor; if (t == 5) factor = 3; s[t] = a[i]; BARRIER o[i] = s[t ^ 1] * factor;",
        lambda a: a[:, np.arange(GROUP) ^ 1] * 3,
    ),
    "two_dimensions": (
        "",
        "threadgroup float s[8][17]; s[t / 16][t % 16] = a[i]; BARRIER o[i] = s[t % 8][t / 8];",
        lambda a: a.reshape(-1, 8, 16).transpose(0, 2, 1).reshape(a.shape),
    ),
    "in_a_block": (
        "",
        "if (true) { threadgroup float s[128]; s[t] = a[i]; BARRIER o[i] = s[(t + 1) % 128]; }",
        lambda a: np.roll(a, -1, 1),
    ),
    "vectors": (
        "",
        "threadgroup float4 s[32]; s[t / 4][t % 4] = a[i]; BARRIER o[i] = s[31 - t / 4].wzyx[t % 4];",
        lambda a: a[:, ::-1],
    ),
    "halves": (
        "",
        "threadgroup half s[128]; s[t] = half(a[i]); BARRIER o[i] = s[127 - t];",
        lambda a: a.astype(np.float16)[:, ::-1],
    ),
    "structures": (
        "",
        "struct Pair { float x; int n; }; threadgroup Pair s[128]; s[t].x = a[i]; s[t].n = t; BARRIER"
        " Pair p = s[127 - t]; o[i] = p.x + p.n;",
        lambda a: a[:, ::-1] + np.arange(GROUP, dtype=np.float32)[::-1],
    ),
    "through_a_function": (
        "",
        "threadgroup float s[128]; put(s, t, a[i]); BARRIER o[i] = got(s + 1, (t + 126) % 127);",
        lambda a: a[:, 1 + (np.arange(GROUP) + 126) % 127],
    ),
    "a_tree_of_sums": (
        "",
        "threadgroup float s[128]; s[t] = a[i]; BARRIER for (uint n = 64; n > 0; n /= 2) { if (t < n) s[t] += s[t + n];"
        " BARRIER } o[i] = s[0];",
        None,
    ),
    "zero_array": (
        "",
        "threadgroup int s[128] = {0}; if (t % 2 == 0) s[t] += 1; BARRIER o[i] = s[t] + s[t ^ 1];",
        lambda a: np.ones_like(a),
    ),
    "zero_beside_others": (
        "",
        "threadgroup float s[128] = {0.0f}, u[128]; u[t] = a[i]; BARRIER o[i] = s[127 - t] + u[127 - t];",
        lambda a: a[:, ::-1],
    ),
    "zero_atomics": (
        "",
        "threadgroup atomic_int n[2] = {}; atomic_fetch_add_explicit(&n[t & 1], 1, memory_order_relaxed);"
        " BARRIER o[i] = atomic_load_explicit(&n[0], memory_order_relaxed);",
        lambda a: np.full_like(a, GROUP // 2),
    ),
}
HELPERS = """
void put(threadgroup float* s, uint at, float v) { s[at] = v; }
float got(threadgroup const float* s, uint at) { return s[at]; }
template <typename T, int N, int Stride = N> [[kernel]] void shifted(device T* o [[buffer(0)]],
    const device T* a [[buffer(1)]], uint t [[thread_index_in_threadgroup]], uint i [[thread_position_in_grid]]) {
  threadgroup T s[N + 1], zero[Stride] = {0};
  s[t] = a[i];
  BARRIER
  o[i] = s[(t + Stride / 2) % N] + zero[t % Stride];
}
template [[host_name("shifted_float")]] void shifted<float, 128>(device float*, const device float*, uint, uint);
template [[host_name("shifted_half")]] [[kernel]] decltype(shifted<half, 128, 64>) shifted<half, 128, 64>;
"""


@functools.cache
def library(device: str):
    text = "".join(
        f"kernel void {name}(device float* o, device const float* a, {PLACE}{extra}) {{ {body} }}\n"
        for name, (extra, body, _) in KERNELS.items()
    )
    barrier = "threadgroup_barrier(mem_flags::mem_threadgroup);"
    return compile_shader(HEAD + (HELPERS + text).replace("BARRIER", barrier), device=device)


@pytest.mark.parametrize("name", KERNELS)
def test_static_memory(metal_device, name):
    values = torch.from_numpy(np.random.default_rng(0).standard_normal(COUNT).astype(np.float32))
    result = torch.full((COUNT,), -1.0, device=metal_device)
    getattr(library(metal_device), name)(result, values.to(metal_device), threads=COUNT, group_size=GROUP)
    reference = KERNELS[name][2]
    if reference is None:
        sums = values.view(-1, GROUP).double().sum(1, keepdim=True).expand(-1, GROUP)
        torch.testing.assert_close(result.cpu().double().view(-1, GROUP), sums, rtol=1e-5, atol=1e-5)
    else:
        np.testing.assert_array_equal(result.cpu().numpy(), reference(values.numpy().reshape(-1, GROUP)).ravel())


@pytest.mark.parametrize(
    ("name", "dtype", "by"), [("shifted_float", torch.float32, 64), ("shifted_half", torch.float16, 32)]
)
def test_memory_of_a_template(metal_device, name, dtype, by):
    values = torch.randn(COUNT).to(dtype)
    result = torch.empty(COUNT, dtype=dtype, device=metal_device)
    getattr(library(metal_device), name)(result, values.to(metal_device), threads=COUNT, group_size=GROUP)
    assert torch.equal(result.cpu(), values.view(-1, GROUP).roll(-by, 1).flatten())


def test_a_smaller_threadgroup_at_the_edge_begins_as_zero_too(metal_device):
    result = torch.full((GROUP + 7,), -1.0, device=metal_device)
    library(metal_device).zero_array(result, result, threads=GROUP + 7, group_size=GROUP)
    assert result.cpu().tolist() == [1.0] * (GROUP + 7 - 1) + [1.0]


@pytest.mark.parametrize("initialiser", ["{1}", "{0, 1}", "a[0]", "{a[0]}"])
def test_no_other_initialiser(initialiser):
    with pytest.raises(MetalSyntaxError, match="initialiser other than {0}"):
        translate(f"{HEAD}kernel void k(device float* a) {{ threadgroup float s[2] = {initialiser}; s[0] = a[0]; }}")


def test_variables_that_begin_as_zero_pass_the_checks():
    result = torch.empty(COUNT)
    for name in ("zero_array", "zero_beside_others", "zero_atomics"):
        getattr(library("cpu"), name)(result, torch.zeros(COUNT), threads=COUNT, group_size=GROUP, checks=True)
