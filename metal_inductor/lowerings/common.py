"""What the lowerings share: dimensions and slices as torch normalises them, conditions, data-dependent indices."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import sympy
import torch

from metal_inductor import ir, policy
from metal_inductor.ir import Expr, TensorValue
from metal_inductor.lowerings import elementwise as ew
from metal_inductor.lowerings.registry import Unsupported
from metal_inductor.torch_compat import decide

if TYPE_CHECKING:
    from metal_inductor.lower import GraphLowering


def overloads(packet: str, *names: str) -> list[Any]:
    """Those overloads of `aten.<packet>` that this torch has: `default` when no names are given."""
    found = getattr(torch.ops.aten, packet, None)
    return [getattr(found, name) for name in names or ("default",) if found is not None and hasattr(found, name)]


# ---------------------------------------------------------------------------------------------- sizes and dimensions


def wrap_dim(dim: int, rank: int) -> int:
    """`dim` counted from the front; a zero-dimensional tensor has one dimension for this purpose."""
    return dim % max(rank, 1)


def wrap_dims(dims: int | Sequence[int] | None, rank: int) -> list[int]:
    """Sorted dimensions to reduce: None and the empty list mean all of them."""
    if isinstance(dims, int):
        dims = [dims]
    if not dims:
        return list(range(rank))
    return sorted({wrap_dim(dim, rank) for dim in dims})


def truth(graph: GraphLowering, condition: Any) -> bool:
    """Whether a relation between sizes holds; torch guards on it, so it holds whenever this graph is called."""
    condition = sympy.sympify(condition)
    if condition in (sympy.true, sympy.false):
        return condition is sympy.true
    decided = decide(condition, graph.meta)
    if decided is None:
        raise Unsupported(f"whether {condition} depends on data")
    return decided


def slice_bound(graph: GraphLowering, index: Any, size: Any, default: Any) -> sympy.Expr:
    """`index` of a slice as torch reads it: negative ones count from the end, all are clamped to [0, size]."""
    if index is None or (isinstance(index, int) and index == sys.maxsize):
        return sympy.sympify(default if index is None else size)
    index = sympy.sympify(index)
    if truth(graph, index < 0):
        index = index + size
        if truth(graph, index < 0):
            return sympy.Integer(0)
    return sympy.sympify(size) if truth(graph, index > size) else index


def element_index(graph: GraphLowering, index: Any, size: Any) -> sympy.Expr:
    """One index within `size`; negative ones count from the end."""
    index = sympy.sympify(index)
    return index + size if truth(graph, index < 0) else index


def broadcast_shape(*shapes: Sequence[Any]) -> tuple[sympy.Expr, ...]:
    rank = max((len(shape) for shape in shapes), default=0)
    result: list[sympy.Expr] = [sympy.Integer(1)] * rank
    for shape in shapes:
        for k, size in enumerate(shape, rank - len(shape)):
            if size != 1:
                result[k] = sympy.sympify(size)
    return tuple(result)


# ---------------------------------------------------------------------------------------------- conditions on indices


def all_of(*conditions: Expr) -> Expr:
    """The conjunction of `conditions`; true when there are none."""
    result: Expr = ir.constant(True, torch.bool)
    for condition in conditions:
        result = condition if isinstance(result, ir.Constant) else ew.both(result, condition)
    return result


def index_less(a: Any, b: Any) -> Expr:
    """`a < b` for index expressions."""
    return ew.lt(ir.index_value(a), ir.index_value(b))


def index_within(index: Any, low: Any, high: Any) -> list[Expr]:
    """The conditions for `low <= index < high`."""
    return [ew.ge(ir.index_value(index), ir.index_value(low)), index_less(index, high)]


# ---------------------------------------------------------------------------------------------- tensors


def combine(graph: GraphLowering, function: Callable[..., Expr], *values: TensorValue) -> TensorValue:
    """`function` of the elements of `values`, broadcast together; the result has the dtype that it computes in."""
    shape = broadcast_shape(*(value.shape for value in values))
    body = function(*(graph.broadcast_to(value, shape).body for value in values))
    return TensorValue(shape, body.dtype, body)


def convert(value: TensorValue, dtype: torch.dtype) -> TensorValue:
    """`value` as `dtype`; floats are not rounded before they are stored."""
    return TensorValue(value.shape, dtype, ew.convert(value.body, dtype))


def neutral(kind: str, dtype: torch.dtype) -> Any:
    """The number that leaves a sum, prod, max, min or any of `dtype` unchanged."""
    if kind in ("sum", "prod", "any") or dtype == torch.bool:
        return kind in ("prod", "min")
    if dtype.is_floating_point:
        return float("-inf" if kind == "max" else "inf")
    return torch.iinfo(dtype).min if kind == "max" else torch.iinfo(dtype).max


def to_float32(value: TensorValue) -> TensorValue:
    return convert(value, torch.float32)


# ---------------------------------------------------------------------------------------------- data-dependent indices

Pairs = list[tuple[sympy.Symbol, Expr]]


def wrapped(index: Expr, size: Any) -> Expr:
    """A data-dependent index as int64, with negative ones counted from the end."""
    index = ir.cast(index, torch.int64)
    if isinstance(index, ir.Index) and index.expr.is_nonnegative:
        return index
    zero = ir.constant(0, torch.int64)
    return ew.where(ew.lt(index, zero), ew.add(index, ir.index_value(size)), index)


def checked(index: Expr, size: Any) -> Expr:
    """`index`, with an error reported for values outside [0, size)."""
    return ir.op("checked_index", ir.cast(index, torch.int64), ir.index_value(size), dtype=torch.int64)


def indirect(index: Expr) -> tuple[sympy.Expr, Pairs]:
    """`index` for use inside an index expression, with what defines its symbol."""
    if isinstance(index, ir.Index):
        return index.expr, []
    if isinstance(index, ir.Constant):
        return sympy.Integer(index.value), []
    symbol = ir.indirect_symbol(index)
    return symbol, [(symbol, index)]


def read_at(graph: GraphLowering, value: TensorValue, indices: Iterable[Any], pairs: Pairs) -> Expr:
    """The element of `value` at `indices`, which may use the data-dependent symbols of `pairs`."""
    table = dict(zip(ir.index_symbols(value.rank), (sympy.sympify(index) for index in indices), strict=True))
    if not _readable_anywhere(value, {symbol for symbol, index in table.items() if symbol != index}):
        value = graph.realize(value, force=True)

    def leaf(node: Expr) -> Expr | None:
        if isinstance(node, ir.Load):
            return ir.load(node.buffer, node.index.xreplace(table), node.dtype, (*node.indirect, *pairs))
        return None

    return ir.rewrite(value.body, leaf)


def _readable_anywhere(value: TensorValue, replaced: set[sympy.Symbol]) -> bool:
    nodes = list(ir.walk(value.body))
    counted = any(isinstance(node, ir.Index) and node.expr.free_symbols & replaced for node in nodes)
    return not counted and sum(isinstance(node, (ir.Op, ir.Masked)) for node in nodes) <= policy.MAX_INDIRECT_OPS
