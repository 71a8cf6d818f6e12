"""What a kernel knows about its place in the grid, in every type that an attribute may have."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch

from metal_inductor.metal import compile_shader
from metal_inductor.metal.frontend import translate

HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"
THREE = (
    "thread_position_in_grid",
    "threadgroup_position_in_grid",
    "thread_position_in_threadgroup",
    "threads_per_threadgroup",
    "dispatch_threads_per_threadgroup",
    "threadgroups_per_grid",
    "threads_per_grid",
)
ONE = (
    "thread_index_in_threadgroup",
    "thread_index_in_simdgroup",
    "simdgroup_index_in_threadgroup",
    "simdgroups_per_threadgroup",
    "dispatch_simdgroups_per_threadgroup",
    "threads_per_simdgroup",
    "thread_execution_width",
    "quadgroup_index_in_threadgroup",
    "quadgroups_per_threadgroup",
    "thread_index_in_quadgroup",
)
GRID, GROUP = np.array([70, 5, 3]), np.array([32, 2, 2])
WORDS = 3 * len(THREE) + len(ONE)


def expected_words(x: int, y: int, z: int) -> list[int]:
    position = np.array([x, y, z])
    group, local = position // GROUP, position % GROUP
    size = np.minimum(GROUP, GRID - group * GROUP)
    index = (local[2] * size[1] + local[1]) * size[0] + local[0]
    vectors = [position, group, local, size, GROUP, -(-GRID // GROUP), GRID]
    simdgroups = [index % 32, index // 32, -(-size.prod() // 32), -(-GROUP.prod() // 32), 32, 32]
    return [*np.concatenate(vectors), index, *simdgroups, index // 4, -(-size.prod() // 4), index % 4]


@functools.cache
def library(device: str):
    """One kernel that has no need of its neighbours, which a CPU runs as a loop, and one that has."""
    text = ""
    for name, barrier in (("alone", ""), ("together", "simdgroup_barrier(mem_flags::mem_none);")):
        parameters = [f"uint3 v{i} [[{n}]]" for i, n in enumerate(THREE)] + [
            f"ushort s{i} [[{n}]]" for i, n in enumerate(ONE)
        ]
        stores = "".join(f"o[{3 * i + n}] = v{i}.{'xyz'[n]}; " for i in range(len(THREE)) for n in range(3))
        stores += "".join(f"o[{3 * len(THREE) + i}] = s{i}; " for i in range(len(ONE)))
        text += (
            f"kernel void {name}(device int* all, {', '.join(parameters)}) {{ {barrier}"
            f" device int* o = all + ((v0.z * 5 + v0.y) * 70 + v0.x) * {WORDS}; {stores} }}\n"
        )
    text += """
    kernel void types(device int* o, uint a [[thread_position_in_grid]], ushort b [[threadgroup_position_in_grid]],
        ushort c [[thread_position_in_threadgroup]], uint d [[threads_per_grid]], ushort e [[threads_per_threadgroup]],
        uint f [[threadgroups_per_grid]], ushort g [[thread_index_in_simdgroup]]) {
      device int* p = o + a * 7;
      p[0] = a; p[1] = b; p[2] = c; p[3] = d; p[4] = e; p[5] = f; p[6] = g;
    }
    kernel void two(device int* o, ushort2 p [[thread_position_in_grid]], uint2 n [[threads_per_grid]]) {
      o[p.y * n.x + p.x] = p.x * 100 + p.y;
    }
    """
    return compile_shader(HEAD + text, device=device)


@pytest.mark.parametrize("name", ["alone", "together"])
@pytest.mark.parametrize("part", range(0, WORDS, 3))
def test_attribute(metal_device, name, part):
    """Three words at a time: a vector attribute, or three scalar ones."""
    actual = everything(metal_device, name)
    expected = np.array([expected_words(x, y, z) for z, y, x in np.ndindex(3, 5, 70)])
    np.testing.assert_array_equal(actual[:, part : part + 3], expected[:, part : part + 3])


@functools.cache
def everything(device: str, name: str) -> np.ndarray:
    result = torch.zeros(70 * 5 * 3 * WORDS, dtype=torch.int32, device=device)
    getattr(library(device), name)(result, threads=tuple(GRID.tolist()), group_size=tuple(GROUP.tolist()))
    return result.cpu().numpy().reshape(-1, WORDS)


def test_attributes_have_the_type_of_their_parameter(metal_device):
    result = torch.zeros(100, 7, dtype=torch.int32, device=metal_device)
    library(metal_device).types(result, threads=100, group_size=40)
    a = np.arange(100)
    size = np.where(a < 80, 40, 20)
    expected = np.stack([a, a // 40, a % 40, a * 0 + 100, size, a * 0 + 3, a % 40 % 32], 1)
    np.testing.assert_array_equal(result.cpu().numpy(), expected)


def test_two_dimensions(metal_device):
    result = torch.zeros(7, 9, dtype=torch.int32, device=metal_device)
    library(metal_device).two(result, threads=(9, 7), group_size=(4, 4))
    np.testing.assert_array_equal(result.cpu().numpy(), np.arange(9) * 100 + np.arange(7)[:, None])


@pytest.mark.parametrize("place", ["head", "list", "tail"])
def test_threads_of_a_threadgroup_are_limited(place):
    limit = "[[max_total_threads_per_threadgroup(64)]]"
    head = {"head": f"{limit} kernel", "list": "[[kernel, max_total_threads_per_threadgroup(64)]]", "tail": "kernel"}[
        place
    ]
    tail = limit if place == "tail" else ""
    (info,) = translate(f"{HEAD}{head} void k(device float* o) {tail} {{ o[0] = 1; }}").kernels
    assert info.max_threads == 64


def test_limit_of_threads_is_kept(metal_device):
    text = (
        "[[max_total_threads_per_threadgroup(64)]] kernel void k(device float* o, uint i [[thread_position_in_grid]])"
        " { o[i] = i; }"
    )
    kernel = compile_shader(HEAD + text, device=metal_device).k
    assert kernel.max_threads_per_threadgroup == 64
    with pytest.raises(ValueError, match="64"):
        kernel(torch.zeros(128, device=metal_device), threads=128, group_size=128)
    result = torch.zeros(128, device=metal_device)
    kernel(result, threads=128, group_size=64)
    assert torch.equal(result.cpu(), torch.arange(128.0))
