"""Reductions: sums, products, extrema, truth and norms.

Floats accumulate in float32, integers in int64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import sympy
import torch
from torch.utils._sympy.functions import FloorDiv

from metal_inductor import ir, policy
from metal_inductor.ir import Expr, TensorValue
from metal_inductor.lowerings import elementwise as ew
from metal_inductor.lowerings.common import (
    combine,
    convert,
    index_less,
    neutral,
    overloads,
    to_float32,
    wrap_dim,
    wrap_dims,
)
from metal_inductor.lowerings.registry import Unsupported, lower

if TYPE_CHECKING:
    from metal_inductor.lower import GraphLowering

aten = torch.ops.aten

Dims = Any  # int, sequence of ints or None


def reduced_count(value: TensorValue, dims: Sequence[int]) -> sympy.Expr:
    """How many elements go into each result."""
    return ir.product(value.shape[dim] for dim in dims) if value.rank else sympy.Integer(1)


def quotient(value: TensorValue, count: Any) -> TensorValue:
    return TensorValue(value.shape, value.dtype, ew.div(value.body, ir.index_value(count, value.dtype)))


# ---------------------------------------------------------------------------------------------- long reductions


def cut_into_rows(graph: GraphLowering, kind: str, value: TensorValue) -> TensorValue | None:
    """`value` with rows worth a reduction of their own as its last dimension: about the square root of its length
    where that divides it; None for what should stay whole. A length that changes between calls counts as long."""
    count = value.numel
    if not count.is_Integer:
        value = graph.reshape(value, [size for size in value.shape if size != 1])
        return value if value.rank > 1 else padded_rows(value, kind, policy.CHANGING_ROWS)
    if count < policy.LONG_REDUCTION:
        return None
    count, root = int(count), math.isqrt(int(count))
    rows = next((k for k in range(root, root // 16, -1) if count % k == 0), None)
    if rows is None:
        return padded_rows(graph.reshape(value, [count]), kind, root)
    return graph.reshape(value, [rows, count // rows])


def padded_rows(value: TensorValue, kind: str, rows: int) -> TensorValue:
    """One dimension as `rows` rows, filled up at the end with what leaves the reduction unchanged."""
    length = FloorDiv(value.numel + rows - 1, rows)
    row, column = ir.index_symbols(2)
    place = row * length + column
    filler = ew.number(neutral(kind, value.dtype), value.dtype)
    body = ir.masked(index_less(place, value.numel), value.at([place]), filler)
    return TensorValue((sympy.Integer(rows), length), value.dtype, body)


def reduced(
    graph: GraphLowering, kind: str, value: TensorValue, dims: Sequence[int], keepdim: bool, dtype: torch.dtype
) -> TensorValue:
    """`graph.reduce`, in two steps where the whole of a large tensor is reduced."""
    rows = cut_into_rows(graph, kind, value) if len(dims) == value.rank else None
    if rows is None:
        return graph.reduce(kind, value, dims, keepdim, dtype)
    wide = torch.float32 if dtype.is_floating_point and kind in ("sum", "prod") else dtype
    partial = graph.reduce(kind, rows, [rows.rank - 1], False, wide)
    total = graph.reduce(kind, partial, range(partial.rank), False, dtype)
    return graph.reshape(total, [1] * (value.rank if keepdim else 0))


# ---------------------------------------------------------------------------------------------- sums and products


def accumulate(graph: GraphLowering, kind: str, value: TensorValue, dims: Dims, keepdim: bool) -> TensorValue:
    """A sum or product in the dtype that torch gives the result."""
    dtype = graph.result_dtype()
    value = convert(value, dtype)
    if dtype == torch.bool:
        kind = "any" if kind == "sum" else "min"
    return reduced(graph, kind, value, wrap_dims(dims, value.rank), keepdim, dtype)


@lower(aten.sum.dim_IntList, *overloads("sum"))
def sum_(
    graph: GraphLowering, value: TensorValue, dims: Dims = None, keepdim: bool = False, *, dtype: Any = None
) -> TensorValue:
    return accumulate(graph, "sum", value, dims, keepdim)


@lower(aten.nansum.default)
def nansum(
    graph: GraphLowering, value: TensorValue, dims: Dims = None, keepdim: bool = False, *, dtype: Any = None
) -> TensorValue:
    if value.dtype.is_floating_point:
        zero = ir.constant(0, value.dtype)
        value = TensorValue(value.shape, value.dtype, ew.where(ew.isnan(value.body), zero, value.body))
    return accumulate(graph, "sum", value, dims, keepdim)


@lower(aten.prod.default)
def prod(graph: GraphLowering, value: TensorValue, *, dtype: Any = None) -> TensorValue:
    return accumulate(graph, "prod", value, None, False)


@lower(aten.prod.dim_int)
def prod_dim(
    graph: GraphLowering, value: TensorValue, dim: int, keepdim: bool = False, *, dtype: Any = None
) -> TensorValue:
    return accumulate(graph, "prod", value, dim, keepdim)


def mean_of(graph: GraphLowering, value: TensorValue, dims: Sequence[int], keepdim: bool) -> TensorValue:
    """The mean over `dims` as float32."""
    total = reduced(graph, "sum", to_float32(value), dims, keepdim, torch.float32)
    return quotient(total, reduced_count(value, dims))


@lower(aten.mean.default)
def mean(graph: GraphLowering, value: TensorValue, *, dtype: Any = None) -> TensorValue:
    return mean_dim(graph, value, None)


@lower(aten.mean.dim)
def mean_dim(
    graph: GraphLowering, value: TensorValue, dims: Dims, keepdim: bool = False, *, dtype: Any = None
) -> TensorValue:
    return convert(mean_of(graph, value, wrap_dims(dims, value.rank), keepdim), graph.result_dtype())


@lower(*overloads("count_nonzero", "default", "dim_IntList"))
def count_nonzero(graph: GraphLowering, value: TensorValue, dims: Dims = None) -> TensorValue:
    counted = convert(convert(value, torch.bool), torch.int64)
    return reduced(graph, "sum", counted, wrap_dims(dims, value.rank), False, torch.int64)


# ---------------------------------------------------------------------------------------------- extrema


def extremum(graph: GraphLowering, kind: str, value: TensorValue, dims: Dims, keepdim: bool = False) -> TensorValue:
    return reduced(graph, kind, value, wrap_dims(dims, value.rank), keepdim, value.dtype)


@lower(aten.amax.default)
def amax(graph: GraphLowering, value: TensorValue, dims: Dims = (), keepdim: bool = False) -> TensorValue:
    return extremum(graph, "max", value, dims, keepdim)


@lower(aten.amin.default)
def amin(graph: GraphLowering, value: TensorValue, dims: Dims = (), keepdim: bool = False) -> TensorValue:
    return extremum(graph, "min", value, dims, keepdim)


@lower(aten.max.default)
def max_default(graph: GraphLowering, value: TensorValue) -> TensorValue:
    return extremum(graph, "max", value, None)


@lower(aten.min.default)
def min_default(graph: GraphLowering, value: TensorValue) -> TensorValue:
    return extremum(graph, "min", value, None)


def position(
    graph: GraphLowering, kind: str, value: TensorValue, dim: int | None, keepdim: bool = False
) -> TensorValue:
    """argmax or argmin along `dim`, or in the flattened tensor."""
    if dim is None:
        found = graph.reduce(kind, graph.reshape(value, [value.numel]), [0], False, torch.int64)
        return graph.reshape(found, graph.result_shape()) if keepdim else found
    return graph.reduce(kind, value, [wrap_dim(dim, value.rank)], keepdim, torch.int64)


def extremum_with_position(
    graph: GraphLowering, name: str, value: TensorValue, dim: int, keepdim: bool
) -> tuple[TensorValue, TensorValue]:
    found = extremum(graph, name, value, [dim], keepdim)
    return found, position(graph, f"arg{name}", value, dim, keepdim)


@lower(aten.max.dim)
def max_dim(graph: GraphLowering, value: TensorValue, dim: int, keepdim: bool = False) -> Any:
    return extremum_with_position(graph, "max", value, dim, keepdim)


@lower(aten.min.dim)
def min_dim(graph: GraphLowering, value: TensorValue, dim: int, keepdim: bool = False) -> Any:
    return extremum_with_position(graph, "min", value, dim, keepdim)


@lower(aten.argmax.default)
def argmax(graph: GraphLowering, value: TensorValue, dim: int | None = None, keepdim: bool = False) -> TensorValue:
    return position(graph, "argmax", value, dim, keepdim)


@lower(aten.argmin.default)
def argmin(graph: GraphLowering, value: TensorValue, dim: int | None = None, keepdim: bool = False) -> TensorValue:
    return position(graph, "argmin", value, dim, keepdim)


@lower(aten.aminmax.default)
def aminmax(graph: GraphLowering, value: TensorValue, *, dim: int | None = None, keepdim: bool = False) -> Any:
    low, high = (extremum(graph, kind, value, None if dim is None else [dim], keepdim) for kind in ("min", "max"))
    return graph.reshape(low, graph.result_shape(0)), graph.reshape(high, graph.result_shape(1))


# ---------------------------------------------------------------------------------------------- truth


@lower(aten.any.default, aten.any.dim, aten.any.dims)
def any_(graph: GraphLowering, value: TensorValue, dims: Dims = None, keepdim: bool = False) -> TensorValue:
    found = reduced(graph, "any", convert(value, torch.bool), wrap_dims(dims, value.rank), keepdim, torch.bool)
    return convert(found, graph.result_dtype())


@lower(aten.all.default, aten.all.dim, aten.all.dims)
def all_(graph: GraphLowering, value: TensorValue, dims: Dims = None, keepdim: bool = False) -> TensorValue:
    """Everything is true where nothing is false."""
    false = combine(graph, lambda x: ew.negate(ew.as_bool(x)), value)
    found = reduced(graph, "any", false, wrap_dims(dims, value.rank), keepdim, torch.bool)
    return convert(combine(graph, ew.negate, found), graph.result_dtype())


# ---------------------------------------------------------------------------------------------- norms


@lower(aten.linalg_vector_norm.default)
def vector_norm(
    graph: GraphLowering,
    value: TensorValue,
    order: Any = 2,
    dims: Dims = None,
    keepdim: bool = False,
    *,
    dtype: Any = None,
) -> TensorValue:
    """(sum |x|^p)^(1/p); order 0 counts what is not zero, the infinite ones take the extremes."""
    if isinstance(order, sympy.Basic):
        raise Unsupported("a norm whose order changes between calls")
    order, chosen = float(order), wrap_dims(dims, value.rank)
    magnitude = combine(graph, ew.absolute, to_float32(value))
    if order in (float("inf"), float("-inf")):
        total = reduced(graph, "max" if order > 0 else "min", magnitude, chosen, keepdim, torch.float32)
    else:
        terms = combine(graph, lambda x: _norm_term(x, order), magnitude)
        total = combine(
            graph,
            lambda s: _norm_root(s, order),
            reduced(graph, "sum", terms, chosen, keepdim, torch.float32),
        )
    return convert(total, graph.result_dtype())


def _norm_term(x: Expr, order: float) -> Expr:
    if order == 0:
        return ir.cast(ew.ne(x, ew.like(0, x)), torch.float32)
    if order == 1:
        return x
    return ew.mul(x, x) if order == 2 else ew.binary("pow")(x, ew.like(order, x))


def _norm_root(total: Expr, order: float) -> Expr:
    if order in (0, 1):
        return total
    return ew.sqrt(total) if order == 2 else ew.binary("pow")(total, ew.like(1 / order, total))


def without(graph: GraphLowering, value: TensorValue, dims: Sequence[int], keepdim: bool) -> TensorValue:
    """`value`, whose `dims` have size one, with or without them."""
    if keepdim:
        return value
    return graph.reshape(value, [size for dim, size in enumerate(value.shape) if dim not in dims])


@lower(aten.logsumexp.default)
def logsumexp(graph: GraphLowering, value: TensorValue, dims: Dims, keepdim: bool = False) -> TensorValue:
    """Shifted by the maximum, unless that is infinite: then the sum is, too."""
    chosen = wrap_dims(dims, value.rank)
    value = to_float32(value)
    if reduced_count(value, chosen) == 0:
        return graph.full(graph.result_shape(), float("-inf"), graph.result_dtype())
    infinity = ir.constant(float("inf"), torch.float32)

    def finite(m: Expr) -> Expr:
        return ew.where(ew.eq(ew.absolute(m), infinity), ew.like(0, m), m)

    top = combine(graph, finite, reduced(graph, "max", value, chosen, True, torch.float32))
    scaled = combine(graph, lambda x, m: ew.exp(ew.sub(x, m)), value, top)
    total = reduced(graph, "sum", scaled, chosen, True, torch.float32)
    result = combine(graph, lambda s, m: ew.add(ew.log(s), m), total, top)
    return convert(without(graph, result, chosen, keepdim), graph.result_dtype())
