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
