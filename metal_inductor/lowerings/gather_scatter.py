"""Reads and writes at data-dependent places.

An index from data becomes a symbol of the index expression, defined by the expression that computes it. Indices out of
range are reported as errors: reads then take element zero, writes do not happen. A scatter writes into a copy of its
base, or into the base itself where the in-place pass has shown that nobody reads the old contents.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import sympy
import torch

from metal_inductor import ir, policy
from metal_inductor.ir import Expr, TensorValue
from metal_inductor.lowerings import elementwise as ew
from metal_inductor.lowerings.common import (
    all_of,
    broadcast_shape,
    checked,
    combine,
    convert,
    index_less,
    indirect,
    neutral,
    overloads,
    read_at,
    wrap_dim,
    wrapped,
)  # fmt: skip
from metal_inductor.lowerings.registry import Unsupported, lower

if TYPE_CHECKING:
    from metal_inductor.lower import GraphLowering

aten = torch.ops.aten

# What Metal's atomics add; other dtypes accumulate in a wider copy, which is converted back at the end.
ATOMIC_DTYPES = {
    torch.float32: torch.float32, torch.float16: torch.float32, torch.bfloat16: torch.float32,
    torch.int32: torch.int32, torch.uint32: torch.uint32,
    torch.int8: torch.int32, torch.int16: torch.int32, torch.uint8: torch.int32,
}  # fmt: skip

OUT_OF_RANGE = "index out of range"


def at_least_1d(graph: GraphLowering, value: TensorValue) -> TensorValue:
    return value if value.rank else graph.reshape(value, [1])


# ---------------------------------------------------------------------------------------------- gathers


def gathered(
    graph: GraphLowering, value: TensorValue, shape: Sequence[Any], index: Sequence[Any], dims: dict[int, Expr]
) -> TensorValue:
    """A tensor of `shape` whose elements are read at `index`, with the dimensions in `dims` taken from data."""
    index, pairs = list(index), []
    for dim, position in dims.items():
        index[dim], defined = indirect(checked(position, value.shape[dim]))
        pairs += defined
    shape = tuple(shape)
    if any(size == 0 for size in value.shape):
        if any(size == 0 for size in shape):
            return graph.full(shape, 0, value.dtype)
        raise Unsupported("reads elements of an empty tensor")
    return TensorValue(shape, value.dtype, read_at(graph, value, index, pairs))


@lower(aten.embedding.default)
def embedding(graph: GraphLowering, weight: TensorValue, indices: TensorValue, *options: Any) -> TensorValue:
    shape = (*indices.shape, *weight.shape[1:])
    rest = ir.index_symbols(len(shape))[indices.rank :]
    return gathered(graph, weight, shape, [None, *rest], {0: indices.body})


@lower(aten.index_select.default)
def index_select(graph: GraphLowering, value: TensorValue, dim: int, index: TensorValue) -> TensorValue:
    scalar = value.rank == 0
    value, index = at_least_1d(graph, value), at_least_1d(graph, index)
    dim = wrap_dim(dim, value.rank)
    symbols = ir.index_symbols(value.rank)
    shape = [*value.shape[:dim], index.shape[0], *value.shape[dim + 1 :]]
    result = gathered(graph, value, shape, symbols, {dim: index.at([symbols[dim]])})
    return graph.reshape(result, ()) if scalar else result


@lower(aten.gather.default)
def gather(
    graph: GraphLowering, value: TensorValue, dim: int, index: TensorValue, *, sparse_grad: bool = False
) -> TensorValue:
    shape = index.shape
    value, index = at_least_1d(graph, value), at_least_1d(graph, index)
    dim = wrap_dim(dim, value.rank)
    result = gathered(graph, value, index.shape, ir.index_symbols(index.rank), {dim: index.body})
    return graph.reshape(result, shape)


@lower(aten.take.default)
def take(graph: GraphLowering, value: TensorValue, index: TensorValue) -> TensorValue:
    flat = graph.reshape(value, [value.numel])
    return gathered(graph, flat, index.shape, [None], {0: wrapped(index.body, value.numel)})


@dataclass
class AdvancedIndex:
    """`value[indices]` with index tensors: the shape of the result and, over its symbols, the index of each dimension
    (None where it comes from data: then in `data`)."""

    shape: tuple[sympy.Expr, ...]
    index: list[Any]
    data: dict[int, Expr]


def advanced_index(graph: GraphLowering, value: TensorValue, indices: Sequence[TensorValue | None]) -> AdvancedIndex:
    """The broadcast dimensions of the index tensors take the place of the indexed ones, or the front if those are not
    neighbours."""
    indices = [*indices, *[None] * (value.rank - len(indices))]
    if any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices):
        raise Unsupported("a mask as index: the size of the result depends on data")
    dims = [dim for dim, index in enumerate(indices) if index is not None]
    shared = broadcast_shape(*(indices[dim].shape for dim in dims))
    neighbours = dims == list(range(dims[0], dims[-1] + 1)) if dims else True
    start = dims[0] if dims and neighbours else 0
    kept = [dim for dim in range(value.rank) if indices[dim] is None]
    before, after = kept[:start], kept[start:]
    shape = (*(value.shape[d] for d in before), *shared, *(value.shape[d] for d in after))
    symbols = ir.index_symbols(len(shape))
    inner = symbols[start : start + len(shared)]
    index: list[Any] = [None] * value.rank
    for dim, symbol in zip([*before, *after], [*symbols[:start], *symbols[start + len(shared) :]]):
        index[dim] = symbol
    data = {dim: wrapped(graph.broadcast_to(indices[dim], shared).at(inner), value.shape[dim]) for dim in dims}
    return AdvancedIndex(shape, index, data)


@lower(aten.index.Tensor, *overloads("_unsafe_index", "Tensor"))
def index_tensor(graph: GraphLowering, value: TensorValue, indices: Sequence[TensorValue | None]) -> TensorValue:
    found = advanced_index(graph, value, indices)
    return gathered(graph, value, found.shape, found.index, found.data)


# ---------------------------------------------------------------------------------------------- scatters


@dataclass
class Placement:
    """What a scatter writes: `body` over `sizes` goes to `index`, with the dimensions in `data` taken from data."""

    sizes: Sequence[Any]
    index: Sequence[Any]
    body: Expr
    data: dict[int, Expr] = field(default_factory=dict)
    predicate: Expr | None = None


def scatter_into(
    graph: GraphLowering,
    base: TensorValue,
    sources: Sequence[TensorValue],
    place: Callable[..., Placement],
    mode: str = "store",
) -> TensorValue:
    """Writes what `place(*sources)` says into `base`, in place where that is allowed."""
    if mode == "atomic_add":
        return _accumulate_into(graph, base, sources, place)
    return _write(graph, base, sources, place, mode)


def _accumulate_into(graph: GraphLowering, base: TensorValue, sources: Any, place: Any) -> TensorValue:
    wide = ATOMIC_DTYPES.get(base.dtype)
    if wide is None:
        raise Unsupported(f"Metal has no atomic addition for {base.dtype}")
    return convert(_write(graph, convert(base, wide), sources, place, "atomic_add"), base.dtype)


def _write(graph: GraphLowering, base: TensorValue, sources: Any, place: Any, mode: str) -> TensorValue:
    buffer, sources = graph.writable(base, *sources)
    placement = place(*sources)
    index, pairs, checks = list(placement.index), [], []
    for dim, position in placement.data.items():
        position = ir.cast(position, torch.int64)
        index[dim], defined = indirect(position)
        pairs += defined
        checks.append((position, buffer.shape[dim], OUT_OF_RANGE))
    body = ew.convert(placement.body, buffer.dtype)
    return graph.scatter(
        buffer, placement.sizes, index, body, pairs, mode=mode, predicate=placement.predicate, checks=checks
    )


# ---------------------------------------------------------------------------------------------- index_put


@lower(aten.index_put.default, aten.index_put_.default, *overloads("_unsafe_index_put"))
def index_put(
    graph: GraphLowering,
    base: TensorValue,
    indices: Sequence[TensorValue | None],
    values: TensorValue,
    accumulate: bool = False,
    unsafe: bool = False,
) -> TensorValue:
    mask = leading_mask(base, indices)
    if mask is not None:
        return masked_put(graph, base, mask, values, accumulate)
    tensors = [index for index in indices if index is not None]

    def place(values: TensorValue, *tensors: TensorValue) -> Placement:
        given = iter(tensors)
        found = advanced_index(graph, base, [None if index is None else next(given) for index in indices])
        return Placement(found.shape, found.index, graph.broadcast_to(values, found.shape).body, found.data)

    return scatter_into(graph, base, [values, *tensors], place, "atomic_add" if accumulate else "store")


def leading_mask(base: TensorValue, indices: Sequence[TensorValue | None]) -> TensorValue | None:
    """The mask of `base[mask] = ...` when it is the only index."""
    if not indices or indices[0] is None or any(index is not None for index in indices[1:]):
        return None
    return indices[0] if indices[0].dtype in (torch.bool, torch.uint8) else None


def masked_put(
    graph: GraphLowering, base: TensorValue, mask: TensorValue, values: TensorValue, accumulate: bool
) -> TensorValue:
    """One value (or one for each element behind the mask's dimensions) wherever the mask holds: a selection."""
    rest = base.rank - mask.rank
    if values.rank > rest and not all(size == 1 for size in values.shape[: values.rank - rest]):
        raise Unsupported("a mask as index with a value for each of its elements")
    values = graph.reshape(values, values.shape[values.rank - rest :]) if values.rank > rest else values
    symbols = ir.index_symbols(base.rank)
    chosen = ew.as_bool(mask.at(symbols[: mask.rank]))
    new = ew.convert(graph.broadcast_to(values, base.shape).body, base.dtype)
    if accumulate:
        new = ew.add(base.body, new)
    return TensorValue(base.shape, base.dtype, ew.where(chosen, new, base.body))


# ---------------------------------------------------------------------------------------------- scatters along one dim


def scatter_along(
    graph: GraphLowering,
    base: TensorValue,
    dim: int,
    index: TensorValue,
    source: TensorValue | None,
    body: Callable[[Expr | None], Expr],
    mode: str = "store",
) -> TensorValue:
    """`base[.., index[i], ..] = body(source[i])` for every i of `index`; `source` may be larger than `index`."""
    shape = base.shape
    base, index = at_least_1d(graph, base), at_least_1d(graph, index)
    dim = wrap_dim(dim, base.rank)
    sources = [index] if source is None else [index, at_least_1d(graph, source)]

    def place(index: TensorValue, *source: TensorValue) -> Placement:
        written = body(source[0].body if source else None)
        return Placement(index.shape, ir.index_symbols(index.rank), written, {dim: index.body})

    return graph.reshape(scatter_into(graph, base, sources, place, mode), shape)


def filled(value: Any, dtype: torch.dtype) -> Callable[[Expr | None], Expr]:
    return lambda _: ew.number(value, dtype)


def written(source: Expr | None) -> Expr:
    assert source is not None
    return source


@lower(aten.scatter.src)
def scatter_src(graph: GraphLowering, base: TensorValue, dim: int, index: TensorValue, src: TensorValue) -> TensorValue:
    return scatter_along(graph, base, dim, index, src, written)


@lower(aten.scatter.value)
def scatter_value(graph: GraphLowering, base: TensorValue, dim: int, index: TensorValue, value: Any) -> TensorValue:
    return scatter_along(graph, base, dim, index, None, filled(value, base.dtype))


@lower(aten.scatter.reduce, aten.scatter.value_reduce)
def scatter_with(
    graph: GraphLowering, base: TensorValue, dim: int, index: TensorValue, src: Any, *, reduce: str
) -> TensorValue:
    if not isinstance(src, TensorValue):
        src = graph.full(index.shape, src, base.dtype)
    return scatter_reduce(graph, base, dim, index, src, {"add": "sum", "multiply": "prod"}[reduce])


@lower(aten.scatter_add.default)
def scatter_add(graph: GraphLowering, base: TensorValue, dim: int, index: TensorValue, src: TensorValue) -> TensorValue:
    return scatter_reduce(graph, base, dim, index, src, "sum")


@lower(aten.scatter_reduce.two)
def scatter_reduce(
    graph: GraphLowering,
    base: TensorValue,
    dim: int,
    index: TensorValue,
    src: TensorValue,
    reduce: str,
    *,
    include_self: bool = True,
) -> TensorValue:
    if reduce == "mean" and not base.dtype.is_floating_point:
        raise Unsupported("a scattered mean of integers")
    if reduce not in ("sum", "mean") or base.dtype not in ATOMIC_DTYPES:
        return collected(graph, base, dim, index, src, reduce, include_self)
    if not include_self:
        base = scatter_along(graph, base, dim, index, None, filled(0, base.dtype))
    total = scatter_along(graph, base, dim, index, src, written, "atomic_add")
    if reduce == "sum":
        return total
    ones = graph.full(base.shape, 1 if include_self else 0, torch.float32)
    counts = scatter_along(graph, ones, dim, index, None, filled(1, torch.float32), "atomic_add")

    def ratio(sum_: Expr, count: Expr) -> Expr:
        return ew.div(sum_, ew.relabel(ew.maximum(count, ew.like(1, count)), sum_.dtype))

    return combine(graph, ratio, total, counts)


# ---------------------------------------------------------------------------------------------- scatters that collect

# reduce -> (the reduction, how its result joins the element of the base)
COLLECTING = {
    "sum": ("sum", ew.add), "prod": ("prod", ew.mul), "amax": ("max", ew.maximum), "amin": ("min", ew.minimum),
}  # fmt: skip


def collected(
    graph: GraphLowering,
    base: TensorValue,
    dim: int,
    index: TensorValue,
    src: TensorValue,
    reduce: str,
    include_self: bool = True,
) -> TensorValue:
    """`scatter_reduce` of a few indices as a reduction over them."""
    shape = base.shape
    base, index, src = (at_least_1d(graph, value) for value in (base, index, src))
    dim = wrap_dim(dim, base.rank)
    count = index.shape[dim]
    if (
        reduce not in COLLECTING
        or base.dtype == torch.bool
        or not count.is_Integer
        or not 0 < count <= policy.MAX_COLLECTED
    ):
        raise Unsupported(f"Metal has no atomic {reduce} for {base.dtype}, and there are {count} indices")
    kind, join = COLLECTING[reduce]
    symbols = ir.index_symbols(base.rank + 1)
    source = [symbols[-1] if k == dim else s for k, s in enumerate(symbols[:-1])]
    partial = [k for k in range(base.rank) if k != dim and index.shape[k] != base.shape[k]]
    covered = all_of(*(index_less(symbols[k], index.shape[k]) for k in partial))
    mine = ew.eq(checked(index.at(source), base.shape[dim]), ir.index_value(symbols[dim]))
    sizes = (*base.shape, count)
    hit = ir.masked(covered, mine, ir.constant(False, torch.bool))
    value = ir.masked(hit, src.at(source), ew.number(neutral(kind, base.dtype), base.dtype))
    found = graph.reduce(kind, TensorValue(sizes, base.dtype, value), [base.rank], False, base.dtype)
    if not include_self:
        any_hit = graph.reduce("any", TensorValue(sizes, torch.bool, hit), [base.rank], False, torch.bool)
        return graph.reshape(combine(graph, ew.where, any_hit, found, base), shape)
    return graph.reshape(combine(graph, join, base, found), shape)


# ---------------------------------------------------------------------------------------------- index_copy and kin


def along_rows(
    graph: GraphLowering,
    base: TensorValue,
    dim: int,
    index: TensorValue,
    source: TensorValue,
    body: Callable[[Expr], Expr],
    mode: str = "store",
    negative: bool = False,
) -> TensorValue:
    """`base.select(dim, index[k]) = body(source.select(dim, k))` for every k."""
    shape = base.shape
    base, index, source = (at_least_1d(graph, value) for value in (base, index, source))
    dim = wrap_dim(dim, base.rank)

    def place(index: TensorValue, source: TensorValue) -> Placement:
        symbols = ir.index_symbols(base.rank)
        row = index.at([symbols[dim]])
        row = wrapped(row, base.shape[dim]) if negative else row
        return Placement(source.shape, symbols, body(source.body), {dim: row})

    return graph.reshape(scatter_into(graph, base, [index, source], place, mode), shape)


@lower(aten.index_copy.default)
def index_copy(
    graph: GraphLowering, base: TensorValue, dim: int, index: TensorValue, source: TensorValue
) -> TensorValue:
    return along_rows(graph, base, dim, index, source, lambda x: x)


@lower(aten.index_add.default)
def index_add(
    graph: GraphLowering, base: TensorValue, dim: int, index: TensorValue, source: TensorValue, *, alpha: Any = 1
) -> TensorValue:
    def scaled(x: Expr) -> Expr:
        return ew.mul(x, ew.like(alpha, x))

    if base.dtype in ATOMIC_DTYPES:
        return along_rows(graph, base, dim, index, source, scaled, "atomic_add")
    source = TensorValue(source.shape, source.dtype, scaled(source.body))
    return collected(graph, base, dim, index_rows(graph, base, dim, index, source), source, "sum")


def index_rows(
    graph: GraphLowering, base: TensorValue, dim: int, index: TensorValue, source: TensorValue
) -> TensorValue:
    """One index a row, repeated for every element of `source`."""
    dim = wrap_dim(dim, base.rank)
    rows = graph.reshape(index, [index.numel if k == dim else 1 for k in range(max(base.rank, 1))])
    return graph.broadcast_to(rows, at_least_1d(graph, source).shape)


@lower(aten.index_reduce.default)
def index_reduce(
    graph: GraphLowering,
    base: TensorValue,
    dim: int,
    index: TensorValue,
    source: TensorValue,
    reduce: str,
    *,
    include_self: bool = True,
) -> TensorValue:
    rows = index_rows(graph, base, dim, index, source)
    return scatter_reduce(graph, base, dim, rows, source, reduce, include_self=include_self)


@lower(aten.index_fill.int_Scalar, aten.index_fill.int_Tensor)
def index_fill(graph: GraphLowering, base: TensorValue, dim: int, index: TensorValue, value: Any) -> TensorValue:
    whole, rows = at_least_1d(graph, base), at_least_1d(graph, index)
    dim = wrap_dim(dim, whole.rank)
    shape = (*whole.shape[:dim], rows.shape[0], *whole.shape[dim + 1 :])
    if not isinstance(value, TensorValue):
        value = TensorValue((), base.dtype, ew.number(value, base.dtype))
    return along_rows(graph, base, dim, rows, graph.broadcast_to(value, shape), lambda x: x, negative=True)


# ---------------------------------------------------------------------------------------------- put, backward passes


@lower(aten.put.default)
def put(
    graph: GraphLowering, base: TensorValue, index: TensorValue, source: TensorValue, accumulate: bool = False
) -> TensorValue:
    """Positions count in the flattened tensor."""
    flat = graph.reshape(base, [base.numel])
    rows, values = (graph.reshape(value, [index.numel]) for value in (index, source))
    mode = "atomic_add" if accumulate else "store"
    result = along_rows(graph, flat, 0, rows, values, lambda x: x, mode, negative=True)
    return graph.reshape(result, base.shape)


@lower(aten.embedding_dense_backward.default)
def embedding_dense_backward(
    graph: GraphLowering,
    grad: TensorValue,
    indices: TensorValue,
    num_weights: Any,
    padding_idx: int,
    scale_grad_by_freq: bool,
) -> TensorValue:
    """The rows of `grad` added up by the row that they came from."""
    if scale_grad_by_freq:
        raise Unsupported("embedding gradients scaled by frequency")
    zeros = graph.full(graph.result_shape(), 0, grad.dtype)

    def place(grad: TensorValue, indices: TensorValue) -> Placement:
        row = ir.cast(indices.body, torch.int64)
        kept = ew.ne(row, ir.constant(padding_idx, torch.int64)) if padding_idx >= 0 else None
        rest = ir.index_symbols(grad.rank)[indices.rank :]
        return Placement(grad.shape, [None, *rest], grad.body, {0: row}, kept)

    return scatter_into(graph, zeros, [grad, indices], place, "atomic_add")
