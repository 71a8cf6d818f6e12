"""How a dispatch becomes CUDA launches, without a GPU: blocks, pieces of grids and the memory of parameters."""

from __future__ import annotations

import ctypes
import struct

import pytest
import torch

import metal_inductor
from metal_inductor.metal.kernel_info import Argument, KernelInfo
from metal_inductor.runtime import cuda
from metal_inductor.runtime.cuda_calls import _Parameters, _threadgroup_offsets


def test_a_block_has_the_shape_of_the_threadgroup():
    shape = cuda.Shape((100, 7, 3), (32, 4, 2))
    assert shape.groups == (4, 2, 2) and shape.block == (32, 4, 2) and shape.block_threads == 256
    assert list(shape.pieces()) == [((0, 0, 0), (4, 2, 2))]


def test_a_block_that_is_too_deep_is_a_row():
    assert cuda.Shape((1, 1, 500), (1, 2, 128)).block == (256, 1, 1)


@pytest.mark.parametrize("threads", [(0, 1, 1), (5, 0, 2), (5, 5, 0)])
def test_an_empty_grid_has_no_pieces(threads):
    assert not list(cuda.Shape(threads, (1, 1, 1)).pieces())


def test_a_grid_of_many_rows_comes_in_pieces_that_cover_it_once():
    pieces = list(cuda.Shape((3, 70000, 140000), (1, 1, 1)).pieces())
    assert len(pieces) == 2 * 3
    assert sum(x * y * z for _, (x, y, z) in pieces) == 3 * 70000 * 140000
    assert all(y <= 65535 and z <= 65535 for _, (_, y, z) in pieces)


def test_the_grid_lies_in_memory_as_the_kernel_reads_it():
    grid = cuda.Shape((100, 7, 3), (32, 4, 2)).grid((0, 1, 0))
    assert struct.unpack("=12I", bytes(grid)) == (100, 7, 3, 32, 4, 2, 4, 2, 2, 0, 1, 0)


def kernel(*indices: int, threadgroups: int = 0, memory: int = 0) -> KernelInfo:
    arguments = [Argument(f"a{i}", "buffer", i, "device", "device float*") for i in indices]
    arguments += [Argument(f"t{i}", "threadgroup", i, "threadgroup", "threadgroup float*") for i in range(threadgroups)]
    return KernelInfo("k", "msl_k0", tuple(arguments), threadgroup_bytes=memory)


def test_parameters_are_addresses_and_blocks_in_the_order_of_their_indices():
    parameters = _Parameters(kernel(3, 0, 1, threadgroups=1), (0, 16, 0, 32))
    assert parameters.indices == [0, 1, 3] and parameters.by_value == {1: 16, 3: 32}
    values = [1234567890123, struct.pack("=q", -5), b"unused", struct.pack("=3f", 1, 2, 3)]
    parameters.pack_into(parameters.block, 0, values[0], values[1], values[3], bytes(range(48)), 64)
    table = (ctypes.c_void_p * 5).from_address(parameters.address)
    read = [ctypes.string_at(address, size) for address, size in zip(table, (8, 16, 32, 48, 4), strict=True)]
    assert read[0] == struct.pack("=Q", values[0]) and read[1] == values[1] + bytes(8)
    assert read[2] == values[3] + bytes(20) and read[3] == bytes(range(48)) and read[4] == struct.pack("=I", 64)


def test_threadgroup_arguments_lie_behind_the_variables():
    assert _threadgroup_offsets(kernel(threadgroups=2, memory=40), [20, 64]) == ([48, 80], 144)


def test_what_is_missing_is_named(monkeypatch):
    cuda.driver.cache_clear()
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(RuntimeError, match="needs a torch that is built for CUDA"):
        metal_inductor.compile_shader("", device="cuda")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RuntimeError, match="needs an NVIDIA GPU and its driver"):
        metal_inductor.compile_shader("", device="cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setitem(__import__("sys").modules, "cuda.bindings", None)
    with pytest.raises(RuntimeError, match="pip install cuda-bindings"):
        metal_inductor.compile_shader("", device="cuda")


def test_an_old_gpu_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "Old GPU")
    with pytest.raises(RuntimeError, match="Old GPU has compute capability 7.5; valid are 8.0 and later"):
        cuda.architecture(0)


@pytest.mark.parametrize(
    ("capability", "target"), [((8, 0), "sm_80"), ((8, 9), "sm_89"), ((9, 0), "sm_90"), ((12, 0), "sm_90")]
)
def test_text_is_for_the_gpu_or_the_newest_that_the_compiler_knows(monkeypatch, capability, target):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: capability)
    assert cuda.architecture(0) == target
