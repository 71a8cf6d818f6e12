"""Simdgroup, quadgroup, threadgroup and atomic operations, and what a kernel knows about its place in the grid."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from metal_inductor.metal import compile_shader
from metal_inductor.metal.frontend import translate

HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"


@pytest.fixture(autouse=True)
def tensors_on_the_device(metal_device):
    """Tensors are made, and kernels compiled, for each device that runs Metal text."""
    with torch.device(metal_device):
        yield


TYPES = {"float": torch.float32, "half": torch.float16, "int": torch.int32, "uchar": torch.uint8, "short": torch.int16}


def run_lanes(expression: str, values: torch.Tensor, metal: str = "float", threads: int | None = None) -> torch.Tensor:
    """o[t] = expression of a = values[t] in threadgroups of up to 64 threads."""
    library = compile_shader(
        f"{HEAD}kernel void k(device {metal}* o, device const {metal}* v, uint t [[thread_position_in_grid]], "
        f"ushort lane [[thread_index_in_simdgroup]]) {{ {metal} a = v[t]; o[t] = {metal}({expression}); }}",
        device=torch.get_default_device(),
    )
    result = torch.zeros_like(values)
    library.k(result, values, threads=threads or len(values), group_size=64)
    return result


@pytest.mark.parametrize("metal", TYPES)
@pytest.mark.parametrize(
    ("function", "reference"),
    [
        ("simd_sum", lambda v: v.sum(1)),
        ("simd_max", lambda v: v.max(1)),
        ("simd_min", lambda v: v.min(1)),
        ("simd_product", lambda v: v.prod(1)),
    ],
)
def test_reduction(metal, function, reference):
    if function == "simd_product":
        values = torch.ones(128)
        values[::17] = 2
    else:
        values = torch.arange(128) % 7
    values = values.to(TYPES[metal])
    result = run_lanes(f"{function}(a)", values, metal)
    expected = reference(values.view(4, 32).double().cpu().numpy())
    np.testing.assert_array_equal(result.view(4, 32).double().cpu().numpy(), np.repeat(expected[:, None], 32, 1))


SHUFFLES = {
    "simd_shuffle(a, 5)": lambda i: np.full(32, 5),
    "simd_broadcast(a, 31)": lambda i: np.full(32, 31),
    "simd_broadcast_first(a)": lambda i: np.zeros(32, int),
    "simd_shuffle(a, ushort(31 - lane))": lambda i: 31 - i,
    "simd_shuffle_xor(a, 3)": lambda i: i ^ 3,
    "simd_shuffle_rotate_down(a, 3)": lambda i: (i + 3) % 32,
    "simd_shuffle_rotate_up(a, 3)": lambda i: (i - 3) % 32,
    "quad_broadcast(a, 2)": lambda i: i // 4 * 4 + 2,
    "quad_shuffle_xor(a, 1)": lambda i: i ^ 1,
    "quad_shuffle_rotate_down(a, 1)": lambda i: i // 4 * 4 + (i + 1) % 4,
    "simd_shuffle(float2(a, 0), 7).x": lambda i: np.full(32, 7),
    "lane + 31 < 32 ? a : simd_shuffle_up(a, 0)": lambda i: i,
}


@pytest.mark.parametrize("expression", SHUFFLES)
def test_shuffle(expression):
    values = torch.randn(64)
    expected = np.concatenate([values.cpu().numpy()[b : b + 32][SHUFFLES[expression](np.arange(32))] for b in (0, 32)])
    np.testing.assert_array_equal(run_lanes(expression, values).cpu().numpy(), expected)


def test_shuffles_up_and_down_with_filling():
    values = torch.randn(32)
    down = run_lanes("simd_shuffle_and_fill_down(a, float(lane), 4)", values)
    assert torch.equal(down, torch.cat([values[4:], torch.arange(4.0)]))
    up = run_lanes("simd_shuffle_and_fill_up(a, float(lane), 4)", values)
    assert torch.equal(up, torch.cat([torch.arange(28.0, 32), values[:28]]))
    assert torch.equal(run_lanes("simd_shuffle_down(a, 4)", values)[:28], values[4:])
    assert torch.equal(run_lanes("simd_shuffle_up(a, 4)", values)[4:], values[:28])


def test_prefix_operations_votes_and_bits():
    values = torch.arange(1.0, 33)
    assert torch.equal(run_lanes("simd_prefix_inclusive_sum(a)", values), values.cumsum(0))
    assert torch.equal(run_lanes("simd_prefix_exclusive_sum(a)", values), values.cumsum(0) - values)
    small = (torch.arange(32) % 2 + 1).float()
    assert torch.equal(run_lanes("simd_prefix_inclusive_product(a)", small), small.cumprod(0))
    assert run_lanes("simd_any(a == 7) * 4 + simd_all(a > 0) * 2 + simd_all(a > 1)", values).unique().tolist() == [6]
    assert run_lanes("ulong(simd_ballot(a < 4)) + simd_is_first() * 100", values)[:2].tolist() == [107, 7]
    quads = run_lanes("quad_sum(a) + quad_max(a) * 1000", values).view(8, 4)
    expected = values.view(8, 4).sum(1) + values.view(8, 4).amax(1) * 1000
    assert torch.equal(quads, expected[:, None].expand(8, 4))
    bits = torch.arange(32, dtype=torch.int32)
    assert run_lanes("simd_or(a) * 10000 + simd_and(a | 4) * 100 + simd_xor(a)", bits, "int").unique().tolist() == [
        310400
    ]


def test_a_part_of_the_simdgroup_reduces_what_it_has():
    values = torch.arange(40.0)
    assert run_lanes("simd_sum(a)", values)[[0, 32, 39]].tolist() == [496, 284, 284]
    diverged = run_lanes("(lane & 1) ? simd_sum(a) : -simd_sum(a)", torch.ones(32))
    assert diverged.view(16, 2).unique(dim=0).tolist() == [[-16, 16]]


def test_threadgroup_memory_and_barriers():
    library = compile_shader(
        HEAD
        + "template <typename T, int N> kernel void reverse(device T* o [[buffer(0)]], device const T* a [[buffer(1)]],"
        " threadgroup T* extra [[threadgroup(0)]], uint t [[thread_index_in_threadgroup]],"
        " uint g [[threadgroup_position_in_grid]], uint n [[threads_per_threadgroup]]) {"
        " threadgroup T s[N], unused[2][N]; threadgroup int count; if (t == 0) count = 1; s[t] = a[g * N + t];"
        " threadgroup_barrier(mem_flags::mem_threadgroup); o[g * N + t] = s[n - 1 - t] * T(count);"
        " { threadgroup float inner[4]; inner[0] = 0; } }\n"
        'template [[host_name("reverse_float")]] kernel void reverse<float, 128>(device float*, device const float*,'
        " threadgroup float*, uint, uint, uint);\n"
        'template [[host_name("reverse_half")]] [[kernel]] decltype(reverse<half, 64>) reverse<half, 64>;',
        device=torch.get_default_device(),
    )
    del library  # threadgroup buffers cannot be bound through compile_shader; compiling is the test
    library = compile_shader(
        HEAD + "kernel void reverse(device float* o, device const float* a, uint t [[thread_index_in_threadgroup]],"
        " uint g [[threadgroup_position_in_grid]]) { threadgroup float s[128]; threadgroup int count;"
        " if (t == 0) count = 1; s[t] = a[g * 128 + t]; threadgroup_barrier(mem_flags::mem_threadgroup);"
        " o[g * 128 + t] = s[127 - t] * count; }",
        device=torch.get_default_device(),
    )
    values = torch.randn(512)
    result = torch.empty(512)
    library.reverse(result, values, threads=512, group_size=128)
    assert torch.equal(result, values.view(4, 128).flip(1).flatten())


@pytest.mark.parametrize("barrier", ["", "simdgroup_barrier(mem_flags::mem_none);"])
def test_grid_attributes_in_loops_and_fibers(barrier):
    """A kernel without barriers runs as a loop, with one as fibers; both know the same about their place."""
    names = [
        "thread_position_in_grid",
        "threadgroup_position_in_grid",
        "thread_position_in_threadgroup",
        "threads_per_threadgroup",
        "dispatch_threads_per_threadgroup",
        "threadgroups_per_grid",
        "threads_per_grid",
    ]
    scalars = [
        "thread_index_in_threadgroup",
        "thread_index_in_simdgroup",
        "simdgroup_index_in_threadgroup",
        "simdgroups_per_threadgroup",
    ]
    parameters = [f"uint3 v{i} [[{n}]]" for i, n in enumerate(names)] + [
        f"ushort s{i} [[{n}]]" for i, n in enumerate(scalars)
    ]
    stores = "".join(f"o[{3 * i}] = v{i}.x; o[{3 * i + 1}] = v{i}.y; o[{3 * i + 2}] = v{i}.z;" for i in range(7))
    stores += "".join(f"o[{21 + i}] = s{i};" for i in range(4))
    library = compile_shader(
        f"{HEAD}kernel void k(device int* all, {', '.join(parameters)}) {{ {barrier}"
        f"device int* o = all + ((v0.z * 5 + v0.y) * 70 + v0.x) * 25; {stores} }}",
        device=torch.get_default_device(),
    )
    grid, group = np.array([70, 5, 3]), np.array([32, 2, 2])
    result = torch.zeros(3, 5, 70, 25, dtype=torch.int32)
    library.k(result, threads=(70, 5, 3), group_size=(32, 2, 2))
    for z, y, x in np.ndindex(3, 5, 70):
        position = np.array([x, y, z])
        group_position = position // group
        local = position % group
        size = np.minimum(group, grid - group_position * group)
        index = (local[2] * size[1] + local[1]) * size[0] + local[0]
        groups = -(-grid // group)
        expected = [*position, *group_position, *local, *size, *group, *groups, *grid]
        expected += [index, index % 32, index // 32, -(-size.prod() // 32)]
        assert result[z, y, x].tolist()[:25] == expected


def test_atomics():
    library = compile_shader(
        HEAD
        + "kernel void k(device atomic_int* i, device atomic_uint* u, device atomic_float* f, device atomic_ulong* l,"
        " device const float* a, uint t [[thread_position_in_grid]]) {"
        " threadgroup atomic_int shared;"
        " atomic_fetch_add_explicit(i, 1, memory_order_relaxed);"
        " atomic_fetch_max_explicit(i + 1, int(t), memory_order_relaxed);"
        " atomic_fetch_min_explicit(i + 2, -int(t), memory_order_relaxed);"
        " atomic_fetch_or_explicit(u, 1u << (t & 31), memory_order_relaxed);"
        " atomic_fetch_xor_explicit(u + 1, t, memory_order_relaxed);"
        " atomic_fetch_add_explicit(f, a[t], memory_order_relaxed);"
        " atomic_fetch_max_explicit((device atomic_int*)(f + 1), as_type<int>(a[t]), memory_order_relaxed);"
        " atomic_max_explicit(l, ulong(t) << 33, memory_order_relaxed);"
        " float old = atomic_load_explicit(f + 2, memory_order_relaxed);"
        " while (!atomic_compare_exchange_weak_explicit(f + 2, &old, old + 2.0f, memory_order_relaxed,"
        "   memory_order_relaxed)) {}"
        " if (t == 7) { atomic_store_explicit(i + 3, 42, memory_order_relaxed);"
        "   atomic_exchange_explicit(u + 2, 43u, memory_order_relaxed);"
        "   atomic_store_explicit(&shared, 1, memory_order_relaxed); }"
        "}",
        device=torch.get_default_device(),
    )
    i, u = torch.zeros(4, dtype=torch.int32), torch.zeros(3, dtype=torch.int32)
    f, wide = torch.zeros(3), torch.zeros(1, dtype=torch.int64)
    a = torch.arange(1000.0)
    library.k(i, u, f, wide, a, threads=1000, group_size=100)
    assert i.tolist() == [1000, 999, -999, 42]
    assert u.tolist() == [-1, int(np.bitwise_xor.reduce(np.arange(1000))), 43]
    assert f.tolist() == [499500.0, 999.0, 2000.0]
    assert wide.item() == 999 << 33


@pytest.mark.parametrize("metal", ["float", "half", "bfloat"])
def test_simdgroup_matrix(metal):
    dtype = {"float": torch.float32, "half": torch.float16, "bfloat": torch.bfloat16}[metal]
    library = compile_shader(
        f"#include <metal_simdgroup_matrix>\n{HEAD}"
        f"kernel void k(device float* o, device const {metal}* a, device const {metal}* b) {{"
        f" simdgroup_matrix<{metal}, 8, 8> x, y; auto sum = make_filled_simdgroup_matrix<float, 8, 8>(1.0f);"
        " for (int k = 0; k < 32; k += 8) { simdgroup_load(x, a, 32, ulong2(k, 0));"
        "   simdgroup_load(y, b, 8, ulong2(0, k));"
        "   simdgroup_multiply_accumulate(sum, x, y, sum); }"
        " sum.thread_elements()[0] *= 2; sum.thread_elements()[1] *= 2;"
        " simdgroup_store(sum, o); simdgroup_store(sum, o + 64, 8, ulong2(0), true); }\n"
        "kernel void diagonal(device float* o) { simdgroup_float8x8 m(3.0f); m = m * simdgroup_float8x8(2.0f);"
        " simdgroup_store(m, o); }",
        device=torch.get_default_device(),
    )
    a, b = torch.randn(8, 32).to(dtype), torch.randn(32, 8).to(dtype)
    result = torch.empty(2, 8, 8)
    library.k(result, a, b, threads=32, group_size=32)
    expected = (a.double() @ b.double() + 1) * 2
    torch.testing.assert_close(result[0].double(), expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(result[1], result[0].t())
    library.diagonal(result, threads=32, group_size=32)
    assert torch.equal(result[0], torch.eye(8) * 6)


def test_which_kernels_use_fibers():
    source = (
        HEAD + "template <typename T> T helper(T v) { return simd_sum(v); }\nusing Matrix = simdgroup_float8x8;\n"
        "float harmless(float x) { return x; }\n"
        "kernel void plain(device float* x) { x[0] = harmless(x[1]); }\n"
        "kernel void direct(device float* x) { threadgroup_barrier(mem_flags::mem_none); }\n"
        "kernel void through_a_call(device float* x) { x[0] = helper(x[1]); }\n"
        "kernel void through_an_alias(device float* x) { Matrix m(1.0f); m = m * m; x[0] = m.thread_elements().x; }\n"
    )
    infos = {kernel.name: kernel for kernel in translate(source).kernels}
    uses = {name: info.uses_fibers for name, info in infos.items()}
    assert uses == {"plain": False, "direct": True, "through_a_call": True, "through_an_alias": True}


def test_kernel_info():
    source = (
        HEAD + '[[host_name("shown")]] [[max_total_threads_per_threadgroup(256)]] kernel void k('
        "device half* out [[buffer(3)]], constant long& n [[buffer(0)]], constant float3* v, "
        "threadgroup float* shared [[threadgroup(0)]], uint2 p [[thread_position_in_grid]])"
        "{ threadgroup float s[33]; }"
    )
    (info,) = translate(source).kernels
    assert (info.name, info.max_threads, info.threadgroup_bytes, info.uses_fibers) == ("shown", 256, 144, True)
    described = [(a.name, a.kind, a.index, a.address_space, a.by_value_bytes, a.builtin) for a in info.arguments]
    assert described == [
        ("out", "buffer", 3, "device", None, None),
        ("n", "buffer", 0, "constant", 8, None),
        ("v", "buffer", 1, "constant", None, None),
        ("shared", "threadgroup", 0, "threadgroup", None, None),
        ("p", "builtin", None, None, None, "thread_position_in_grid"),
    ]
    assert type(info).from_json(info.to_json()) == info


def test_function_constants():
    source = (
        HEAD + "constant bool on [[function_constant(0)]];\nconstant int n [[function_constant(1)]];\n"
        "constant bool given = is_function_constant_defined(n);\n"
        "kernel void k(device float* o) { o[0] = on ? n : -1; o[1] = given; }"
    )
    text = translate(source, constants={0: True, "n": 7}).text
    assert "#define MSL_FUNCTION_CONSTANT_1 7" in text
    with pytest.raises(ValueError, match="valid are"):
        translate(source, constants={"nothing": 1})
    library = compile_shader(source, device=torch.get_default_device())
    result = torch.zeros(2)
    library.k(result, threads=1, group_size=1)
    assert result.tolist() == [-1, 0]
