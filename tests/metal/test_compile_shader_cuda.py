"""What `compile_shader` does on a GPU alone: streams, graphs, threads, and arguments that live elsewhere."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

import metal_inductor
from metal_inductor.compiler import backend
from metal_inductor.runtime.cuda import CudaLibrary
from metal_inductor.runtime.cuda_list import CudaList

SOURCE = """
#include <metal_stdlib>
using namespace metal;

kernel void add(device float* out, constant float& value, constant float* more, uint i [[thread_position_in_grid]]) {
  out[i] += value + more[i & 1];
}

kernel void maybe(device float* a, device float* b, constant long& which, uint i [[thread_position_in_grid]]) {
  device float* chosen = which != 0 ? a : b;
  chosen[i] = 3;
}

kernel void heavy(device float* out, device const float* in, uint i [[thread_position_in_grid]]) {
  float values[128];
#pragma clang loop unroll(full)
  for (int k = 0; k < 128; k++) values[k] = in[(i + k * 7) & 1023];
  float sum = 0;
#pragma clang loop unroll(full)
  for (int k = 0; k < 128; k++) sum += values[k] * values[127 - k] + sqrt(values[k]);
  out[i] = sum;
}
"""


@pytest.fixture(scope="module")
def library():
    return metal_inductor.compile_shader(SOURCE, device="cuda")


def test_the_library_belongs_to_one_gpu(library):
    assert library.device == torch.device("cuda", torch.cuda.current_device())
    count = torch.cuda.device_count()
    with pytest.raises(ValueError, match=f"'cuda:{count}': there are {count} GPUs"):
        metal_inductor.compile_shader(SOURCE, device=f"cuda:{count}")


def test_a_call_follows_the_current_stream(library):
    out = torch.zeros(1 << 20, device="cuda")
    other = torch.cuda.Stream()
    for wait in (
        1,
        500_000_000,
    ):  # the first time compiles and loads, which takes longer than a stream can be kept busy
        other.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(other):
            torch.cuda._sleep(wait)
            out.fill_(5)
            library.add(out, 1.0, [0.5, 0.25])
            doubled = out * 2
    assert not other.query()  # the call has not waited
    other.synchronize()
    assert torch.equal(doubled.view(-1, 2), torch.tensor([13.0, 12.5], device="cuda").expand(1 << 19, 2))


def test_a_call_can_be_captured_the_first_time_it_is_made():
    library = metal_inductor.compile_shader(SOURCE.replace("+= value", "+= 2 * value"), device="cuda")
    out = torch.zeros(8, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        library.add(out, 1.5, (1.0, 2.0))
        out.mul_(2)
        library.add(out, torch.tensor(0.5), torch.ones(2, device="cuda"))
    assert not out.any()
    graph.replay()
    assert out.tolist() == [10.0, 12.0] * 4
    graph.replay()
    assert out.tolist() == [30.0, 36.0] * 4


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("add", (1.0, 1.0, 1.0), "'add' writes to 'out', buffer.0.: it must be a tensor on cuda"),
        ("add", (torch.tensor(1.0), 1.0, 1.0), "'add' writes to 'out'"),
        (
            "add",
            (torch.zeros(4), 1.0, 1.0),
            "on cpu; valid are dense tensors on cuda:0 and CPU tensors of no dimension",
        ),
        ("add", ("out", [torch.tensor(1.0)], 1.0), "a list of tensors is an array of addresses"),
        ("add", ("out", 1.0, [torch.zeros(2)]), "on cpu"),
    ],
)
def test_arguments_that_are_elsewhere_are_refused(library, name, arguments, message):
    there = [torch.zeros(4, device="cuda") if argument == "out" else argument for argument in arguments]
    with pytest.raises(ValueError, match=message):
        getattr(library, name)(*there, threads=4)


def test_a_list_of_tensors_reaches_their_memory():
    source = """
kernel void gather(device float* out, device float* constant* parts, uint i [[thread_position_in_grid]]) {
  out[i] = parts[i % 3][i / 3];
  parts[i % 3][i / 3] = -1;
}"""
    parts = [torch.randn(10, device="cuda") for _ in range(3)]
    expected = torch.stack(parts, 1).flatten()
    out = torch.zeros(30, device="cuda")
    metal_inductor.compile_shader(source, device="cuda").gather(out, parts)
    assert torch.equal(out, expected) and all((part == -1).all() for part in parts)


def test_an_address_chosen_among_arguments_by_value_and_in_memory(library):
    out = torch.zeros(4, device="cuda")
    library.maybe(1.0, out, 0, threads=4)
    assert out.tolist() == [3.0] * 4


def test_a_kernel_of_many_registers_runs_in_full_threadgroups(library):
    given, out = torch.rand(1024, device="cuda"), torch.zeros(1024, device="cuda")
    library.heavy(out, given, group_size=1024, threads=1024)
    index = (torch.arange(1024)[:, None] + 7 * torch.arange(128)) % 1024
    values = given.cpu().double()[index]
    torch.testing.assert_close(out.cpu().double(), (values * values.flip(1) + values.sqrt()).sum(1), rtol=1e-5, atol=0)


def test_threads_without_a_context_call_kernels(library):
    def work() -> None:
        for _ in range(20):
            library.add(out, 1.0, [1.0, 2.0])

    out = torch.zeros(64, device="cuda")
    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    torch.cuda.synchronize()
    assert out.tolist() != [0.0] * 64


@pytest.mark.parametrize("index", range(torch.cuda.device_count()))
def test_each_gpu_runs_its_own_library(index):
    there = metal_inductor.compile_shader(SOURCE, device=f"cuda:{index}")
    out = torch.zeros(4, device=f"cuda:{index}")
    there.add(out, 1.0, [1.0, 2.0])
    assert out.tolist() == [2.0, 3.0] * 2
    for other in set(range(torch.cuda.device_count())) - {index}:
        with pytest.raises(ValueError, match=f"on cuda:{other}; valid are dense tensors on cuda:{index}"):
            there.add(torch.zeros(4, device=f"cuda:{other}"), 1.0, [1.0, 2.0])


def test_a_dispatch_list_reads_pointers_and_host_arrays_at_each_commit():
    source = """
kernel void fill(device float* out, constant long* sizes, uint i [[thread_position_in_grid]]) {
  if (i < uint(sizes[0])) out[i] = sizes[1] + sizes[2];
}"""
    library = CudaLibrary.load(source)
    sizes = np.array([3, 10, 1], np.int64)
    dispatches = CudaList(2)
    dispatches.bind_host(1, sizes)
    dispatches.add(library, "fill", [0, 1], (8, 1, 1), (4, 1, 1))
    first, second = torch.zeros(8, device="cuda"), torch.zeros(8, device="cuda")
    dispatches.bind(0, first)
    dispatches.commit(0, 1)
    dispatches.bind(0, second)
    sizes[:] = 8, 20, 2  # the launches before have their own copy
    dispatches.commit(0, 1)
    dispatches.set_threads(0, (2, 1, 1), (2, 1, 1))
    sizes[1] = 30
    dispatches.commit(0, 1)
    assert first.tolist() == [11.0] * 3 + [0.0] * 5
    assert second.tolist() == [32.0] * 2 + [22.0] * 6


def test_a_compiled_function_of_changing_sizes():
    def function(x: torch.Tensor) -> torch.Tensor:
        return (x * 2 + x.shape[0]).softmax(-1) + x.sum(0)

    compiled = torch.compile(function, backend=backend, dynamic=True)
    for rows, columns in ((3, 5), (70, 1000), (1, 33)):
        x = torch.randn(rows, columns, device="cuda")
        torch.testing.assert_close(compiled(x), function(x), rtol=1e-4, atol=1e-4)
