"""What Metal rejects is rejected, with the line of the user's text and in Metal's words."""

from __future__ import annotations

import pytest

from metal_inductor import policy
from metal_inductor.metal import clang, compile_shader, diagnose
from metal_inductor.metal.frontend import MetalSyntaxError, translate

HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"
PARAMETERS = (
    "device float* x [[buffer(0)]], constant int& n [[buffer(1)]], device const bfloat* b, device const half* h, "
    "device int4* v, uint t [[thread_position_in_grid]]"
)


def kernel(body: str, before: str = "", name: str = "k") -> str:
    """A kernel on one line with `before` in front of it."""
    return f"{before} kernel void {name}({PARAMETERS}) {{ threadgroup float s[32]; {body} }}\n"


def messages_by_line(rows: list[tuple[str, str]]) -> dict[int, list[str]]:
    """Errors of one library with a kernel for each row of declarations and statements, by the number of the row."""
    names = [f"k{number}" for number in range(len(rows))]
    source = HEAD + "".join(kernel(body, before, name) for name, (before, body) in zip(names, rows, strict=True))
    found: dict[int, list[str]] = {}
    for diagnostic in diagnose(source, name="lib.metal"):
        assert (diagnostic.file, diagnostic.severity) == ("lib.metal", "error")
        found.setdefault(diagnostic.line - 3, []).append(diagnostic.message)
    return found


NO_SPACE = "pointer type must have explicit address space qualifier"
NO_REFERENCE_SPACE = "reference type must have explicit address space qualifier"
FUNCTION_POINTER = "variables that point to functions are not supported in Metal"
LAMBDA = "lambda expressions are not supported in Metal"
STATIC = "static local variables are not supported in Metal"
# What the text shows without types: (declarations, statements of a kernel, part of the message).
LEXICAL = [
    ("", "double d = 1;", "'double' is not supported"),
    ("", "long double d = 1;", "'double' is not supported"),
    ("", "x[0] = 1.0L;", "'long double' is not supported"),
    ("typedef double D0;", "", "'double' is not supported"),
    ("", "size_t q = sizeof(double);", "'double' is not supported"),
    ("", "goto end; end: x[0] = 1;", "'goto' statements are not supported"),
    ("", "thread float* p = new float;", "'new' is not supported"),
    ("struct S0 { void f() { delete this; } };", "", "'delete' is not supported"),
    ("", "throw 1;", "exceptions are not supported"),
    ("void g0() { try { } catch (...) { } }", "", "exceptions are not supported"),
    ("struct S1 { virtual void f() {} };", "", "virtual functions are not supported"),
    ("struct A0 {}; struct S2 : virtual A0 {};", "", "virtual functions are not supported"),
    ("", "x[0] = dynamic_cast<float>(1);", "'dynamic_cast' is not supported"),
    ("", "typeid(x);", "'typeid' is not supported"),
    ("thread_local int g1;", "", "'thread_local' is not supported"),
    ("", "register int q = 1;", "'register' storage class is not supported"),
    ('int g2(float) asm("f");', "", "'asm' is not supported"),
    ("", "long long q = 1;", "'long long' is not a type of Metal"),
    ("", "__fp16 q = 1;", "it is called 'half'"),
    ("", "auto square = [](float a) { return a * a; };", LAMBDA),
    ("", "x[0] = [&]() { return 1.0f; }();", LAMBDA),
    ("float g3(float a) { auto f = [a](float c) { return a + c; }; return f(1); }", "", LAMBDA),
    ("float g4(float a) { return a; }", "float (*p)(float) = g4;", FUNCTION_POINTER),
    ("float g5(float a) { return a; }", "auto p = &g5;", FUNCTION_POINTER),
    ("float g6(float a) { return a; }", "auto p = g6;", FUNCTION_POINTER),
    ("struct S3 { float (*f)(float); };", "", FUNCTION_POINTER),
    ("", "static int q = 0; q++;", STATIC),
    ("", "static constexpr float q = 1;", STATIC),
    ("void g7() { static float q; }", "", STATIC),
    ("", "extern int q;", "'extern' variables are not supported"),
    ("void g8(int a, ...) {}", "", "variadic functions are not supported"),
    ("using namespace std;", "", "expected namespace name"),
    ("float g9 = 1;", "", "program scope variable must reside in constant address space"),
    ("const float g10 = 1;", "", "program scope variable must reside in constant address space"),
    ("constexpr float g11[2] = {1, 2};", "", "program scope variable must reside in constant address space"),
    ("extern float g12;", "", "program scope variable must reside in constant address space"),
    ("device float g13;", "", "program scope variable must reside in constant address space"),
    ("threadgroup float g14[3];", "", "program scope variable must reside in constant address space"),
    ("struct S4 { static const int g = 1; };", "", "static data member must reside in constant address space"),
    ("void g15() { threadgroup float q[2]; q[0] = 1; }", "", "can only be declared in a kernel"),
    ("template <typename T> void g16() { threadgroup T q[2]; }", "", "can only be declared in a kernel"),
    ("struct S5 { void f() { threadgroup float q; } };", "", "can only be declared in a kernel"),
    ("", "constant float q = x[0];", "is not a constant: it reads 'x'"),
    ("", "float4 f(1.0f); f.xx = float2(1.0f);", "'xx' contains duplicate components"),
    ("", "device atomic<half>* p = (device atomic<half>*)h;", "'atomic<half>' is not supported"),
    ("", "device atomic<short>* p;", "'atomic<short>' is not supported"),
    (
        "",
        "atomic_fetch_add_explicit((device atomic_int*)x, 1, memory_order_seq_cst);",
        "'memory_order_seq_cst' is not supported",
    ),
    ("", "float* p = x;", NO_SPACE),
    ("", "const float* p = nullptr;", NO_SPACE),
    ("", "float& p = x[0];", NO_REFERENCE_SPACE),
    ("", "float q = x[0], *p = x;", NO_SPACE),
    ("", "void* p = x;", NO_SPACE),
    ("", "device float** p = nullptr;", NO_SPACE),
    ("", "for (float* p = x;;) {}", NO_SPACE),
    ("", "if (float* p = x) {}", NO_SPACE),
    ("", "array<float*, 2> p;", NO_SPACE),
    ("", "x[0] = *(float*)x;", NO_SPACE),
    ("", "x[0] = reinterpret_cast<float*>(x)[0];", NO_SPACE),
    ("struct S6 { float a; };", "S6* p = nullptr;", NO_SPACE),
    ("struct S7 { float a; };", "x[0] = ((S7*)x)->a;", NO_SPACE),
    ("", "using P = float*;", NO_SPACE),
    ("typedef float* P0;", "", NO_SPACE),
    ("using P1 = half4*;", "", NO_SPACE),
    ("template <typename T> using P2 = T*;", "", NO_SPACE),
    ("struct S8 { float* p; };", "", NO_SPACE),
    ("struct S9 { float v; thread float& m() { return v; } float& w() { return v; } };", "", NO_REFERENCE_SPACE),
    ("float* g17(device float* p) { return 0; }", "", NO_SPACE),
    ("float g18(float* p) { return *p; }", "", NO_SPACE),
    ("float g19(const float& p) { return p; }", "", NO_REFERENCE_SPACE),
    ("float g20(float (&a)[2]) { return a[0]; }", "", NO_REFERENCE_SPACE),
    ("template <typename T> T g21(T* p) { return *p; }", "", NO_SPACE),
    ("template <typename T> T g22(const T& p) { return p; }", "", NO_REFERENCE_SPACE),
    ("template <typename T> T g23(thread T* p) { T* q = p; return *q; }", "", NO_SPACE),
    ("void g24(const char* s) {}", "", NO_SPACE),
    ("kernel void j0(device float* p) {}", "j0(x);", "cannot call kernel function 'j0'"),
    ("kernel void j1(device float* p) {} void g25(device float* p) { j1(p); }", "", "cannot call kernel function 'j1'"),
    ("constant bool g26 [[function_constant(65536)]];", "", "must be between 0 and 65535"),
    ("constant float4x4 g27 [[function_constant(0)]];", "", "not valid for attribute 'function_constant'"),
]


@pytest.mark.parametrize(("before", "body", "message"), LEXICAL)
def test_rejected_by_its_text(before, body, message):
    with pytest.raises(MetalSyntaxError) as caught:
        translate(HEAD + kernel(body, before), name="lib.metal")
    assert str(caught.value).startswith("lib.metal:3: error: ")
    assert message in str(caught.value)


# What only a compiler sees: one library, one run.
COMPILED = [
    ("", "float a[n]; x[0] = a[0];", "array size is not a constant expression"),
    ("", "threadgroup float q[n];", "not a constant expression"),
    ("", "long q = n; x[0] = min(n, q);", "call to 'min' is ambiguous"),
    ("", "x[0] = max(x[1], n);", "call to 'max' is ambiguous"),
    ("", "x[0] = max(x[1], h[0]);", "call to 'max' is ambiguous"),
    ("", "x[0] = clamp(n, 0.5f, 2.0f);", "call to 'clamp' is ambiguous"),
    ("", "x[0] = select(x[0], n, true);", "call to 'select' is ambiguous"),
    ("", "x[0] = mix(x[0], h[0], 0.5f);", "call to 'mix' is ambiguous"),
    ("", "x[0] = pow(h[0], x[0]);", "call to 'pow' is ambiguous"),
    ("", "x[0] = fmod(n, 2);", "call to 'fmod' is ambiguous"),
    ("", "x[0] = exp(n);", "call to 'exp' is ambiguous"),
    ("", "long q = n; x[0] = simd_sum(q);", "no matching function for call to 'simd_sum'"),
    ("", "x[0] = simd_sum(n > 0);", "no matching function for call to 'simd_sum'"),
    ("", "ulong q = n; x[0] = simd_max(q);", "no matching function for call to 'simd_max'"),
    ("", "ulong q = n; x[0] = quad_sum(q);", "no matching function for call to 'quad_sum'"),
    ("", "x[0] = simd_prefix_inclusive_sum(n > 1);", "no matching function for call to 'simd_prefix_inclusive_sum'"),
    ("", "bfloat q = x[0];", "no viable conversion from 'device float' to 'thread bfloat'"),
    ("", "bfloat q = 1.0f;", "no viable conversion from 'float' to 'thread bfloat'"),
    ("", "bfloat q = h[0];", "to 'thread bfloat'"),
    ("", "bfloat q = 1.0h;", "no viable conversion from 'half' to 'thread bfloat'"),
    ("", "bfloat q = b[0] + x[0];", "no viable conversion from 'float' to 'thread bfloat'"),
    ("bfloat c0(float a) { return a; }", "", "to function return type 'bfloat'"),
    ("", "threadgroup float* p = x;", "'threadgroup float *'"),
    ("", "device float* p = s;", "'device float *'"),
    ("", "device const int* p = &n;", "'constant int *'"),
    ("", "float a[2]; device float* p = a;", "'device float *'"),
    ("", "threadgroup float* p = (threadgroup float*)x;", "converts between mismatching address spaces"),
    ("float c1(threadgroup float* p) { return *p; }", "c1(x);", "no matching function for call to 'c1'"),
    ("void c2(device float* p) {} void c3(constant float* p) { c2(p); }", "", "no matching function for call to 'c2'"),
    ("struct C0 { threadgroup float q; };", "", "field may not be qualified with an address space"),
    ("", "device float q;", "qualified with an invalid address space"),
    ("", "h[0] = 1;", "not assignable"),
    ("", "n = 1;", "'n'"),
    ("", "constant float q = 1.0f; q = 2.0f;", "cannot assign to variable 'q'"),
    ("", "float4 f(1.0f); v[0] = f;", "no viable overloaded '='"),
    ("", "float3 f(1.0f); half3 g = f;", "no viable conversion from 'thread float3' to 'thread half3'"),
    ("", "float4 f(1.0f); float4 g = f + v[0];", "invalid operands to binary expression"),
    ("", "float4 f(1.0f); float3 g(1.0f); f = f + g;", "invalid operands to binary expression"),
    ("", "float4 f(1.0f, 2.0f, 3.0f, 4.0f, 5.0f);", "no matching constructor for initialization of 'thread float4'"),
    ("", "float4 f(1.0f); bool c = f > 0.0f;", "to 'thread bool'"),
    ("", "float4 f(1.0f); x[0] = dot(f, float3(1.0f));", "no matching function for call to 'dot'"),
    ("", "packed_float3 p(1.0f); packed_float3 q = packed_int3(1);", "to 'thread packed_float3'"),
    ("", "float3 f(1.0f); x[0] = f.w;", "no member named 'w' in 'float3'"),
    ("", "float3 f(1.0f); x[0] = f.xw.x;", "swizzle names a component that the vector does not have"),
    ("", "float4 f(1.0f); x[0] = f.xg.x;", "no member named 'xg' in 'float4'"),
    ("", "float4 f(1.0f); x[0] = f.xyzwx.x;", "no member named 'xyzwx' in 'float4'"),
    ("", "x[0] = t.x;", "is not a structure or union"),
    ("", "x[0] = as_type<float>(h[0]);", "as_type needs types of equal size"),
    ("", "x[0] = as_type<half4>(x[1]).x;", "as_type needs types of equal size"),
    ("", "x[0] = atomic_fetch_add_explicit(x, 1.0f, memory_order_relaxed);", "no matching function"),
    ("", "device atomic_int* p = (device atomic_int*)x; *p = 1;", "no viable overloaded '='"),
    ("", "x[0] = std::max(1, 2);", "use of undeclared identifier 'std'"),
    ("", "x[0] = expf(1.0f);", "use of undeclared identifier 'expf'"),
    ("", "barrier(1);", "use of undeclared identifier 'barrier'"),
    ("", "threadgroup_barrier();", "no matching function for call to 'threadgroup_barrier'"),
    ("", "x[0] = undeclared;", "use of undeclared identifier 'undeclared'"),
    ("", "uint a[1] = {n}; x[0] = a[0];", "cannot be narrowed from type 'int' to 'uint'"),
    ("", "x[0] = x[0] % 2.0f;", "invalid operands to binary expression"),
    ("vertex float4 c4(device float* p) { return 1; }", "", "unknown type name 'vertex'"),
]
RECURSION = "calls itself; recursion is not supported in Metal"
TO_CONSTANT = "which is in a different address space"
TYPED = [
    ("int r0(int a) { return a ? r0(a - 1) : 1; }", "", RECURSION),
    ("template <typename T> T r1(T a) { return a > 0 ? r1<T>(a - 1) : T(1); }", "x[0] = r1<float>(3);", RECURSION),
    ("int r2(int a); int r3(int a) { return r2(a); } int r2(int a) { return r3(a); }", "", RECURSION),
    ("int r4(int a); int r4(float a) { return r4(int(a)); } int r4(int a) { return r4(float(a)); }", "", RECURSION),
    ("struct R0 { int r(int a) const { return a ? r(a - 1) : 1; } };", "", RECURSION),
    ("struct R1 { int q(int a) const { return r(a); } int r(int a) const { return a ? q(a) : 1; } };", "", RECURSION),
    ("struct R2 { static int r(int a) { return a ? R2::r(a - 1) : 1; } };", "", RECURSION),
    ("struct R3 { int operator()(int a) const { return a ? (*this)(a - 1) : 1; } };", "", RECURSION),
    ("namespace w { int r5(int a) { return a ? w::r5(a - 1) : 1; } }", "", RECURSION),
    ("void r6(thread int& a) { if (a) r6(a); a++; }", "", RECURSION),
    ("float t0(constant float* p) { return *p; }", "x[0] = t0(x);", TO_CONSTANT),
    ("float t1(constant float& p) { return p; }", "x[0] = t1(x[0]);", TO_CONSTANT),
    ("template <typename T> T t2(constant T* p) { return *p; }", "x[0] = t2(x);", TO_CONSTANT),
    ("constant float* t3(device float* p) { return p; }", "", TO_CONSTANT),
    ("struct T0 { constant float* p; }; void t4(device float* p) { T0 s{p}; }", "", TO_CONSTANT),
    ("struct T1 { constant float* p; }; void t5(device float* p) { T1 s; s.p = p; }", "", TO_CONSTANT),
    ("", "constant float* p = x;", TO_CONSTANT),
    ("", "constant float& p = x[0];", TO_CONSTANT),
    ("", "x[0] = *(constant float*)x;", TO_CONSTANT),
    ("", "device int* p = (device int*)&n;", TO_CONSTANT),
    ("half t6(bfloat a) { return a; }", "", "cannot implicitly convert 'bfloat' to 'half'"),
    ("", "half q; q = b[0];", "cannot implicitly convert 'bfloat' to 'half'"),
]


@pytest.fixture(scope="module")
def compiled():
    return messages_by_line([row[:2] for row in COMPILED])


@pytest.fixture(scope="module")
def typed():
    return messages_by_line([row[:2] for row in TYPED])


@pytest.mark.parametrize("number", range(len(COMPILED)), ids=lambda number: " ".join(COMPILED[number][:2]))
def test_rejected_by_the_compiler(compiled, number):
    assert any(COMPILED[number][2] in message for message in compiled.get(number, [])), compiled.get(number)


@pytest.mark.parametrize("number", range(len(TYPED)), ids=lambda number: " ".join(TYPED[number][:2]))
def test_rejected_by_its_types(typed, number):
    assert any(TYPED[number][2] in message for message in typed.get(number, [])), typed.get(number)


@pytest.mark.parametrize(("before", "body", "message"), [COMPILED[3], COMPILED[16], TYPED[1], TYPED[10]])
def test_a_rejected_text_raises(before, body, message):
    with pytest.raises(MetalSyntaxError) as caught:
        clang.compile_cpu(translate(HEAD + kernel(body, before), name="lib.metal").text)
    assert str(caught.value).startswith("lib.metal:3: error: ")
    assert message in str(caught.value)
    with pytest.raises(SyntaxError, match="<metal>:3: error: "):
        compile_shader(HEAD + kernel(body, before), device="cpu")


GRID = "[[thread_position_in_grid]]"
KERNELS = [
    ("device float* a [[buffer(1)]], device float* b [[buffer(1)]]", "cannot reserve 'buffer' resource location at in"),
    ("threadgroup int* a [[threadgroup(0)]], threadgroup int* b [[threadgroup(0)]]", "cannot reserve 'threadgroup'"),
    ("device float* a [[buffer(31)]]", "must be between 0 and 30"),
    ("threadgroup float* a [[threadgroup(31)]]", "must be between 0 and 30"),
    ("device float* a [[buffer]]", "needs an index"),
    ("device float* a [[buffer(-1)]]", "valid are buffer(n)"),
    ("device float* a [[buffers(0)]]", "valid are buffer(n)"),
    ("threadgroup float* a [[buffer(0)]]", "not valid for a parameter in the threadgroup address space"),
    ("device float* a [[threadgroup(0)]]", "not valid for a parameter in the device address space"),
    ("float* a", "address space"),
    ("thread float* a", "device, constant or threadgroup"),
    ("device float** a", "address space"),
    ("float a", "must be a pointer or reference"),
    ("float a [[buffer(0)]]", "must be a pointer or reference"),
    ("texture2d<float> a [[texture(0)]]", "not supported"),
    ("device float* a, uint t", "must be a pointer or reference"),
    ("device float* a, ...", "variadic functions"),
    (f"device float* a {GRID}", "not valid for attribute 'thread_position_in_grid'"),
    (f"float t {GRID}", "type 'float' is not valid for attribute 'thread_position_in_grid'"),
    (f"int t {GRID}", "type 'int' is not valid"),
    (f"ulong t {GRID}", "type 'ulong' is not valid"),
    (f"uchar t {GRID}", "type 'uchar' is not valid"),
    (f"uint4 t {GRID}", "a grid has at most 3 axes"),
    (f"int3 t {GRID}", "type 'int3' is not valid"),
    ("uint2 t [[thread_index_in_threadgroup]]", "valid are uint and ushort"),
    ("uint3 t [[thread_index_in_simdgroup]]", "valid are uint and ushort"),
    ("float t [[simdgroup_index_in_threadgroup]]", "type 'float' is not valid"),
    (f"uint t {GRID}, uint2 u [[threads_per_grid]]", "all scalar types or all vector types with the same number"),
    (f"uint2 t {GRID}, uint3 u [[threadgroup_position_in_grid]]", "vector types with the same number of elements"),
    ("uint t [[no_such_attribute]]", "'no_such_attribute'"),
    ("uint t [[vertex_id]]", "'vertex_id'"),
    ("uint t [[thread_position_in_grid, buffer(2)]]", "cannot be combined"),
]


@pytest.mark.parametrize(("parameters", "message"), KERNELS)
def test_rejected_parameter(parameters, message):
    with pytest.raises(MetalSyntaxError) as caught:
        translate(f"{HEAD}kernel void k({parameters}) {{}}", name="lib.metal")
    assert str(caught.value).startswith("lib.metal:3: error: ")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kernel int k(device float* x) { return 1; }", "must have void return type"),
        ("[[kernel]] float k(device float* x) { return 1; }", "must have void return type"),
        ("kernel void main(device float* x) {}", "'main' cannot be the name"),
        ("void main() {}", "'main' cannot be the name"),
        ("struct S { kernel void k(device float* x) {} };", "cannot be a member of 'S'"),
        ("[[max_total_threads_per_threadgroup(2048)]] kernel void k(device float* x) {}", "between 1 and 1024"),
        ("[[kernel, max_total_threads_per_threadgroup(0)]] void k(device float* x) {}", "between 1 and 1024"),
        ("kernel void k(device float* x) {} kernel void k(device int* x) {}", "two kernels have the name 'k'"),
        ('kernel void k(device int* x) {} [[host_name("k")]] kernel void j(device int* x) {}', "have the name 'k'"),
        ("kernel void k(device float* x) { threadgroup float s[10000]; s[0] = x[0]; }", "40000 bytes"),
        ("kernel void k(device int* x) { threadgroup float4 s[2048]; threadgroup int r; }", "32784 bytes"),
    ],
)
def test_rejected_kernel(text, message):
    with pytest.raises(MetalSyntaxError) as caught:
        translate(HEAD + text, name="lib.metal")
    assert str(caught.value).startswith("lib.metal:3: error: ")
    assert message in str(caught.value)


@pytest.mark.parametrize("header", ["cmath", "vector", "stdio.h", "atomic", "nothing_here.h"])
def test_no_header_of_another_library(header):
    with pytest.raises(MetalSyntaxError, match=f"lib.metal:2: error: '{header}' file not found"):
        translate(f"\n#include <{header}>\n", name="lib.metal")


def test_error_in_an_expanded_macro_has_its_line_and_column():
    source = (
        HEAD + "#define TWICE(a) \\\n  ((a) * 2)\n\nkernel void k(device float* x) {\n  x[0] = TWICE(nothing);\n}\n"
    )
    (error,) = diagnose(source, name="lib.metal")
    assert (error.line, error.column, error.source_line) == (7, 16, "  x[0] = TWICE(nothing);")
    assert error.message == "use of undeclared identifier 'nothing'"


def test_error_in_an_included_file_has_its_place(tmp_path):
    (tmp_path / "part.h").write_text("#pragma once\nfloat f(float a) {\n  return a + missing;\n}\n")
    (error,) = diagnose(HEAD + '#include "part.h"\nkernel void k(device float* x) {}\n', include_dirs=[tmp_path])
    assert (error.file, error.line, error.column) == (str(tmp_path / "part.h"), 3, 14)
    assert error.source_line == "  return a + missing;"


def test_error_in_a_template_is_where_the_template_says_it():
    source = HEAD + (
        "template <typename T> T largest(T a, long b) {\n  return max(a, b);\n}\n"
        "kernel void k(device int* x) { x[0] = largest(x[0], 1); }\n"
    )
    (error,) = diagnose(source)
    assert (error.line, error.column, error.message) == (4, 10, "call to 'max' is ambiguous")


def test_all_errors_are_reported_in_order_and_once():
    source = HEAD + kernel("\nx[0] = a1;\nfloat* p;\nx[1] = a2;\nauto l = [] { };\n")
    assert [error.line for error in diagnose(source)] == [4, 5, 6, 7]


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_types_are_checked_for_each_target(target):
    before, body, message = TYPED[10]
    with pytest.raises(MetalSyntaxError, match=f"lib.metal:3: error: .*{message}"):
        translate(HEAD + kernel(body, before), name="lib.metal", target=target)


def test_every_kernel_has_an_instance_whose_types_are_checked():
    functions = ["a"] * 40 + [f"b{number}" for number in range(20)] + ["a"] * 40
    chosen = policy.instances_to_check(functions)
    assert {functions[number] for number in chosen} == set(functions)
    assert len(policy.instances_to_check(["a"] * 100)) == 16
    assert policy.instances_to_check(["a", "b", "a"]) == [0, 1, 2]
