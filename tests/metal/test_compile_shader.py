"""`compile_shader` has the call contract of `torch.mps.compile_shader`, on every device."""

from __future__ import annotations

import struct
import threading

import pytest
import torch

import metal_inductor

SOURCE = """
#include <metal_stdlib>
using namespace metal;

kernel void full(device float* out, constant float& value, uint i [[thread_position_in_grid]]) { out[i] = value; }

kernel void scale(device float* out, device const float* in, constant long& factor,
                  uint i [[thread_position_in_grid]]) {
  out[i] = in[i] * factor;
}

template <typename T>
kernel void copy(device T* out, constant T* in, uint i [[thread_position_in_grid]]) { out[i] = in[i]; }
#define COPY(NAME, T) template [[host_name("copy_" #NAME)]] kernel void copy<T>(device T*, constant T*, uint);
COPY(long, long) COPY(int, int) COPY(short, short) COPY(char, char) COPY(uchar, uchar)
COPY(float, float) COPY(half, half) COPY(bfloat, bfloat)

kernel void where_am_i(device uint* out,
                       uint3 position [[thread_position_in_grid]], uint3 grid [[threads_per_grid]],
                       uint3 group [[threadgroup_position_in_grid]], uint3 within [[thread_position_in_threadgroup]],
                       uint3 size [[threads_per_threadgroup]], uint lane [[thread_index_in_simdgroup]],
                       uint index [[thread_index_in_threadgroup]]) {
  device uint* row = out + 15 * (position.x + grid.x * (position.y + grid.y * position.z));
  for (int axis = 0; axis < 3; axis++) {
    row[axis] = position[axis]; row[3 + axis] = group[axis]; row[6 + axis] = within[axis]; row[9 + axis] = size[axis];
  }
  row[12] = lane; row[13] = index; row[14] = 7;
}

kernel void row_sum(device float* out, device const float* in, constant long& columns,
                    uint row [[threadgroup_position_in_grid]], uint i [[thread_position_in_threadgroup]],
                    uint threads [[threads_per_threadgroup]], uint lane [[thread_index_in_simdgroup]],
                    uint simdgroup [[simdgroup_index_in_threadgroup]],
                    uint simdgroups [[simdgroups_per_threadgroup]]) {
  threadgroup float partial[32];
  float sum = 0;
  for (uint column = i; column < columns; column += threads) sum += in[row * columns + column];
  sum = simd_sum(sum);
  if (lane == 0) partial[simdgroup] = sum;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (simdgroup == 0) {
    sum = simd_sum(lane < simdgroups ? partial[lane] : 0.0f);
    if (lane == 0) out[row] = sum;
  }
}

kernel void divergent(device float* out, uint i [[thread_position_in_grid]]) {
  float sum;
  if (i & 1) sum = simd_sum(1.0f); else sum = simd_sum(2.0f);
  out[i] = sum;
}

kernel void dynamic_memory(device float* out, device const float* in, threadgroup float* first [[threadgroup(1)]],
                           threadgroup float* second [[threadgroup(0)]], uint i [[thread_position_in_threadgroup]],
                           uint t [[thread_position_in_grid]], uint n [[threads_per_threadgroup]]) {
  threadgroup float own[8];
  if (i < 8) own[i] = in[t] + 0.5f;
  first[i] = in[t];
  second[n - 1 - i] = in[t];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  out[t] = first[n - 1 - i] + 1000 * second[n - 1 - i] + own[i & 7] * 1e6f;
}

struct record { int count; float4 weights; packed_short3 tail; };
kernel void by_reference(device float* out, constant record& r, constant float* list,
                         uint i [[thread_position_in_grid]]) {
  record copy = r;
  constant float* chosen = i & 1 ? list : (constant float*)&r.weights;
  out[i] = copy.count + r.weights[i & 3] * 10 + copy.tail[i % 3] * 100 + chosen[i & 3] * 1000;
}

kernel void sum_lists(device float* out, constant float* a, constant float* b, constant float* c, constant float* d,
                      constant float* e, uint i [[thread_position_in_grid]]) {
  out[i] = a[i] + b[1023 - i] + c[(i + 1) & 1023] + d[i] + e[3];
}

template <typename T, int N>
kernel void sized(device T* out, uint i [[thread_position_in_threadgroup]]) {
  threadgroup T first[N];
  threadgroup float second[3];
  first[i] = out[i]; second[i & 1] = 1;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  out[i] = first[i ^ 1] + T(second[i & 1]);
}
template [[host_name("sized_float")]] kernel void sized<float, 100>(device float*, uint);
template [[host_name("sized_half")]] kernel void sized<half, 64>(device half*, uint);

[[max_total_threads_per_threadgroup(64)]]
kernel void narrow(device float* out, uint i [[thread_position_in_grid]]) { out[i] = 1; }
"""


@pytest.fixture(scope="module")
def library(metal_device):
    return metal_inductor.compile_shader(SOURCE, device=metal_device)


@pytest.fixture(autouse=True)
def tensors_on_the_device(metal_device):
    """Tensors are made where the kernels run unless a test says otherwise."""
    with torch.device(metal_device):
        yield


def test_kernels_are_attributes(library):
    assert {"full", "scale", "copy_long", "row_sum"} <= set(dir(library))
    assert library.full is library.full
    with pytest.raises(AttributeError, match="no kernel 'fool'.*full"):
        library.fool  # noqa: B018


def test_a_kernel_tells_its_limits(library):
    assert library.full.thread_execution_width == 32
    assert library.full.max_threads_per_threadgroup == 1024
    assert library.narrow.max_threads_per_threadgroup == 64
    assert library.full.static_thread_group_memory_length == 0
    assert library.row_sum.static_thread_group_memory_length == 128
    assert library.sized_float.static_thread_group_memory_length == 400 + 16
    assert library.sized_half.static_thread_group_memory_length == 128 + 16


def test_without_threads_the_first_tensor_decides(library):
    out = torch.zeros(3, 5)
    assert library.full(out, 3.5) is None
    assert (out == 3.5).all()


def test_the_storage_offset_is_honoured(library):
    out, given = torch.zeros(20), torch.arange(20.0)
    library.scale(out[5:10], given[10:15], 2)
    assert out.tolist() == [0] * 5 + [20, 22, 24, 26, 28] + [0] * 10


def test_threads_limit_what_runs(library):
    out = torch.zeros(10)
    library.full(out, 1.0, threads=4)
    library.full(out[5:], 2.0, threads=(2,), group_size=[1])
    assert out.tolist() == [1, 1, 1, 1, 0, 2, 2, 0, 0, 0]


@pytest.mark.parametrize(
    ("name", "value", "dtype", "cast"),
    [
        ("copy_long", 2**40 + 3, torch.int64, None),
        ("copy_long", -5, torch.int64, None),
        ("copy_long", True, torch.int64, None),
        ("copy_long", [1, -2, 3], torch.int64, None),
        ("copy_long", (1, True), torch.int64, None),
        ("copy_float", 0.1, torch.float32, None),
        ("copy_float", [0.1, 2.0, float("inf")], torch.float32, None),
        ("copy_float", (0.5, 2), torch.float32, None),
        ("copy_half", 0.1, torch.float16, "fp16"),
        ("copy_half", [1, 2], torch.float16, "fp16"),
        ("copy_bfloat", [0.1, 3.0], torch.bfloat16, "bf16"),
        ("copy_int", -7, torch.int32, "int32"),
        ("copy_int", [7, 8], torch.int32, "int32"),
        ("copy_short", [-300, 300], torch.int16, "int16"),
        ("copy_char", [-7, 7], torch.int8, "int8"),
        ("copy_uchar", [250, 1], torch.uint8, "uint8"),
        ("copy_int", 2.75, torch.int32, "int32"),
    ],
)
def test_numbers_are_passed_by_value(library, name, value, dtype, cast):
    expected = torch.tensor(value if isinstance(value, (list, tuple)) else [value], dtype=torch.float64).to(dtype)
    if dtype == torch.int64:
        expected = torch.tensor(value if isinstance(value, (list, tuple)) else [value], dtype=dtype)
    for casts in (cast, {1: cast} if cast else {}):
        out = torch.zeros(len(expected), dtype=dtype)
        getattr(library, name)(out, value, arg_casts=casts)
        assert torch.equal(out, expected)


def test_a_list_of_tensors_is_an_array_of_addresses(library):
    tensors, out = [torch.zeros(1), torch.zeros(4)[2:]], torch.zeros(2, dtype=torch.int64)
    library.copy_long(out, tensors)
    assert out.tolist() == [tensor.data_ptr() for tensor in tensors]


def test_a_scalar_tensor_can_be_read_and_written(library):
    out = torch.zeros(())
    library.full(out, torch.tensor(2.5))
    assert out.item() == 2.5
    library.full(out, torch.tensor(1.25, dtype=torch.float64))
    assert out.item() == 1.25


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_scalar_tensor_on_the_cpu_is_copied_in(library, dtype):
    out = torch.zeros(40)
    library.full(out, torch.tensor(2.5, dtype=dtype, device="cpu"))
    assert (out == 2.5).all()


def test_threadgroup_arguments_get_the_memory_that_a_call_says(library):
    given, out = torch.arange(96.0), torch.zeros(96)
    library.dynamic_memory(out, given, threads=96, group_size=32, threadgroup_memory={0: 128, 1: 128})
    rows = given.view(3, 32)
    own = rows[:, :8].repeat(1, 4) + 0.5
    assert torch.equal(out.view(3, 32), rows.flip(1) + 1000 * rows + own * 1e6)


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ({0: 128}, r"threadgroup\(1\) needs a length"),
        ({0: 128, 1: 0}, r"threadgroup\(1\) needs a length"),
        ({0: 16384, 1: 16384}, "32800 bytes of threadgroup memory, Metal has 32768"),
        ({0: 16, 1: 16, 2: 16}, r"threadgroup\(2\).*its arguments: \[0, 1\]"),
    ],
)
def test_threadgroup_lengths_are_checked(library, lengths, message):
    with pytest.raises(ValueError, match=message):
        library.dynamic_memory(torch.zeros(4), torch.zeros(4), threads=4, group_size=4, threadgroup_memory=lengths)


@pytest.mark.parametrize("record_by_value", [False, True])
@pytest.mark.parametrize("list_by_value", [False, True])
def test_structures_and_lists_by_value_or_in_a_tensor(library, metal_device, record_by_value, list_by_value):
    bits = struct.pack("=i12x4f3h2x", 7, 1.0, 2.0, 3.0, 4.0, -5, 6, 7)
    record = (
        list(struct.unpack("=5q", bits)) if record_by_value else torch.frombuffer(bytearray(bits), dtype=torch.uint8)
    )
    values = [11.0, 12.0, 13.0, 14.0]
    out = torch.zeros(12)
    moved = record if record_by_value else record.to(metal_device)
    library.by_reference(out, moved, values if list_by_value else torch.tensor(values))
    weights, tail = [1, 2, 3, 4], [-5, 6, 7]
    chosen = [(values if i & 1 else weights)[i & 3] for i in range(12)]
    expected = [7 + weights[i & 3] * 10 + tail[i % 3] * 100 + chosen[i] * 1000 for i in range(12)]
    assert out.tolist() == expected


@pytest.mark.parametrize(
    ("grid", "group"), [((1, 70000), (1, 1)), ((3, 2, 300), (1, 2, 128)), ((2, 1, 66000), (2, 1, 1))]
)
def test_grids_and_threadgroups_that_a_device_must_fold(library, grid, group):
    wide = grid + (1,) * (3 - len(grid))
    out = torch.zeros(*wide[::-1], 15, dtype=torch.int32)
    library.where_am_i(out, threads=grid, group_size=group)
    position = torch.stack(torch.meshgrid(*(torch.arange(n) for n in wide[::-1]), indexing="ij")[::-1], -1)
    assert torch.equal(out[..., :3].long(), position) and (out[..., 14] == 7).all()
    assert torch.equal(out[..., 12], out[..., 13] % 32)


def test_many_bytes_by_value_in_one_call(library):
    values = torch.arange(1024.0)
    out = torch.zeros(1024)
    library.sum_lists(out, *((values * k).tolist() for k in range(1, 6)))
    assert torch.equal(out, values + values.flip(0) * 2 + values.roll(-1) * 3 + values * 4 + values[3] * 5)


@pytest.mark.parametrize(
    ("grid", "group"), [((5,), (3,)), ((7, 5), (4, 2)), ((5, 6, 7), (2, 4, 3)), ((70, 2), (64, 1))]
)
def test_edge_threadgroups_are_smaller(library, grid, group):
    wide, group3 = grid + (1,) * (3 - len(grid)), group + (1,) * (3 - len(group))
    out = torch.zeros(*wide[::-1], 15, dtype=torch.int32)
    library.where_am_i(out, threads=grid if len(grid) > 1 else grid[0], group_size=group if len(grid) > 1 else group[0])
    position = torch.stack(torch.meshgrid(*(torch.arange(n) for n in wide[::-1]), indexing="ij")[::-1], -1)
    groups, within = position // torch.tensor(group3), position % torch.tensor(group3)
    size = torch.minimum(torch.tensor(group3), torch.tensor(wide) - groups * torch.tensor(group3))
    index = within[..., 0] + size[..., 0] * (within[..., 1] + size[..., 1] * within[..., 2])
    expected = torch.cat([position, groups, within, size, (index % 32)[..., None], index[..., None]], -1)
    assert torch.equal(out[..., :14].long(), expected) and (out[..., 14] == 7).all()


@pytest.mark.parametrize("threads", [32, 100, 256, 1024])
def test_simdgroups_and_barriers(library, threads):
    given, out = torch.rand(9, 1000), torch.zeros(9)
    library.row_sum(out, given, 1000, threads=9 * threads, group_size=threads)
    torch.testing.assert_close(out, given.sum(1))


def test_divergent_simd_sums_stay_apart(library):
    out = torch.zeros(64)
    library.divergent(out)
    assert out.tolist() == [32.0, 16.0] * 32


@pytest.mark.parametrize("threads", [0, (0, 4), (4, 0, 2)])
def test_no_threads_is_no_work(library, threads):
    out = torch.zeros(4)
    library.full(out, 1.0, threads=threads)
    library.full(torch.zeros(0), 1.0)
    assert not out.any()


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        ((None, 1.0), {}, TypeError, "argument 0.*'full'.*None"),
        (("text", 1.0), {}, TypeError, "a str; valid are"),
        ((torch.zeros(4), object()), {}, TypeError, "argument 1"),
        ((torch.zeros(4), []), {}, ValueError, "empty list"),
        ((torch.zeros(4), [1, None]), {}, TypeError, "None in a list"),
        ((torch.zeros(4), [1, 2.0]), {}, TypeError, "ints only"),
        ((torch.zeros(4), 2**63), {}, ValueError, "64-bit"),
        ((torch.zeros(4), [1] * 513), {}, ValueError, "4104 bytes by value.*at most 4096"),
        ((torch.zeros(4), [torch.zeros(4, device="meta")]), {}, ValueError, "on meta"),
        ((torch.zeros(4), 1.0), {"threadgroup_memory": {0: 16}}, ValueError, "is no argument"),
        ((torch.zeros(4, device="meta"), 1.0), {}, ValueError, "on meta"),
        ((torch.zeros(4, dtype=torch.float64), 1.0), {}, TypeError, "float64"),
        ((torch.zeros(4).to_sparse(), 1.0), {}, ValueError, "dense"),
        ((torch.zeros(4), *[1.0] * 31), {}, ValueError, "32 arguments.*31"),
        ((torch.zeros(4),), {}, ValueError, r"'value', buffer\(1\), is not bound"),
        ((torch.zeros(4), 1.0), {"threads": 4, "group_size": 1025}, ValueError, "at most 1024"),
        ((torch.zeros(4), 1.0), {"threads": (4, 4), "group_size": (64, 32)}, ValueError, "at most 1024"),
        ((torch.zeros(4), 1.0), {"threads": (4, 1), "group_size": 4}, ValueError, "differ in their axes"),
        ((torch.zeros(4), 1.0), {"threads": 4, "group_size": 0}, ValueError, "at least 1"),
        ((torch.zeros(4), 1.0), {"threads": -1}, ValueError, "threads"),
        ((torch.zeros(4), 1.0), {"threads": 2**32}, ValueError, "threads"),
        ((torch.zeros(4), 1.0), {"threads": (1, 1, 1, 1)}, ValueError, "one to three"),
        ((torch.zeros(4), 1.0), {"threads": "4"}, ValueError, "threads='4'"),
        ((torch.zeros(4), 1.0), {"arg_casts": "fp32"}, ValueError, "'fp32'; valid casts: fp16"),
        ((torch.zeros(4), 1.0), {"arg_casts": 3}, TypeError, "arg_casts"),
        ((1.0, 1.0), {}, ValueError, "threads must be given"),
    ],
)
def test_bad_calls_say_what_is_wrong(library, metal_device, arguments, options, error, message):
    there = [a.to(metal_device) if getattr(a, "device", None) == torch.device("cpu") else a for a in arguments]
    with pytest.raises(error, match=message):
        library.full(*there, **options)


def test_the_kernels_own_limit_is_enforced(library):
    with pytest.raises(ValueError, match="at most 64"):
        library.narrow(torch.zeros(128), threads=128, group_size=128)
    out = torch.zeros(200)
    library.narrow(out)
    assert out.all()


def test_a_conjugate_view_is_refused(library):
    with pytest.raises(ValueError, match="resolve_conj"):
        library.full(torch.zeros(4, dtype=torch.complex64).conj(), 1.0)


@pytest.mark.parametrize(
    "source",
    [
        "kernel void broken(device float* out) { out[0] = undefined_name; }",
        "kernel void broken(device double* out) { out[0] = 1; }",
        "kernel void broken(device float* out [[buffer(31)]]) { out[0] = 1; }",
        "kernel void broken(device float* out) { threadgroup float big[8193]; big[0] = 1; out[0] = big[0]; }",
    ],
)
def test_invalid_metal_is_a_syntax_error(source, metal_device):
    with pytest.raises(SyntaxError):
        metal_inductor.compile_shader(source, device=metal_device)


def test_bad_devices_and_sources_are_named():
    with pytest.raises(ValueError, match="'meta'.*valid devices: cpu, cuda, mps"):
        metal_inductor.compile_shader(SOURCE, device="meta")
    with pytest.raises(TypeError, match="NoneType"):
        metal_inductor.compile_shader(None)


def test_without_a_device_the_best_there_is(monkeypatch):
    if torch.backends.mps.is_available():
        pytest.skip("runs where there is no MPS")
    out = torch.zeros(4, device="cpu")
    metal_inductor.compile_shader(SOURCE).full(out, 1.0)
    assert out.all()
    monkeypatch.setattr(torch.mps, "compile_shader", lambda source: ("torch", source))
    assert metal_inductor.compile_shader(SOURCE, device="mps") == ("torch", SOURCE)


def test_equal_text_compiles_once(metal_device):
    first = metal_inductor.compile_shader(SOURCE, device=metal_device)
    second = metal_inductor.compile_shader(SOURCE, device=torch.device(metal_device))
    assert first._runner.library is second._runner.library


def test_threads_call_kernels_at_the_same_time(library):
    def work(value: int) -> None:
        for _ in range(50):
            out = torch.zeros(1000, device=library.device)
            library.full(out, float(value))
            results.append(bool((out == value).all()))

    results: list[bool] = []
    workers = [threading.Thread(target=work, args=(value,)) for value in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert results == [True] * 200
