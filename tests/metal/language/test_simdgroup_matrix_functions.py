"""<metal_simdgroup_matrix>: 8x8 matrices of each type, from and to both memories, with strides and transposition."""

from __future__ import annotations

import functools

import pytest
import torch

from metal_inductor.metal import compile_shader

HEAD = "#include <metal_stdlib>\n#include <metal_simdgroup_matrix>\nusing namespace metal;\n"
TYPES = {"float": torch.float32, "half": torch.float16, "bfloat": torch.bfloat16}
# name: (body with o, a and b of type T, expected from a (16, 24) and b (16, 24))
KERNELS = {
    "plain": ("simdgroup_load(x, a); simdgroup_store(x, o);", lambda a, b: a.flatten()[:64].view(8, 8)),
    "stride": ("simdgroup_load(x, a, 24); simdgroup_store(x, o);", lambda a, b: a[:8, :8]),
    "origin": ("simdgroup_load(x, a, 24, ulong2(9, 5)); simdgroup_store(x, o);", lambda a, b: a[5:13, 9:17]),
    "transposed_load": (
        "simdgroup_load(x, a, 24, ulong2(0), true); simdgroup_store(x, o);",
        lambda a, b: a[:8, :8].t(),
    ),
    "transposed_store": (
        "simdgroup_load(x, a, 24); simdgroup_store(x, o, 8, ulong2(0), true);",
        lambda a, b: a[:8, :8].t(),
    ),
    "transposed_origin": (
        "simdgroup_load(x, a, 24, ulong2(9, 5), true); simdgroup_store(x, o);",
        lambda a, b: a[5:13, 9:17].t(),
    ),
    "through_threadgroup_memory": (
        "threadgroup T s[8 * 12]; simdgroup_load(x, a, 24);"
        " simdgroup_store(x, s, 12, ulong2(3, 0)); simdgroup_barrier(mem_flags::mem_threadgroup);"
        " simdgroup_load(y, s, 12, ulong2(3, 0)); simdgroup_store(y, o);",
        lambda a, b: a[:8, :8],
    ),
    "filled": (
        "x = make_filled_simdgroup_matrix<T, 8, 8>(T(2.5f)); simdgroup_store(x, o);",
        lambda a, b: torch.full((8, 8), 2.5),
    ),
    "diagonal": ("x = simdgroup_matrix<T, 8, 8>(T(3)); simdgroup_store(x, o);", lambda a, b: torch.eye(8) * 3),
    "made_diagonal": (
        "x = make_diagonal_simdgroup_matrix<T, 8, 8>(T(2)); simdgroup_store(x, o);",
        lambda a, b: torch.eye(8) * 2,
    ),
    "multiplied": (
        "simdgroup_load(x, a, 24); simdgroup_load(y, b, 24); simdgroup_multiply(z, x, y); simdgroup_store(z, o);",
        lambda a, b: a[:8, :8] @ b[:8, :8],
    ),
    "operator": (
        "simdgroup_load(x, a, 24); simdgroup_load(y, b, 24); z = x * y; simdgroup_store(z, o);",
        lambda a, b: a[:8, :8] @ b[:8, :8],
    ),
    "accumulated": (
        "simdgroup_load(x, a, 24); simdgroup_load(y, b, 24); simdgroup_load(z, a, 24, ulong2(8, 8));"
        " simdgroup_multiply_accumulate(z, x, y, z); simdgroup_store(z, o);",
        lambda a, b: a[:8, :8] @ b[:8, :8] + a[8:16, 8:16],
    ),
    "by_the_identity": (
        "simdgroup_load(x, a, 24); simdgroup_multiply(z, x, simdgroup_matrix<T, 8, 8>(T(1))); simdgroup_store(z, o);",
        lambda a, b: a[:8, :8],
    ),
    "elements": (
        "simdgroup_load(x, a, 24); x.thread_elements()[0] *= T(2); x.thread_elements()[1] *= T(2);"
        " simdgroup_store(x, o);",
        lambda a, b: a[:8, :8] * 2,
    ),
    "in_an_array": (
        "simdgroup_matrix<T, 8, 8> m[2]; for (int i = 0; i < 2; ++i) simdgroup_load(m[i], a, 24, ulong2(8 * i, 0));"
        " z = m[0]; for (int i = 0; i < 2; ++i) simdgroup_multiply_accumulate(z, m[i], m[1 - i], z);"
        " simdgroup_store(z, o);",
        lambda a, b: a[:8, :8] + a[:8, :8] @ a[:8, 8:16] + a[:8, 8:16] @ a[:8, :8],
    ),
}


@functools.cache
def library(device: str):
    text = "".join(
        f"kernel void {name}_{metal}(device {metal}* o, device const {metal}* a, device const {metal}* b) {{"
        f" typedef {metal} T; simdgroup_matrix<T, 8, 8> x, y, z; {body} }}\n"
        for name, (body, _) in KERNELS.items()
        for metal in TYPES
    )
    text += "".join(
        f"kernel void mixed_{metal}(device float* o, device const {metal}* a, device const {metal}* b) {{"
        f" simdgroup_{metal}8x8 x, y; simdgroup_float8x8 sum(0.0f);"
        " for (int k = 0; k < 24; k += 8) {"
        " simdgroup_load(x, a, 24, ulong2(k, 0)); simdgroup_load(y, b, 24, ulong2(k, 0), true);"
        " simdgroup_multiply_accumulate(sum, x, y, sum); } simdgroup_store(sum, o); }\n"
        for metal in TYPES
    )
    return compile_shader(HEAD + text, device=device)


def matrices(metal: str) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(16, 24, generator=generator).to(TYPES[metal]) for _ in range(2))
    return a, b


@pytest.mark.parametrize("metal", TYPES)
@pytest.mark.parametrize("name", KERNELS)
def test_matrix(metal_device, name, metal):
    a, b = matrices(metal)
    result = torch.empty(8, 8, dtype=TYPES[metal], device=metal_device)
    kernel = getattr(library(metal_device), f"{name}_{metal}")
    kernel(result, a.to(metal_device), b.to(metal_device), threads=32, group_size=32)
    expected = KERNELS[name][1](a.double(), b.double())
    tolerance = {"float": 1e-6, "half": 2e-3, "bfloat": 2e-2}[metal]
    torch.testing.assert_close(result.cpu().double(), expected.double(), rtol=tolerance, atol=4 * tolerance)


@pytest.mark.parametrize("metal", TYPES)
def test_products_of_narrow_types_accumulate_in_float(metal_device, metal):
    a, b = matrices(metal)
    result = torch.empty(8, 8, device=metal_device)
    getattr(library(metal_device), f"mixed_{metal}")(
        result, a.to(metal_device), b.to(metal_device), threads=32, group_size=32
    )
    torch.testing.assert_close(result.cpu().double(), a[:8].double() @ b[:8].double().t(), rtol=1e-5, atol=1e-5)
