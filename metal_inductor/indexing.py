"""Index arithmetic: simplification of divisions and remainders within known ranges, and reshapes as index maps."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import sympy
from torch.utils._sympy.functions import FloorDiv, ModularIndexing

from metal_inductor.ir import contiguous_strides, index_symbols

Ranges = Mapping[sympy.Symbol, Any]  # symbol -> size: 0 <= symbol < size


def upper_bound(expr: sympy.Expr, ranges: Ranges) -> sympy.Expr | None:
    """The largest value of a non-negative index expression, or None when it is not known."""
    if expr.is_Integer:
        return expr
    if expr.is_Symbol:
        if expr in ranges:
            return sympy.sympify(ranges[expr]) - 1
        return None if expr.name.startswith("ind") else expr
    if expr.is_Add:
        bounds = [upper_bound(term, ranges) for term in expr.args]
        return None if any(bound is None for bound in bounds) else sympy.Add(*bounds)
    if expr.is_Mul:
        bounds = [upper_bound(factor, ranges) for factor in expr.args]
        if any(bound is None or bound.is_negative or factor.is_negative for bound, factor in zip(bounds, expr.args)):
            return None
        return sympy.Mul(*bounds)
    if isinstance(expr, FloorDiv):
        top = upper_bound(expr.args[0], ranges)
        return None if top is None else FloorDiv(top, expr.args[1])
    if isinstance(expr, ModularIndexing):
        return expr.args[2] - 1
    return None


def is_nonnegative(expr: sympy.Expr, ranges: Ranges) -> bool:
    """Whether every value of `expr` is known to be at least zero."""
    if expr.is_Integer:
        return bool(expr >= 0)
    if expr.is_Symbol:
        return True
    if expr.is_Add or expr.is_Mul:
        if all(is_nonnegative(arg, ranges) for arg in expr.args):
            return True
        return expr.is_Add and _smallest_is_nonnegative(expr, ranges)
    return isinstance(expr, (FloorDiv, ModularIndexing)) and is_nonnegative(expr.args[0], ranges)


def _smallest_is_nonnegative(expr: sympy.Expr, ranges: Ranges) -> bool:
    """For sums like `7 - i0`: put every symbol with a negative coefficient at its largest value, the rest at zero."""
    total: sympy.Expr = sympy.Integer(0)
    for term in expr.args:
        coefficient, rest = term.as_coeff_Mul()
        if coefficient.is_negative:
            top = upper_bound(rest, ranges)
            if top is None:
                return False
            total += coefficient * top
        elif term.is_Integer:
            total += term
    return bool(total.is_nonnegative)


def is_multiple(expr: sympy.Expr, divisor: int) -> bool:
    """Whether every term of an integer expression has a coefficient that `divisor` divides."""
    terms = [term.as_coeff_Mul() for term in sympy.Add.make_args(sympy.expand(expr))]
    return all(factor.is_Integer and factor % divisor == 0 and rest.is_integer for factor, rest in terms)


def _split_divisible(expr: sympy.Expr, divisor: sympy.Expr) -> tuple[sympy.Expr, sympy.Expr]:
    """`expr` as `quotient * divisor + rest`, with every term that `divisor` divides in the quotient."""
    quotient: list[sympy.Expr] = []
    rest: list[sympy.Expr] = []
    for term in sympy.Add.make_args(expr):
        ratio = term / divisor
        if ratio.is_Integer or (not ratio.is_Rational and ratio.as_numer_denom()[1] == 1):
            quotient.append(ratio)
        else:
            rest.append(term)
    return sympy.Add(*quotient), sympy.Add(*rest)


def _less_than(expr: sympy.Expr, limit: sympy.Expr, ranges: Ranges) -> bool:
    top = upper_bound(expr, ranges)
    if top is None:
        return False
    return bool((sympy.expand(limit - top)).is_positive) and is_nonnegative(expr, ranges)


def floor_div(base: Any, divisor: Any, ranges: Ranges) -> sympy.Expr:
    """`base // divisor` for a non-negative base, simplified."""
    base, divisor = sympy.expand(base), sympy.sympify(divisor)
    if divisor == 1:
        return base
    if isinstance(base, FloorDiv):
        return floor_div(base.args[0], base.args[1] * divisor, ranges)
    quotient, rest = _split_divisible(base, divisor)
    if quotient != 0 and not is_nonnegative(rest, ranges):
        return FloorDiv(base, divisor)
    if rest == 0 or _less_than(rest, divisor, ranges):
        return quotient
    rest, divisor = _cancel(rest, divisor, ranges)
    return quotient + (rest if divisor == 1 else FloorDiv(rest, divisor))


def _cancel(expr: sympy.Expr, divisor: sympy.Expr, ranges: Ranges) -> tuple[sympy.Expr, sympy.Expr]:
    """`(g*a + b) // (g*d) == a // d` while `0 <= b < g`: the largest such g taken out of both."""
    if not divisor.is_Integer:
        return expr, divisor
    terms = [(term, term.as_coeff_Mul()[0]) for term in sympy.Add.make_args(expr)]
    if not all(coefficient.is_Integer for _, coefficient in terms):
        return expr, divisor
    candidates = {sympy.Integer(sympy.igcd(int(divisor), abs(int(coefficient)))) for _, coefficient in terms}
    for common in sorted(candidates, reverse=True):
        small = sympy.Add(*(term for term, coefficient in terms if coefficient % common))
        if common > 1 and (small == 0 or _less_than(small, common, ranges)):
            return sympy.expand((expr - small) / common), divisor / common
    return expr, divisor


def modular(base: Any, divisor: Any, modulus: Any, ranges: Ranges) -> sympy.Expr:
    """`(base // divisor) % modulus` for a non-negative base, simplified."""
    base, divisor, modulus = sympy.expand(base), sympy.sympify(divisor), sympy.sympify(modulus)
    if modulus == 1:
        return sympy.Integer(0)
    _, rest = _split_divisible(base, divisor * modulus)
    if not is_nonnegative(rest, ranges):
        return ModularIndexing(base, divisor, modulus)
    if rest == 0:
        return sympy.Integer(0)
    if _less_than(rest, divisor * modulus, ranges):
        return floor_div(rest, divisor, ranges)
    if divisor != 1:
        inner = floor_div(rest, divisor, ranges)
        if not inner.has(FloorDiv):
            return modular(inner, 1, modulus, ranges)
    if isinstance(rest, FloorDiv) and divisor == 1:
        return ModularIndexing(rest.args[0], rest.args[1], modulus)
    rest, divisor = _cancel(rest, divisor, ranges)
    return ModularIndexing(rest, divisor, modulus)


def simplify(expr: Any, ranges: Ranges) -> sympy.Expr:
    """`expr` with its FloorDiv and ModularIndexing nodes simplified, given the ranges of its symbols."""
    expr = sympy.sympify(expr)
    if not expr.has(FloorDiv, ModularIndexing):
        return expr

    def visit(node: sympy.Expr) -> sympy.Expr:
        if not node.args or not node.has(FloorDiv, ModularIndexing):
            return node
        args = [visit(arg) for arg in node.args]
        if isinstance(node, FloorDiv) and is_nonnegative(args[0], ranges):
            return floor_div(args[0], args[1], ranges)
        if isinstance(node, ModularIndexing) and is_nonnegative(args[0], ranges):
            return modular(*args, ranges)
        rebuilt = node.func(*args)
        return _recombine(rebuilt) if rebuilt.is_Add else rebuilt

    return visit(expr)


def _recombine(expr: sympy.Expr) -> sympy.Expr:
    """`c*m*(e // (d*m)) + c*((e // d) % m)` is `c*(e // d)`, and likewise below an outer remainder."""
    terms = [term.as_coeff_Mul() for term in sympy.Add.make_args(sympy.expand(expr))]
    for low_coefficient, low in terms:
        if not isinstance(low, ModularIndexing):
            continue
        base, divisor, modulus = low.args
        for high_coefficient, high in terms:
            if high is low or high_coefficient != low_coefficient * modulus:
                continue
            joined = _join(high, base, divisor, modulus)
            if joined is not None:
                rest = [c * t for c, t in terms if t is not low and t is not high]
                return _recombine(sympy.Add(low_coefficient * joined, *rest))
    return expr


def _join(high: sympy.Expr, base: sympy.Expr, divisor: sympy.Expr, modulus: sympy.Expr) -> sympy.Expr | None:
    """The value whose upper part is `high` and whose lower part is `(base // divisor) % modulus`."""
    if isinstance(high, FloorDiv) and high.args == (base, divisor * modulus):
        return base if divisor == 1 else FloorDiv(base, divisor)
    if isinstance(high, ModularIndexing) and high.args[:2] == (base, divisor * modulus):
        return ModularIndexing(base, divisor, modulus * high.args[2])
    return None


@functools.lru_cache(maxsize=4096)
def reshape_map(source: tuple, target: tuple) -> tuple[sympy.Expr, ...]:
    """For each dimension of `source` its index as an expression over the index symbols of `target` (row-major order
    kept, equal numbers of elements)."""
    symbols = index_symbols(len(target))
    ranges = dict(zip(symbols, target))
    if source == target:
        return symbols
    flat = sympy.Add(*(s * stride for s, stride in zip(symbols, contiguous_strides(target)) if s is not None))
    flat = flat.xreplace({s: sympy.Integer(0) for s, size in ranges.items() if size == 1})
    return unflatten(flat, source, ranges)


def unflatten(flat: sympy.Expr, shape: Sequence[Any], ranges: Ranges) -> tuple[sympy.Expr, ...]:
    """The index of each dimension of `shape` for the row-major position `flat`."""
    indices = []
    outermost = True
    for size, stride in zip(shape, contiguous_strides(shape)):
        if size == 1:
            indices.append(sympy.Integer(0))
            continue
        indices.append(floor_div(flat, stride, ranges) if outermost else modular(flat, stride, size, ranges))
        outermost = False
    return tuple(indices)
