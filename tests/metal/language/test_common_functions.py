"""<metal_common>, <metal_relational>, <metal_geometric>, <metal_matrix> and <metal_pack>, against numpy."""

from __future__ import annotations

import struct

import numpy as np

from tests.metal.language.samples import SPECIAL_FLOATS, floats, integers
from tests.metal.language.tables import DTYPES, Table, Type, round_to


def wide(function):
    """The function of doubles."""
    return lambda *arrays: function(*(a.astype(np.float64) for a in arrays))


TABLE = Table()

# Common functions: rounding of the intermediate results is Metal's, so a few units are allowed.
for metal in ("float", "half", "float3", "half4"):
    abc = {k: floats(metal, 0.0, 1.0, n) for n, k in enumerate("abc")}
    above = floats(metal, 2, 3, 5)  # where the blend does not cancel
    TABLE.row(metal, "mix(a, b, c)", wide(lambda x, y, a: x + (y - x) * a), 4, a=abc["a"], b=above, c=abc["c"])
    TABLE.row(metal, "step(a, b)", lambda e, x: np.where(x < e, 0, 1), a=abc["a"], b=abc["b"])
    TABLE.row(metal, "clamp(a, b, max(b, c))", lambda x, lo, hi: np.clip(x, lo, np.maximum(lo, hi)), **abc)
    one = "half(1)" if "half" in metal else "1.0f"
    away = {"a": floats(metal, -2, -1, 3), "b": floats(metal, 0.5, 3, 4)}
    TABLE.row(metal, f"smoothstep(a, a + {one}, a + {one} * 2)", lambda e: np.ones_like(e), a=abc["a"])
    TABLE.row(metal, "smoothstep(a, b, a)", lambda e, x: np.zeros_like(e), **away)
smooth = lambda x: (s := np.clip(x, 0, 1)) * s * (3 - 2 * s)  # noqa: E731
TABLE.row("float", "smoothstep(0.0f, 1.0f, a)", wide(smooth), 2, a=floats("float", -0.5, 1.5))
TABLE.row(
    "float3",
    "mix(a, b, 0.25f)",
    wide(lambda x, y: x + (y - x) * 0.25),
    4,
    a=floats("float3", 0, 1, 1),
    b=floats("float3", 0, 1, 2),
)
TABLE.row("float2", "clamp(a, -1.0f, 1.0f)", lambda x: np.clip(x, -1, 1), a=floats("float2", -2, 2))
TABLE.row("half", "clamp(a, half(-1), half(1))", lambda x: np.clip(x, -1, 1), a=floats("half", -2, 2))

# Relational functions.
FLOATS = ("float", SPECIAL_FLOATS)
EVERY_HALF = ("half", np.arange(2**16, dtype=np.uint16).view(np.float16))
BFLOATS = ("bfloat", round_to("bfloat", SPECIAL_FLOATS))
CLASSES = {
    "isnan": np.isnan,
    "isinf": np.isinf,
    "isfinite": np.isfinite,
    "signbit": np.signbit,
}
for name, function in CLASSES.items():
    for inputs in (FLOATS, EVERY_HALF, BFLOATS):
        TABLE.row("bool", f"{name}(a)", function, label=f"{name}({inputs[0]})", a=inputs)
    TABLE.row("bool2", f"{name}(a)", function, a=("float2", np.stack([SPECIAL_FLOATS, SPECIAL_FLOATS[::-1]], 1)))
TABLE.row("bool", "isnormal(a)", lambda x: np.isfinite(x) & (np.abs(x) >= 2.0**-126), a=FLOATS)
TABLE.row("bool", "isnormal(a)", lambda x: np.isfinite(x) & (np.abs(x) >= 2.0**-14), a=EVERY_HALF)
TABLE.row("bool3", "isnormal(a)", lambda x: x != 0, a=("half3", np.float16([[0, 1, 2], [3, 0, 0]])))
PAIR = {"a": FLOATS, "b": ("float", SPECIAL_FLOATS[::-1].copy())}
TABLE.row("bool", "isordered(a, b)", lambda x, y: ~np.isnan(x) & ~np.isnan(y), **PAIR)
TABLE.row("bool", "isunordered(a, b)", lambda x, y: np.isnan(x) | np.isnan(y), **PAIR)
NANS = np.float32([[np.nan, 1, 2], [0, np.nan, np.nan]])
TABLE.row("bool3", "isunordered(a, a)", np.isnan, a=("float3", NANS))
TABLE.row("bool3", "isordered(a, a)", lambda x: ~np.isnan(x), a=("float3", NANS))
MASKS = ("bool3", np.array([[n & 1, n & 2, n & 4] for n in range(8)], bool))
TABLE.row("bool", "any(a)", lambda m: m.any(1), a=MASKS)
TABLE.row("bool", "all(a)", lambda m: m.all(1), a=MASKS)
TABLE.row("bool3", "not(a)", np.logical_not, a=MASKS)
TABLE.row("bool3", "a && !a.zyx", lambda m: m & ~m[:, ::-1], a=MASKS)
TABLE.row("bool3", "a || a.yzx", lambda m: m | np.roll(m, -1, 1), a=MASKS)
FLAGS = ("bool", np.arange(64) % 3 == 0)
for metal in ("float", "half", "int", "uchar", "long", "ushort", "bool"):
    values = {"a": integers(metal, 1), "b": integers(metal, 2)} if metal not in ("float", "half", "bool") else {
        k: (metal, (np.arange(64) * n % 7).astype(DTYPES[metal])) for n, k in ((3, "a"), (5, "b"))
    }  # fmt: skip
    TABLE.row(metal, "select(a, b, c)", lambda a, b, c: np.where(c, b, a), **values, c=FLAGS)
for metal in ("float3", "int3", "half3", "ushort3"):
    a = integers("short3", 1, 8)[1].astype(DTYPES[Type.named(metal).scalar])
    TABLE.row(metal, "select(a, -a, c)" if metal != "ushort3" else "select(a, ~a, c)",
              (lambda a, c: np.where(c, -a, a)) if metal != "ushort3" else (lambda a, c: np.where(c, ~a, a)),
              a=(metal, a), c=MASKS)  # fmt: skip
TABLE.row("bool4", "a < b", lambda a, b: a < b, a=floats("float4", -1, 1, 1), b=floats("float4", -1, 1, 2))
TABLE.row("bool2", "a == b", lambda a, b: a == b, a=integers("int2", 1), b=integers("int2", 2))
TABLE.row("bool2", "a >= 0", lambda a: a >= 0, a=integers("int2", 1))

# Geometric functions.
dot = lambda x, y: (x * y).sum(1)  # noqa: E731
unit = lambda x: x / np.sqrt((x * x).sum(1, keepdims=True))  # noqa: E731
for scalar, n, ulp in (("float", 2, 4), ("float", 3, 4), ("float", 4, 4), ("half", 3, 8)):
    metal = f"{scalar}{n}"
    xy = {"a": floats(metal, 0.5, 2, 1), "b": floats(metal, 0.5, 2, 2)}
    TABLE.row(scalar, "dot(a, b)", wide(dot), ulp, **xy)
    TABLE.row(scalar, "length(a)", wide(lambda x: np.sqrt(dot(x, x))), ulp, a=xy["a"])
    TABLE.row(scalar, "length_squared(a)", wide(lambda x: dot(x, x)), ulp, a=xy["a"])
    far = {"a": xy["a"], "b": floats(metal, 4, 9, 3)}
    TABLE.row(scalar, "distance(a, b)", wide(lambda x, y: np.sqrt(dot(x - y, x - y))), ulp, **far)
    TABLE.row(scalar, "distance_squared(a, b)", wide(lambda x, y: dot(x - y, x - y)), ulp, **far)
    TABLE.row(metal, "normalize(a)", wide(unit), ulp, a=xy["a"])
    against = lambda n_, i, r: np.where((dot(r, i) < 0)[:, None], n_, -n_)  # noqa: E731
    signed = {k: floats(metal, -1, 1, s) for s, k in enumerate("abc")}
    TABLE.row(metal, "faceforward(a, b, c)", against, **signed)
INTO = ("float3", np.float32([[1, -2, 3], [0.5, -0.25, 0.125], [-1, -1, -1]]))
NORMAL = ("float3", np.float32([[0, 1, 0], [1, 0, 0], [0, 0, 1]]))
TABLE.row("float3", "reflect(a, b)", wide(lambda i, n: i - 2 * dot(n, i)[:, None] * n), a=INTO, b=NORMAL)


def refracted(incident: np.ndarray, normal: np.ndarray) -> np.ndarray:
    cosine = dot(normal, incident)[:, None]
    k = 1 - 0.25 * (1 - cosine**2)
    return 0.5 * incident - (0.5 * cosine + np.sqrt(k)) * normal


DOWN = ("float3", unit(np.float32([[1, -2, 3], [0.5, -4, 0.125], [-1, -1, -1]])).astype(np.float32))
UP = ("float3", np.float32([[0, 1, 0]] * 3))
TABLE.row("float3", "refract(a, b, 0.5f)", wide(refracted), 4, a=DOWN, b=UP)
TABLE.value(
    "float3", "refract(a, b, 2.0f)", [0, 0, 0], a=("float3", np.float32([[0.8, -0.6, 0]])), b=("float3", UP[1][:1])
)
cross = {
    "a": ("float3", integers("char3", 1)[1].astype(np.float32)),
    "b": ("float3", integers("char3", 2)[1].astype(np.float32)),
}
TABLE.row("float3", "cross(a, b)", wide(np.cross), label="cross(a, b)", **{k: v for k, v in cross.items()})
TABLE.row(
    "half3", "cross(a, b)", wide(np.cross), a=("half3", np.float16([[1, 2, 3]])), b=("half3", np.float16([[-4, 5, 6]]))
)
TABLE.row(
    "float",
    "precise::length(a) + fast::distance(a, a)",
    wide(lambda x: np.sqrt(dot(x, x))),
    4,
    a=floats("float3", 1, 2),
)

# Matrices: columns of m are a, b, c.
SMALL = {
    k: ("float3", np.random.default_rng(n).integers(-5, 6, (32, 3)).astype(np.float32)) for n, k in enumerate("abc")
}
M3 = "float3x3 m(a, b, c);"


def matrices(*columns: np.ndarray) -> np.ndarray:
    return np.stack(columns, 2).astype(np.float64)


TABLE.row("float3", "m * a + 0.0f", lambda *c: np.einsum("nij,nj->ni", matrices(*c), c[0]), before=M3, **SMALL)
TABLE.row("float3", "a * m + 0.0f", lambda *c: np.einsum("nj,nji->ni", c[0], matrices(*c)), before=M3, **SMALL)
TABLE.row("float3", "transpose(m)[1]", lambda *c: matrices(*c)[:, 1], before=M3, **SMALL)
TABLE.row("float3", "(m * m)[2] + 0.0f", lambda *c: (matrices(*c) @ matrices(*c))[:, :, 2], before=M3, **SMALL)
TABLE.row("float3", "(m + m - m * 3.0f)[0]", lambda *c: -c[0] + 0.0, before=M3, label="matrix sums", **SMALL)
TABLE.row("float3", "(-m)[1]", lambda *c: -c[1], before=M3, **SMALL)
TABLE.row("float3", "m[2]", lambda *c: 2 * c[2] + c[0], before=M3 + "m *= 2.0f; m[2] += a;", **SMALL)
TABLE.row("float3", "m[1]", lambda a, b, c: np.stack([b[:, 0], a[:, 1] + 7, b[:, 2]], 1),
          before=M3 + "m[1][1] = m[0].y + 7;", **SMALL)  # fmt: skip
TABLE.row(
    "float2",
    "float3x2(float2(1, 2), float2(3, 4), float2(5, 6)) * a",
    lambda a, *_: a @ [[1, 2], [3, 4], [5, 6]],
    **SMALL,
)
TABLE.value(
    "float", "determinant(float2x2(a, b))", -2, a=("float2", np.float32([[1, 2]])), b=("float2", np.float32([[3, 4]]))
)
TABLE.value(
    "float", "determinant(float3x3(float3(2, 0, 1), a, float3(1, 1, 4)))", 18, a=("float3", np.float32([[1, 3, 2]]))
)
M4 = np.array([[1, 2, 0, 1], [0, 3, 1, 2], [2, 1, 1, 0], [1, 0, 2, 4]], np.float64)
TABLE.value(
    "float",
    "determinant(float4x4(a, float4(0, 3, 1, 2), float4(2, 1, 1, 0), float4(1, 0, 2, 4)))",
    round(np.linalg.det(M4)),
    a=("float4", M4[:1].astype(np.float32)),
)
TABLE.value("float4", "float4x4(a)[2]", [0, 0, 3, 0], a=("float", np.float32([3])))
TABLE.value("float2", "float2x2(1, 2, 3, 4)[1] * a", [9, 12], a=("float", np.float32([3])))
TABLE.value("half2", "(half2x2(a, half2(1, 2)) * half2(1, 10))", [13, 24], a=("half2", np.float16([[3, 4]])))
TABLE.value("float2", "float2x2(half2x2(a, a))[1]", [3, 4], a=("half2", np.float16([[3, 4]])))
TABLE.value("uint", "uint(sizeof(float3x3) + sizeof(half2x4) * 100 + a)", 48 + 1600, a=("uint", np.uint32([0])))

# Packing.


def normalised(width: int, signed: bool):
    largest = 2 ** (width - signed) - 1
    return lambda v: np.rint(np.clip(v.astype(np.float64), -1 if signed else 0, 1) * largest).astype(np.int64)


def packed(width: int, signed: bool):
    def apply(v: np.ndarray) -> np.ndarray:
        fields = normalised(width, signed)(v) & (2**width - 1)
        return (fields << (np.arange(v.shape[1]) * width)).sum(1)

    return apply


def unpacked(code: str, signed: bool):
    """Fields of a word as struct reads them."""
    largest = 127 if code in "bB" and signed else {"B": 255, "h": 32767, "H": 65535, "b": 127}[code]
    count = 4 // struct.calcsize(code)

    def apply(words: np.ndarray) -> np.ndarray:
        rows = [struct.unpack(f"<{count}{code}", struct.pack("<I", word)) for word in words.tolist()]
        return np.maximum(np.array(rows, np.float64) / largest, -1)

    return apply


WORDS = ("uint", np.concatenate([[0, 0xFFFFFFFF, 0x80808080, 0x80007FFF], integers("uint", 1)[1]]).astype(np.uint32))
for kind, signed in (("unorm", False), ("snorm", True)):
    for n, width, code in ((4, 8, "b" if signed else "B"), (2, 16, "h" if signed else "H")):
        for scalar in ("float", "half"):
            values = floats(f"{scalar}{n}", -1.2, 1.2)
            if width == 16 or scalar == "float":
                values = (values[0], np.rint(values[1] * 64) / np.array(64, values[1].dtype))  # far from ties
            name = f"{kind}{n}x{width}"
            TABLE.row("uint", f"pack_{scalar}_to_{name}(a)", packed(width, signed), a=values)
            TABLE.row(f"{scalar}{n}", f"unpack_{name}_to_{scalar}(a)", unpacked(code, signed), 1, a=WORDS)
TABLE.value(
    "uint",
    "pack_float_to_unorm10a2(a)",
    1023 | 512 << 10 | 0 << 20 | 2 << 30,
    a=("float4", np.float32([[2, 0.5004888, -1, 0.6666]])),
)
TABLE.value(
    "float4", "unpack_unorm10a2_to_float(a)", [1, 0, 1, 1], a=("uint", np.uint32([1023 | 1023 << 20 | 3 << 30]))
)
TABLE.value("ushort", "pack_float_to_unorm565(a)", 31 << 11 | 32 << 5 | 0, a=("float3", np.float32([[1, 0.508, 0]])))
TABLE.value("float3", "unpack_unorm565_to_float(a)", [1, 0, 1], a=("ushort", np.uint16([31 << 11 | 31])))
TABLE.value(
    "uint",
    "pack_float_to_srgb_unorm4x8(a)",
    188 | 0 << 8 | 255 << 16 | 128 << 24,
    a=("float4", np.float32([[0.5, 0, 1, 0.5]])),
)
SRGB = np.float64(188 / 255)
TABLE.row(
    "float4",
    "unpack_unorm4x8_srgb_to_float(a)",
    lambda w: [[((SRGB + 0.055) / 1.055) ** 2.4, 0, 1, 128 / 255]],
    8,
    a=("uint", np.uint32([188 | 255 << 16 | 128 << 24])),
)


@TABLE.test()
def test_function(metal_device, number):
    TABLE.check(metal_device, number)
