"""A kernel that faults is an error of that kernel; every other fault goes where it went before."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
import torch

from metal_inductor.metal import compile_shader
from metal_inductor.runtime import cpu

SOURCE = """#include <metal_stdlib>
using namespace metal;
kernel void read_loop(device float *out, constant ulong &address, uint i [[thread_position_in_grid]]) {
  out[i] = i == 77 ? *(device float *)address : 1.0f; }
kernel void read_fibers(device float *out, constant ulong &address, uint i [[thread_position_in_grid]]) {
  float sum = simd_sum(1.0f);
  if (i == 77) sum = *(device float *)address;
  threadgroup_barrier(mem_flags::mem_none);
  out[i] = sum; }
kernel void count(device float *out, uint i [[thread_position_in_grid]]) { out[i] = simd_sum(1.0f); }
kernel void number(device float *out, uint i [[thread_position_in_grid]]) { out[i] = i; }
kernel void large_array(device int *out, constant int &n, uint i [[thread_position_in_grid]]) {
  int values[40000];
  for (int k = 0; k < n; ++k) values[k * 17 % n] = 3 * k + int(i);
  threadgroup_barrier(mem_flags::mem_none);
  out[i] = values[i]; }
kernel void medium_array(device int *out, constant int &n, uint i [[thread_position_in_grid]]) {
  int values[12000];
  for (int k = 0; k < n; ++k) values[k * 17 % n] = 3 * k + int(i);
  threadgroup_barrier(mem_flags::mem_none);
  out[i] = values[17 * i % n]; }
kernel void array_in_loop(device int *out, constant int &n, uint i [[thread_position_in_grid]]) {
  int values[40000];
  for (int k = 0; k < n; ++k) values[k * 17 % n] = 3 * k + int(i);
  out[i] = values[17 * i % n]; }
"""


@pytest.fixture(scope="module")
def library():
    return compile_shader(SOURCE, device="cpu")


def assert_works(library) -> None:
    out = torch.zeros(1024)
    library.count(out, threads=1024, group_size=1024)
    assert (out == 32).all()
    library.number(out, threads=1024, group_size=64)
    assert torch.equal(out, torch.arange(1024.0))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("kernel", ["read_loop", "read_fibers"])
@pytest.mark.parametrize(
    ("address", "message"),
    [(0, "access to address 0x0,"), (4096, "access to address 0x1000,"), (1 << 62, "access to ")],
)
def test_a_bad_pointer_is_an_error_and_the_runtime_goes_on(library, threads, kernel, address, message):
    cpu.configure(threads=threads)
    out = torch.zeros(1024)
    for _ in range(10):
        where = r" in thread \(77, 0, 0\) of the grid" if kernel == "read_fibers" else ""
        with pytest.raises(cpu.MetalRuntimeError, match=f"kernel '{kernel}' faulted{where}: {message}"):
            getattr(library, kernel)(out, address, threads=1024, group_size=128)
        assert_works(library)


def test_an_array_too_large_for_a_threads_stack_is_named(library):
    out = torch.zeros(64, dtype=torch.int32)
    for _ in range(3):
        with pytest.raises(cpu.MetalRuntimeError, match="private variables need more than the 64 KB of stack"):
            library.large_array(out, 40000, threads=64, group_size=64, arg_casts="int32")
        assert_works(library)


@pytest.mark.parametrize(("kernel", "size"), [("medium_array", 12000), ("array_in_loop", 40000)])
def test_private_arrays_that_fit_keep_their_values(library, kernel, size):
    out = torch.zeros(64, dtype=torch.int32)
    getattr(library, kernel)(out, size - 1, threads=64, group_size=64, arg_casts="int32")
    assert torch.equal(out, 4 * torch.arange(64, dtype=torch.int32))


def ended(program: str) -> subprocess.CompletedProcess[str]:
    start = (
        "import ctypes, faulthandler, torch\n"
        "from metal_inductor.metal import compile_shader\n"
        "library = compile_shader('kernel void k(device int *o) { *o = 1; }', device='cpu')\n"
        "def run(): library.k(torch.zeros(1, dtype=torch.int32), threads=1)\n"
    )
    return subprocess.run([sys.executable, "-c", start + program], capture_output=True, text=True)


@pytest.mark.parametrize(
    ("program", "output"),
    [
        ("run(); ctypes.string_at(8)", ""),
        ("faulthandler.enable(); run(); ctypes.string_at(8)", "Segmentation fault"),
    ],
)
def test_a_fault_outside_of_kernels_ends_the_process_as_before(program, output):
    done = ended(program)
    assert done.returncode == -signal.SIGSEGV
    assert output in done.stderr
