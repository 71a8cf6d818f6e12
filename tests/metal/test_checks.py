"""Each kind of mistake in a kernel is found, at its line, with its memory and its threads."""

from __future__ import annotations

import pytest
import torch

import metal_inductor
from metal_inductor.runtime.checks import NAMES, MetalCheckError, Thread, resolve
from metal_inductor.runtime.cpu import CpuLibrary, MetalRuntimeError, configure

HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"

# Kernels by name. A line that ends in a mark such as //A is what a report should name.
KERNELS = {
    "missing_barrier": """
kernel void missing_barrier(device float* out, uint i [[thread_position_in_threadgroup]]) {
  threadgroup float tile[64];
  tile[i] = i;             //A
  out[i] = tile[63 - i];   //B
}""",
    "lanes_without_barrier": """
kernel void lanes_without_barrier(device float* out, uint i [[thread_position_in_threadgroup]]) {
  threadgroup float tile[32];
  tile[i] = i;             //A
  out[i] = tile[31 - i];   //B
}""",
    "shuffle_is_no_barrier": """
kernel void shuffle_is_no_barrier(device float* out, uint i [[thread_position_in_threadgroup]]) {
  threadgroup float tile[32];
  tile[i] = i;             //A
  float sum = simd_sum(1.0f);
  out[i] = tile[31 - i] + sum;  //B
}""",
    "wrong_flag": """
kernel void wrong_flag(device float* out, uint i [[thread_position_in_threadgroup]]) {
  threadgroup float tile[64];
  tile[i] = i;             //A
  threadgroup_barrier(mem_flags::mem_device);
  out[i] = tile[63 - i];   //B
}""",
    "simdgroup_barrier_is_too_small": """
kernel void simdgroup_barrier_is_too_small(device float* out, uint i [[thread_position_in_threadgroup]]) {
  threadgroup float tile[64];
  tile[i] = i;             //A
  simdgroup_barrier(mem_flags::mem_threadgroup);
  out[i] = tile[63 - i];   //B
}""",
    "write_after_read": """
kernel void write_after_read(device float* out, uint i [[thread_position_in_threadgroup]]) {
  threadgroup float tile[64];
  tile[i] = i;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float value = tile[63 - i];   //A
  tile[i] = value;              //B
  threadgroup_barrier(mem_flags::mem_threadgroup);
  out[i] = tile[i];
}""",
    "two_stores": """
kernel void two_stores(device float* out, uint i [[thread_position_in_threadgroup]]) {
  threadgroup float last;
  last = i;                //AB
  threadgroup_barrier(mem_flags::mem_threadgroup);
  out[i] = last;
}""",
    "same_value": """
kernel void same_value(device float* out, uint i [[thread_position_in_threadgroup]]) {
  threadgroup float flag;
  flag = 7;                //AB
  threadgroup_barrier(mem_flags::mem_threadgroup);
  out[i] = flag;
}""",
    "atomic_and_plain": """
kernel void atomic_and_plain(device float* out, uint i [[thread_position_in_threadgroup]]) {
  threadgroup atomic_uint count;
  if (i == 0) atomic_store_explicit(&count, 0u, memory_order_relaxed);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  atomic_fetch_add_explicit(&count, 1u, memory_order_relaxed);  //A
  out[i] = *(threadgroup uint*)&count;                          //B
}""",
    "between_threadgroups": """
kernel void between_threadgroups(device float* out, uint i [[thread_position_in_grid]],
                                 uint group [[threadgroup_position_in_grid]]) {
  out[i] = i;              //A
  threadgroup_barrier(mem_flags::mem_device);
  if (group == 1) out[i] = out[i - 32];   //B
}""",
    "device_memory_in_group": """
kernel void device_memory_in_group(device half* out, uint i [[thread_position_in_threadgroup]]) {
  out[i] = i;              //A
  threadgroup_barrier(mem_flags::mem_threadgroup);
  half value = out[63 - i];  //B
  threadgroup_barrier(mem_flags::mem_device);
  out[i] = value;
}""",
    "helper_function": """
void put(threadgroup float* tile, uint i) {
  tile[i] = i;             //A
}
kernel void helper_function(device float* out, uint i [[thread_position_in_threadgroup]]) {
  threadgroup float tile[64];
  put(tile, i);
  out[i] = tile[63 - i];   //B
}""",
    "matrix_store": """
kernel void matrix_store(device float* out, uint i [[thread_index_in_simdgroup]]) {
  threadgroup float tile[64];
  simdgroup_float8x8 m(1.0f);
  simdgroup_store(m, tile, 8);   //A
  out[i] = tile[i + 1];          //B
}""",
    "vector_method": """
kernel void vector_method(device float* out, uint i [[thread_position_in_threadgroup]]) {
  threadgroup float4 tile[64];
  tile[i] = float4(i);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  tile[i] += 1.0f;               //A
  out[i] = tile[(i + 1) % 64].y; //B
}""",
}
RACES = dict(  # threads, memory, and what the two lines do
    missing_barrier=(64, "threadgroup variable 'tile'", {"read", "write"}),
    lanes_without_barrier=(32, "threadgroup variable 'tile'", {"read", "write"}),
    shuffle_is_no_barrier=(32, "threadgroup variable 'tile'", {"read", "write"}),
    wrong_flag=(64, "threadgroup variable 'tile'", {"read", "write"}),
    simdgroup_barrier_is_too_small=(64, "threadgroup variable 'tile'", {"read", "write"}),
    write_after_read=(64, "threadgroup variable 'tile'", {"read", "write"}),
    two_stores=(64, "threadgroup variable 'last' + 0 bytes", {"write"}),
    same_value=(64, "threadgroup variable 'flag' + 0 bytes", {"write"}),
    atomic_and_plain=(64, "threadgroup variable 'count' + 0 bytes", {"atomic update", "read"}),
    between_threadgroups=(64, "argument 'out'", {"read", "write"}),
    device_memory_in_group=(64, "argument 'out'", {"read", "write"}),
    helper_function=(64, "threadgroup variable 'tile'", {"read", "write"}),
    matrix_store=(32, "threadgroup variable 'tile'", {"read", "write"}),
    vector_method=(64, "threadgroup variable 'tile'", {"read", "write"}),
)
SOURCE = HEAD + "\n".join(KERNELS.values())
GROUP_SIZES = {"between_threadgroups": 32}


def marked_line(kernel: str, mark: str) -> int:
    """Line in SOURCE of the kernel's line with this mark."""
    lines = SOURCE.split("\n")
    begin = SOURCE[: SOURCE.index(KERNELS[kernel])].count("\n")
    return next(n + 1 for n in range(begin, len(lines)) if mark in lines[n].partition("//")[2])


@pytest.fixture(scope="module")
def library():
    return metal_inductor.compile_shader(SOURCE, device="cpu")


@pytest.fixture(params=[0, 1, 2], autouse=False)
def schedule(request):
    configure(schedule=request.param)
    yield request.param
    configure(schedule=0)


def reports_of(call):
    with pytest.raises(MetalCheckError) as caught:
        call()
    return caught.value.reports


@pytest.mark.parametrize("name", RACES)
def test_race(library, schedule, name):
    threads, memory, accesses = RACES[name]
    out = torch.zeros(64, dtype=torch.float16 if name == "device_memory_in_group" else torch.float32)
    size = GROUP_SIZES.get(name, threads)
    reports = reports_of(lambda: getattr(library, name)(out, threads=threads, group_size=size, checks="races"))
    lines = {marked_line(name, "A"), marked_line(name, "B")}
    report = reports[0]
    assert report.kind == "races" and report.kernel == name and report.file == "<metal>"
    assert {report.line, report.other_line} == lines
    assert report.address.startswith(memory)
    assert {report.access, report.other_access} == accesses
    assert report.thread != report.other_thread
    assert report.same_value == (name == "same_value")
    assert str(report).startswith(f"<metal>:{report.line}: kernel '{name}': race on {memory}")
