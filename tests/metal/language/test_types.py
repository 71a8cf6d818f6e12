"""Scalars, vectors, packed vectors, conversions, as_type, limits and traits, with values from numpy and struct."""

from __future__ import annotations

import itertools
import struct

import numpy as np
import torch

from metal_inductor.metal import compile_shader
from tests.metal.language.samples import floats, integers
from tests.metal.language.tables import DTYPES, HEAD, Table, Type, round_to

SCALARS = (*DTYPES, "bfloat")
SIZES = {**{name: dtype.itemsize for name, dtype in DTYPES.items()}, "bfloat": 2}
ONE = {"a": ("int", np.int32([1]))}

LAYOUT = Table()
for scalar, size in SIZES.items():
    expression = " + ".join(
        f"ulong(sizeof({t}) * {f}) + ulong(alignof({t}) * {g})"
        for t, f, g in (
            (scalar, 1, 100),
            (f"{scalar}2", 10**4, 10**6),
            (f"{scalar}3", 10**8, 10**10),
            (f"{scalar}4", 10**12, 10**14),
        )
    )
    expected = sum(
        s * f + s * g
        for s, f, g in ((size, 1, 100), (2 * size, 10**4, 10**6), (4 * size, 10**8, 10**10), (4 * size, 10**12, 10**14))
    )
    LAYOUT.row("ulong", expression, np.uint64([expected]), label=f"size and alignment of {scalar}1 to 4", **ONE)
    packed = " + ".join(
        f"sizeof(packed_{scalar}{n}) * {100 ** (n - 2)} + alignof(packed_{scalar}{n})" for n in (2, 3, 4)
    )
    LAYOUT.row("ulong", f"ulong({packed})", np.uint64([2 * size + 300 * size + 40000 * size + 3 * size]),
               label=f"size and alignment of packed {scalar}", **ONE)  # fmt: skip

# Conversions between all scalar types, and of vectors of two. A number that the type does not hold becomes its nearest
# value, NaN becomes zero; integers keep their low bits.
CONVERSIONS = Table()


def values_of(scalar: str) -> np.ndarray:
    if scalar == "bool":
        return np.array([False, True])
    if scalar in ("half", "float", "bfloat"):
        edges = [
            0.0,
            -0.0,
            1.5,
            -1.5,
            0.1,
            255.5,
            -129.7,
            65504,
            1e9,
            -1e9,
            3e9,
            1e18,
            1e20,
            -1e20,
            np.inf,
            -np.inf,
            np.nan,
        ]
        with np.errstate(over="ignore"):
            return round_to(scalar, np.array(edges, np.float32))
    return integers(scalar, 1)[1]


def converted(values: np.ndarray, source: str, target: str) -> np.ndarray:
    if target == "bool":
        return values != 0
    if target in ("half", "float", "bfloat"):
        # through float, as Metal converts an integer to bfloat and half
        if target == "bfloat" and source in ("int", "uint", "long", "ulong"):
            return round_to("bfloat", values.astype(np.float32))
        return (
            values.astype(np.float64)
            if source not in ("long", "ulong") or target == "half"
            else values.astype(np.float32)
        )
    limits = np.iinfo(DTYPES[target])
    if source in ("half", "float", "bfloat"):
        whole = [0 if v != v else min(max(limits.min, int(v) if abs(v) < 1e30 else int(np.sign(v)) << 70), limits.max)
                 for v in values.astype(float)]  # fmt: skip
        return np.array(whole, DTYPES[target])
    wrapped = [int(v) % 2**limits.bits for v in values]
    return np.array([v - 2**limits.bits if v > limits.max else v for v in wrapped], object)


for number, (source, target) in enumerate(itertools.product(SCALARS, SCALARS)):
    values = values_of(source)
    expected = converted(values, source, target)
    with np.errstate(over="ignore"):
        CONVERSIONS.row(target, f"{target}(a)", expected, label=f"from {source}", a=(source, values))
    if number % 5:  # which meets every source and every target, 12 being no multiple of 5
        continue
    vector = np.stack([values, values[::-1]], 1)
    both = np.stack([expected, expected[::-1]], 1)
    with np.errstate(over="ignore"):
        CONVERSIONS.row(f"{target}2", f"{target}2(a)", both, label=f"from {source}2", a=(f"{source}2", vector))

# as_type keeps the bits: struct says what they are.
BITS = Table()


def reread(source: str, target: str):
    return lambda a: np.frombuffer(a.tobytes(), target)


F = floats("float", -9, 9)
for target, code in (("uint", "<u4"), ("int", "<i4")):
    BITS.row(target, f"as_type<{target}>(a)", reread("f", code), a=F)
    BITS.row("float", "as_type<float>(a)", reread(code, "<f4"), a=(target, F[1].view(DTYPES[target])))
BITS.row("ushort", "as_type<ushort>(a)", reread("e", "<u2"), a=floats("half", -9, 9))
BITS.row("short", "as_type<short>(a)", lambda a: [struct.unpack("<h", struct.pack("<f", v)[2:])[0] for v in a],
         a=("bfloat", round_to("bfloat", F[1])))  # fmt: skip
BITS.row("ushort2", "as_type<ushort2>(a)", lambda a: np.frombuffer(a.tobytes(), "<u2").reshape(-1, 2), a=F)
BITS.row("uchar4", "as_type<uchar4>(a)", lambda a: np.frombuffer(a.tobytes(), "u1").reshape(-1, 4), a=F)
BITS.row("half2", "as_type<half2>(a)", lambda a: np.frombuffer(a.tobytes(), "<f2").reshape(-1, 2),
         a=("uint", floats("half", -9, 9)[1].view(np.uint32)))  # fmt: skip
BITS.row("ulong", "as_type<ulong>(a)", lambda a: np.frombuffer(a.tobytes(), "<u8"), a=floats("float2", -9, 9))
BITS.row("float4", "as_type<float4>(as_type<uint4>(a) ^ 0x80000000u)", np.negative, a=floats("float4", -9, 9))
BITS.row(
    "float2", "as_type<float2>(a)", lambda a: np.frombuffer(a.tobytes(), "<f4").reshape(-1, 2), a=floats("half4", -9, 9)
)
BITS.row("uint", "as_type<uint>(a)", lambda a: np.frombuffer(a.tobytes(), "<u4"), a=integers("packed_uchar4", 1))
BITS.row("packed_short2", "as_type<packed_short2>(a)", lambda a: np.frombuffer(a.tobytes(), "<i2").reshape(-1, 2), a=F)

# half and bfloat arithmetic rounds after every operation; a float operand makes it float.
ARITHMETIC = Table()
HALVES = {k: floats("half", 0.5, 9, n) for n, k in enumerate("ab")}
BFLOATS = {k: ("bfloat", round_to("bfloat", floats("float", 0.5, 9, n)[1])) for n, k in enumerate("ab")}
for operator, function in {"+": np.add, "-": np.subtract, "*": np.multiply, "/": np.divide}.items():
    exact = lambda x, y, f=function: f(x.astype(np.float64), y.astype(np.float64))  # noqa: E731
    ARITHMETIC.row("half", f"a {operator} b", exact, **HALVES)
    ARITHMETIC.row("bfloat", f"a {operator} b", lambda x, y, f=function: f(x, y), **BFLOATS)
    ARITHMETIC.row("float", f"a {operator} b", lambda x, y, f=function: f(x.astype(np.float32), y), a=HALVES["a"], b=F)
    ARITHMETIC.row("float", f"a {operator} b", lambda x, y, f=function: f(x, y), a=BFLOATS["a"], b=F)
    ARITHMETIC.row("float", f"a {operator} b", lambda x, y, f=function: f(x, y), a=floats("float", 1, 2), b=F)
    for metal in ("half3", "float4", "half2"):
        vectors = {k: floats(metal, 0.5, 9, n) for n, k in enumerate("ab")}
        ARITHMETIC.row(metal, f"a {operator} b", exact, **vectors)
    ARITHMETIC.row("bfloat2", f"a {operator} b", lambda x, y, f=function: f(x, y),
                   **{k: ("bfloat2", v[1].reshape(-1, 2)) for k, v in BFLOATS.items()})  # fmt: skip
    # packed operands give vectors
    packed = {k: floats("packed_float3", 0.5, 9, n) for n, k in enumerate("ab")}
    ARITHMETIC.row("float3", f"a {operator} b", lambda x, y, f=function: f(x, y), **packed)
    ARITHMETIC.row("float3", f"a {operator} 2.0f", lambda x, f=function: f(x, np.float32(2)), a=packed["a"])
    ARITHMETIC.row("float3", f"0.5f {operator} a", lambda x, f=function: f(np.float32(0.5), x), a=packed["a"])
    ARITHMETIC.row("float3", "v", lambda x, y, f=function: f(x, y), before=f"float3 v = a; v {operator}= b;",
                   label=f"v {operator}= packed", **packed)  # fmt: skip
    before = f"packed_float3 p = a; p {operator}= float3(b);"
    ARITHMETIC.row(
        "packed_float3", "p", lambda x, y, f=function: f(x, y), before=before, label=f"packed {operator}=", **packed
    )
ARITHMETIC.row("bfloat", "-a", np.negative, a=BFLOATS["a"])
ARITHMETIC.row("bool", "a < b", lambda x, y: x < y, **BFLOATS)
ARITHMETIC.row("bool", "a == b", lambda x, y: x == y, **HALVES)
ARITHMETIC.row("bfloat", "a + 1", lambda x: x + 1, a=BFLOATS["a"])
ARITHMETIC.row("bfloat", "c", lambda x: round_to("bfloat", round_to("bfloat", x + np.float32(1.5)) + np.float32(1)),
               before="bfloat c = a; c += 1.5f; c++;", a=BFLOATS["a"])  # fmt: skip
ARITHMETIC.row(
    "half", "c", lambda x: (x + np.float16(1)) * np.float16(3), before="half c = a; ++c; c *= 3.0h;", a=HALVES["a"]
)


def quotient(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Python integers divided towards zero."""
    pairs = zip(x.astype(object).ravel(), y.astype(object).ravel(), strict=True)
    return np.array([abs(p) // abs(q) * (1 if (p < 0) == (q < 0) else -1) for p, q in pairs], object).reshape(x.shape)


# Integers: sums wrap, shift amounts wrap, a division by zero has no value but ends nothing.
for metal in ("int", "uint", "long", "ulong", "short4", "uchar3", "int2"):
    ab = {"a": integers(metal, 1), "b": integers(metal, 2)}
    kind = Type.named(metal)
    for operator, function in {"+": np.add, "-": np.subtract, "*": np.multiply, "&": np.bitwise_and, "|": np.bitwise_or,
                               "^": np.bitwise_xor}.items():  # fmt: skip
        ARITHMETIC.row(metal, f"a {operator} b", function, **ab)
    ARITHMETIC.row(metal, "~a", np.invert, a=ab["a"])
    ARITHMETIC.row(metal, "-a", lambda x: (0 - x).astype(x.dtype), a=ab["a"])
    width = DTYPES[kind.scalar].itemsize * 8
    ARITHMETIC.row(
        metal,
        f"a << {kind.scalar}(5)" if kind.components > 1 else "a << 5",
        lambda x: x << np.array(5, x.dtype),
        a=ab["a"],
    )
    ARITHMETIC.row(
        metal,
        f"a >> {kind.scalar}(3)" if kind.components > 1 else "a >> 3",
        lambda x: x >> np.array(3, x.dtype),
        a=ab["a"],
    )
    if kind.components == 1:
        ARITHMETIC.row(metal, "a << b", lambda x, y, w=width: x << np.array(y % w, x.dtype), **ab)
        ARITHMETIC.row(metal, "a >> b", lambda x, y, w=width: x >> np.array(y % w, x.dtype), **ab)
    nonzero = (metal, np.where(np.isin(ab["b"][1], [0, -1] if DTYPES[kind.scalar].kind == "i" else [0]), 3, ab["b"][1]))
    ARITHMETIC.row(metal, "a / b", quotient, a=ab["a"], b=nonzero)
    ARITHMETIC.row(
        metal, "a % b", lambda x, y: x.astype(object) - quotient(x, y) * y.astype(object), a=ab["a"], b=nonzero
    )
NO_RESULT = np.zeros(64, np.int32)
for metal in ("int", "uint", "long", "char", "int2", "ushort3"):
    values = integers(metal, 1)[1]
    smallest = np.full_like(values, np.iinfo(values.dtype).min)
    for operator in "/%":
        before = f"auto q = a {operator} b; int any = int(q{'.x' if values.ndim > 1 else ''});"
        for name, a, b in (("zero", values, np.zeros_like(values)), ("minus one", smallest, ~np.zeros_like(values))):
            label = f"{metal} {operator} {name}"
            ARITHMETIC.row("int", "any - any", NO_RESULT, before=before, label=label, a=(metal, a), b=(metal, b))
WRAPPING = ("int", np.int32([5, 2**31 - 1]))
ARITHMETIC.row("bool", "a + 1 > a", lambda x: x != 2**31 - 1, a=WRAPPING)
LITERALS = {
    "int(0x7f) + 010 + 0b11": ("int", 0x7F + 8 + 3),
    "1.5": ("float", 1.5),
    "2.5h": ("half", 2.5),
    "1e-3f": ("float", 1e-3),
    "1.25bf": ("bfloat", 1.25),
    "7u": ("uint", 7),
    "1l << 40": ("long", 1 << 40),
    "3ul": ("ulong", 3),
    "true": ("bool", True),
    "0x1p-3f": ("float", 0.125),
    "'a' + 0": ("int", 97),
    "M_PI_H": ("half", np.pi),
    "M_E_BF": ("bfloat", np.e),
    "M_SQRT2_F": ("float", np.sqrt(2)),
    "M_LN10_H": ("half", np.log(10)),
    "M_2_SQRTPI_BF": ("bfloat", 2 / np.sqrt(np.pi)),
    "M_LOG2E_F": ("float", np.log2(np.e)),
    "MAXHALF": ("half", 65504),
    "MAXFLOAT": ("float", np.finfo(np.float32).max),
    "MAXBFLOAT": ("bfloat", torch.finfo(torch.bfloat16).max),
    "HUGE_VALF": ("float", np.inf),
    "HUGE_VALH": ("half", np.inf),
    "-HUGE_VALBF": ("bfloat", -np.inf),
    "NAN": ("float", np.nan),
    "FLT_EPSILON": ("float", np.finfo(np.float32).eps),
    "FLT_MIN": ("float", np.finfo(np.float32).tiny),
    "HALF_MAX": ("half", np.finfo(np.float16).max),
    "HALF_EPSILON": ("half", np.finfo(np.float16).eps),
    "INT_MIN": ("int", -(2**31)),
    "UINT_MAX": ("uint", 2**32 - 1),
    "ULONG_MAX": ("ulong", 2**64 - 1),
    "SHRT_MIN + UCHAR_MAX + CHAR_BIT": ("int", -32768 + 255 + 8),
    "FLT_MANT_DIG + FLT_MAX_EXP + HALF_MANT_DIG": ("int", 24 + 128 + 11),
}
for expression, (metal, value) in LITERALS.items():
    ARITHMETIC.row(metal, expression, np.array([value], object if isinstance(value, int) else float), **ONE)

LIMITS = Table()
for scalar in SCALARS:
    if scalar in ("float", "half", "bfloat"):
        info = torch.finfo({"float": torch.float32, "half": torch.float16, "bfloat": torch.bfloat16}[scalar])
        known = {"max": info.max, "lowest": info.min, "min": info.tiny, "epsilon": info.eps, "infinity": np.inf,
                 "quiet_NaN": np.nan, "denorm_min": info.smallest_normal * info.eps, "round_error": 0.5}  # fmt: skip
        digits = {
            "float": (24, 6, 9, -125, 128, -37, 38),
            "half": (11, 3, 5, -13, 16, -4, 4),
            "bfloat": (8, 2, 4, -125, 128, -37, 38),
        }
        names = (
            "digits",
            "digits10",
            "max_digits10",
            "min_exponent",
            "max_exponent",
            "min_exponent10",
            "max_exponent10",
        )
        for name, value in zip(names, digits[scalar], strict=True):
            LIMITS.row("int", f"int(numeric_limits<{scalar}>::{name})", np.int32([value]), **ONE)
    else:
        limits = np.iinfo(DTYPES[scalar]) if scalar != "bool" else None
        low, high = (int(limits.min), int(limits.max)) if limits else (0, 1)
        known = {"max": high, "lowest": low, "min": low}
        digits = limits.bits - (limits.min < 0) if limits else 1
        LIMITS.row("int", f"int(numeric_limits<{scalar}>::digits)", np.int32([digits]), **ONE)
    for name, value in known.items():
        LIMITS.row(
            scalar,
            f"numeric_limits<{scalar}>::{name}()",
            np.array([value], object if isinstance(value, int) else float),
            **ONE,
        )
    limits = f"numeric_limits<{scalar}>"
    flags = f"{limits}::is_signed * 4 + {limits}::is_integer * 2 + {limits}::has_infinity"
    signed = scalar in ("char", "short", "int", "long", "half", "float", "bfloat")
    inexact = scalar in ("half", "float", "bfloat")
    LIMITS.row("int", flags, np.int32([signed * 4 + (not inexact) * 2 + inexact]), label=f"flags of {scalar}", **ONE)

TRAITS = {
    "is_same_v<conditional_t<true, half, int>, half>": True,
    "is_same_v<remove_cv_t<const volatile int>, int>": True,
    "is_same_v<remove_reference_t<thread int&>, int>": True,
    "is_same_v<remove_pointer_t<device float*>, float>": True,
    "is_same_v<remove_addrspace_t<device float>, float>": True,
    "is_same_v<decay_t<const int>, int>": True,
    "is_same_v<make_unsigned_t<short>, ushort>": True,
    "is_same_v<make_signed_t<ulong>, long>": True,
    "is_same_v<type_identity_t<half>, half>": True,
    "is_same_v<add_const_t<int>, const int>": True,
    "is_integral_v<bool> && is_integral<uchar>::value": True,
    "is_integral_v<half>": False,
    "is_floating_point_v<bfloat> && is_floating_point<half>::value": True,
    "is_floating_point_v<float2>": False,
    "is_arithmetic_v<char>": True,
    "is_signed_v<short> && !is_signed_v<ushort>": True,
    "is_unsigned<uint>::value": True,
    "is_pointer_v<threadgroup half*>": True,
    "is_scalar_v<float2>": False,
    "is_enum_v<Colour> && is_enum<Colour>::value": True,
    "is_class_v<Base> && is_class<Derived>::value": True,
    "is_base_of_v<Base, Derived> && !is_base_of<Derived, Base>::value": True,
    "is_convertible_v<int, float>": True,
    "is_convertible_v<float, bfloat>": False,
    "is_convertible<half, float>::value": True,
    "is_void_v<void> && is_const_v<const int>": True,
    "is_trivially_copyable_v<Base>": True,
    "conjunction_v<true_type, is_same<int, int>>": True,
    "disjunction<false_type, true_type>::value && negation<false_type>::value": True,
    "integral_constant<int, 5>::value == 5 && bool_constant<true>()": True,
    "is_vector_v<float4> && !is_vector_v<float>": True,
    "is_same_v<make_scalar_t<short3>, short>": True,
    "is_same_v<vec<float, 3>, float3> && is_same_v<vec<bfloat, 2>, bfloat2>": True,
    "is_same_v<decltype(a * 1.0f), float> && is_same_v<decltype(char(1) + char(1)), int>": True,
    "is_same_v<decltype(half(1) + half(1)), half> && is_same_v<decltype(half(1) * 1.0f), float>": True,
    "is_same_v<uint8_t, uchar> && is_same_v<int64_t, long> && is_same_v<size_t, ulong>": True,
}
PROGRAM = "enum class Colour : int { red, green };\nstruct Base { int x; };\nstruct Derived : Base { int y; };\n"
TRAIT_TABLE = Table(PROGRAM)
for expression, value in TRAITS.items():
    TRAIT_TABLE.row("bool", f"bool({expression})", np.array([value]), label=expression, **ONE)


@LAYOUT.test()
def test_layout(metal_device, number):
    LAYOUT.check(metal_device, number)


@CONVERSIONS.test()
def test_conversion(metal_device, number):
    CONVERSIONS.check(metal_device, number)


@BITS.test()
def test_bits(metal_device, number):
    BITS.check(metal_device, number)


@ARITHMETIC.test()
def test_arithmetic(metal_device, number):
    ARITHMETIC.check(metal_device, number)


@LIMITS.test()
def test_limits(metal_device, number):
    LIMITS.check(metal_device, number)


@TRAIT_TABLE.test()
def test_trait(metal_device, number):
    TRAIT_TABLE.check(metal_device, number)


def test_quotients_by_zero_on_a_cpu():
    """There is none: 0, with the dividend as remainder; and the smallest number by -1 is itself."""
    types = ("int", "uint", "long", "ulong", "short", "uchar")
    stores = "".join(
        f"o[{2 * n}] = {t}(v[0]) / {t}(v[1]); o[{2 * n + 1}] = {t}(v[0]) % {t}(v[1]); " for n, t in enumerate(types)
    )
    kernel = compile_shader(
        HEAD + f"kernel void k(device long* o, device const long* v) {{ {stores} }}", device="cpu"
    ).k
    result = torch.zeros(2 * len(types), dtype=torch.int64)
    kernel(result, torch.tensor([77, 0]), threads=1, group_size=1)
    assert result.tolist() == [0, 77] * len(types)
    kernel(result, torch.tensor([-(2**63), -1]), threads=1, group_size=1)
    assert result.tolist()[4:6] == [-(2**63), 0]
    kernel(result, torch.tensor([-(2**31), -1]), threads=1, group_size=1)
    assert result.tolist()[:2] == [-(2**31), 0]
