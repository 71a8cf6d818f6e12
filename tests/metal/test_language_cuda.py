"""Metal text becomes PTX. What it computes is tested on a GPU with the runtime."""

from __future__ import annotations

import re

import pytest

from metal_inductor.metal import clang
from metal_inductor.metal.frontend import MetalSyntaxError, translate

HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"


def ptx(source: str) -> str:
    return clang.compile_cuda(translate(HEAD + source, target="cuda").text).decode()


def body(text: str, symbol: str) -> str:
    return text[text.index(f".entry {symbol}(") :]


def test_parameters_are_buffers_grid_and_threadgroup_offsets():
    text = ptx(
        "kernel void k(device float* o [[buffer(2)]], constant int& n [[buffer(0)]],"
        " threadgroup float* s [[threadgroup(0)]], uint t [[thread_position_in_grid]]) {"
        " s[t] = o[t]; o[t] = s[t] * n; }"
    )
    declared = re.findall(r"\.param (\.u\d\d|\.align 4 \.b8).*?(\[\d+\])?,?$", body(text, "msl_k0").split("{")[0], re.M)
    assert declared == [(".u64", ""), (".u64", ""), (".align 4 .b8", "[48]"), (".u32", "")]


def test_vectors_load_sixteen_bytes():
    text = ptx(
        "kernel void k(device float4* o, device const half4* a, uint t [[thread_position_in_grid]]) { o[t] = o[9]; }"
    )
    assert "ld.global.v4" in text and "st.global.v4" in text


@pytest.mark.parametrize(
    ("metal", "load"),
    [
        ("float4", "v4.b32"),
        ("float3", "v4.b32"),
        ("uint4", "v4.b32"),
        ("long2", "v2.b64"),
        ("half4", "v2.b32"),
        ("bfloat4", "v4.b16"),
        ("uchar4", "b32"),
    ],
)
def test_a_vector_is_one_access(metal, load):
    text = ptx(
        f"kernel void k(device {metal}* o, uint i [[thread_position_in_grid]]) {{ o[i] = o[i + 8] + o[i + 9]; }}"
    )
    assert re.findall(r"ld\.global\.(\S+)", text) == [load] * 2 and text.count("st.global") == 1


def test_integers_reduce_in_one_instruction_and_floats_in_five_steps():
    text = ptx(
        "kernel void i(device int* o) { o[0] = simd_sum(o[1]) + simd_min(o[2]) + simd_max(o[3]); }"
        "kernel void u(device uint* o) { o[0] = simd_max(o[1]) + simd_and(o[2]) + simd_or(o[3]) + simd_xor(o[4]); }"
        "kernel void f(device float* o) { o[0] = simd_sum(o[1]); }"
    )
    integers, words, floats = (body(text, f"msl_k{k}").split("// -- End")[0] for k in range(3))
    assert re.findall(r"redux\.sync\.(\S+)", integers) == ["add.u32", "min.s32", "max.s32"]
    assert re.findall(r"redux\.sync\.(\S+)", words) == ["max.u32", "and.b32", "or.b32", "xor.b32"]
    assert floats.count("shfl.sync.bfly") == 5


def test_prefix_sums_take_five_steps():
    text = ptx("kernel void k(device float* o) { o[0] = simd_prefix_inclusive_sum(o[1]); }")
    assert text.count("shfl.sync.up") == 5


@pytest.mark.parametrize(("metal", "product"), [("half", "f16.f16"), ("bfloat", "bf16.bf16"), ("float", None)])
def test_matrices_multiply_on_tensor_cores_unless_they_are_float(metal, product):
    text = ptx(
        f"kernel void k(device {metal}* o, device const {metal}* a) {{ simdgroup_matrix<{metal}, 8, 8> x, y;"
        " simdgroup_load(x, a); simdgroup_load(y, a + 64); simdgroup_multiply(x, x, y); simdgroup_store(x, o); }"
    )
    found = re.findall(r"mma\.sync\.aligned\.m16n8k8\.row\.col\.f32\.(\S+)\.f32", text)
    assert found == ([product] if product else [])
    assert ("fma.rn.f32" in text) == (product is None)


def test_atomics_are_instructions():
    text = ptx(
        "kernel void k(device atomic_uint* u, device atomic_int* i, device atomic_float* f, device atomic_ulong* l) {"
        " auto order = memory_order_relaxed;"
        " atomic_fetch_add_explicit(u, 1u, order); atomic_fetch_min_explicit(u, 7u, order);"
        " atomic_fetch_max_explicit(i, 3, order); atomic_fetch_add_explicit(f, 1.0f, order);"
        " atomic_fetch_sub_explicit(f, 2.0f, order); atomic_max_explicit(l, 9ul, order);"
        " atomic_exchange_explicit(u, 5u, order); atomic_thread_fence(mem_flags::mem_device); }"
    )
    found = re.findall(r"atom(?:\.relaxed\.sys)?\.global\.(\w+\.\w+)", text)
    assert found == ["add.u32", "min.u32", "max.s32", "add.f32", "add.f32", "max.u64", "exch.b32"]
    assert "fence.sc.gpu" in text and "bra" not in body(text, "msl_k0").partition("atom")[2]


def test_fast_functions_are_approximations_and_precise_ones_are_not():
    names = ("exp", "exp2", "exp10", "log", "log2", "log10", "sin", "cos", "sqrt", "rsqrt")
    fast, precise = (
        ptx(f"kernel void k(device float* o) {{ float x = o[0]; o[1] = {calls}; }}")
        for calls in (" + ".join(f"{space}::{name}(x)" for name in names) for space in ("fast", "precise"))
    )
    assert {"ex2.approx", "lg2.approx", "sin.approx", "cos.approx", "sqrt.approx", "rsqrt.approx"} <= set(
        re.findall(r"\w+\.approx", fast)
    )
    assert ".approx" not in precise and "sqrt.rn.f32" in precise


def test_rounding_to_bfloat_is_an_instruction():
    text = ptx("kernel void k(device bfloat* o, device bfloat4* v) { o[0] = bfloat(o[1] * 1.5f); v[0] = v[1] * v[2]; }")
    assert text.count("cvt.rn.bf16.f32") == 1 and text.count("cvt.rn.bf16x2.f32") == 2


def test_functions_of_device_and_constant_memory_are_two():
    text = ptx(
        "float first(device const float* p) { return p[0]; } float first(constant float* p) { return p[1]; }"
        "template <class P> float second(P p) { return p[2]; }"
        "kernel void k(device float* o, device const float* a, constant float* b) {"
        " o[0] = first(a) + first(b) + second(a) + second(b); }"
    )
    assert text.count("ld.global.b32") == 4 and ".func" not in text


def test_no_function_is_left_to_be_called():
    functions = ("exp", "sin", "tanh", "asinh", "floor", "rsqrt", "nextafter", "fmod", "pow")
    calls = " + ".join(f"{name}(x, x)" if name in ("nextafter", "fmod", "pow") else f"{name}(x)" for name in functions)
    text = ptx(f"kernel void k(device float* o) {{ float x = o[0]; o[0] = {calls} + simd_sum(x); }}")
    assert "call" not in re.sub(r"//.*", "", text)


def test_products_and_sums_are_not_contracted():
    text = ptx("kernel void k(device float* o) { o[0] = o[1] * o[2] + o[3]; }")
    assert "fma" not in text and "mul.rn.f32" in text


def test_constants_are_in_global_memory():
    text = ptx(
        "constexpr constant float a[4] = {1, 2, 3, 4}; constant float b[4] = {1, 2, 3, 4};"
        "kernel void k(device float* o, uint t [[thread_position_in_grid]]) { o[t] = a[t & 3] + b[t & 3]; }"
    )
    assert ".const" not in text and text.count(".global .align 4 .b8") == 2


def test_errors_have_lines():
    with pytest.raises(MetalSyntaxError, match="<metal>:4: error"):
        ptx("kernel void k(device float* o) {\n  o[0] = nothing; }")


def test_unknown_target():
    with pytest.raises(ValueError, match="valid are 'cpu' and 'cuda'"):
        translate(HEAD, target="vulkan")
