"""Program-level features, each a kernel of one library: templates, host names, structures, constants, overloads."""

# ruff: noqa: E501  (a line of the table holds a program)
from __future__ import annotations

import functools
import struct

import numpy as np
import pytest
import torch

from metal_inductor.metal import compile_shader
from metal_inductor.metal.frontend import translate

HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"
# Each entry: what comes before the kernel, the kernel's body with o for its float results and x = 3 from memory, the
# expected results.
FEATURES = {
    "a template over types": ("template <typename T> T twice(T v) { return v + v; }",
                              "o[0] = twice(x) + twice(int(x));", [12]),
    "a template over a vector's size": (
        "template <typename T, int N> T total(vec<T, N> v) { T s = 0; for (int i = 0; i < N; i++) s += v[i]; return s; }",
        "o[0] = total(float4(x, 1, 2, 3)) + total(int2(3, 4));", [16]),
    "default template arguments": ("template <typename T = float, int N = 4> T filled(T v) { return v * N; }",
                                   "o[0] = filled(x) + filled<half, 2>(x);", [18]),
    "overloads by enable_if": (
        "template <typename T, enable_if_t<is_floating_point_v<T>, bool> = true> int kind(T) { return 1; }"
        "template <typename T, enable_if_t<is_integral_v<T>, bool> = true> int kind(T) { return 2; }",
        "o[0] = kind(x) * 10 + kind(1);", [12]),
    "if constexpr": (
        "template <typename T> float size_of(T v) { if constexpr (sizeof(T) == 2) return 2; else return v; }",
        "o[0] = size_of(half(x)) + size_of(x);", [5]),
    "a specialisation": ("template <typename T> struct Name { static constexpr constant int id = 0; };"
                         "template <> struct Name<half> { static constexpr constant int id = 7; };",
                         "o[0] = Name<half>::id + Name<float>::id;", [7]),
    "a partial specialisation": (
        "template <typename T, int N> struct Power { static float of(float v) { return v * Power<T, N - 1>::of(v); } };"
        "template <typename T> struct Power<T, 0> { static float of(float) { return 1; } };",
        "o[0] = Power<float, 4>::of(x);", [81]),
    "a variadic template": ("float sum() { return 0; } template <typename... T> float all_of(T... v) { return (float(v) + ...); }",
                            "o[0] = all_of(x, 1, half(2), 3u) + sum();", [9]),
    "a function as template argument": (
        "float square(float v) { return v * v; } template <typename T> T third(T v) { return v / 3; }"
        "template <float (*f)(float)> float applied(float v) { return f(v); }"
        "template <typename T> using Function = T (*)(T);"
        "template <typename T, Function<T> f, int N> T repeated(T v) { for (int i = 0; i < N; ++i) v = f(v); return v; }",
        "o[0] = applied<square>(x); o[1] = repeated<float, third<float>, 2>(x * 9); o[2] = repeated<float, square, 2>(x);",
        [9, 3, 81]),
    "a functor as argument": ("struct Plus { float by; float operator()(float v) const { return v + by; } };"
                              "template <typename F> float called(F f, float v) { return f(v); }",
                              "o[0] = called(Plus{4}, x);", [7]),
    "an alias template": ("template <typename T> using pair = array<T, 2>;", "pair<float> p = {x, 2}; o[0] = p[0] * p[1];", [6]),
    "a variable template": ("template <typename T> constexpr constant T one = T(1);", "o[0] = one<half> + one<float> + x;", [5]),
    "constexpr functions": ("constexpr int cube(int n) { return n * n * n; }",
                            "constexpr int n = cube(2); float a[n]; a[n - 1] = x; o[0] = a[7] + n;", [11]),
    "static_assert": ("static_assert(sizeof(float4) == 16, \"size\");", "static_assert(true); o[0] = x;", [3]),
    "namespaces": ("namespace outer { namespace inner { inline float deep() { return 7; } } namespace other = inner; }"
                   "namespace a::b { constant int c = 2; }", "using namespace outer; o[0] = inner::deep() + a::b::c;", [9]),
    "enumerations": ("enum class Mode : uchar { first, second = 5, third }; enum Plain { alpha = 2, beta };",
                     "Mode m = Mode(uint(x) * 2); o[0] = int(m == Mode::third) * 10 + int(Mode::second) + beta;", [18]),
    "unions": ("union Bits { float f; uint u; ushort2 h; };", "Bits b; b.f = x; o[0] = b.u >> 23; o[1] = b.h.y;", [128, 0x4040]),
    "inheritance": ("struct Base { float a; float twice() const { return 2 * a; } }; struct More : Base { float b; };",
                    "More m; m.a = x; m.b = 1; o[0] = m.twice() + m.b;", [7]),
    "constructors and operators": (
        "struct Complex { float re, im; Complex(float r, float i = 0) thread : re(r), im(i) {}"
        " Complex operator*(Complex o) const { return Complex(re * o.re - im * o.im, re * o.im + im * o.re); }"
        " bool operator==(Complex o) const { return re == o.re && im == o.im; }"
        " explicit operator float() const { return re; } };"
        "Complex operator+(Complex a, Complex b) { return Complex(a.re + b.re, a.im + b.im); }",
        "Complex c = Complex(x, 2) * Complex(1, 1) + Complex(4); o[0] = c.re; o[1] = c.im;"
        " o[2] = float(c) + (c == Complex(5, 5));", [5, 5, 6]),
    "compound assignment of a structure": (
        "struct V { float a; thread V& operator+=(float v) thread { a += v; return *this; } };",
        "V v = {x}; v += 2; (v += 1) += 1; o[0] = v.a;", [7]),
    "methods in address spaces": (
        "struct Counter { float value; float get() const thread { return value; }"
        " float get() const device { return value * 10; } float get() const threadgroup { return value * 100; } };",
        "Counter c = {x}; device Counter* d = (device Counter*)(o + 1); d->value = 4; threadgroup Counter t; t.value = 5;"
        " o[0] = c.get(); o[2] = d->get(); o[3] = t.get();", [3, 4, 40, 500]),
    "overloads by address space": (
        "int space(device float*) { return 1; } int space(constant float*) { return 2; }"
        "int space(threadgroup float*) { return 3; } int space(thread float*) { return 4; } constant float c[1] = {0};",
        "threadgroup float t[1]; float p[1]; o[0] = space(o) * 1000 + space(c) * 100 + space(t) * 10 + space(p);", [1234]),
    "references to every memory": (
        "template <typename T> void put(thread T& to, T v) { to = v; } template <typename T> void put(device T& to, T v)"
        " { to = v * 2; } void put(threadgroup float& to, float v) { to = v * 3; }",
        "float l; threadgroup float t; put(l, x); put(o[1], x); put(t, x); o[0] = l; o[2] = t;", [3, 6, 9]),
    "constants of the program": (
        "constant float table[4] = {1, 2, 3, 4}; constant constexpr int sizes[2] = {5, 6}; constant float4 colour = float4(1, 2, 3, 4);"
        "constexpr constant float factor = 2; struct Traits { static constexpr constant int width = 3; };"
        "struct Row { float a; packed_short2 b; }; constant Row rows[2] = {{1, {2, 3}}, {4, {5, 6}}};",
        "o[0] = table[int(x)] + sizes[1] + colour.z + factor + Traits::width; Row r = rows[1]; o[1] = r.a + r.b.y;"
        " constant Row& s = rows[0]; o[2] = s.b.x;", [18, 10, 2]),
    "constants in functions": ("float at(int i) { constant float t[3] = {5, 6, 7}; return t[i]; }",
                               "constexpr constant int n = 2; o[0] = at(n) + x;", [10]),
    "a swizzle-like member": ("struct S { float xy; float rg; };", "S s = {x, 4}; o[0] = s.xy + s.rg;", [7]),
    "loop pragmas": (
        "", "float s = 0;\n#pragma unroll\nfor (int i = 0; i < 4; ++i) s += i;\n#pragma unroll(2)\nfor (int i = 0; i < 3; ++i) s += x;\n"
        "#pragma clang loop unroll(full)\nfor (int i = 0; i < 2; ++i) s += 1;\n _Pragma(\"clang loop unroll(disable)\")"
        " for (int i = 0; i < 2; ++i) s += 1; o[0] = s;", [19]),
    "switch, do and break": (
        "", "float s = 0; int i = 0; do { switch (i) { case 0: s += 1; break; case 1: case 2: s += 10; break; default: s += 100; }"
        " if (i == 4) break; } while (++i < 10); o[0] = s;", [221]),
    "comma and conditional chains": ("", "int i = x > 2 ? x > 5 ? 1 : 2 : 3; float y = (i++, i * 2); o[0] = y + i;", [9]),
    "macros": ("#define ADD(a, b) \\\n  ((a) + (b))\n#if __METAL_VERSION__ >= 300 && defined(__METAL__)\n#define SEVEN 7\n#endif\n"
               "#define JOIN(a, b) a##b\n#define NAME(n) #n", "float JOIN(y, 1) = ADD(SEVEN, x); o[0] = y1 + sizeof(NAME(abc));", [14]),
    "uniform values": ("", "uniform<int> n = make_uniform(int(x)); o[0] = n + 1;", [4]),
    "logging says nothing": ("constant os_log logger(\"subsystem\", \"category\");",
                             "logger.log_debug(\"x %f\", x); os_log_default.log(\"plain\");"
                             " logger.log_with_type(log_type_error, \"%d\", 1); o[0] = x;", [3]),
    "names that OpenCL reserves": ("", "int global = 1, local = 2, generic = 3, pipe = 4; o[0] = global + local + generic + pipe + x;", [13]),
    "attributes of functions and statements": (
        "[[clang::noinline]] float kept(float v) { return v; } static inline __attribute__((always_inline)) float same(float v)"
        " { return v; }", "[[maybe_unused]] int unused = 0; o[0] = kept(x) + same(x);", [6]),
    "METAL_FUNC and default arguments": ("METAL_FUNC float scaled(float v, float by = 2) { return v * by; }",
                                         "o[0] = scaled(x) + scaled(x, 3);", [15]),
    "pointers to pointers and arrays": (
        "float second(thread float* p) { return p[1]; } float corner(thread float (&m)[2][2]) { return m[1][1]; }",
        "float a[2] = {1, x}; float m[2][2] = {{1, 2}, {3, x}}; thread float* p = a; o[0] = second(p) + corner(m) + *(p + 1);", [9]),
    "a reference to a temporary": ("float twice(const thread float& v) { return v * 2; }", "o[0] = twice(x + 1) + twice(x);", [14]),
    "device vectors by pointer": ("", "device float2* v = (device float2*)(o + 2); *v = float2(x, 4); v->yx += 1; o[0] = v->x; o[1] = o[3];",
                                  [4, 5, 4, 5]),
    "methods defined outside of their record": (
        "struct Outer { float v; template <typename T> float twice(T a) thread { v = a; return 2 * v; } float half_of(float a) thread; };"
        "float Outer::half_of(float a) thread { v = a; return v / 2; }"
        "template <typename T, int N> struct Box { T v; void load(T a) thread { v = a; } float get() thread { load(v + N); return v; } };"
        "template <> void Box<float, 3>::load(float a) thread { v = -a; }",
        "Outer u; Box<float, 3> b; Box<float, 1> c; b.v = c.v = x; o[0] = u.twice(x) + u.half_of(4); o[1] = b.get(); o[2] = c.get();",
        [8, -6, 4]),
    "coherent memory and fences": (
        "float peek(volatile coherent(device) device float* p) { return *p; }",
        "o[0] = x; atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst, thread_scope_simdgroup); o[1] = peek(o);", [3, 3]),
    "a pointer moved by an integral constant": (
        "template <class T, T v> struct integral_constant { static constexpr constant T value = v;"
        " constexpr operator T() const thread { return v; } };"
        "template <class C> float at(device float* p, C by) { p += by; p -= 0; return p[by]; }",
        "o[1] = 1; o[2] = 7; o[0] = at(o, integral_constant<int, 1>());", [7]),
    "type names without an object": ("struct P { half a; char b; float4 v; };", "o[0] = sizeof(P) + alignof(P) * 100;", [1632]),
}  # fmt: skip
INSTANCES = """
template <typename T, int N = 1, bool Twice = false>
[[kernel]] void scaled(device T* o [[buffer(0)]], const device T* a [[buffer(1)]], uint i [[thread_position_in_grid]]) {
  o[i] = a[i] * T(N) * T(Twice ? 2 : 1);
}
template [[host_name("scaled_by_1")]] [[kernel]] void scaled<float>(device float*, const device float*, uint);
template [[host_name("scaled_by_3")]] [[kernel]] decltype(scaled<float, 3>) scaled<float, 3>;
template [[host_name("scaled_" "by_6")]] kernel void scaled<float, 3, true>(
    device float* o [[buffer(0)]], const device float* a [[buffer(1)]], uint i [[thread_position_in_grid]]);
template <typename T>
kernel void deduced(device T* o, constant int& n, const device T* a, uint i [[thread_position_in_grid]]) {
  threadgroup T s[4];
  s[i % 4] = a[i];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  o[i] = s[(i + 1) % 4] * T(n);
}
template [[host_name("deduced_float")]] [[kernel]] void deduced(
    device float* o [[buffer(0)]], constant int& n [[buffer(1)]], const device float* a [[buffer(2)]],
    uint i [[thread_position_in_grid]]);
template [[host_name("deduced_half")]] [[kernel]] void deduced(device half*, constant int&, const device half*, uint);
namespace inner {
template <typename T> float from(T v) { return float(v) + 1; }
template <float (*f)(float)> kernel void mapped(device float* o, const device float* a, uint i [[thread_position_in_grid]]) {
  o[i] = f(a[i]);
}
template [[host_name("mapped_from")]] [[kernel]] decltype(mapped<from<float>>) mapped<from<float>>;
}
[[host_name("renamed")]] [[kernel]] void original(device float* o, const device float* a, uint i [[thread_position_in_grid]]) {
  o[i] = a[i] - 1;
}
"""


@functools.cache
def library(device: str):
    text = "".join(
        f"namespace n{number} {{\n{before}\nkernel void feature{number}(device float* o, device const float* given) "
        f"{{ float x = given[0]; {body} }}\n}}\n"
        for number, (before, body, _) in enumerate(FEATURES.values())
    )
    return compile_shader(HEAD + text + INSTANCES, device=device)


@pytest.mark.parametrize("name", FEATURES)
def test_feature(metal_device, name):
    expected = FEATURES[name][2]
    result = torch.full((4,), float("nan"), device=metal_device)
    kernel = getattr(library(metal_device), f"feature{list(FEATURES).index(name)}")
    kernel(result, torch.tensor([3.0], device=metal_device), threads=1, group_size=1)
    assert result.tolist()[: len(expected)] == expected


@pytest.mark.parametrize(("name", "change"), [
    ("scaled_by_1", lambda a: a), ("scaled_by_3", lambda a: a * 3), ("scaled_by_6", lambda a: a * 6),
    ("mapped_from", lambda a: a + 1), ("renamed", lambda a: a - 1),
])  # fmt: skip
def test_host_name(metal_device, name, change):
    a = torch.arange(8.0)
    result = torch.empty(8, device=metal_device)
    getattr(library(metal_device), name)(result, a.to(metal_device), threads=8, group_size=4)
    assert torch.equal(result.cpu(), change(a))


@pytest.mark.parametrize(("name", "dtype"), [("deduced_float", torch.float32), ("deduced_half", torch.float16)])
def test_instantiation_by_parameters_alone(metal_device, name, dtype):
    a = torch.arange(8.0).to(dtype)
    result = torch.empty(8, dtype=dtype, device=metal_device)
    getattr(library(metal_device), name)(result, 5, a.to(metal_device), threads=8, group_size=4)
    assert torch.equal(result.cpu(), a.view(2, 4).roll(-1, 1).flatten() * 5)


def test_original_name_of_a_renamed_kernel_is_gone(metal_device):
    assert "renamed" in dir(library(metal_device)) and "original" not in dir(library(metal_device))


STRUCTURES = """
struct Inner { float a[2]; half4 v; packed_float3 p; };
struct Outer { int n; Inner inner; uchar2 tail; };
kernel void copied(device Outer* o, constant Outer& c, device const Outer* d) {
  Outer local = c;
  local.n += 1;
  o[0] = local;
  o[1] = *d;
  o[2] = c;
  threadgroup Outer shared;
  shared = d[0];
  shared.inner.v.yx = half2(1, 2);
  o[3] = shared;
  constant Outer* p = &c;
  o[4].n = p->inner.p[1] + d->inner.v.w;
  o[5].inner = c.inner;
}
"""
LAYOUT = "<i4x2f4e3f4x2s6x"  # n, a, v, p, tail, with padding to the alignment of half4


def test_structures_are_copied_between_all_address_spaces(metal_device):
    kernel = compile_shader(HEAD + STRUCTURES, device=metal_device).copied
    c = (7, 1.5, 2.5, 1, 2, 3, 4, 5.0, 6.0, 7.0, b"ab")
    d = (9, -1.5, -2.5, 5, 6, 7, 8, 1.0, 2.0, 3.0, b"cd")
    as_tensor = lambda v: torch.frombuffer(bytearray(struct.pack(LAYOUT, *v)), dtype=torch.uint8).to(metal_device)  # noqa: E731
    size = struct.calcsize(LAYOUT)
    result = torch.zeros(6 * size, dtype=torch.uint8, device=metal_device)
    kernel(result, as_tensor(c), as_tensor(d), threads=1, group_size=1)
    records = [struct.unpack(LAYOUT, part) for part in np.split(result.cpu().numpy(), 6) for part in [part.tobytes()]]
    assert records[0] == (8, *c[1:]) and records[1] == d and records[2] == c
    assert records[3] == (*d[:3], 2, 1, *d[5:])
    assert records[4][0] == 6 + 8 and records[5][1:10] == c[1:10]


def test_function_constants_take_values():
    source = (
        HEAD + "constant bool on [[function_constant(0)]];\nconstant int n [[function_constant(1)]];\n"
        "constant float factor [[function_constant(2)]];\n"
        "constant bool given = is_function_constant_defined(n);\nconstant int used = given ? n : 5;\n"
        "kernel void k(device float* o) { if (on) o[0] = used * factor; else o[0] = -1; o[1] = given;"
        " o[2] = is_function_constant_defined(factor); }"
    )
    text = translate(source, constants={0: True, "n": 7, 2: 0.5}).text
    for line in ("MSL_FUNCTION_CONSTANT_0 true", "MSL_FUNCTION_CONSTANT_1 7", "MSL_FUNCTION_CONSTANT_2 0.5"):
        assert f"#define {line}" in text
    assert text.count("DEFINED_1 true") == 1 and "DEFINED_0 false" in translate(source).text
    with pytest.raises(ValueError, match="valid are"):
        translate(source, constants={"nothing": 1})


def test_function_constants_without_values_are_undefined(metal_device):
    source = (
        HEAD + "constant bool on [[function_constant(0)]];\nconstant int n [[function_constant(1)]];\n"
        "constant bool given = is_function_constant_defined(n);\nconstant int used = given ? n : 5;\n"
        "kernel void k(device float* o) { o[0] = on ? n : -1; o[1] = given; o[2] = used; }"
    )
    result = torch.zeros(3, device=metal_device)
    compile_shader(source, device=metal_device).k(result, threads=1, group_size=1)
    assert result.tolist() == [-1, 0, 5]
