"""Each kind of mistake in a kernel is found, at its line, with its memory and its threads."""

from __future__ import annotations

import pytest
import torch

import metal_inductor
from metal_inductor.runtime.checks import NAMES, MetalCheckError, MetalCheckWarning, Thread, resolve
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
OTHERS = """
kernel void past_the_end(device float* out, device const float* in, uint i [[thread_position_in_grid]]) {
  out[i] = in[i + 1];      //A
  if (i == 3) out[400] = 1;  //B
}
kernel void before_the_start(device float* out, uint i [[thread_position_in_grid]]) {
  out[int(i) - 3] = 1;     //A
}
kernel void copied_structure(device float* out, device const float4x4* in, uint i [[thread_position_in_grid]]) {
  float4x4 m = in[i];      //A
  out[i] = m[3].w;
}
kernel void short_value(device float* out, constant long& value, uint i [[thread_position_in_grid]]) {
  out[i] = value;          //A
}
kernel void through_addresses(device float* out, device float* constant* rows, uint i [[thread_position_in_grid]]) {
  out[i] = rows[1][i];     //A
}
kernel void outside_atomic(device atomic_uint* out, uint i [[thread_position_in_grid]]) {
  atomic_fetch_add_explicit(out + 1000 * i, 1u, memory_order_relaxed);   //A
}
kernel void misaligned(device float* out, device const float* in, uint i [[thread_position_in_grid]]) {
  float4 v = ((device const float4*)(in + 1))[i];   //A
  out[i] = v.w;
}
kernel void packed_is_aligned(device float* out, device const packed_float3* in, uint i [[thread_position_in_grid]]) {
  out[i] = float3(in[i]).z;
}
kernel void tile_overrun(device float* out, uint i [[thread_position_in_threadgroup]]) {
  threadgroup float tile[64];
  threadgroup float other[64];
  tile[i + 1] = i;         //A
  other[i] = 0;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  out[i] = i > 0 ? tile[i] + other[i] : 0.0f;
}
kernel void argument_overrun(device float* out, threadgroup float* tile [[threadgroup(0)]],
                             threadgroup float* other [[threadgroup(1)]], uint i [[thread_position_in_threadgroup]]) {
  tile[i] = other[i] = i;  //A
  out[i] = tile[i];
}
kernel void unwritten(device float* out, uint i [[thread_position_in_threadgroup]]) {
  threadgroup float tile[64];
  if (i < 60) tile[i] = i;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  out[i] = tile[63 - i];   //A
}
kernel void unwritten_sum(device float* out, uint i [[thread_position_in_threadgroup]]) {
  threadgroup float sum[64];
  sum[i] += i;             //A
  out[i] = sum[i];
}
kernel void vectors_of_three(device float* out, uint i [[thread_position_in_threadgroup]]) {
  threadgroup float3 tile[64];
  tile[i].x = i; tile[i].y = i; tile[i].z = i;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float3 mirrored = tile[63 - i];
  out[i] = mirrored.x + mirrored.z;
}
kernel void early_return(device float* out, uint i [[thread_position_in_threadgroup]]) {
  if (i < 5) return;
  threadgroup_barrier(mem_flags::mem_none);   //A
  out[i] = 1;
}
kernel void two_barriers(device float* out, uint i [[thread_position_in_threadgroup]]) {
  if (i < 32)
    threadgroup_barrier(mem_flags::mem_none);   //A
  else
    threadgroup_barrier(mem_flags::mem_none);   //B
  out[i] = 1;
}
inline void meet() {
  threadgroup_barrier(mem_flags::mem_none);     //C
}
kernel void one_line_two_calls(device float* out, uint i [[thread_position_in_threadgroup]]) {
  if (i & 1) meet(); else meet();
  out[i] = 1;
}
kernel void half_a_simdgroup(device float* out, uint i [[thread_position_in_threadgroup]]) {
  if (i % 32 < 16)
    simdgroup_barrier(mem_flags::mem_none);     //A
  out[i] = 1;
}
kernel void uneven_loop(device float* out, uint i [[thread_position_in_threadgroup]]) {
  for (uint k = 0; k < 1 + i / 32; k++)
    threadgroup_barrier(mem_flags::mem_none);   //A
  out[i] = 1;
}
"""
RACES = dict(  # threads, memory, and what the two lines do
    missing_barrier=(64, "threadgroup variable 'tile'", {"read", "write"}),
    lanes_without_barrier=(32, "threadgroup variable 'tile'", {"read", "write"}),
    shuffle_is_no_barrier=(32, "threadgroup variable 'tile'", {"read", "write"}),
    wrong_flag=(64, "threadgroup variable 'tile'", {"read", "write"}),
    simdgroup_barrier_is_too_small=(64, "threadgroup variable 'tile'", {"read", "write"}),
    write_after_read=(64, "threadgroup variable 'tile'", {"read", "write"}),
    two_stores=(64, "threadgroup variable 'last' + 0 bytes", {"write"}),
    atomic_and_plain=(64, "threadgroup variable 'count' + 0 bytes", {"atomic update", "read"}),
    between_threadgroups=(64, "argument 'out'", {"read", "write"}),
    device_memory_in_group=(64, "argument 'out'", {"read", "write"}),
    helper_function=(64, "threadgroup variable 'tile'", {"read", "write"}),
    matrix_store=(32, "threadgroup variable 'tile'", {"read", "write"}),
    vector_method=(64, "threadgroup variable 'tile'", {"read", "write"}),
)
SOURCE = HEAD + "\n".join(KERNELS.values()) + OTHERS
GROUP_SIZES = {"between_threadgroups": 32}


def marked_line(kernel: str, mark: str) -> int:
    """Line in SOURCE of the kernel's first line with this mark."""
    lines = SOURCE.split("\n")
    text = KERNELS.get(kernel, f"kernel void {kernel}(")
    begin = SOURCE[: SOURCE.index(text)].count("\n")
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
    assert not report.same_value
    assert str(report).startswith(f"<metal>:{report.line}: kernel '{name}': race on {memory}")


def test_stores_of_the_same_value_are_a_warning(library):
    """They are a race all the same, but real kernels do it and nothing comes of it."""
    out = torch.zeros(64)
    with pytest.warns(MetalCheckWarning, match=r"race on threadgroup variable 'flag'.*store the same value") as caught:
        library.same_value(out, threads=64, group_size=64, checks=True)
    assert len(caught) == 1 and f"<metal>:{marked_line('same_value', 'A')}:" in str(caught[0].message)
    assert (out == 7).all()


def only_report(call, kind: str):
    """The one report of a call."""
    reports = reports_of(call)
    assert len(reports) == 1, [str(report) for report in reports]
    assert reports[0].kind == kind
    return reports[0]


def test_access_past_the_end(library):
    out, given = torch.zeros(8), torch.arange(8.0)
    reports = reports_of(lambda: library.past_the_end(out, given, threads=8, group_size=8, checks=True))
    read, write = sorted(reports, key=lambda report: report.line)
    assert [report.kind for report in reports] == ["bounds", "bounds"]
    assert (read.access, read.line, read.count) == ("read", marked_line("past_the_end", "A"), 1)
    assert read.address == "argument 'in' + 32 bytes (in[8])"
    assert read.thread == Thread((0, 0, 0), (7, 0, 0), 7)
    assert (write.access, write.line) == ("write", marked_line("past_the_end", "B"))
    assert write.address == "argument 'out' + 1600 bytes (out[400])"
    assert out.tolist() == [1, 2, 3, 4, 5, 6, 7, 0]  # what was read outside is zero


def test_buffers_end_with_the_storage_and_not_with_the_view(library):
    storage = torch.zeros(20)
    library.before_the_start(storage[5:], threads=4, group_size=4, checks=True)
    assert storage.tolist() == [0, 0, 1, 1, 1, 1] + [0] * 14
    report = only_report(lambda: library.before_the_start(storage[2:], threads=4, group_size=4, checks=True), "bounds")
    assert report.address == "argument 'out' + -12 bytes (out[-3])"
    assert storage.tolist() == [1, 1, 1, 1, 1, 1] + [0] * 14


def test_stores_out_of_bounds_do_no_harm(library):
    """Neither the bytes around a buffer nor another buffer changes."""
    memory = torch.zeros(1000)
    inside = torch.from_numpy(memory.numpy()[100:108].copy())
    with pytest.raises(MetalCheckError):
        library.past_the_end(inside, torch.zeros(100), threads=8, checks="bounds")
    assert not memory.any()


def test_structure_copied_across_the_end(library):
    out = torch.zeros(2)
    call = lambda: library.copied_structure(out, torch.ones(31), threads=2, checks=True)  # noqa: E731
    reports = reports_of(call)
    assert {(report.kind, report.line) for report in reports} == {("bounds", marked_line("copied_structure", "A"))}
    assert out.tolist() == [1, 0]


def test_value_narrower_than_the_parameter(library):
    out = torch.zeros(1)
    library.short_value(out, 3, threads=1, checks=True)
    assert out.item() == 3
    report = only_report(lambda: library.short_value(out, 3, threads=1, arg_casts={1: "int32"}, checks=True), "bounds")
    assert report.address.startswith("argument 'value' + 0 bytes") and report.line == marked_line("short_value", "A")


def test_memory_behind_an_array_of_addresses(library):
    out, matrix = torch.zeros(6), [torch.zeros(5), torch.arange(5.0)]
    library.through_addresses(out, matrix, threads=5, checks=True)
    assert out.tolist() == [0, 1, 2, 3, 4, 0]
    report = only_report(lambda: library.through_addresses(out, matrix, threads=6, checks=True), "bounds")
    assert report.line == marked_line("through_addresses", "A")
    assert report.address == "memory 1 behind an array of addresses + 20 bytes"


def test_atomic_outside(library):
    out = torch.zeros(1, dtype=torch.int32)
    report = only_report(lambda: library.outside_atomic(out, threads=2, checks=True), "bounds")
    assert report.access == "atomic update" and report.address == "argument 'out' + 4000 bytes (out[1000])"
    assert out.item() == 1


def test_misaligned_access(library):
    out, given = torch.zeros(2), torch.arange(16.0)
    report = only_report(lambda: library.misaligned(out, given, threads=2, checks=True), "alignment")
    assert report.line == marked_line("misaligned", "A") and report.count == 2
    assert report.address == "argument 'in' + 4 bytes (in[1])"
    assert out.tolist() == [4, 8]  # it is carried out all the same
    library.misaligned(out, given[3:], threads=2, checks=True)
    library.packed_is_aligned(out, given[1:], threads=2, checks=True)


def test_threadgroup_variable_is_overrun(library):
    out = torch.zeros(64)
    report = only_report(lambda: library.tile_overrun(out, threads=64, group_size=64, checks=True), "bounds")
    assert report.line == marked_line("tile_overrun", "A")
    assert report.address == "threadgroup variable 'tile' + 256 bytes"
    assert report.thread.position == (63, 0, 0)
    assert out.tolist() == [0.0, *range(63)]


def test_threadgroup_argument_is_overrun(library):
    out = torch.zeros(64)
    run = library.argument_overrun
    run(out, threads=64, group_size=64, threadgroup_memory={0: 256, 1: 256}, checks=True)
    assert out.tolist() == list(range(64))
    call = lambda: run(out, threads=64, group_size=64, threadgroup_memory={0: 128, 1: 256}, checks=True)  # noqa: E731
    reports = reports_of(call)
    assert reports[0].address == "argument 'tile' + 128 bytes (tile[32])"
    assert reports[0].line == marked_line("argument_overrun", "A")


def test_unwritten_threadgroup_memory(library):
    out = torch.zeros(64)
    report = only_report(lambda: library.unwritten(out, threads=64, group_size=64, checks=True), "uninitialised")
    assert report.line == marked_line("unwritten", "A") and report.count == 4
    assert report.address == "threadgroup variable 'tile' + 252 bytes"
    assert report.thread.position == (0, 0, 0)
    report = only_report(lambda: library.unwritten_sum(out, threads=64, group_size=64, checks=True), "uninitialised")
    assert report.line == marked_line("unwritten_sum", "A")


def test_padding_of_a_three_vector_need_not_be_written(library):
    out = torch.zeros(64)
    library.vectors_of_three(out, threads=64, group_size=64, checks=True)
    assert out.tolist() == [2.0 * (63 - i) for i in range(64)]


def test_threads_that_return_before_a_barrier(library):
    out = torch.zeros(64)
    report = only_report(lambda: library.early_return(out, threads=64, group_size=64, checks=True), "barriers")
    assert report.line == marked_line("early_return", "A") and report.other_line == 0
    assert "barrier reached by 59 of 64 threads" in str(report) and "does not come" in str(report)
    assert report.other_thread.position == (0, 0, 0)
    assert out.tolist() == [0] * 5 + [1] * 59  # those that wait go on, to be checked further


def test_threads_at_different_barriers(library, schedule):
    out = torch.zeros(64)
    report = only_report(lambda: library.two_barriers(out, threads=64, group_size=64, checks=True), "barriers")
    lines = {report.line, report.other_line}
    assert lines == {marked_line("two_barriers", "A"), marked_line("two_barriers", "B")}
    assert {report.thread.index // 32, report.other_thread.index // 32} == {0, 1}


def test_one_barrier_reached_through_two_calls_is_two(library):
    out = torch.zeros(64)
    report = only_report(lambda: library.one_line_two_calls(out, threads=64, group_size=64, checks=True), "barriers")
    assert report.line == report.other_line == marked_line("two_barriers", "C")


def test_half_a_simdgroup_at_a_barrier(library):
    out = torch.zeros(64)
    report = only_report(lambda: library.half_a_simdgroup(out, threads=64, group_size=64, checks=True), "barriers")
    assert report.line == marked_line("half_a_simdgroup", "A")
    assert "barrier reached by 16 of 32 threads" in str(report)


def test_more_rounds_in_some_threads(library):
    out = torch.zeros(64)
    report = only_report(lambda: library.uneven_loop(out, threads=64, group_size=64, checks=True), "barriers")
    assert report.line == marked_line("uneven_loop", "A")
    assert "32 of 64 threads" in str(report)


def test_only_the_wanted_checks_report(library):
    out, given = torch.zeros(64), torch.zeros(100)
    library.missing_barrier(out, threads=64, group_size=64, checks=["bounds", "alignment", "barriers"])
    library.missing_barrier(out, threads=64, group_size=64, checks=False)
    library.misaligned(out, given, threads=2, checks="races, bounds")
    with pytest.raises(MetalRuntimeError, match="deadlock"):
        library.early_return(out, threads=64, group_size=64, checks="none")
    library.early_return(out, threads=64, group_size=64, checks="bounds")


@pytest.mark.parametrize("given", [None, False, "none", ()])
def test_no_checks(given):
    assert resolve(given) == 0


@pytest.mark.parametrize("given", [True, "all", NAMES, ",".join(NAMES), "barriers,all"])
def test_all_checks(given):
    assert resolve(given) == 31


def test_unknown_checks_are_refused(library, monkeypatch):
    with pytest.raises(ValueError, match="unknown check 'race'; valid are races, bounds"):
        library.early_return(torch.zeros(1), checks="race")
    with pytest.raises(TypeError, match="got int"):
        resolve(3)
    monkeypatch.setenv("METAL_INDUCTOR_CHECKS", "bound")
    with pytest.raises(ValueError, match="METAL_INDUCTOR_CHECKS='bound'.*unknown check 'bound'"):
        resolve(None)


def test_the_environment_switches_checks_on(monkeypatch):
    monkeypatch.setenv("METAL_INDUCTOR_CHECKS", "races,bounds")
    library = metal_inductor.compile_shader(SOURCE, device="cpu")
    with pytest.raises(MetalCheckError):
        library.missing_barrier(torch.zeros(64), threads=64, group_size=64)
    library.missing_barrier(torch.zeros(64), threads=64, group_size=64, checks=False)


def test_without_checks_the_library_is_the_plain_one(library):
    """Its text has no hook, and asking for a checked call leaves it as it was."""
    plain = CpuLibrary.load(SOURCE)
    assert plain.notes is None
    assert b"msl_check" not in plain.path.read_bytes()
    assert CpuLibrary.load(SOURCE, checked=True) is not plain
    assert b"msl_check" in CpuLibrary.load(SOURCE, checked=True).path.read_bytes()
    assert CpuLibrary.load(SOURCE) is plain


def test_reports_are_collected_over_the_dispatch(library):
    """Several mistakes of one dispatch are all reported, each once with a count."""
    out = torch.zeros(64 * 5)
    reports = reports_of(lambda: library.unwritten(out, threads=64 * 5, group_size=64, checks=True))
    kinds = {report.kind: report for report in reports}
    assert set(kinds) == {"uninitialised", "races"}  # five threadgroups store to the same 64 elements
    assert kinds["uninitialised"].count == 4 * 5
    assert kinds["races"].thread.threadgroup != kinds["races"].other_thread.threadgroup
