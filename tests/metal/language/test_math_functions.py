"""<metal_math> against double precision, within the errors that the Metal specification allows precise functions."""

from __future__ import annotations

import math

import numpy as np

from tests.metal.language.samples import SPECIAL_FLOATS, floats, special_pairs
from tests.metal.language.tables import Table, round_to


def wide(*arrays: np.ndarray) -> list[np.ndarray]:
    return [a.astype(np.float64) for a in arrays]


def exact_of_turn(function):
    """sin, cos or tan of pi x with the period taken out before pi comes in."""

    def apply(x: np.ndarray) -> np.ndarray:
        x = np.fmod(x.astype(np.float64), 2.0)
        quadrant = np.rint(2 * x)
        rest = np.pi * (x - quadrant / 2)
        sine, cosine = np.sin(rest), np.cos(rest)
        which = np.nan_to_num(quadrant).astype(int) % 4
        sines = np.choose(which, [sine, cosine, -sine, -cosine])
        cosines = np.choose(which, [cosine, -sine, -cosine, sine])
        return function(sines, cosines)

    return apply


def half_away(x: np.ndarray) -> np.ndarray:
    return np.copysign(np.floor(np.abs(x.astype(np.float64)) + 0.5), x)


# name: (reference in double, units in the last place, range of the samples)
UNARY = {
    "acos": (np.arccos, 4, (-1, 1)),
    "acosh": (np.arccosh, 4, (1, 50)),
    "asin": (np.arcsin, 4, (-1, 1)),
    "asinh": (np.arcsinh, 4, (-50, 50)),
    "atan": (np.arctan, 5, (-9, 9)),
    "atanh": (np.arctanh, 5, (-1, 1)),
    "cos": (np.cos, 4, (-99, 99)),
    "cosh": (np.cosh, 4, (-88, 88)),
    "exp": (np.exp, 4, (-100, 88)),
    "exp2": (np.exp2, 4, (-149, 128)),
    "exp10": (lambda x: np.power(10.0, x), 4, (-45, 38)),
    "log": (np.log, 4, (0, 100)),
    "log2": (np.log2, 4, (0, 4)),
    "log10": (np.log10, 4, (0, 4)),
    "sin": (np.sin, 4, (-99, 99)),
    "sinh": (np.sinh, 4, (-88, 88)),
    "tan": (np.tan, 6, (-99, 99)),
    "tanh": (np.tanh, 5, (-9, 9)),
    "sqrt": (np.sqrt, 0.5, (0, 99)),
    "rsqrt": (lambda x: 1 / np.sqrt(x), 0.5001, (0, 99)),
}
EXACT = {
    "ceil": (np.ceil, (-9, 9)),
    "fabs": (np.abs, (-9, 9)),
    "abs": (np.abs, (-9, 9)),
    "floor": (np.floor, (-9, 9)),
    "rint": (np.rint, (-9, 9)),
    "round": (half_away, (-9, 9)),
    "trunc": (np.trunc, (-9, 9)),
    "sign": (lambda x: np.where(np.isnan(x), 0, np.where(x == 0, x, np.sign(x))), (-9, 9)),
    "saturate": (lambda x: np.where(np.isnan(x), 0, np.clip(x, 0, 1) + 0.0), (-2, 2)),
    "fract": (lambda x: np.minimum(x - np.floor(x.astype(np.float64)), 1 - 2.0**-24), (-9, 9)),
}
TURNS = {
    "sinpi": (exact_of_turn(lambda s, c: s), 4),
    "cospi": (exact_of_turn(lambda s, c: c), 4),
    "tanpi": (exact_of_turn(lambda s, c: s / c), 6),
}


def samples(low: float, high: float, special: bool = True) -> tuple[str, np.ndarray]:
    random = np.random.default_rng(0)
    bits = random.integers(0, 2**32, 2048, dtype=np.uint32).view(np.float32)
    dense = random.uniform(low, high, 2048).astype(np.float32)
    return "float", np.concatenate([SPECIAL_FLOATS, bits, dense] if special else [dense])


def halves(low: float, high: float) -> tuple[str, np.ndarray]:
    every = np.arange(2**16, dtype=np.uint16).view(np.float16)
    return "half", every[((every >= low) & (every <= high)) | ~np.isfinite(every)]


def moderate(inputs: tuple[str, np.ndarray]) -> tuple[str, np.ndarray]:
    """Without the angles whose sine a double does not know."""
    metal, values = inputs
    return metal, values[~(np.abs(values) > 1e8)]


# less exact in metal::fast on some devices: see test_fast_functions.py
ROUGHLY = {"exp", "exp2", "exp10", "log", "log2", "log10", "sin", "cos", "sqrt", "rsqrt", "divide"}
FLOAT, HALF, VECTOR, SPACES = Table(loops=True), Table(), Table(), Table(loops=True)
for name, (function, ulp, bounds) in UNARY.items():
    inputs = samples(*bounds)
    inputs = moderate(inputs) if name in ("sin", "cos", "tan") else inputs
    reference = lambda x, f=function: f(x.astype(np.float64))  # noqa: E731
    FLOAT.row("float", f"{name}(a)", reference, ulp, a=inputs)
    HALF.row("half", f"{name}(a)", reference, 1 if ulp > 1 else 0.51, a=halves(*bounds))
    for n, metal in enumerate(("float4", "half2")):
        VECTOR.row(metal, f"{name}(a)", reference, ulp if n == 0 else 1, a=floats(metal, *bounds))
    for space in ("precise",) if name in ROUGHLY else ("precise", "fast"):
        SPACES.row("float", f"{space}::{name}(a)", reference, ulp, a=samples(*bounds, special=False))
for name, (function, bounds) in EXACT.items():
    FLOAT.row("float", f"{name}(a)", function, a=samples(*bounds))
    if name != "fract":
        HALF.row("half", f"{name}(a)", function, a=halves(*bounds))
    VECTOR.row("float3", f"{name}(a)", function, a=floats("float3", *bounds))
    SPACES.row("float2", f"precise::{name}(a)", function, a=floats("float2", *bounds))
for name, (function, ulp) in TURNS.items():
    FLOAT.row("float", f"{name}(a) + 0", function, ulp, a=samples(-4, 4))
    HALF.row("half", f"{name}(a) + half(0)", function, 1, a=halves(-64, 64))
HALF.row(
    "half", "fract(a)", lambda x: np.minimum(x.astype(np.float64) - np.floor(x), 1 - 2.0**-11), 0.5, a=halves(-9, 9)
)
# zeros and extremes of the functions of turns are exact
FLOAT.row(
    "float", "abs(sinpi(a))", lambda x: np.abs(x) * 0, a=("float", np.array([0, 1, -1, 2, 3, 16777217], np.float32))
)
FLOAT.row("float", "cospi(a)", lambda x: [1, -1, 1, -1], a=("float", np.array([0, 1, 2, -3], np.float32)))
# 2^120, whose sine and cosine were computed with 200 digits of pi
HUGE = ("float", np.float32([2.0**120, -(2.0**120)]))
FLOAT.row(
    "float", "sin(a)", lambda x: np.float64([0.37782010936075202, -0.37782010936075202]), 4, label="sin(2^120)", a=HUGE
)
FLOAT.row("float", "cos(a)", lambda x: np.float64([-0.92587902285483787] * 2), 4, label="cos(2^120)", a=HUGE)
# Metal's safe math rounds a product before the sum; only fma does not.
PRODUCT = {k: ("float", np.float32([v])) for k, v in {"a": 1 + 2.0**-12, "b": 1 + 2.0**-12, "c": -1 - 2.0**-11}.items()}
FLOAT.row("float", "a * b + c", lambda a, b, c: a * b + c, label="not contracted", **PRODUCT)
FLOAT.row("float", "fma(a, b, c)", lambda a, b, c: [2.0**-24], label="fma", **PRODUCT)
# conversions round to the nearest, ties to even
TIES = (np.arange(60_000, dtype=np.uint32) << 16) | 0x8000 | (np.arange(60_000, dtype=np.uint32) % 3)
ANY = (
    "float",
    np.concatenate([np.random.default_rng(0).integers(0, 2**32, 60_000, dtype=np.uint32), TIES]).view(np.float32),
)
for metal in ("half", "bfloat"):
    FLOAT.row(metal, f"{metal}(a)", lambda a, m=metal: round_to(m, a), label="ties to even", a=ANY)
    four = ("float4", ANY[1].reshape(-1, 4))
    FLOAT.row(f"{metal}4", f"{metal}4(a)", lambda a, m=metal: round_to(m, a), label="ties to even", a=four)


def pairs(low: float, high: float, second: tuple[float, float] | None = None) -> dict[str, tuple[str, np.ndarray]]:
    x, y = special_pairs()
    random = np.random.default_rng(3)
    a = np.concatenate([x, random.uniform(low, high, 2000)]).astype(np.float32)
    b = np.concatenate([y, random.uniform(*(second or (low, high)), 1000), random.integers(-9, 9, 1000)])
    return {"a": ("float", a), "b": ("float", b.astype(np.float32))}


def smaller(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.fmin(x, y)


BINARY = {
    "atan2": (np.arctan2, 6),
    "copysign": (np.copysign, 0),
    "divide": (lambda x, y: x / y, 0.5),
    "fdim": (lambda x, y: np.where(x <= y, 0.0, x - y), 0.5),
    "fmax": (np.fmax, 0.5),
    "fmin": (smaller, 0.5),
    "max": (np.fmax, 0.5),
    "min": (smaller, 0.5),
    "fmod": (np.fmod, 0),
    "pow": (np.power, 16),
}
for name, (function, ulp) in BINARY.items():
    reference = lambda x, y, f=function: f(*wide(x, y))  # noqa: E731
    FLOAT.row("float", f"{name}(a, b)", reference, ulp, **pairs(-20, 20, (-5, 5)))
    vectors = {"a": floats("float3", 0, 9, 1), "b": floats("float3", -5, 5, 2)}
    VECTOR.row("float3", f"{name}(a, b)", reference, ulp, **vectors)
    half_vectors = {"a": floats("half4", 0, 4, 1), "b": floats("half4", -3, 3, 2)}
    VECTOR.row("half4", f"{name}(a, b)", reference, max(ulp, 1) if ulp else 0, **half_vectors)
    HALF.row("half", f"{name}(a, b)", reference, 1 if ulp else 0, a=floats("half", 0, 4, 3), b=floats("half", -3, 3, 4))
    if name not in ROUGHLY:
        SPACES.row(
            "float", f"fast::{name}(a, b)", reference, ulp, a=floats("float", 0, 9, 1), b=floats("float", -5, 5, 2)
        )
FLOAT.row(
    "float", "powr(a, b)", lambda x, y: wide(x)[0] ** y, 16, a=floats("float", 0, 9, 1), b=floats("float", -5, 5, 2)
)
FLOAT.row("float", "nextafter(a, b)", np.nextafter, **pairs(-2, 2))
HALF.row("half", "nextafter(a, b)", np.nextafter, a=floats("half", -2, 2, 3), b=floats("half", -2, 2, 4))
VECTOR.row("float2", "nextafter(a, b)", np.nextafter, a=floats("float2", -2, 2, 3), b=floats("float2", -2, 2, 4))

# fma rounds once: the exact sum of a product and a number, as fractions of integers
FMA = {
    letter: ("float", np.random.default_rng(n).standard_normal(999).astype(np.float32)) for n, letter in enumerate("ab")
}
CANCELLING = -(FMA["a"][1] * FMA["b"][1])


def exact_fma(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Products are exact in double; the sum is rounded there to odd, so that rounding to the result's type is right."""
    product, addend = a.astype(np.float64) * b, c.astype(np.float64)
    total = np.array([math.fsum(pair) for pair in zip(product.ravel(), addend.ravel(), strict=True)]).reshape(a.shape)
    error = np.array([math.fsum(t) for t in zip(product.ravel(), addend.ravel(), -total.ravel(), strict=True)])
    bits = total.copy().view(np.int64)
    towards = np.where((error.reshape(a.shape) > 0) == (total > 0), 1, -1)
    odd = np.where((error.reshape(a.shape) != 0) & (bits % 2 == 0), bits + towards, bits)
    return odd.view(np.float64)


FLOAT.row("float", "fma(a, b, c)", exact_fma, **FMA, c=("float", CANCELLING))
VECTOR.row("float3", "fma(a, b, c)", exact_fma, **{k: floats("float3", -9, 9, n) for n, k in enumerate("abc")})
RANDOM_HALVES = {
    k: ("half", np.random.default_rng(n).integers(0, 2**15, 30_000, dtype=np.uint16).view(np.float16))
    for n, k in enumerate("ab")
}
HALF.row(
    "half",
    "fma(a, b, c)",
    exact_fma,
    **{k: (t, np.where(np.abs(v) < 200, v, 1).astype(np.float16)) for k, (t, v) in RANDOM_HALVES.items()},
    c=("half", np.random.default_rng(8).uniform(-1, 1, 30_000).astype(np.float16) * np.float16(2) ** -np.float16(8)),
)
for name, function in {
    "fmin3": lambda a, b, c: np.minimum(a, np.minimum(b, c)),
    "fmax3": lambda a, b, c: np.maximum(a, np.maximum(b, c)),
    "fmedian3": lambda a, b, c: np.median([a, b, c], axis=0),
}.items():
    short = name[1:]
    for metal in ("float", "half", "float4", "half3"):
        inputs = {k: floats(metal, -9, 9, n) for n, k in enumerate("abc")}
        VECTOR.row(metal, f"{name}(a, b, c)", function, **inputs)
        VECTOR.row(metal, f"{short}(a, b, c)", function, **inputs)

NUMBERS = ("float", np.concatenate([SPECIAL_FLOATS[:5], samples(-99, 99)[1]]))
FINITE = ("float", NUMBERS[1][np.isfinite(NUMBERS[1])])
POWERS = ("int", np.random.default_rng(0).integers(-300, 300, len(FINITE[1])).astype(np.int32))
FLOAT.row("float", "ldexp(a, b)", lambda x, k: np.ldexp(x.astype(np.float64), k), 0.5, a=FINITE, b=POWERS)
HALF.row(
    "half",
    "ldexp(a, b)",
    lambda x, k: np.ldexp(x.astype(np.float64), k),
    0.5,
    a=halves(-9, 9),
    b=("int", np.resize(np.arange(-30, 20), len(halves(-9, 9)[1])).astype(np.int32)),
)
VECTOR.row("float2", "ldexp(a, int2(3, -3))", lambda x: x * [8, 0.125], a=floats("float2", -9, 9))
NONZERO = ("float", FINITE[1][FINITE[1] != 0])
FLOAT.row("int", "ilogb(a)", lambda x: np.frexp(x.astype(np.float64))[1] - 1, a=NONZERO)
VECTOR.row("int3", "ilogb(a)", lambda x: np.frexp(x)[1] - 1, a=floats("float3", 1, 99))
for space in ("thread", "threadgroup"):
    # one thread a group: each has the threadgroup's variable to itself
    declare = "int e;" if space == "thread" else "threadgroup int e;"
    FLOAT.row(
        "float",
        "frexp(a, e)",
        lambda x: np.frexp(x)[0],
        before=declare,
        a=("float", FINITE[1][:1] * 0 + 12.5),
    )
FLOAT.row("float", "frexp(a, e)", lambda x: np.frexp(x.astype(np.float64))[0], before="int e;", a=FINITE)
FLOAT.row("int", "e", lambda x: np.frexp(x.astype(np.float64))[1], before="int e; frexp(a, e);", a=FINITE)
FLOAT.row("float", "modf(a, w)", lambda x: np.modf(x)[0], before="float w;", a=NUMBERS)
FLOAT.row("float", "w", lambda x: np.modf(x)[1], before="float w; modf(a, w);", a=NUMBERS)
HALF.row("half", "modf(a, w)", lambda x: np.modf(x)[0], before="half w;", a=halves(-99, 99))
VECTOR.row("float4", "modf(a, w) + w", lambda x: x, before="float4 w;", a=floats("float4", -9, 9))
VECTOR.row("int2", "e", lambda x: np.frexp(x)[1], before="int2 e; float2 m = frexp(a, e);", a=floats("float2", -9, 9))
FLOAT.row(
    "float", "sincos(a, c)", lambda x: np.sin(x.astype(np.float64)), 4, before="float c;", a=samples(-99, 99, False)
)
FLOAT.row(
    "float", "c", lambda x: np.cos(x.astype(np.float64)), 4, before="float c; sincos(a, c);", a=samples(-99, 99, False)
)
VECTOR.row(
    "float2",
    "c",
    lambda x: np.cos(x.astype(np.float64)),
    4,
    before="float2 c; sincos(a, c);",
    a=floats("float2", -9, 9),
)


@FLOAT.test()
def test_float(metal_device, number):
    FLOAT.check(metal_device, number)


@HALF.test()
def test_half(metal_device, number):
    HALF.check(metal_device, number)


@VECTOR.test()
def test_vector(metal_device, number):
    VECTOR.check(metal_device, number)


@SPACES.test()
def test_precise_and_fast(metal_device, number):
    SPACES.check(metal_device, number)
