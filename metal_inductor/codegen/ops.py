"""The scalar operations of the IR: name -> Metal expression and the helper functions it calls.

Arguments and results have *register* types: half and bfloat are held as float, every other dtype as itself. The text
of an operation is chosen by the dtype of its operands (`where`: of its branches). In a text, `{0}`, `{1}`, ... are the
arguments, `{T}` is the register type of the result and `{U}` the unsigned type in which integers wrap: signed overflow
is undefined in Metal, in torch it wraps.
"""

from __future__ import annotations

import functools
import math
import re
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from metal_inductor import ir

METAL_TYPES: dict[torch.dtype, str] = {
    torch.float32: "float", torch.float16: "half", torch.bfloat16: "bfloat", torch.bool: "bool",
    torch.int8: "char", torch.int16: "short", torch.int32: "int", torch.int64: "long",
    torch.uint8: "uchar", torch.uint16: "ushort", torch.uint32: "uint", torch.uint64: "ulong",
}  # fmt: skip

_FUNCTION_FILES = ("functions.metal", "functions_special.metal", "functions_bessel.metal")  # callees first
_HALF_TYPES = (torch.float16, torch.bfloat16)
_SUFFIX = {torch.int32: "", torch.int64: "L", torch.uint32: "u", torch.uint64: "UL"}


@dataclass(frozen=True)
class Entry:
    """Texts by kind of operand: floating, integer, boolean (None: the operation does not exist for it)."""

    floating: str | None = None
    integer: str | None = None
    boolean: str | None = None
    needs: tuple[str, ...] = ()  # helper functions in templates/functions*.metal


def _same(text: str, *needs: str) -> Entry:
    return Entry(text, text, text, needs)


def _float(text: str, *needs: str) -> Entry:
    return Entry(floating=text, needs=needs)


def _native(name: str, arity: int = 1) -> Entry:
    """A function of Metal's standard library, in its precise variant: the compiler may default to the fast ones."""
    return _float(f"metal::precise::{name}({', '.join(f'{{{k}}}' for k in range(arity))})")


def _helper(name: str, arity: int = 1) -> Entry:
    return _float(f"mi_{name}({', '.join(f'{{{k}}}' for k in range(arity))})", name)


def _wrapping(symbol: str, boolean: str | None) -> Entry:
    return Entry(f"({{0}} {symbol} {{1}})", f"{{T}}({{U}}({{0}}) {symbol} {{U}}({{1}}))", boolean)


def _bits(symbol: str, boolean: str) -> Entry:
    return Entry(integer=f"{{T}}({{0}} {symbol} {{1}})", boolean=f"({{0}} {boolean} {{1}})")


def _function(name: str, arity: int, boolean: str | None = None) -> Entry:
    """A helper function with overloads for floats and integers."""
    text = f"mi_{name}({', '.join(f'{{{k}}}' for k in range(arity))})"
    return Entry(text, text, boolean, (name,))


OPS: dict[str, Entry] = {
    # arithmetic; integers wrap, bool + is or, bool * is and
    "add": _wrapping("+", "({0} || {1})"),
    "sub": _wrapping("-", "({0} != {1})"),
    "mul": _wrapping("*", "({0} && {1})"),
    "div": _float("({0} / {1})"),
    "neg": Entry("(-{0})", "{T}({U}(0) - {U}({0}))"),
    "abs": Entry("metal::fabs({0})", "{T}({0} < 0 ? {U}(0) - {U}({0}) : {U}({0}))", "{0}"),
    "reciprocal": _float("(1.0f / {0})"),
    "fma": Entry("metal::fma({0}, {1}, {2})", "{T}({U}({0}) * {U}({1}) + {U}({2}))"),
    # integer division by zero gives zero (a CPU would trap, a GPU gives anything)
    "floor_div": _function("floor_div", 2, "({0} && {1})"),
    "trunc_div": _function("trunc_div", 2, "({0} && {1})"),
    "remainder": _function("remainder", 2, "({0} && !{1})"),
    "fmod": _function("fmod", 2, "({0} && !{1})"),
    "pow": _function("pow", 2, "({0} || !{1})"),
    "gcd": Entry(integer="mi_gcd({0}, {1})", needs=("gcd",)),
    # comparisons, logic, selection
    "eq": _same("({0} == {1})"),
    "ne": _same("({0} != {1})"),
    "lt": Entry("({0} < {1})", "({0} < {1})", "(!{0} && {1})"),
    "le": Entry("({0} <= {1})", "({0} <= {1})", "(!{0} || {1})"),
    "gt": Entry("({0} > {1})", "({0} > {1})", "({0} && !{1})"),
    "ge": Entry("({0} >= {1})", "({0} >= {1})", "({0} || !{1})"),
    "logical_and": Entry(boolean="({0} && {1})"),
    "logical_or": Entry(boolean="({0} || {1})"),
    "logical_xor": Entry(boolean="({0} != {1})"),
    "logical_not": Entry(boolean="(!{0})"),
    "where": _same("({0} ? {1} : {2})"),
    "maximum": Entry("mi_maximum({0}, {1})", "metal::max({0}, {1})", "({0} || {1})", ("maximum",)),
    "minimum": Entry("mi_minimum({0}, {1})", "metal::min({0}, {1})", "({0} && {1})", ("minimum",)),
    "fmax": Entry("metal::fmax({0}, {1})", "metal::max({0}, {1})", "({0} || {1})"),
    "fmin": Entry("metal::fmin({0}, {1})", "metal::min({0}, {1})", "({0} && {1})"),
    # bits; a shift by a negative count or by the width or more gives what torch gives: 0, or the sign
    "bitwise_and": _bits("&", "&&"),
    "bitwise_or": _bits("|", "||"),
    "bitwise_xor": _bits("^", "!="),
    "bitwise_not": Entry(integer="{T}(~{0})", boolean="(!{0})"),
    "shift_left": Entry(integer="mi_shift_left({0}, {1})", needs=("shift_left",)),
    "shift_right": Entry(integer="mi_shift_right({0}, {1})", needs=("shift_right",)),
    # classification: metal::isnan is wrong in large threadgroups on M2, a comparison is not
    "isnan": Entry("({0} != {0})", "false", "false"),
    "isinf": Entry("(metal::fabs({0}) == INFINITY)", "false", "false"),
    "isfinite": Entry("(metal::fabs({0}) < INFINITY)", "true", "true"),
    "signbit": Entry("(as_type<int>({0}) < 0)", "({0} < 0)", "false"),
    "sign": Entry("float(({0} > 0.0f) - ({0} < 0.0f))", "{T}(({0} > 0) - ({0} < 0))", "{0}"),
    # rounding
    "floor": Entry("metal::floor({0})", "{0}", "{0}"),
    "ceil": Entry("metal::ceil({0})", "{0}", "{0}"),
    "trunc": Entry("metal::trunc({0})", "{0}", "{0}"),
    "round": Entry("metal::rint({0})", "{0}", "{0}"),
    # floats in parts
    "copysign": _float("metal::copysign({0}, {1})"),
    "nextafter": _helper("nextafter", 2),
    "ldexp": _helper("ldexp", 2),
    "frexp_mantissa": _helper("frexp_mantissa"),
    "frexp_exponent": _helper("frexp_exponent"),
    "hypot": _helper("hypot", 2),
    # the standard library
    **{
        name: _native(name)
        for name in (
            "sqrt", "rsqrt", "exp", "exp2", "log", "log2", "log10", "sin", "cos", "tan", "asin", "acos", "atan",
            "sinh", "cosh", "tanh", "asinh", "acosh", "atanh",
        )
    },
    "atan2": _native("atan2", 2),
    # own functions
    **{
        name: _helper(name)
        for name in (
            "expm1", "log1p", "sigmoid", "erf", "erfc", "erfcx", "erfinv", "lgamma", "digamma", "trigamma",
            "i0", "i0e", "i1", "i1e", "ndtri", "log_ndtr", "spherical_bessel_j0", "bessel_j0", "bessel_j1",
            "bessel_y0", "bessel_y1", "bessel_k0", "bessel_k1", "bessel_k0e", "bessel_k1e",
        )
    },
    **{
        name: _helper(name, 2)
        for name in (
            "logaddexp", "logaddexp2", "zeta", "igamma", "igammac", "chebyshev_t", "chebyshev_u", "chebyshev_v",
            "chebyshev_w", "hermite_h", "hermite_he", "laguerre", "legendre",
        )
    },
    # conversions: texts depend on both dtypes
    "cast": Entry(),
    "relabel": Entry(),
    "bitcast": Entry(),
}  # fmt: skip


def register_type(dtype: torch.dtype) -> str:
    """The Metal type in which a value of `dtype` is computed."""
    if dtype not in METAL_TYPES:
        valid = ", ".join(str(name).removeprefix("torch.") for name in METAL_TYPES)
        raise TypeError(f"{dtype} has no Metal type; valid: {valid}")
    return "float" if dtype in _HALF_TYPES else METAL_TYPES[dtype]


def format_constant(value: Any, dtype: torch.dtype) -> str:
    """A literal of `dtype`'s register type with exactly the value that torch would store in it."""
    if dtype == torch.bool:
        return "true" if value else "false"
    if dtype.is_floating_point:
        return _format_float(float(value))
    value = int(value)
    info = torch.iinfo(dtype)
    if not info.min <= value <= info.max:
        raise ValueError(f"{value} is outside of {dtype}: {info.min} to {info.max}")
    suffix = _SUFFIX.get(dtype)
    if suffix is None:
        return f"{METAL_TYPES[dtype]}({value})"
    if value == info.min and value < 0:
        return f"({value + 1}{suffix} - 1)"
    return f"({value}{suffix})" if value < 0 else f"{value}{suffix}"


def _format_float(value: float) -> str:
    rounded = _to_single(value)
    if math.isnan(rounded):
        return "NAN"
    if math.isinf(rounded):
        return "INFINITY" if rounded > 0 else "(-INFINITY)"
    text = next(t for digits in range(1, 18) if _to_single(float(t := f"{rounded:.{digits}g}")) == rounded)
    text += "f" if "." in text or "e" in text else ".0f"
    return f"({text})" if text.startswith("-") else text


def _to_single(value: float) -> float:
    """The nearest float32."""
    try:
        return struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)


def format_op(node: ir.Op, args: Sequence[str]) -> str:
    """The Metal expression of `node` for argument expressions `args`; it has the register type of `node.dtype`."""
    special = _CONVERSIONS.get(node.name)
    if special is not None:
        return special(node.args[0].dtype, node.dtype, args[0])
    if node.name not in OPS:
        raise KeyError(f"unknown operation {node.name!r}; valid: {', '.join(sorted(OPS))}")
    operand = node.args[1 if node.name == "where" else 0].dtype
    text = _text(OPS[node.name], operand)
    if text is None:
        raise TypeError(f"operation {node.name!r} does not exist for {operand}")
    unsigned = "ulong" if operand.itemsize == 8 else "uint"
    return text.format(*args, T=register_type(node.dtype), U=unsigned)


def _text(entry: Entry, operand: torch.dtype) -> str | None:
    if operand == torch.bool:
        return entry.boolean
    return entry.floating if operand.is_floating_point else entry.integer


def _format_cast(source: torch.dtype, target: torch.dtype, value: str) -> str:
    """C conversions; floats out of an integer's range wrap through long as on the CPU, where they saturate on a GPU."""
    if source == target and target not in _HALF_TYPES:
        return value
    if target == torch.bool:
        return f"({value} != {format_constant(0, source)})"
    if target in _HALF_TYPES:
        return f"float({METAL_TYPES[target]}({value if source.is_floating_point else f'float({value})'}))"
    if target == torch.float32:
        return value if source.is_floating_point else f"float({value})"
    if source.is_floating_point:
        return _float_to_integer(target, value)
    return f"{METAL_TYPES[target]}({value})"


def _float_to_integer(target: torch.dtype, value: str) -> str:
    if target in (torch.int32, torch.int64):
        return f"{METAL_TYPES[target]}({value})"
    if target == torch.uint64:
        return f"({value} < 0.0f ? ulong(long({value})) : ulong({value}))"
    return f"{METAL_TYPES[target]}(long({value}))"


def _format_relabel(source: torch.dtype, target: torch.dtype, value: str) -> str:
    """The same register under another floating dtype: nothing is rounded."""
    if not (source.is_floating_point and target.is_floating_point):
        raise TypeError(f"relabel is for floating dtypes, not {source} to {target}")
    return value


def _format_bitcast(source: torch.dtype, target: torch.dtype, value: str) -> str:
    """The bits of a value in memory, read as another dtype of the same width."""
    if source.itemsize != target.itemsize:
        raise TypeError(f"bitcast needs dtypes of one width, not {source} and {target}")
    stored = METAL_TYPES[source]
    bits = f"half({value})" if stored == "half" else f"bfloat({value})" if stored == "bfloat" else value
    if source == torch.bool:
        stored, bits = "uchar", f"uchar({value})"
    if target == torch.bool:
        return f"(as_type<uchar>({bits}) != 0)"
    result = bits if stored == METAL_TYPES[target] else f"as_type<{METAL_TYPES[target]}>({bits})"
    return f"float({result})" if target in _HALF_TYPES else result


_CONVERSIONS = {"cast": _format_cast, "relabel": _format_relabel, "bitcast": _format_bitcast}


# ---------------------------------------------------------------------------------------------- helper functions


@functools.cache
def _blocks() -> dict[str, tuple[tuple[str, ...], str]]:
    """name -> (names it calls, text), in the order of the file. A block starts with `//@ name: needed names`."""
    folder = Path(__file__).parent.parent / "templates"
    found: dict[str, tuple[tuple[str, ...], str]] = {}
    for file in _FUNCTION_FILES:
        parts = re.split(r"^//@ *(\w+) *:? *([\w ,]*)$", (folder / file).read_text(), flags=re.MULTILINE)
        for name, needs, text in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
            found[name] = (tuple(needs.replace(",", " ").split()), text.strip())
    return found


def functions(op_names: Iterable[str]) -> str:
    """The Metal text of the helper functions that these operations call, dependencies first."""
    blocks = _blocks()
    wanted: set[str] = set()
    pending = [need for name in op_names for need in OPS[name].needs]
    while pending:
        name = pending.pop()
        if name not in wanted:
            wanted.add(name)
            pending += blocks[name][0]
    return "\n\n".join(text for name, (_, text) in blocks.items() if name in wanted)
