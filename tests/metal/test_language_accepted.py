"""Valid neighbours of what Metal rejects compile: a rule that looks at text alone would be wrong about many of them."""

from __future__ import annotations

import pytest

from metal_inductor.metal import clang, diagnose
from metal_inductor.metal.frontend import translate

HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"
# (declarations, statements of a kernel)
ACCEPTED = [
    ("", "auto p = x + 1; p[0] = 1.5; x[1] = max(x[1], 0.0);"),
    ("", "half q = x[0]; x[2] = q; bfloat z = 1; x[3] = z; half w = half(b[0]); half u = (half)b[1]; x[4] = w + u;"),
    ("constant float a0 = 1; constexpr constant int a1[2] = {1, 2};", "x[0] = a0 + a1[t & 1];"),
    ("", "static constant int table[2] = {1, 2}; constant float half_of = 0.5f; x[4] = table[t & 1] * half_of;"),
    ("", "if (t * 2 > 5) { x[5] = t * n; } int a = 2, c = 3; x[0] = a *c; a & c; x[1] = (a)*c;"),
    (
        "struct A2 { int v; };",
        "int A3 = 2, q = 3; x[0] = A3 * q; thread A2* p = nullptr; device A2* d = (device A2*)x;",
    ),
    (
        "template <typename T> T a4(thread T* p, const device T& q) { return *p + q; }",
        "float f = 1; x[0] = a4(&f, x[1]);",
    ),
    ("float a5(const thread float& a) { return a; } float a5(device float& a) { return a; }", "x[0] = a5(x[1]);"),
    ("float a6(float a) { return a; } float a6(float2 a) { return a6(a.x) + a6(a.y); }", "x[0] = a6(float2(1));"),
    (
        "template <int N> int a7(int a) { return a + a7<N - 1>(a); } template <> int a7<0>(int a) { return a; }",
        "x[0] = a7<3>(1);",
    ),
    ("void a8(thread int& a, int by) { a += by; if (by > 1) { a8(a, by - 1); } }", "int q = 0; a8(q, 3); x[0] = q;"),
    ("float a9(float (*f)(float), float a) { return f(a); } float a10(float a) { return a; }", "x[0] = a9(a10, 1.0f);"),
    ("using A11 = float (*)(float); template <A11 f> float a12(float a) { return f(a); }", ""),
    (
        "struct A13 { float goto_, new_; }; struct A14 : A13 { A14() = default; A14(int) = delete; };",
        "A14 q; x[0] = q.new_;",
    ),
    (
        "float a15(constant float* p) { return p[0]; } constant float a16[2] = {1, 2};",
        "x[0] = a15(a16) + a15(&a16[1]);",
    ),
    (
        "float a17(constant int& q) { return q; }",
        "x[0] = a17(n); constant int& r = n; constant int* p = &r; x[1] = *p;",
    ),
    ("void a18(const device uint*& p) { p += 1; }", "const device uint* p = (const device uint*)x; a18(p);"),
    ("void a19(threadgroup float* p) { p[0] = 1; }", "threadgroup float* p = s; a19(p); a19(&s[1]);"),
    ("namespace inner { float a20(float a) { return a; } }", "using namespace inner; x[0] = inner::a20(1);"),
    ("", "int a[2]; a[0] = 1; x[0] = (a)[0] + v[0][1] + vec<float, 2>(1)[0]; // [](int) { goto x; double }"),
    ("", "float4 f(1.0f); f.xy = float2(2.0f); f.zw += f.xx; x[0] = f.wzyx.x + f.rgba.a; f.x = f.y = 1;"),
    ("", "float2 q = float2(v[0].xy); int3 w = {1, 2, 3}; uint u{3}; x[0] = q.x + w.x + u;"),
    ("", "x[0] = pow(x[0], n) + fma(x[0], x[1], n) + min(n, 3) + clamp(x[0], 0.0, 1.0) + select(1.0f, 2.0f, n > 1);"),
    ("", "device atomic_float* p = (device atomic_float*)x; atomic_fetch_add_explicit(p, 1.0f, memory_order_relaxed);"),
    ("", "atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst);"),
    (
        "",
        "x[0] = as_type<float>(n) + as_type<half2>(x[1]).x; ulong q = 1.0e3f; x[1] = q; long r = 0x1L + 2L; x[2] = r;",
    ),
    (
        "constant bool a21 [[function_constant(0)]];",
        "if (a21) x[0] = 1; simd_sum(x[0]); simd_max(n); simd_shuffle_xor(h[0], 1);",
    ),
    (
        "enum class A22 : uint { a, b }; union A23 { float f; int i; };",
        "A23 u; u.f = 1; switch (A22::a) { default: x[0] = u.i; }",
    ),
]
KERNELS = [
    "kernel void k0(device float* a [[buffer(1)]], device float* b, uint3 t [[thread_position_in_grid]]) {}",
    "kernel void k1(device int* a, uint3 g [[threadgroup_position_in_grid]], "
    "ushort3 l [[thread_position_in_threadgroup]], uint i [[thread_index_in_threadgroup]], "
    "ushort lane [[thread_index_in_simdgroup]]) {}",
    "[[kernel, max_total_threads_per_threadgroup(1024)]] void k2(device float* a [[buffer(30)]]) {}",
    "struct S { device float* p; int n; }; kernel void k4(constant S& s, const metal::uint2 t [[threads_per_grid]]) {}",
    "typedef uint at; kernel void k5(device float* a, at t [[thread_position_in_grid]]) { float k4(1); a[t] = k4; }",
    "kernel void k6(device float* a) { threadgroup float s[8192]; s[0] = a[0]; }",
    "constant bool f [[function_constant(1)]]; kernel void k7(device float* a [[buffer(1), function_constant(f)]]) {}",
]


def library(rows: list[tuple[str, str]]) -> str:
    kernels = "".join(
        f"{before}\nkernel void k{number}(device float* x [[buffer(0)]], constant int& n [[buffer(1)]], "
        "device const bfloat* b, device const half* h, device int4* v, uint t [[thread_position_in_grid]]) "
        f"{{ threadgroup float s[32]; {body}\n}}\n"
        for number, (before, body) in enumerate(rows)
    )
    return HEAD + kernels


@pytest.fixture(scope="module")
def complaints():
    """Errors by the number of the row whose lines they are on: three lines each."""
    return {(error.line - 3) // 3: error.message for error in diagnose(library(ACCEPTED)) if error.severity == "error"}


@pytest.mark.parametrize("number", range(len(ACCEPTED)), ids=lambda number: " ".join(ACCEPTED[number]))
def test_accepted(complaints, number):
    assert number not in complaints, complaints[number]


def test_what_is_accepted_compiles():
    assert len(translate(library(ACCEPTED)).kernels) == len(ACCEPTED)
    assert clang.compile_cpu(translate(library(ACCEPTED)).text)


@pytest.mark.parametrize("text", KERNELS)
def test_accepted_kernel(text):
    assert [kernel.name for kernel in translate(HEAD + text).kernels]
