"""What Metal rejects is rejected, with the line of the user's text."""

from __future__ import annotations

import pytest

from metal_inductor.metal import clang
from metal_inductor.metal.frontend import MetalSyntaxError, translate

HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"


def kernel(body: str, before: str = "") -> str:
    """A library whose kernel has `body` on line 4; `before` is line 3."""
    return (
        HEAD
        + before
        + "\nkernel void k(device float* x [[buffer(0)]], constant int& n [[buffer(1)]], device const bfloat* b, "
        + "device const half* h, device int4* v, uint t [[thread_position_in_grid]]) { threadgroup float s[32]; "
        + body
        + " }\n"
    )


def compiled(source: str) -> bytes:
    return clang.compile_cpu(translate(source, name="lib.metal").text)


REJECTED_IN_KERNEL = [
    "double d = 1.0; x[0] = d;",
    "float* p = x;",
    "static int q = 0; q++;",
    "goto end; end: x[0] = 1;",
    "thread float* p = new float;",
    "throw 1;",
    "float a[n]; x[0] = a[0];",
    "long q = n; x[0] = min(n, q);",
    "x[0] = max(x[1], n);",
    "x[0] = max(x[1], h[0]);",
    "x[0] = exp(n);",
    "long q = n; x[0] = simd_sum(q);",
    "x[0] = simd_sum(n > 0);",
    "long q = n; x[0] = simd_shuffle(q, 0);",
    "bfloat q = x[0];",
    "bfloat q = 1.0f;",
    "bfloat q = h[0];",
    "bfloat q = b[0] + x[0];",
    "threadgroup float* p = x;",
    "device float* p = s;",
    "device const int* p = &n;",
    "float a[2]; device float* p = a;",
    "h[0] = 1;",
    "n = 1;",
    "float4 f(1.0f); v[0] = f;",
    "float4 f(1.0f); float4 g = f + v[0];",
    "float4 f(1.0f); float3 g(1.0f); f = f + g;",
    "x[0] = as_type<float>(h[0]);",
    "x[0] = std::max(1, 2);",
    "x[0] = expf(1.0f);",
    "threadgroup float q[2] = {0, 0};",
    "float3 f(1.0f); x[0] = f.w;",
    "float3 f(1.0f); x[0] = f.xw.x;",
    "x[0] = undeclared;",
    "uint a[1] = {n}; x[0] = a[0];",
]
REJECTED_BEFORE_KERNEL = [
    "float f(float* p) { return *p; }",
    "float f(const float& p) { return p; }",
    "bfloat f(float a) { return a; }",
    "int f(int a) { return a ? f(a - 1) : 1; }",
    "float g = 1;",
    "static constexpr float g = 1;",
    "void f() { threadgroup float q[2]; q[0] = 1; }",
    "struct S { virtual void f() {} };",
    "thread_local int q;",
]


@pytest.mark.parametrize("body", REJECTED_IN_KERNEL)
def test_rejected_statement(body):
    with pytest.raises(MetalSyntaxError) as caught:
        compiled(kernel(body))
    assert str(caught.value).startswith("lib.metal:4: error: ")


@pytest.mark.parametrize("declaration", REJECTED_BEFORE_KERNEL)
def test_rejected_declaration(declaration):
    with pytest.raises(MetalSyntaxError) as caught:
        compiled(kernel("x[0] = 1;", declaration))
    assert str(caught.value).startswith("lib.metal:3: error: ")


def test_accepted_neighbours_of_what_is_rejected():
    accepted = """
        auto p = x + 1; p[0] = 1.5; x[1] = max(x[1], 0.0); half q = x[0]; x[2] = q; bfloat z = 1; x[3] = z;
        static constant int table[2] = {1, 2}; x[4] = table[t & 1];
        if (t * 2 > 5) { x[5] = t * n; }
    """
    assert compiled(kernel(accepted, "constant float g = 1;"))


def test_address_space_of_an_argument_is_checked():
    with pytest.raises(MetalSyntaxError, match="lib.metal:4"):
        compiled(kernel("f(x);", "float f(threadgroup float* p) { return *p; }"))


def test_error_in_an_expanded_macro_has_its_line():
    source = (
        HEAD + "#define TWICE(a) \\\n  ((a) * 2)\n\nkernel void k(device float* x) {\n  x[0] = TWICE(nothing);\n}\n"
    )
    with pytest.raises(MetalSyntaxError, match="lib.metal:7"):
        compiled(source)


def test_missing_include_is_named():
    with pytest.raises(MetalSyntaxError, match="lib.metal:1.*nothing_here.h"):
        translate('#include "nothing_here.h"\n', name="lib.metal")


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (
            "device float* a [[buffer(1)]], device float* b [[buffer(1)]]",
            "cannot reserve 'buffer' resource location at index 1",
        ),
        ("device float* a [[buffer(31)]]", "valid are 0 to 30"),
        ("float* a", "address space"),
        ("float a", "must be a pointer or reference"),
        ("texture2d<float> a [[texture(0)]]", "not supported"),
    ],
)
def test_bad_parameter_says_what_is_valid(parameters, message):
    with pytest.raises(MetalSyntaxError, match=message):
        translate(f"{HEAD}kernel void k({parameters}) {{}}")


def test_more_threadgroup_memory_than_there_is():
    with pytest.raises(MetalSyntaxError, match="40000 bytes"):
        translate(HEAD + "kernel void k(device float* x) { threadgroup float s[10000]; s[0] = x[0]; }")


def test_two_kernels_of_one_name():
    with pytest.raises(MetalSyntaxError, match="two kernels have the name 'k'"):
        translate(HEAD + 'kernel void k(device float* x) {}\n[[host_name("k")]] kernel void j(device float* x) {}')
