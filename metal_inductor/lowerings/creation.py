"""Tensors made from sizes and numbers: fills, ranges, identity and triangles. None of them costs memory by itself."""

from __future__ import annotations

from typing import Any

import sympy
import torch

from metal_inductor import ir
from metal_inductor.ir import Expr, TensorValue
from metal_inductor.lowerings import elementwise as ew
from metal_inductor.lowerings.registry import Unsupported, lower

aten = torch.ops.aten
prims = torch.ops.prims


def _filled(graph: Any, value: Any) -> TensorValue:
    dtype = graph.result_dtype()
    device = graph.meta.device
    if device.type != graph.device.type:
        raise Unsupported(f"a tensor on {device}")
    return TensorValue(graph.result_shape(), dtype, ew.rounded_number(value, dtype))


@lower(aten.full.default, aten.full_like.default, aten.new_full.default)
def _full(graph: Any, like_or_size: Any, *args: Any, **kwargs: Any) -> TensorValue:
    return _filled(graph, args[-1])


@lower(aten.scalar_tensor.default)
def _scalar_tensor(graph: Any, value: Any, **kwargs: Any) -> TensorValue:
    return _filled(graph, value)


@lower(aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default)
def _zeros(graph: Any, *args: Any, **kwargs: Any) -> TensorValue:
    return _filled(graph, 0)


@lower(aten.ones.default, aten.ones_like.default, aten.new_ones.default)
def _ones(graph: Any, *args: Any, **kwargs: Any) -> TensorValue:
    return _filled(graph, 1)


@lower(aten.empty.memory_format, aten.empty_like.default, aten.new_empty.default, aten.empty_permuted.default,
       aten.empty_strided.default, aten.new_empty_strided.default)  # fmt: skip
def _empty(graph: Any, *args: Any, **kwargs: Any) -> TensorValue:
    """Any contents are right; zeros fuse away."""
    return _filled(graph, 0)


# ---------------------------------------------------------------------------------------------- ranges


def _position(dtype: torch.dtype, axis: int = 0) -> Expr:
    return ir.cast(ir.index_value(ir.index_symbol(axis)), dtype)


def _symbolic(value: Any) -> bool:
    return isinstance(value, sympy.Basic) and not value.is_number


def _progression(graph: Any, start: Any, step: Any) -> TensorValue:
    """start + i * step in the dtype that eager accumulates in: float32 for floats, long for integers."""
    shape, dtype = graph.result_shape(), graph.result_dtype()
    if dtype.is_floating_point:
        i, first = _position(torch.float32), ew.number(start, torch.float32)
        body = ew.add(first, ew.mul(i, ew.number(step, torch.float32))) if start != 0 else ew.mul(
            i, ew.number(step, torch.float32)
        )  # fmt: skip
        return TensorValue(shape, dtype, ew.relabel(body, dtype))
    expr = sympy.sympify(_whole(start)) + sympy.sympify(_whole(step)) * ir.index_symbol(0)
    return TensorValue(shape, dtype, ir.cast(ir.index_value(expr), dtype))


def _whole(value: Any) -> Any:
    """An integer range's bound or step: fractions are cut off, as eager does."""
    return value if isinstance(value, sympy.Basic) and value.is_integer else int(value)


@lower(aten.arange.default)
def _arange(graph: Any, end: Any, **kwargs: Any) -> TensorValue:
    return _progression(graph, 0, 1)


@lower(aten.arange.start)
def _arange_start(graph: Any, start: Any, end: Any, **kwargs: Any) -> TensorValue:
    return _progression(graph, start, 1)


@lower(aten.arange.start_step)
def _arange_step(graph: Any, start: Any, end: Any, step: Any = 1, **kwargs: Any) -> TensorValue:
    return _progression(graph, start, step)


@lower(prims.iota.default)
def _iota(graph: Any, length: Any, *, start: Any, step: Any, **kwargs: Any) -> TensorValue:
    return _progression(graph, start, step)


@lower(aten.linspace.default)
def _linspace(graph: Any, start: Any, end: Any, steps: Any, **kwargs: Any) -> TensorValue:
    """From the nearer end, as eager does, so that both ends are exact."""
    shape, dtype = graph.result_shape(), graph.result_dtype()
    if not dtype.is_floating_point or any(_symbolic(value) for value in (start, end, steps)):
        raise Unsupported("linspace over integers or symbolic bounds")
    return TensorValue(shape, dtype, ew.relabel(_ramp(float(start), float(end), int(steps)), dtype))


def _ramp(start: float, end: float, steps: int) -> Expr:
    """Element i0 of `steps` evenly spaced float32 numbers."""
    if steps < 2:
        return ir.constant(start, torch.float32)
    i = _position(torch.float32)
    first, last = ir.constant(start, torch.float32), ir.constant(end, torch.float32)
    step = ir.constant((end - start) / (steps - 1), torch.float32)
    back = ew.sub(ir.constant(steps - 1, torch.float32), i)
    near_start = ew.lt(i, ir.constant(steps // 2, torch.float32))
    return ew.where(near_start, ew.add(first, ew.mul(step, i)), ew.sub(last, ew.mul(step, back)))


@lower(aten.logspace.default)
def _logspace(graph: Any, start: Any, end: Any, steps: Any, base: float = 10.0, **kwargs: Any) -> TensorValue:
    shape, dtype = graph.result_shape(), graph.result_dtype()
    if not dtype.is_floating_point or any(_symbolic(value) for value in (start, end, steps)):
        raise Unsupported("logspace over integers or symbolic bounds")
    exponent = _ramp(float(start), float(end), int(steps))
    body = ew.binary("pow")(ir.constant(base, torch.float32), exponent)
    return TensorValue(shape, dtype, ew.relabel(body, dtype))


# ---------------------------------------------------------------------------------------------- matrices


@lower(aten.eye.default, aten.eye.m)
def _eye(graph: Any, *args: Any, **kwargs: Any) -> TensorValue:
    diagonal = ew.eq(_position(torch.int64, 0), _position(torch.int64, 1))
    return TensorValue(graph.result_shape(), graph.result_dtype(), ir.cast(diagonal, graph.result_dtype()))


def _triangle(value: TensorValue, keep: Any, diagonal: Any) -> TensorValue:
    """`value` where `keep(column - row, diagonal)`, else zero: nothing is read outside of the triangle."""
    row, column = _position(torch.int64, value.rank - 2), _position(torch.int64, value.rank - 1)
    inside = keep(ew.sub(column, row), ew.number(diagonal, torch.int64))
    return TensorValue(value.shape, value.dtype, ir.masked(inside, value.body, ew.number(0, value.dtype)))


@lower(aten.tril.default)
def _tril(graph: Any, x: TensorValue, diagonal: Any = 0) -> TensorValue:
    return _triangle(x, ew.le, diagonal)


@lower(aten.triu.default)
def _triu(graph: Any, x: TensorValue, diagonal: Any = 0) -> TensorValue:
    return _triangle(x, ew.ge, diagonal)
