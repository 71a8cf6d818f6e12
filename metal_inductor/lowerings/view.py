"""Views and index permutations: each is a substitution of index symbols and costs no kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import sympy
import torch

from metal_inductor import ir
from metal_inductor.indexing import modular
from metal_inductor.ir import TensorValue
from metal_inductor.lowerings.common import element_index, overloads, slice_bound, truth, wrap_dim
from metal_inductor.lowerings.registry import Unsupported, lower
from metal_inductor.torch_compat import scalar_expr, size_expr

if TYPE_CHECKING:
    from metal_inductor.lower import GraphLowering

aten = torch.ops.aten


# ---------------------------------------------------------------------------------------------- sizes


@lower(aten.sym_size.int, aten.sym_stride.int, aten.sym_numel.default, aten.sym_storage_offset.default)
def sym_property(graph: GraphLowering, value: TensorValue, *dim: int) -> Any:
    """A size is known when the graph is lowered: no call is needed for it."""
    return scalar_expr(graph.meta)


# ---------------------------------------------------------------------------------------------- the same elements


@lower(aten.alias.default, aten.detach.default, aten.lift_fresh.default, aten.lift_fresh_copy.default)
def alias(graph: GraphLowering, value: TensorValue) -> TensorValue:
    return value


@lower(
    aten.view.default, aten.reshape.default, aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims,
    aten.unsqueeze.default, aten.flatten.using_ints, *overloads("_unsafe_view"), *overloads("_reshape_alias"),
    *overloads("view_copy"), *overloads("unflatten", "int"),
)  # fmt: skip
def reshape(graph: GraphLowering, value: TensorValue, *target: Any) -> TensorValue:
    return graph.reshape(value, graph.result_shape())


@lower(aten.view.dtype)
def view_dtype(graph: GraphLowering, value: TensorValue, dtype: torch.dtype) -> TensorValue:
    if dtype == value.dtype:
        return value
    if dtype.itemsize != value.dtype.itemsize:
        raise Unsupported(f"the bytes of {value.dtype} as {dtype}")
    if not isinstance(value.body, (ir.Load, ir.Constant)):
        value = graph.realize(value, force=True)  # half-precision values have their bits only in memory
    return TensorValue(value.shape, dtype, ir.op("bitcast", value.body, dtype=dtype))


# ---------------------------------------------------------------------------------------------- permutations


def permuted(graph: GraphLowering, value: TensorValue, order: Sequence[int]) -> TensorValue:
    """Dimension `k` of the result is dimension `order[k]` of `value`."""
    order = [wrap_dim(dim, value.rank) for dim in order]
    place = {dim: k for k, dim in enumerate(order)}
    shape = [value.shape[dim] for dim in order]
    return graph.view_as(value, shape, lambda *i: [i[place[dim]] for dim in range(value.rank)])


@lower(aten.permute.default)
def permute(graph: GraphLowering, value: TensorValue, dims: Sequence[int]) -> TensorValue:
    return permuted(graph, value, dims)


@lower(aten.transpose.int)
def transpose(graph: GraphLowering, value: TensorValue, dim0: int, dim1: int) -> TensorValue:
    if value.rank == 0:
        return value
    order = list(range(value.rank))
    dim0, dim1 = wrap_dim(dim0, value.rank), wrap_dim(dim1, value.rank)
    order[dim0], order[dim1] = dim1, dim0
    return permuted(graph, value, order)


@lower(aten.t.default, *overloads("numpy_T"))
def t(graph: GraphLowering, value: TensorValue) -> TensorValue:
    return permuted(graph, value, range(value.rank)[::-1])


@lower(aten.movedim.int, aten.movedim.intlist)
def movedim(graph: GraphLowering, value: TensorValue, source: Any, destination: Any) -> TensorValue:
    sources = [wrap_dim(d, value.rank) for d in ([source] if isinstance(source, int) else source)]
    targets = [wrap_dim(d, value.rank) for d in ([destination] if isinstance(destination, int) else destination)]
    moved = dict(zip(targets, sources))
    rest = iter(dim for dim in range(value.rank) if dim not in sources)
    return permuted(graph, value, [moved[k] if k in moved else next(rest) for k in range(value.rank)])


@lower(aten.flip.default)
def flip(graph: GraphLowering, value: TensorValue, dims: Sequence[int]) -> TensorValue:
    dims = [wrap_dim(dim, value.rank) for dim in dims]

    def index(*i: sympy.Symbol) -> list[Any]:
        return [value.shape[k] - 1 - s if k in dims else s for k, s in enumerate(i)]

    return graph.view_as(value, value.shape, index)


def rolled(index: Any, shift: Any, size: Any, ranges: dict) -> sympy.Expr:
    """The source index along a dimension of `size` that is rolled by `shift`."""
    return modular(index + size - sympy.Mod(shift, size), 1, size, ranges)


@lower(aten.roll.default)
def roll(graph: GraphLowering, value: TensorValue, shifts: Any, dims: Any = ()) -> TensorValue:
    shifts = list(shifts) if isinstance(shifts, (list, tuple)) else [shifts]
    dims = list(dims) if isinstance(dims, (list, tuple)) else [dims]
    if any(size == 0 for size in value.shape):
        return value
    if not dims:
        flat = graph.reshape(value, [value.numel])
        return graph.reshape(roll(graph, flat, shifts, [0]), value.shape)
    amounts = [sympy.Integer(0)] * value.rank
    for shift, dim in zip(shifts, dims):
        amounts[wrap_dim(dim, value.rank)] += shift
    ranges = dict(zip(ir.index_symbols(value.rank), value.shape))

    def index(*i: sympy.Symbol) -> list[Any]:
        return [s if shift == 0 else rolled(s, shift, ranges[s], ranges) for s, shift in zip(i, amounts)]

    return graph.view_as(value, value.shape, index)


@lower(aten.rot90.default)
def rot90(graph: GraphLowering, value: TensorValue, k: int = 1, dims: Sequence[int] = (0, 1)) -> TensorValue:
    first, second = (wrap_dim(dim, value.rank) for dim in dims)
    if k % 4 == 0:
        return value
    if k % 4 == 2:
        return flip(graph, value, [first, second])
    flipped = flip(graph, value, [second if k % 4 == 1 else first])
    return transpose(graph, flipped, first, second)


# ---------------------------------------------------------------------------------------------- repetition


@lower(aten.expand.default, aten.broadcast_to.default, *overloads("expand_copy"))
def expand(graph: GraphLowering, value: TensorValue, size: Any, *, implicit: bool = False) -> TensorValue:
    return graph.broadcast_to(value, graph.result_shape())


@lower(aten.repeat.default, aten.tile.default)
def repeat(graph: GraphLowering, value: TensorValue, repeats: Sequence[Any]) -> TensorValue:
    shape = graph.result_shape()
    if any(size == 0 for size in shape):
        return TensorValue(shape, value.dtype, value.at([0] * value.rank))
    ranges = dict(zip(ir.index_symbols(len(shape)), shape))
    lead = len(shape) - value.rank

    def index(*i: sympy.Symbol) -> list[Any]:
        return [modular(s, 1, size, ranges) for s, size in zip(i[lead:], value.shape)]

    return graph.view_as(value, shape, index)


# ---------------------------------------------------------------------------------------------- parts of a tensor


def narrowed(graph: GraphLowering, value: TensorValue, dim: int, start: Any, length: Any, step: Any = 1) -> TensorValue:
    """`length` elements along `dim` from `start`, every `step`-th."""
    shape = [*value.shape[:dim], sympy.sympify(length), *value.shape[dim + 1 :]]
    return graph.view_as(value, shape, lambda *i: [s * step + start if k == dim else s for k, s in enumerate(i)])


@lower(aten.slice.Tensor)
def slice_tensor(
    graph: GraphLowering, value: TensorValue, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1
) -> TensorValue:
    dim = wrap_dim(dim, value.rank)
    start = slice_bound(graph, start, value.shape[dim], 0)
    return narrowed(graph, value, dim, start, graph.result_shape()[dim], step)


@lower(aten.narrow.default)
def narrow(graph: GraphLowering, value: TensorValue, dim: int, start: Any, length: Any) -> TensorValue:
    dim = wrap_dim(dim, value.rank)
    return narrowed(graph, value, dim, element_index(graph, start, value.shape[dim]), length)


def selected(graph: GraphLowering, value: TensorValue, dim: int, index: Any) -> TensorValue:
    """`value` at `index` (counted from the front) of `dim`, which is removed."""
    shape = [*value.shape[:dim], *value.shape[dim + 1 :]]
    return graph.view_as(value, shape, lambda *i: [*i[:dim], index, *i[dim:]])


@lower(aten.select.int)
def select_int(graph: GraphLowering, value: TensorValue, dim: int, index: Any) -> TensorValue:
    dim = wrap_dim(dim, value.rank)
    return selected(graph, value, dim, element_index(graph, index, value.shape[dim]))


@lower(
    aten.split.Tensor, aten.split_with_sizes.default, aten.chunk.default, *overloads("split", "sizes"),
    *overloads("unsafe_split", "Tensor"), *overloads("unsafe_split_with_sizes"), *overloads("split_with_sizes_copy"),
)  # fmt: skip
def split(graph: GraphLowering, value: TensorValue, sizes: Any, dim: int = 0) -> list[TensorValue]:
    """The sizes of the parts are those that torch propagated."""
    dim = wrap_dim(dim, value.rank)
    parts, start = [], sympy.Integer(0)
    for k in range(len(graph.meta)):
        length = graph.result_shape(k)[dim]
        parts.append(narrowed(graph, value, dim, start, length))
        start = start + length
    return parts


@lower(aten.unbind.int)
def unbind(graph: GraphLowering, value: TensorValue, dim: int = 0) -> list[TensorValue]:
    dim = wrap_dim(dim, value.rank)
    return [selected(graph, value, dim, k) for k in range(len(graph.meta))]


@lower(aten.diagonal.default, *overloads("diagonal_copy"))
def diagonal(graph: GraphLowering, value: TensorValue, offset: int = 0, dim1: int = 0, dim2: int = 1) -> TensorValue:
    dim1, dim2 = wrap_dim(dim1, value.rank), wrap_dim(dim2, value.rank)
    kept = [dim for dim in range(value.rank) if dim not in (dim1, dim2)]

    def index(*i: sympy.Symbol) -> list[Any]:
        source: dict[int, Any] = dict(zip(kept, i))
        source[dim1], source[dim2] = i[-1] + max(-offset, 0), i[-1] + max(offset, 0)
        return [source[dim] for dim in range(value.rank)]

    return graph.view_as(value, graph.result_shape(), index)


@lower(aten.unfold.default, *overloads("unfold_copy"))
def unfold(graph: GraphLowering, value: TensorValue, dim: int, size: Any, step: Any) -> TensorValue:
    dim = wrap_dim(dim, value.rank)
    if value.rank == 0:
        return graph.reshape(value, graph.result_shape())

    def index(*i: sympy.Symbol) -> list[Any]:
        return [s * step + i[-1] if k == dim else s for k, s in enumerate(i[:-1])]

    return graph.view_as(value, graph.result_shape(), index)


# ---------------------------------------------------------------------------------------------- strides over memory


@lower(aten.as_strided.default)
def as_strided(
    graph: GraphLowering, value: TensorValue, size: Sequence[Any], stride: Sequence[Any], storage_offset: Any = None
) -> TensorValue:
    """Strides count over the memory that eager would have: that of the tensor which `value` is a view of."""
    source = graph.node.args[0]
    buffer, first = memory_of(graph, source)
    offset = size_expr(source.meta["val"].storage_offset()) if storage_offset is None else sympy.sympify(storage_offset)
    offset = sympy.expand(offset - first)
    shape = graph.result_shape()
    if truth(graph, offset < 0):
        raise Unsupported("as_strided reaches in front of its input's memory")
    index = offset + sympy.Add(*(s * step for s, step in zip(ir.index_symbols(len(shape)), stride)))
    return TensorValue(shape, value.dtype, ir.load(buffer, index, value.dtype))


def memory_of(graph: GraphLowering, node: Any) -> tuple[str, sympy.Expr]:
    """The buffer with the memory layout that eager gives to the tensor `node` is a view of, and where in that tensor's
    storage the buffer starts."""
    from metal_inductor.lower import alias_root, dense_stride

    root = alias_root(node)
    fake, value = root.meta["val"], graph.env[root]
    if not isinstance(value, TensorValue) or value.dtype != node.meta["val"].dtype:
        raise Unsupported("as_strided over memory of another dtype")
    stride = tuple(size_expr(step) for step in fake.stride())
    owner = graph.whole_buffer(value)
    if owner is None or owner.stride != stride:
        if dense_stride(fake, value.shape) is None:
            raise Unsupported("as_strided over a tensor with gaps in its memory")
        owner = graph.whole_buffer(graph.realize(value, stride, force=True))
    return owner.name, size_expr(fake.storage_offset())
