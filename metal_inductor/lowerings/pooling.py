"""Pooling: the window is reduced, and what lies in the padding is masked, not read.

The backward passes gather: each input position adds up the windows that hold it, so no atomics are needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sympy
import torch
from torch.utils._sympy.functions import FloorDiv

from metal_inductor import ir
from metal_inductor.ir import Expr, TensorValue
from metal_inductor.lowerings import elementwise as ew
from metal_inductor.lowerings.common import all_of, convert, index_less, index_within, to_float32
from metal_inductor.lowerings.gather_scatter import Placement, scatter_into
from metal_inductor.lowerings.registry import Unsupported, lower

if TYPE_CHECKING:
    from metal_inductor.lower import GraphLowering

aten = torch.ops.aten


@dataclass(frozen=True)
class Window:
    """A pooling window over the last `rank` dimensions, one number a dimension."""

    kernel: tuple[Any, ...]
    stride: tuple[Any, ...]
    padding: tuple[Any, ...]
    dilation: tuple[Any, ...]

    @staticmethod
    def of(rank: int, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1) -> Window:
        def each(value: Any) -> tuple[Any, ...]:
            values = tuple(value) if isinstance(value, (list, tuple)) else (value,)
            return values * rank if len(values) == 1 else values

        return Window(each(kernel), each(stride or kernel), each(padding), each(dilation))

    @property
    def rank(self) -> int:
        return len(self.kernel)


def windows(
    graph: GraphLowering, value: TensorValue, window: Window, shape: Sequence[Any], outside: float
) -> TensorValue:
    """`value` as (*shape, *kernel): every window's elements, `outside` in the padding."""
    lead = value.rank - window.rank
    full = (*(sympy.sympify(size) for size in shape), *(sympy.sympify(size) for size in window.kernel))
    symbols = ir.index_symbols(len(full))
    index: list[Any] = list(symbols[:lead])
    conditions: list[Expr] = []
    for k in range(window.rank):
        at = symbols[lead + k] * window.stride[k] + symbols[len(shape) + k] * window.dilation[k] - window.padding[k]
        index.append(at)
        conditions += index_within(at, 0, value.shape[lead + k])
    body = value.at(index, lambda e: graph.simplify(e, full))
    filler = ew.number(outside, value.dtype)
    return TensorValue(full, value.dtype, ir.masked(all_of(*conditions), body, filler))


# ---------------------------------------------------------------------------------------------- average pooling


def window_count(value_sizes: Sequence[Any], window: Window, at: Sequence[Any], count_padding: bool) -> sympy.Expr:
    """How many elements the window at output position `at` averages over."""
    extents = []
    for size, kernel, stride, padding, place in zip(
        value_sizes, window.kernel, window.stride, window.padding, at, strict=True
    ):
        start = place * stride - padding
        end = sympy.Min(start + kernel, size + padding)
        if not count_padding:
            start, end = sympy.Max(start, 0), sympy.Min(end, size)
        extents.append(end - start)
    return ir.product(extents)


def average(
    graph: GraphLowering,
    value: TensorValue,
    window: Window,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> TensorValue:
    shape, lead = graph.result_shape(), value.rank - window.rank
    parts = windows(graph, to_float32(value), window, shape, 0.0)
    total = graph.reduce("sum", parts, range(value.rank, parts.rank), False, torch.float32)
    places = ir.index_symbols(value.rank)[lead:]
    count = divisor_override or window_count(value.shape[lead:], window, places, count_include_pad)
    body = ew.div(total.body, ir.index_value(count, torch.float32))
    return convert(TensorValue(shape, torch.float32, body), graph.result_dtype())


def _register_average(rank: int) -> None:
    @lower(getattr(aten, f"avg_pool{rank}d").default)
    def lowering(
        graph: GraphLowering,
        value: TensorValue,
        kernel_size: Any,
        stride: Any = (),
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> TensorValue:
        window = Window.of(rank, kernel_size, stride, padding)
        return average(graph, value, window, count_include_pad, divisor_override)


for _rank in (1, 2, 3):
    _register_average(_rank)


def holders(place: Any, window: Window, k: int) -> tuple[int, Any]:
    """(how many windows can hold input position `place` along dimension k, the last of them)."""
    return -(-window.kernel[k] // window.stride[k]), FloorDiv(place + window.padding[k], window.stride[k])


def _register_average_backward(rank: int) -> None:
    @lower(getattr(aten, f"avg_pool{rank}d_backward").default)
    def lowering(
        graph: GraphLowering,
        grad: TensorValue,
        value: TensorValue,
        kernel_size: Any,
        stride: Any,
        padding: Any,
        ceil_mode: bool,
        count_include_pad: bool,
        divisor_override: int | None,
    ) -> TensorValue:
        window = Window.of(rank, kernel_size, stride, padding)
        return average_backward(graph, to_float32(grad), value, window, count_include_pad, divisor_override)


def average_backward(
    graph: GraphLowering,
    grad: TensorValue,
    value: TensorValue,
    window: Window,
    count_include_pad: bool,
    divisor_override: int | None,
) -> TensorValue:
    lead = value.rank - window.rank
    symbols = ir.index_symbols(value.rank + window.rank)
    places, conditions, choices = [], [], []
    for k in range(window.rank):
        place = symbols[lead + k]
        count, last = holders(place, window, k)
        output = last - symbols[value.rank + k]
        choices.append(sympy.Integer(count))
        places.append(output)
        conditions += index_within(output, 0, grad.shape[lead + k])
        start = output * window.stride[k] - window.padding[k]
        conditions += index_within(place, start, start + window.kernel[k])
    share = divisor_override or window_count(value.shape[lead:], window, places, count_include_pad)
    body = ew.div(grad.at([*symbols[:lead], *places]), ir.index_value(share, torch.float32))
    zero = ir.constant(0.0, torch.float32)
    parts = TensorValue((*value.shape, *choices), torch.float32, ir.masked(all_of(*conditions), body, zero))
    total = graph.reduce("sum", parts, range(value.rank, parts.rank), False, torch.float32)
    return convert(total, graph.result_dtype())


for _rank in (2, 3):
    _register_average_backward(_rank)


# ---------------------------------------------------------------------------------------------- adaptive averages


def adaptive_average(graph: GraphLowering, value: TensorValue, rank: int) -> TensorValue:
    """Window k of n covers [floor(k * size / n), ceil((k + 1) * size / n))."""
    shape, lead = graph.result_shape(), value.rank - rank
    outputs, inputs = shape[lead:], value.shape[lead:]
    if not all(sympy.sympify(size).is_Integer for size in (*outputs, *inputs)):
        raise Unsupported("adaptive pooling with sizes that change between calls")
    if 0 in outputs:
        return graph.full(shape, 0, value.dtype)
    symbols = ir.index_symbols(value.rank + rank)
    starts = [FloorDiv(symbols[lead + k] * inputs[k], outputs[k]) for k in range(rank)]
    ends = [FloorDiv((symbols[lead + k] + 1) * inputs[k] + outputs[k] - 1, outputs[k]) for k in range(rank)]
    longest = [widest(int(inputs[k]), int(outputs[k])) for k in range(rank)]
    at = [starts[k] + symbols[value.rank + k] for k in range(rank)]
    wide = to_float32(value)
    body = wide.at([*symbols[:lead], *at])
    conditions = [ew.lt(ir.index_value(at[k]), ir.index_value(ends[k])) for k in range(rank)]
    zero = ir.constant(0.0, torch.float32)
    parts = TensorValue((*shape, *longest), torch.float32, ir.masked(all_of(*conditions), body, zero))
    total = graph.reduce("sum", parts, range(value.rank, parts.rank), False, torch.float32)
    count = ir.product(end - start for start, end in zip(starts, ends))
    body = ew.div(total.body, ir.index_value(count, torch.float32))
    return convert(TensorValue(shape, torch.float32, body), graph.result_dtype())


def widest(size: int, outputs: int) -> sympy.Integer:
    """The length of the longest adaptive window."""
    return sympy.Integer(max(-(-(k + 1) * size // outputs) - k * size // outputs for k in range(outputs)))


@lower(aten._adaptive_avg_pool2d.default)
def adaptive_avg_pool2d(graph: GraphLowering, value: TensorValue, output_size: Any) -> TensorValue:
    return adaptive_average(graph, value, 2)


@lower(aten._adaptive_avg_pool3d.default)
def adaptive_avg_pool3d(graph: GraphLowering, value: TensorValue, output_size: Any) -> TensorValue:
    return adaptive_average(graph, value, 3)


@lower(aten._adaptive_avg_pool2d_backward.default, aten._adaptive_avg_pool3d_backward.default)
def adaptive_avg_pool_backward(graph: GraphLowering, grad: TensorValue, value: TensorValue) -> TensorValue:
    """Each input position adds up its share of the windows that hold it: those from floor(i * n / size) to
    ceil((i + 1) * n / size) - 1."""
    rank = 2 if graph.node.target is aten._adaptive_avg_pool2d_backward.default else 3
    lead = value.rank - rank
    inputs, outputs = value.shape[lead:], grad.shape[lead:]
    if not all(size.is_Integer for size in (*inputs, *outputs)):
        raise Unsupported("adaptive pooling with sizes that change between calls")
    symbols = ir.index_symbols(value.rank + rank)
    places, conditions, shares, counts = [], [], [], []
    for k, (size, windows_) in enumerate(zip(inputs, outputs)):
        at = FloorDiv(symbols[lead + k] * windows_, size) + symbols[value.rank + k]
        places.append(at)
        conditions.append(index_less(at, FloorDiv((symbols[lead + k] + 1) * windows_ + size - 1, size)))
        shares.append(FloorDiv((at + 1) * size + windows_ - 1, windows_) - FloorDiv(at * size, windows_))
        counts.append(widest(int(windows_), int(size)))
    share = ir.index_value(ir.product(shares), torch.float32)
    body = ew.div(to_float32(grad).at([*symbols[:lead], *places]), share)
    zero = ir.constant(0.0, torch.float32)
    parts = TensorValue((*value.shape, *counts), torch.float32, ir.masked(all_of(*conditions), body, zero))
    total = graph.reduce("sum", parts, range(value.rank, parts.rank), False, torch.float32)
    return convert(total, graph.result_dtype())


# ---------------------------------------------------------------------------------------------- maxima


@lower(aten.max_pool2d_with_indices.default)
def max_pool2d_with_indices(
    graph: GraphLowering,
    value: TensorValue,
    kernel_size: Any,
    stride: Any = (),
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> tuple[TensorValue, TensorValue]:
    """(maxima, their flat positions in the plane); NaN wins, ties take the first."""
    window = Window.of(2, kernel_size, stride, padding, dilation)
    shape = graph.result_shape(0)
    lowest = float("-inf") if value.dtype.is_floating_point else torch.iinfo(value.dtype).min
    parts = windows(graph, value, window, shape, lowest)
    area = ir.product(window.kernel)
    flat = graph.reshape(parts, [*shape, area])
    maxima = graph.reduce("max", flat, [value.rank], False)
    found = graph.reduce("argmax", flat, [value.rank], False, torch.int64)
    return maxima, TensorValue(shape, torch.int64, plane_position(found.body, value, window))


def plane_position(found: Expr, value: TensorValue, window: Window) -> Expr:
    """The position in the plane of element `found` of the window: where all elements are the lowest value, the first of
    them may lie in the padding and gives way to the first inside."""
    lead = value.rank - 2
    width = ew.number(window.kernel[1], torch.int64)
    offsets = (ew.binary("floor_div")(found, width), ew.binary("remainder")(found, width))
    position: Expr | None = None
    for k, offset in enumerate(offsets):
        dilation = ew.number(window.dilation[k], torch.int64)
        corner = ir.index_value(ir.index_symbol(lead + k) * window.stride[k] - window.padding[k])
        at = ew.add(corner, ew.mul(offset, dilation))
        inside = ew.binary("remainder")(at, dilation) if window.dilation[k] != 1 else ew.like(0, at)
        at = ew.where(ew.lt(at, ew.like(0, at)), inside, at)
        position = at if position is None else ew.add(ew.mul(position, ir.index_value(value.shape[lead + k])), at)
    assert position is not None
    return position


@lower(aten.max_pool2d_with_indices_backward.default)
def max_pool2d_with_indices_backward(
    graph: GraphLowering,
    grad: TensorValue,
    value: TensorValue,
    kernel_size: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    ceil_mode: bool,
    indices: TensorValue,
) -> TensorValue:
    """Windows overlap, so gradients of one element add up."""
    lead = value.rank - 2
    planes = (*value.shape[:lead], value.shape[lead] * value.shape[lead + 1])
    zeros = graph.full(planes, 0, value.dtype)

    def place(grad: TensorValue, indices: TensorValue) -> Placement:
        symbols = ir.index_symbols(lead)
        return Placement(grad.shape, [*symbols, None], grad.body, {lead: indices.body})

    return graph.reshape(scatter_into(graph, zeros, [grad, indices], place, "atomic_add"), value.shape)
