"""<metal_integer>, against Python's integers."""

from __future__ import annotations

import numpy as np

from tests.metal.language.samples import integers
from tests.metal.language.tables import DTYPES, Table, Type


def wrapped(value: int, metal: str) -> int:
    """A Python integer as the bits of a Metal integer type hold it."""
    limits = np.iinfo(DTYPES[metal])
    value &= 2**limits.bits - 1
    return value - 2**limits.bits if value > limits.max else value


def saturated(value: int, metal: str) -> int:
    limits = np.iinfo(DTYPES[metal])
    return min(max(value, limits.min), limits.max)


def bits_of(value: int, metal: str) -> str:
    width = np.iinfo(DTYPES[metal]).bits
    return format(value & (2**width - 1), f"0{width}b")


def rotated(value: int, amount: int, metal: str) -> int:
    text = bits_of(value, metal)
    amount %= len(text)
    return wrapped(int(text[amount:] + text[:amount], 2), metal)


def width_of(metal: str) -> int:
    return np.iinfo(DTYPES[metal]).bits


# name: (number of operands, reference of Python integers and the type's name)
FUNCTIONS = {
    "abs": (1, lambda a, t: wrapped(abs(a), t)),
    "clz": (1, lambda a, t: len(bits_of(a, t)) - len(bits_of(a, t).lstrip("0"))),
    "ctz": (1, lambda a, t: len(bits_of(a, t)) - len(bits_of(a, t).rstrip("0"))),
    "popcount": (1, lambda a, t: bits_of(a, t).count("1")),
    "reverse_bits": (1, lambda a, t: wrapped(int(bits_of(a, t)[::-1], 2), t)),
    "absdiff": (2, lambda a, b, t: abs(a - b)),
    "addsat": (2, lambda a, b, t: saturated(a + b, t)),
    "subsat": (2, lambda a, b, t: saturated(a - b, t)),
    "hadd": (2, lambda a, b, t: (a + b) >> 1),
    "rhadd": (2, lambda a, b, t: (a + b + 1) >> 1),
    "max": (2, lambda a, b, t: max(a, b)),
    "min": (2, lambda a, b, t: min(a, b)),
    "mulhi": (2, lambda a, b, t: (a * b) >> width_of(t)),
    "rotate": (2, rotated),
    "madhi": (3, lambda a, b, c, t: wrapped(((a * b) >> width_of(t)) + c, t)),
    "madsat": (3, lambda a, b, c, t: saturated(a * b + c, t)),
    "max3": (3, lambda a, b, c, t: max(a, b, c)),
    "min3": (3, lambda a, b, c, t: min(a, b, c)),
    "median3": (3, lambda a, b, c, t: sorted((a, b, c))[1]),
}
# Every integer type once, half of them as vectors: both are overloads of their own.
TYPES = ("int", "uint", "char", "ulong", "uchar4", "short3", "ushort2", "long2")
UNSIGNED = {"char": "uchar", "short": "ushort", "int": "uint", "long": "ulong"}


def reference(function, scalar: str):
    def apply(*arrays: np.ndarray) -> np.ndarray:
        results = [function(*map(int, operands), scalar) for operands in zip(*(a.ravel() for a in arrays), strict=True)]
        return np.array(results, object).reshape(arrays[0].shape)

    return apply


TABLE = Table()
for name, (operands, function) in FUNCTIONS.items():
    for metal in TYPES:
        kind = Type.named(metal)
        inputs = {letter: integers(metal, seed) for seed, letter in enumerate("abc"[:operands])}
        result = metal.replace(kind.scalar, UNSIGNED.get(kind.scalar, kind.scalar)) if name == "absdiff" else metal
        TABLE.row(result, f"{name}({', '.join(inputs)})", reference(function, kind.scalar), **inputs)

for metal in TYPES:
    scalar = Type.named(metal).scalar
    low = {letter: integers(metal, 5 + n) for n, letter in enumerate("ab")}
    TABLE.row(
        metal,
        "clamp(a, min(b, c), max(b, c))",
        reference(lambda a, b, c, t: min(max(a, min(b, c)), max(b, c)), scalar),
        **low,
        c=integers(metal, 9),
    )
    offset = np.random.default_rng(0).integers(0, width_of(scalar) + 1, 64)
    count = np.array([np.random.default_rng(n).integers(0, width_of(scalar) - o + 1) for n, o in enumerate(offset)])
    fields = {"offset": ("uint", offset.astype(np.uint32)), "count": ("uint", count.astype(np.uint32))}

    def field(value: int, at: int, size: int, scalar=scalar) -> int:
        """Bits at ... at + size - 1, with the sign of the highest where the type has one."""
        bits = (value >> at) & (2**size - 1)
        signed = np.iinfo(DTYPES[scalar]).min < 0 and size and bits >> (size - 1)
        return bits - 2**size if signed else bits

    def replaced(base: int, insert: int, at: int, size: int, scalar=scalar) -> int:
        mask = (2**size - 1) << at
        return wrapped((base & ~mask) | ((insert << at) & mask), scalar)

    def per_row(function):
        def apply(*arrays: np.ndarray) -> np.ndarray:
            *values, at, size = arrays
            rows = [v.reshape(len(at), -1) for v in values]
            return np.array(
                [
                    [
                        function(*map(int, parts), int(at[n]), int(size[n]))
                        for parts in zip(*(r[n] for r in rows), strict=True)
                    ]
                    for n in range(len(at))
                ],
                object,
            ).reshape(values[0].shape)

        return apply

    TABLE.row(metal, "extract_bits(a, offset, count)", per_row(field), a=integers(metal, 1), **fields)
    TABLE.row(
        metal,
        "insert_bits(a, b, offset, count)",
        per_row(replaced),
        a=integers(metal, 1),
        b=integers(metal, 2),
        **fields,
    )

for metal in ("int", "uint", "int3", "uint4"):
    bits = 23 if metal.startswith("int") else 24
    small = {
        letter: (metal, integers(metal, n)[1] >> np.array(32 - bits, DTYPES[Type.named(metal).scalar]))
        for n, letter in enumerate("ab")
    }
    TABLE.row(metal, "mul24(a, b)", reference(lambda a, b, t: wrapped(a * b, t), Type.named(metal).scalar), **small)
    TABLE.row(
        metal,
        "mad24(a, b, c)",
        reference(lambda a, b, c, t: wrapped(a * b + c, t), Type.named(metal).scalar),
        **small,
        c=integers(metal, 4),
    )
TABLE.row("int3", "min(a, 3)", lambda a: np.minimum(a, 3), a=integers("int3", 1))
TABLE.row("uint4", "max(7u, a)", lambda a: np.maximum(a, 7), a=integers("uint4", 1))
TABLE.row("short2", "clamp(a, short(-5), short(9))", lambda a: np.clip(a, -5, 9), a=integers("short2", 1))


@TABLE.test()
def test_integer_function(metal_device, number):
    TABLE.check(metal_device, number)
