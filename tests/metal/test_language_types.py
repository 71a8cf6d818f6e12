"""Vectors, packed vectors, structures, constants, templates and other language features, with values from numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from metal_inductor.metal import compile_shader

HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"


def evaluate(body: str, before: str = "", count: int = 1) -> list[float]:
    """Runs a kernel that writes floats to o[0] ... o[count - 1]."""
    library = compile_shader(f"{HEAD}{before}\nkernel void k(device float* o) {{ {body} }}", device="cpu")
    result = torch.full((count,), float("nan"))
    library.k(result, threads=1, group_size=1)
    return result.tolist()


@pytest.mark.parametrize(
    ("statements", "expected"),
    [
        ("float4 v(1, 2, 3, 4); o[0] = v.x + v.y * 10 + v.z * 100 + v.w * 1000;", 4321),
        ("float4 v(1, 2, 3, 4); v.xy = v.zw; o[0] = v.x + v.y * 10 + v.z * 100 + v.w * 1000;", 4343),
        ("float4 v(1, 2, 3, 4); v.zyx = float3(7, 8, 9); o[0] = v.x + v.y * 10 + v.z * 100;", 789),
        ("float4 v(1, 2, 3, 4); float4 u = v; v.xy = u.xy; o[0] = v.w;", 4),
        (
            "float4 v(1, 2, 3, 4); v.wx += 1; v.yz *= float2(2, 3); o[0] = v.x + v.y * 10 + v.z * 100 + v.w * 1000;",
            5942,
        ),
        ("float4 v(1, 2, 3, 4); o[0] = v.wzyx.x + v.rgb.z * 10 + v.bgra[0] * 100;", 334),
        ("float3 v(1); v[1] = 5; o[0] = v[0] + v[1] * 10 + v[2] * 100;", 151),
        ("float4 v(float2(1, 2), 3, 4); float4 u(1, float2(2, 3), 4); o[0] = all(v == u);", 1),
        ("o[0] = float4(float3(1, 2, 3), 4).w + float3(1, float2(2, 3)).z;", 7),
        ("int4 v(7, -7, 8, 9); v /= 2; v <<= 1; o[0] = v.x + v.y + v.z % 3;", 2),
        ("uchar4 v(250); v += uchar4(10); o[0] = v.x;", 4),
        ("float4 v = float4(int4(1, -2, 3, 4)) * 0.5f; o[0] = v.y + int3(float3(2.9f)).x;", 1),
        ("bool3 m = float3(1, 2, 3) > 2.0f; o[0] = any(m) * 2 + all(m) + (!m).x * 4;", 6),
        ("half4 v(1.5h); v = v * v + 2.0h; o[0] = v.z;", 4.25),
        ("bfloat4 v(bfloat(1.5f)); v = v * v + bfloat(2); o[0] = float(v.w);", 4.25),
        ("o[0] = float(bfloat(256) + bfloat(1));", 256),
        ("half h = 2048.0h; h += 1.0h; o[0] = h;", 2048),
        ("bfloat b = 3; b += 1.5f; b++; o[0] = b;", 5.5),
        ("o[0] = as_type<float>(as_type<uint>(1.0f) + 0x00800000u);", 2),
        ("o[0] = as_type<float2>(0x400000003f800000ul).y + as_type<ushort2>(0x00020001u).y;", 4),
        ("o[0] = as_type<ulong>(uint2(1, 2)) == 0x200000001ul;", 1),
        ("o[0] = sizeof(float3) + sizeof(packed_float3) * 100;", 1216),
        ("o[0] = sizeof(half3) * 100 + sizeof(bool4) * 10 + sizeof(bfloat4);", 848),
        ("packed_float3 p(1, 2, 3); float3 v = p; p = v * 2.0f; o[0] = p.y + p[2] + (p + v).x;", 13),
        (
            "bool c = *o != 7; bfloat b = c ? bfloat(2) : bfloat(3); float2 v = 1; v = c ? v + 1 : v; o[0] = b + v.y;",
            4,
        ),
        ("int i = 3; o[0] = i > 2 ? i > 5 ? 1 : 2 : 3;", 2),
        ("float4 v(1); bool c = v.x > 0; v = c ? (v + 1) : (c ? (v) : (v) * (v)); o[0] = v.x;", 2),
        ("float4 v(3); bool c = v.x < 0; v = (c ? v : (c ? (v) : (v) * (v))); o[0] = max(v.x, c ? 1.0f : (2.0f));", 9),
        ("float s = 0; for (auto i = 0; i < 4; ++i) { if (i == 2) continue; s += i; } o[0] = s;", 4),
        ("long big = 1l << 40; o[0] = big >> 38; ", 4),
        ("uint u = 0; u -= 1; o[0] = u == 0xffffffffu;", 1),
        ("char c = 200; o[0] = c;", -56),
        ("array<float, 3> a; a[0] = 1; a[1] = 2; a[2] = a[0] + a[1]; o[0] = a[2] + a.size();", 6),
        ("constexpr int n = 3; float a[n] = {1, 2, 3}; thread float* p = a; o[0] = p[n - 1];", 3),
        ("int global = 1, local = 2, generic = 3; o[0] = global + local + generic;", 6),
        ("o[0] = 1.0bf + 0x1F;", 32),
        ("float x = 0.1; o[0] = x == 0.1f && x == 0.1;", 1),
        ("const auto e = uint3(1, 2, 3).yx; o[0] = e.x * 10 + e.y;", 21),
    ],
)
def test_expression(statements, expected):
    assert evaluate(statements) == [expected]


def test_strings_are_constants():
    before = """
    int length_of(constant char* text) { int n = 0; while (text[n]) ++n; return n; }
    constant os_log logger("subsystem", "category");
    """
    assert evaluate('static_assert(true, "fine"); logger.log_debug("x", 1); o[0] = length_of("four");', before) == [4]


def test_constant_references_bind_to_temporaries():
    before = """
    float twice(const thread float& x) { return x * 2; }
    template <typename T> T sum(thread const T& a, const thread T& b) { return a + b; }
    template <int N, typename T> struct Loop {
      int i; Loop<N - 1, T> inner;
      Loop(int n) thread : i(n), inner(n - 1) {}
    };
    template <typename T> struct Loop<1, T> { int i; Loop(int n) thread : i(n) {} };
    struct Row { float v[4]; thread float& at(int i) thread { return v[i]; } };
    """
    body = "float y = 3; Row r; r.at(2) = 5; Loop<3, int> l(7); o[0] = twice(1.0f) + twice(y) + sum(y, 4.0f) + r.at(2);"
    assert evaluate(body + "o[1] = l.inner.inner.i;", before, 2) == [20, 5]


def test_unions_of_vectors():
    before = """
    union Both { uint2 words; uchar4 bytes[2]; };
    Both made(uint low) { Both b; b.words = uint2(low, 0x01020304u); return b; }
    """
    body = "Both b = made(0xff00u), c; c = b; uint4 v = {1, 2, 0}; o[0] = c.bytes[0].y + c.bytes[1].w * 1000 + v.z;"
    assert evaluate(body, before) == [1255]


def test_matrices():
    body = """
    float2x3 m(float3(1, 2, 3), float3(4, 5, 6)); float3 p = m * float2(10, 1); o[0] = p.x + p.y * 10 + p.z * 100;
    float2 q = float3(1, 0, 1) * m; o[1] = q.x + q.y * 10; o[2] = transpose(m)[2][1];
    float2x2 a(1, 2, 3, 4); float2x2 b = a * a + a * 2.0f; o[3] = b[0][0] + b[1][1] * 100; o[4] = determinant(a);
    float4x4 d(2); d[1][0] = 5; o[5] = determinant(d); o[6] = determinant(float3x3(2)) + half2x2(a)[1].x;
    """
    assert evaluate(body, count=7) == [14 + 250 + 3600, 4 + 100, 6, 9 + 3000, -2, 16, 11]


def test_a_member_named_like_a_swizzle():
    assert evaluate("S s = {3, 4}; o[0] = s.xy + s.rg;", "struct S { float xy; float rg; };") == [7]


def test_structures_are_copied_from_every_address_space():
    library = compile_shader(
        HEAD + "struct Inner { float a[2]; half4 v; packed_float3 p; };\nstruct Outer { int n; Inner inner; };\n"
        "kernel void k(device Outer* o, constant Outer& c, device const Outer* d) {"
        " Outer local = c; local.n += 1; o[0] = local; o[1] = *d; o[2] = c; threadgroup Outer shared; shared = d[0];"
        " o[3] = shared; }",
        device="cpu",
    )
    source = torch.arange(10, dtype=torch.int32)  # the vector member aligns the structure to 8 bytes
    result = torch.zeros(4 * 10, dtype=torch.int32)
    library.k(result, source, source + 100, threads=1, group_size=1)
    records = result.view(4, -1)
    used = [0, 2, 3, 4, 5, 6, 7, 8]  # words that are no padding
    assert records[0, used].tolist() == [1, *source[used[1:]].tolist()]
    assert records[1, used].tolist() == (source + 100)[used].tolist()
    assert records[2, used].tolist() == source[used].tolist()
    assert records[3, used].tolist() == (source + 100)[used].tolist()


def test_constants_of_the_program():
    before = """
    constant float table[4] = {1, 2, 3, 4};
    constant constexpr int sizes[2] = {5, 6};
    constant float4 colour = float4(1, 2, 3, 4);
    constexpr constant float factor = 2;
    struct Traits { static constexpr constant int width = 3; };
    template <typename T> constexpr constant T one = T(1);
    float pick(constant float* from, int i) { return from[i]; }
    """
    body = "o[0] = table[1] + sizes[1] + colour.z + factor + Traits::width + one<half> + pick(table, 3);"
    assert evaluate(body, before) == [2 + 6 + 3 + 2 + 3 + 1 + 4]


def test_methods_in_address_spaces():
    before = """
    struct Counter {
      float value;
      Counter() thread : value(0) {}
      Counter(float v) thread : value(v) {}
      void add(float v) thread { value += v; }
      float get() const thread { return value; }
      float get() const device { return value * 10; }
      float get() const constant { return value * 10; }
      float get() const threadgroup { return value * 100; }
      Counter operator+(Counter other) const { return Counter(value + other.value); }
    };
    """
    body = """
    Counter a; a.add(2); Counter b = a + Counter(1); o[0] = b.get();
    device Counter* d = (device Counter*)(o + 1); d->value = 4; o[2] = d->get();
    threadgroup Counter t; t.value = 5; o[3] = t.get();
    """
    assert evaluate(body, before, 4) == [3, 4, 40, 500]


def test_overloads_by_address_space():
    before = """
    int space(device float*) { return 1; }
    int space(constant float*) { return 2; }
    int space(threadgroup float*) { return 3; }
    int space(thread float*) { return 4; }
    constant float c[1] = {0};
    template <typename T> void store(thread T& to, T from) { to = from; }
    template <typename T> void store(device T& to, T from) { to = from * 2; }
    """
    body = """
    threadgroup float t[1]; float p[1];
    o[0] = space(o) * 1000 + space(c) * 100 + space(t) * 10 + space(p);
    float local; store(local, 3.0f); o[1] = local; store(o[2], 3.0f);
    """
    assert evaluate(body, before, 3) == [1234, 3, 6]


def test_templates_and_traits():
    before = """
    template <typename T, int N> T total(vec<T, N> v) { T s = 0; for (int i = 0; i < N; i++) s += v[i]; return s; }
    template <typename T, enable_if_t<is_floating_point_v<T> && sizeof(T) == 4, bool> = true> int kind(T) { return 1; }
    template <typename T, enable_if_t<is_integral_v<T>, bool> = true> int kind(T) { return 2; }
    template <typename A, typename B> struct Pair { A a; B b; };
    template <typename F> float apply(F f, float x) { return f(x); }
    struct Square { float operator()(float x) const { return x * x; } };
    namespace outer { namespace inner { inline float deep() { return 7; } } }
    enum class Mode : int { first, second };
    union Bits { float f; uint u; };
    """
    body = """
    o[0] = total(float4(1, 2, 3, 4)) + total(int2(3, 4));
    o[1] = kind(1.0f) * 10 + kind(1);
    Pair<half, int> p = {2.5h, 3}; o[2] = p.a + p.b;
    o[3] = apply(Square(), 3) + outer::inner::deep() + (Mode::second == Mode(1));
    o[4] = is_same_v<conditional_t<true, float, half>, float> + numeric_limits<half>::max() + is_signed_v<uint>;
    Bits bits; bits.f = 1; o[5] = bits.u >> 23;
    """
    assert evaluate(body, before, 6) == [17, 12, 5.5, 17, 65504, 127]


def test_macros_and_line_splices():
    before = "#define ADD(a, b) \\\n  ((a) + (b))\n#if __METAL_VERSION__ >= 300\n#define SEVEN 7\n#endif"
    assert evaluate("\n#pragma unroll\n for (int i = 0; i < 1; ++i) o[0] = ADD(SEVEN, 1);", before) == [8]


def test_sixteen_byte_loads_through_vector_pointers():
    library = compile_shader(
        HEAD + "kernel void k(device float* o, device const float* a, device const half* h,"
        " uint i [[thread_position_in_grid]])"
        "{ device const float4* v = (device const float4*)a; device float4* w = reinterpret_cast<device float4*>(o);"
        "  w[i] = v[i].wzyx + float4(((device const half4*)h)[i]); w[i].xy += 1; }",
        device="cpu",
    )
    a, h = torch.randn(64), torch.randn(64).half()
    result = torch.empty(64)
    library.k(result, a, h, threads=16, group_size=16)
    expected = a.view(16, 4).flip(1) + h.view(16, 4).float()
    expected[:, :2] += 1
    assert torch.equal(result.view(16, 4), expected)


@pytest.mark.parametrize(
    ("metal", "dtype"),
    [
        ("float", torch.float32),
        ("half", torch.float16),
        ("bfloat", torch.bfloat16),
        ("char", torch.int8),
        ("uchar", torch.uint8),
        ("short", torch.int16),
        ("int", torch.int32),
        ("long", torch.int64),
        ("bool", torch.bool),
    ],
)
def test_buffers_of_every_type(metal, dtype):
    library = compile_shader(
        f"{HEAD}kernel void k(device {metal}* o, constant {metal}* a, uint2 p [[thread_position_in_grid]]) "
        "{ o[p.y * 7 + p.x] = a[p.x * 5 + p.y]; }",
        device="cpu",
    )
    source = torch.from_numpy(np.random.default_rng(0).integers(0, 2, 35)).to(dtype).view(7, 5)
    result = torch.empty(5, 7, dtype=dtype)
    library.k(result, source, threads=(7, 5), group_size=(4, 2))
    assert torch.equal(result, source.t())
