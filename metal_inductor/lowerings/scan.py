"""Prefix sums, products and extrema of short rows: each element is a reduction over what stands before it.

That is n^2 / 2 operations for a row of n instead of n, but all of them are independent, in one kernel that fuses with
its neighbours; for the masks and positions of a model it is the quickest way. Long rows are torch's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import sympy
import torch

from metal_inductor import ir, policy
from metal_inductor.ir import Expr, TensorValue
from metal_inductor.lowerings import elementwise as ew
from metal_inductor.lowerings.common import combine, convert, index_less, overloads, to_float32, wrap_dim
from metal_inductor.lowerings.registry import Unsupported, lower

if TYPE_CHECKING:
    from metal_inductor.lower import GraphLowering

aten = torch.ops.aten


def prefixes(
    graph: GraphLowering, value: TensorValue, dim: int, filler: Expr, entry: Callable[[int], tuple[Any, Expr]]
) -> TensorValue:
    """`value` with one more dimension at the end: for element i of `dim` the elements that its prefix holds, in the
    order of `entry(rank)`, which gives the position along `dim` and when there is one; `filler` elsewhere."""
    length = value.shape[dim]
    if not length.is_Integer or length > policy.MAX_SCAN_LENGTH:
        raise Unsupported("a scan of a long row or one of unknown length")
    if value.numel.is_Integer and value.numel * length > policy.MAX_SCAN_OPERATIONS:
        raise Unsupported("a scan of many long rows")
    rank = value.rank
    position, inside = entry(rank)
    index: list[Any] = [*ir.index_symbols(rank)]
    index[dim] = position
    body = ir.masked(inside, graph.realize(value).at(index), filler)
    return TensorValue((*value.shape, length), value.dtype, body)


def forwards(dim: int) -> Callable[[int], tuple[Any, Expr]]:
    """Elements 0 ... i of the row in order."""

    def entry(rank: int) -> tuple[Any, Expr]:
        k = ir.index_symbol(rank)
        return k, index_less(k, ir.index_symbol(dim) + 1)

    return entry


def backwards(dim: int) -> Callable[[int], tuple[Any, Expr]]:
    """Elements i ... 0: the first of equals is then the last of the row."""

    def entry(rank: int) -> tuple[Any, Expr]:
        k, i = ir.index_symbol(rank), ir.index_symbol(dim)
        return i - k, index_less(k, i + 1)

    return entry


def scanned(
    graph: GraphLowering, kind: str, value: TensorValue, dim: int, neutral: Any, dtype: torch.dtype
) -> TensorValue:
    """The scan of `value` along `dim` with reduction `kind` and its neutral element."""
    rows = prefixes(graph, value, dim, ew.number(neutral, value.dtype), forwards(dim))
    return graph.reduce(kind, rows, [value.rank], False, dtype)


def accumulated(graph: GraphLowering, kind: str, value: TensorValue, dim: int, neutral: int) -> TensorValue:
    dtype = graph.result_dtype()
    if value.rank == 0:
        return TensorValue((), dtype, ir.cast(value.body, dtype))
    wide = to_float32(value) if dtype.is_floating_point else convert(value, dtype)
    return scanned(graph, kind, wide, wrap_dim(dim, value.rank), neutral, dtype)


@lower(*overloads("cumsum"))
def cumsum(graph: GraphLowering, value: TensorValue, dim: int, *, dtype: Any = None) -> TensorValue:
    return accumulated(graph, "sum", value, dim, 0)


@lower(*overloads("cumprod"))
def cumprod(graph: GraphLowering, value: TensorValue, dim: int, *, dtype: Any = None) -> TensorValue:
    return accumulated(graph, "prod", value, dim, 1)


def extremum(graph: GraphLowering, value: TensorValue, dim: int, kind: str) -> tuple[TensorValue, TensorValue]:
    """Values and positions; the last of equal elements wins, and NaN from where it first stands."""
    if value.rank == 0:
        return value, graph.full((), 0, torch.int64)
    dim = wrap_dim(dim, value.rank)
    limits = torch.finfo(value.dtype) if value.dtype.is_floating_point else None
    if value.dtype == torch.bool:
        worst: Any = kind == "min"
    elif limits is not None:
        worst = float("-inf") if kind == "max" else float("inf")
    else:
        worst = getattr(torch.iinfo(value.dtype), "min" if kind == "max" else "max")
    stored = graph.realize(value)
    values = scanned(graph, kind, stored, dim, worst, value.dtype)
    rows = prefixes(graph, stored, dim, ew.number(worst, value.dtype), backwards(dim))
    back = graph.reduce(f"arg{kind}", rows, [value.rank], False, torch.int64)
    here = ir.index_value(ir.index_symbol(dim))
    return values, combine(graph, lambda steps: ew.sub(here, steps), back)


@lower(*overloads("cummax"))
def cummax(graph: GraphLowering, value: TensorValue, dim: int) -> tuple[TensorValue, TensorValue]:
    return extremum(graph, value, dim, "max")


@lower(*overloads("cummin"))
def cummin(graph: GraphLowering, value: TensorValue, dim: int) -> tuple[TensorValue, TensorValue]:
    return extremum(graph, value, dim, "min")


@lower(*overloads("logcumsumexp"))
def logcumsumexp(graph: GraphLowering, value: TensorValue, dim: int) -> TensorValue:
    """Each prefix relative to its own maximum, so that no exponential overflows."""
    if value.rank == 0:
        return value
    dim, lowest = wrap_dim(dim, value.rank), float("-inf")
    wide = graph.realize(to_float32(value))
    top = scanned(graph, "max", wide, dim, lowest, torch.float32)
    safe = combine(graph, lambda t: ew.where(ew.eq(ew.absolute(t), ew.like(float("inf"), t)), ew.like(0, t), t), top)
    rows = prefixes(graph, wide, dim, ir.constant(lowest, torch.float32), forwards(dim))
    shape = (*value.shape, sympy.Integer(1))
    gap = combine(graph, lambda v, t: ew.exp(ew.sub(v, t)), rows, graph.reshape(safe, shape))
    total = graph.reduce("sum", gap, [value.rank], False, torch.float32)
    return convert(combine(graph, lambda s, t: ew.add(ew.log(s), t), total, safe), value.dtype)
