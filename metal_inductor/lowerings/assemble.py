"""Tensors put together from parts at places that are known: cat, stack, padding, writes into a slice.

Without permission to write in place these are selections, so they fuse with what computes the parts and with what
reads the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import sympy
import torch
from torch.utils._sympy.functions import FloorDiv, ModularIndexing

from metal_inductor import ir, policy
from metal_inductor.indexing import unflatten
from metal_inductor.ir import TensorValue
from metal_inductor.lowerings import elementwise as ew
from metal_inductor.lowerings.common import (
    all_of,
    convert,
    element_index,
    index_less,
    index_within,
    slice_bound,
    wrap_dim,
)  # fmt: skip
from metal_inductor.lowerings.gather_scatter import Placement, scatter_into
from metal_inductor.lowerings.registry import Unsupported, lower

if TYPE_CHECKING:
    from metal_inductor.lower import GraphLowering

aten = torch.ops.aten

# ---------------------------------------------------------------------------------------------- cat and stack


@lower(aten.cat.default)
def cat(graph: GraphLowering, tensors: Sequence[TensorValue], dim: int = 0) -> TensorValue:
    """A one-dimensional empty tensor is skipped whatever the rank of the others, as in eager."""
    shape, dtype = graph.result_shape(), graph.result_dtype()
    dim = wrap_dim(dim, len(shape))
    parts = [convert(part, dtype) for part in tensors if not (part.rank == 1 and part.shape[0] == 0)]
    parts = [part for part in parts if part.shape[dim] != 0]
    if not parts:
        return graph.full(shape, 0, dtype)
    if len(parts) > policy.MAX_SELECTED_PARTS:
        return written_parts(graph, parts, dim, shape, dtype)
    return selected_parts(graph, parts, dim, shape)


def selected_parts(graph: GraphLowering, parts: Sequence[TensorValue], dim: int, shape: Any) -> TensorValue:
    """For each element the one part that holds it; a bisection, so that no element passes many conditions."""
    symbols = ir.index_symbols(len(shape))
    starts = [sympy.Integer(0)]
    for part in parts:
        starts.append(starts[-1] + part.shape[dim])

    def guarded(first: int, last: int) -> ir.Expr:
        """Both sides of every condition are masked: only then is a part not read where it has no elements."""
        if last - first == 1:
            index = [s - starts[first] if k == dim else s for k, s in enumerate(symbols)]
            return parts[first].at(index)
        middle = (first + last) // 2
        before = index_less(symbols[dim], starts[middle])
        zero = ir.constant(0, parts[0].dtype)
        after = ir.masked(ew.negate(before), guarded(middle, last), zero)
        return ir.masked(before, guarded(first, middle), after)

    return TensorValue(tuple(shape), parts[0].dtype, guarded(0, len(parts)))


def written_parts(
    graph: GraphLowering, parts: Sequence[TensorValue], dim: int, shape: Any, dtype: torch.dtype
) -> TensorValue:
    """Groups of parts written one after the other into the result."""
    buffer = graph.new_buffer(shape, dtype)
    symbols = ir.index_symbols(len(shape))
    start: sympy.Expr = sympy.Integer(0)
    for k in range(0, len(parts), policy.MAX_SELECTED_PARTS):
        group = parts[k : k + policy.MAX_SELECTED_PARTS]
        length = sympy.Add(*(part.shape[dim] for part in group))
        sizes = (*shape[:dim], length, *shape[dim + 1 :])
        joined = selected_parts(graph, group, dim, sizes)
        index = [s + start if k == dim else s for k, s in enumerate(symbols)]
        graph.scatter(buffer, sizes, index, joined.body)
        start = start + length
    return buffer.value()


@lower(aten.stack.default)
def stack(graph: GraphLowering, tensors: Sequence[TensorValue], dim: int = 0) -> TensorValue:
    dim = wrap_dim(dim, tensors[0].rank + 1)
    return cat(graph, [graph.reshape(part, inserted(part.shape, dim)) for part in tensors], dim)


def inserted(shape: Sequence[Any], dim: int) -> list[Any]:
    return [*shape[:dim], sympy.Integer(1), *shape[dim:]]


# ---------------------------------------------------------------------------------------------- padding


@lower(aten.constant_pad_nd.default)
def constant_pad_nd(graph: GraphLowering, value: TensorValue, pad: Sequence[Any], fill: Any = 0) -> TensorValue:
    """`pad` holds (before, after) from the last dimension on; negative amounts crop."""
    shape = graph.result_shape()
    symbols = ir.index_symbols(value.rank)
    index: list[Any] = list(symbols)
    conditions: list[ir.Expr] = []
    for k in range(len(pad) // 2):
        dim, before, after = value.rank - 1 - k, sympy.sympify(pad[2 * k]), sympy.sympify(pad[2 * k + 1])
        index[dim] = symbols[dim] - before
        if not before.is_nonpositive:
            conditions.append(ew.ge(ir.index_value(symbols[dim]), ir.index_value(before)))
        if not after.is_nonpositive:
            conditions.append(index_less(symbols[dim], before + value.shape[dim]))
    body = value.at(index, lambda e: graph.simplify(e, shape))
    return TensorValue(shape, value.dtype, ir.masked(all_of(*conditions), body, ew.number(fill, value.dtype)))


@lower(*(getattr(aten, f"replication_pad{rank}d_backward").default for rank in (1, 2, 3)))
def replication_pad_backward(
    graph: GraphLowering, grad: TensorValue, value: TensorValue, padding: Sequence[Any]
) -> TensorValue:
    """Every gradient in the padding belongs to the edge that was repeated there."""
    lead = value.rank - len(padding) // 2
    zeros, padded = graph.full(value.shape, 0, value.dtype), range(lead, value.rank)

    def place(grad: TensorValue) -> Placement:
        symbols = ir.index_symbols(grad.rank)
        edges = {dim: within(symbols[dim] - padding[2 * (grad.rank - 1 - dim)], value.shape[dim]) for dim in padded}
        return Placement(grad.shape, symbols, grad.body, edges)

    return scatter_into(graph, zeros, [grad], place, "atomic_add")


def within(index: Any, size: Any) -> ir.Expr:
    """`index` moved to the nearest of 0 ... size - 1."""
    return ew.minimum(ew.maximum(ir.index_value(index), ir.index_value(0)), ir.index_value(size - 1))


# ---------------------------------------------------------------------------------------------- writes into a part


def overwritten(
    graph: GraphLowering, base: TensorValue, part: TensorValue, condition: ir.Expr, index: Sequence[Any]
) -> TensorValue:
    """`part` at `index` where `condition` holds, else `base`."""
    new = convert(part, base.dtype).at(index, lambda e: graph.simplify(e, base.shape))
    return TensorValue(base.shape, base.dtype, ir.masked(condition, new, base.body))


def placed(graph: GraphLowering, base: TensorValue, part: TensorValue, index: Sequence[Any]) -> TensorValue:
    """`part` written into `base` itself: `index` gives the place of each of its elements."""
    body, predicate = changed_elements(graph, base, part, index)
    part = TensorValue(part.shape, part.dtype, body)
    return scatter_into(graph, base, [part], lambda part: Placement(part.shape, index, part.body, predicate=predicate))


def changed_elements(
    graph: GraphLowering, base: TensorValue, part: TensorValue, index: Sequence[Any]
) -> tuple[ir.Expr, ir.Expr | None]:
    """(new elements, where they are new): a slice of a slice comes as its outer slice with the old elements put back,
    which a concurrent reader of the same memory must not see written."""
    owner = graph.whole_buffer(base)
    conditions: list[ir.Expr] = []
    body = part.body
    while owner is not None and isinstance(body, ir.Masked) and owner.name not in ir.buffers_read(body.mask):
        old = body.other
        if not (isinstance(old, ir.Load) and old.buffer == owner.name):
            break
        if sympy.expand(old.index - owner.index(index)) != 0:
            break
        conditions.append(body.mask)
        body = body.body
    return body, all_of(*conditions) if conditions else None


def in_place(graph: GraphLowering) -> bool:
    return bool(graph.node.meta.get("metal_inplace"))


@lower(aten.slice_scatter.default)
def slice_scatter(
    graph: GraphLowering,
    base: TensorValue,
    src: TensorValue,
    dim: int = 0,
    start: Any = None,
    end: Any = None,
    step: Any = 1,
) -> TensorValue:
    dim = wrap_dim(dim, base.rank)
    size = base.shape[dim]
    start = slice_bound(graph, start, size, 0)
    length = src.shape[dim]
    if length == 0:
        return base
    symbols = ir.index_symbols(base.rank)
    if in_place(graph):
        return placed(graph, base, src, [s * step + start if k == dim else s for k, s in enumerate(symbols)])
    conditions = index_within(symbols[dim], start, start + (length - 1) * step + 1)
    if step != 1:
        offset = ir.index_value(ModularIndexing(symbols[dim] - start, 1, step))
        conditions.append(ew.eq(offset, ew.like(0, offset)))
    return strided_part(graph, base, src, dim, start, step, all_of(*conditions))


def strided_part(
    graph: GraphLowering, base: TensorValue, src: TensorValue, dim: int, start: Any, step: Any, condition: ir.Expr
) -> TensorValue:
    """`src` at every `step`-th place along `dim`. Where `condition` holds the division is exact, so the places of
    `src`'s own sources cancel out: a slice of `base` reads `base` at the place that is written."""
    symbols = ir.index_symbols(base.rank)
    place, position = sympy.Symbol("place", integer=True, nonnegative=True), symbols[dim] - start

    def divide(expr: sympy.Expr) -> sympy.Expr:
        expr = sympy.expand(expr)
        ratio = expr.coeff(place) / step
        if ratio.is_integer and not expr.coeff(place, 0).has(place) and expr.is_polynomial(place):
            return graph.simplify(sympy.expand(expr.coeff(place, 0) + ratio * position), base.shape)
        return graph.simplify(expr.xreplace({place: FloorDiv(position, step)}), base.shape)

    index = [place if k == dim else s for k, s in enumerate(symbols)]
    new = convert(src, base.dtype).at(index, divide)
    return TensorValue(base.shape, base.dtype, ir.masked(condition, new, base.body))


@lower(aten.select_scatter.default)
def select_scatter(graph: GraphLowering, base: TensorValue, src: TensorValue, dim: int, index: Any) -> TensorValue:
    dim = wrap_dim(dim, base.rank)
    index = element_index(graph, index, base.shape[dim])
    if in_place(graph):
        symbols = ir.index_symbols(base.rank - 1)
        return placed(graph, base, src, [*symbols[:dim], index, *symbols[dim:]])
    symbols = ir.index_symbols(base.rank)
    condition = ew.eq(ir.index_value(symbols[dim]), ir.index_value(index))
    return overwritten(graph, base, src, condition, [*symbols[:dim], *symbols[dim + 1 :]])


@lower(aten.diagonal_scatter.default)
def diagonal_scatter(
    graph: GraphLowering, base: TensorValue, src: TensorValue, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> TensorValue:
    dim1, dim2 = wrap_dim(dim1, base.rank), wrap_dim(dim2, base.rank)
    symbols = ir.index_symbols(base.rank)
    row, column = symbols[dim1], symbols[dim2]
    condition = ew.eq(ir.index_value(row + max(offset, 0)), ir.index_value(column + max(-offset, 0)))
    kept = [symbols[dim] for dim in range(base.rank) if dim not in (dim1, dim2)]
    return overwritten(graph, base, src, condition, [*kept, row if offset >= 0 else column])


@lower(aten.as_strided_scatter.default)
def as_strided_scatter(
    graph: GraphLowering,
    base: TensorValue,
    src: TensorValue,
    size: Sequence[Any],
    stride: Sequence[Any],
    storage_offset: Any = None,
) -> TensorValue:
    fake = graph.node.args[0].meta["val"]
    if not fake.is_contiguous():
        raise Unsupported("as_strided_scatter into a tensor that is not contiguous")
    offset = 0 if storage_offset is None else storage_offset
    symbols = ir.index_symbols(src.rank)
    flat = offset + sympy.Add(*(symbol * step for symbol, step in zip(symbols, stride)))
    ranges = dict(zip(symbols, src.shape))
    return placed(graph, base, src, unflatten(sympy.sympify(flat), base.shape, ranges))
