"""Vector constructors, components, swizzles read and written, operators and arrays, against numpy."""

from __future__ import annotations

import itertools

import numpy as np

from tests.metal.language.samples import floats, integers
from tests.metal.language.tables import Table

FOUR = {"a": floats("float4", -9, 9, 1, 16), "b": floats("float4", -9, 9, 2, 16)}
A = {"a": FOUR["a"]}
LETTERS = ("xyzw", "rgba")

# Every swizzle of two and three components of a float4, eight to a row; those of four components by their first letter.
READ = Table()
for letters in LETTERS:
    for size in (2, 3):
        names = ["".join(part) for part in itertools.product(letters, repeat=size)]
        for begin in range(0, len(names), 8):
            chosen = names[begin : begin + 8]
            expression = " + ".join(f"a.{name} * {n + 1}.0f" for n, name in enumerate(chosen))
            picks = [[letters.index(letter) for letter in name] for name in chosen]

            def weighted(a: np.ndarray, picks=picks) -> np.ndarray:
                total = a[:, picks[0]]
                for n, pick in enumerate(picks[1:], 2):
                    total = total + a[:, pick] * np.float32(n)
                return total

            READ.row(f"float{size}", expression, weighted, label=f"swizzles {chosen[0]} to {chosen[-1]}", **A)
for first in "xyzw":
    names = [first + "".join(part) for part in itertools.product("xyzw", repeat=3)]
    picks = [["xyzw".index(letter) for letter in name] for name in names]
    expression = " ^ ".join(f"(a.{name} + {n})" for n, name in enumerate(names))
    READ.row(
        "uint4",
        expression,
        lambda a, picks=picks: np.bitwise_xor.reduce([a[:, p] + np.uint32(n) for n, p in enumerate(picks)]),
        label=f"swizzles {first}...",
        a=integers("uint4", 3),
    )
for metal, swizzle in (
    ("half3", "zx"),
    ("short2", "yyxx"),
    ("bool4", "wzy"),
    ("packed_float3", "zyx"),
    ("bfloat4", "xw"),
):
    picks = ["xyzw".index(letter) for letter in swizzle]
    scalar, count = metal.removeprefix("packed_")[:-1], int(metal[-1])
    values = np.arange(8 * count).reshape(8, count) % 5
    READ.row(f"{scalar}{len(swizzle)}", f"a.{swizzle}", lambda a, p=picks: a[:, p], label=f"{metal}.{swizzle}",
             a=(metal, values > 1 if scalar == "bool" else values))  # fmt: skip
READ.row("float", "a.wzyx.yx[1] + a.xy.y", lambda a: a[:, 3] + a[:, 1], **A)
READ.row("float", "a[2] + a[i % 4]", lambda a: a[:, 2] + a[np.arange(16), np.arange(16) % 4], **A)
READ.row("float2", "p->zw", lambda a: a[:, 2:], before="thread float4* p = &a;", **A)
READ.row("float2", "(a + 1.0f).yx", lambda a: a[:, [1, 0]] + 1, **A)

WRITE = Table("struct Both { float4 v; packed_short3 p; };\n")


def written(statements: str, change, metal: str = "float4", **inputs) -> None:
    """The vector a after the statements; `change` does the same to numpy's copy."""

    def reference(a: np.ndarray, *others: np.ndarray) -> np.ndarray:
        a = a.copy()
        return a if change(a, *others) is None else a

    WRITE.row(metal, "a", reference, before=statements, label=statements, **(inputs or FOUR))


def assign(lanes: list[int], value) -> object:
    def change(a, *others):
        a[:, lanes] = value(a, *others)

    return change


written("a.xy = b.zw;", assign([0, 1], lambda a, b: b[:, 2:]))
written("a.wx = a.xw;", assign([3, 0], lambda a, b: a[:, [0, 3]].copy()))
written("a.zyx = float3(7, 8, 9);", assign([2, 1, 0], lambda a, b: [7, 8, 9]))
written("a.bgra = b;", assign([2, 1, 0, 3], lambda a, b: b))
written("a.xyz = 2;", assign([0, 1, 2], lambda a, b: 2))
written("a.yw += b.xz;", assign([1, 3], lambda a, b: a[:, [1, 3]] + b[:, [0, 2]]))
written("a.yz -= 1.5f;", assign([1, 2], lambda a, b: a[:, 1:3] - np.float32(1.5)))
written("a.xw *= float2(2, -3);", assign([0, 3], lambda a, b: a[:, [0, 3]] * np.float32([2, -3])))
written("a.zw /= 4;", assign([2, 3], lambda a, b: a[:, 2:] / 4))
written("a.x = b.w; a.y += a.x; a[2] *= 2; --a.w;", lambda a, b: [
    a.__setitem__((slice(None), 0), b[:, 3]), a.__setitem__((slice(None), 1), a[:, 1] + a[:, 0]),
    a.__setitem__((slice(None), 2), a[:, 2] * 2), a.__setitem__((slice(None), 3), a[:, 3] - 1)] and None)  # fmt: skip
written("thread float4* p = &a; p->xy = p->yx;", assign([0, 1], lambda a, b: a[:, [1, 0]].copy()))
written("thread float4& v = a; v.zw = v.xy;", assign([2, 3], lambda a, b: a[:, :2]))
written("Both s; s.v = a; s.v.yx = b.xy; a = s.v;", assign([1, 0], lambda a, b: b[:, :2]))
written("++a;", assign([0, 1, 2, 3], lambda a, b: a + 1))
written("a += b; a *= 2.0f;", assign([0, 1, 2, 3], lambda a, b: (a + b) * 2))
INTS = {"a": integers("int3", 1), "b": integers("int3", 2)}
written("a.xz %= 7;", assign([0, 2], lambda a, b: np.fmod(a[:, [0, 2]], 7)), "int3", **INTS)
written("a.xy &= b.yz;", assign([0, 1], lambda a, b: a[:, :2] & b[:, 1:]), "int3", **INTS)
written("a.zy |= b.xy;", assign([2, 1], lambda a, b: a[:, [2, 1]] | b[:, :2]), "int3", **INTS)
written("a.xy ^= 0x55;", assign([0, 1], lambda a, b: a[:, :2] ^ 0x55), "int3", **INTS)
written("a.yz <<= 3;", assign([1, 2], lambda a, b: a[:, 1:] << 3), "int3", **INTS)
written("a.xz >>= 2;", assign([0, 2], lambda a, b: a[:, [0, 2]] >> 2), "int3", **INTS)
written("a <<= 1; a ^= b; a |= 4; a &= ~1; a %= 1000;",
        assign([0, 1, 2], lambda a, b: np.fmod(((a << 1 ^ b) | 4) & ~1, 1000)), "int3", **INTS)  # fmt: skip
PACKED = {"a": floats("packed_float4", -9, 9, 1, 16), "b": floats("float2", -9, 9, 2, 16)}
written("a.zx = b;", assign([2, 0], lambda a, b: b), "packed_float4", **PACKED)
written("a.yw += b;", assign([1, 3], lambda a, b: a[:, [1, 3]] + b), "packed_float4", **PACKED)
written("a.w = a.x; a[1] = 5; a.z *= 2;", lambda a, b: [
    a.__setitem__((slice(None), 3), a[:, 0]), a.__setitem__((slice(None), 1), 5),
    a.__setitem__((slice(None), 2), a[:, 2] * 2)] and None, "packed_float4", **PACKED)  # fmt: skip

# Constructors: every split of four components into scalars and vectors.
MADE = Table()
for parts in [p for n in (1, 2, 3, 4) for p in itertools.product((1, 2, 3, 4), repeat=n) if sum(p) == 4]:
    begin, texts = 0, []
    for size in parts:
        texts.append(f"a.{'xyzw'[begin : begin + size]}" if size > 1 else f"a[{begin}]")
        begin += size
    MADE.row("float4", f"float4({', '.join(texts)})", lambda a: a, **A)
    MADE.row("packed_float4", f"packed_float4({', '.join(texts)})", lambda a: a, **A)
MADE.row("half4", "half4(half3(a.xyz), half(a.w))", lambda a: a, **A)
MADE.row("float3", "float3(a.x, a.yz)", lambda a: a[:, :3], **A)
MADE.row("float3", "float3(a.xy, a.z)", lambda a: a[:, :3], **A)
MADE.row("float3", "float3(1, a.x, 3)", lambda a: np.stack([a[:, 0] * 0 + 1, a[:, 0], a[:, 0] * 0 + 3], 1), **A)
MADE.row("float2", "float2(3)", lambda a: np.full((16, 2), 3), **A)
MADE.row("float4", "v", lambda a: a, before="float4 v = {a.x, a.y, a.z, a.w};", **A)
MADE.row("int2", "v", lambda a: np.trunc(a[:, :2]), before="int2 v = int2(int(a.x), int(a.y));", **A)
MADE.row("float3", "float3(packed_float3(a.xyz)) * 2.0f", lambda a: a[:, :3] * 2, **A)
MADE.row("packed_half2", "packed_half2(half2(a.zw))", lambda a: a[:, 2:], **A)
MADE.row("float4", "c ? a : b", lambda a, b, c: np.where(c[:, None], a, b), **FOUR, c=("bool", np.arange(16) % 2 == 0))
MADE.row("float", "x[1] + x[2] * x.size()", lambda a: a[:, 1] + (a[:, 0] + a[:, 1]) * 3,
         before="array<float, 3> x; x[0] = a.x; x[1] = a.y; x[2] = x[0] + x[1];", **A)  # fmt: skip
MADE.row("float", "s", lambda a: a[:, 0] + a[:, 1] + a[:, 2], label="a range of an array",
         before="array<float, 3> x = {a.x, a.y, a.z}; float s = 0; for (float v : x) s += v;", **A)  # fmt: skip
MADE.row("float", "x[0] + x[1]", lambda a: 2 * a[:, 0] + 2 * a[:, 1], label="a range that is changed",
         before="array<float, 2> x = {a.x, a.y}; for (thread float& v : x) v *= 2;", **A)  # fmt: skip
MADE.row("float", "s", lambda a: a.sum(1, dtype=np.float32), label="a range of a C array", ulp=4,
         before="float x[4] = {a.x, a.y, a.z, a.w}; float s = 0; for (auto v : x) s += v;", **A)  # fmt: skip
MADE.row("float2", "x[1]", lambda a: a[:, 2:], before="array<float2, 2> x; x[0] = a.xy; x[1] = a.zw;", **A)


@READ.test()
def test_swizzle_read(metal_device, number):
    READ.check(metal_device, number)


@WRITE.test()
def test_component_written(metal_device, number):
    WRITE.check(metal_device, number)


@MADE.test()
def test_constructor(metal_device, number):
    MADE.check(metal_device, number)
