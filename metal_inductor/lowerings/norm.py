"""Softmax and the normalisations: chains of row reductions and elementwise steps that the scheduler fuses.

Everything between the input and the result is float32; a result is rounded once, when it is stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import sympy
import torch

from metal_inductor import ir
from metal_inductor.ir import Expr, TensorValue
from metal_inductor.lowerings import elementwise as ew
from metal_inductor.lowerings.common import combine, convert, overloads, to_float32, wrap_dim
from metal_inductor.lowerings.reduction import quotient, reduced_count
from metal_inductor.lowerings.registry import lower
from metal_inductor.lowerings.variance import moments, reduction_over

if TYPE_CHECKING:
    from metal_inductor.lower import GraphLowering

aten = torch.ops.aten


def total(graph: GraphLowering, value: TensorValue, dims: Sequence[int]) -> TensorValue:
    """The float32 sum over `dims`, kept at size one."""
    return graph.reduce("sum", value, dims, True, torch.float32)


# ---------------------------------------------------------------------------------------------- softmax


def shifted(graph: GraphLowering, value: TensorValue, dim: int) -> TensorValue:
    """`value` less its maximum along `dim`, in float32: exponentials of it do not overflow."""
    value = to_float32(value)
    top = graph.reduce("max", value, [dim], True, torch.float32)
    return combine(graph, ew.sub, value, top)


@lower(aten._softmax.default)
def softmax(graph: GraphLowering, value: TensorValue, dim: int, half_to_float: bool) -> TensorValue:
    dim = wrap_dim(dim, value.rank)
    powers = combine(graph, ew.exp, shifted(graph, value, dim))
    return convert(combine(graph, ew.div, powers, total(graph, powers, [dim])), graph.result_dtype())


@lower(aten._log_softmax.default)
def log_softmax(graph: GraphLowering, value: TensorValue, dim: int, half_to_float: bool) -> TensorValue:
    dim = wrap_dim(dim, value.rank)
    logits = shifted(graph, value, dim)
    denominator = total(graph, combine(graph, ew.exp, logits), [dim])
    result = combine(graph, lambda x, s: ew.sub(x, ew.log(s)), logits, denominator)
    return convert(result, graph.result_dtype())


@lower(aten._softmax_backward_data.default)
def softmax_backward(
    graph: GraphLowering, grad: TensorValue, output: TensorValue, dim: int, input_dtype: torch.dtype
) -> TensorValue:
    """output * (grad - sum(grad * output))"""
    grad, output = to_float32(grad), to_float32(output)
    weighted = total(graph, combine(graph, ew.mul, grad, output), [wrap_dim(dim, grad.rank)])
    result = combine(graph, lambda g, y, s: ew.mul(y, ew.sub(g, s)), grad, output, weighted)
    return convert(result, graph.result_dtype())


@lower(aten._log_softmax_backward_data.default)
def log_softmax_backward(
    graph: GraphLowering, grad: TensorValue, output: TensorValue, dim: int, input_dtype: torch.dtype
) -> TensorValue:
    """grad - exp(output) * sum(grad)"""
    grad, output = to_float32(grad), to_float32(output)
    summed = total(graph, grad, [wrap_dim(dim, grad.rank)])
    result = combine(graph, lambda g, y, s: ew.sub(g, ew.mul(ew.exp(y), s)), grad, output, summed)
    return convert(result, graph.result_dtype())


# ---------------------------------------------------------------------------------------------- layer and RMS norm


def inverse_root(graph: GraphLowering, variance: TensorValue, eps: Any) -> TensorValue:
    return combine(graph, lambda v: ew.unary("rsqrt")(ew.add(v, ew.like(eps, v))), variance)


def scaled_and_shifted(
    graph: GraphLowering, value: TensorValue, weight: TensorValue | None, bias: TensorValue | None
) -> TensorValue:
    if weight is not None:
        value = combine(graph, ew.mul, value, to_float32(weight))
    if bias is not None:
        value = combine(graph, ew.add, value, to_float32(bias))
    return value


def normalized(graph: GraphLowering, value: TensorValue, mean: TensorValue, rstd: TensorValue) -> TensorValue:
    return combine(graph, lambda x, m, r: ew.mul(ew.sub(x, m), r), to_float32(value), mean, rstd)


def trailing(value: TensorValue, count: int) -> list[int]:
    return list(range(value.rank - count, value.rank))


@lower(aten.native_layer_norm.default)
def layer_norm(
    graph: GraphLowering,
    value: TensorValue,
    normalized_shape: Sequence[Any],
    weight: TensorValue | None,
    bias: TensorValue | None,
    eps: float,
) -> tuple[TensorValue, TensorValue, TensorValue]:
    """(result, mean, 1 / standard deviation); the last two keep the normalised dimensions at size one."""
    found = moments(graph, value, trailing(value, len(normalized_shape)))
    rstd = inverse_root(graph, found.variance, eps)
    unit = combine(graph, ew.mul, found.deviation(graph, value), rstd)
    parts = (scaled_and_shifted(graph, unit, weight, bias), found.mean(graph), rstd)
    return tuple(convert(part, graph.result_dtype(k)) for k, part in enumerate(parts))  # type: ignore[return-value]


def row_gradient(
    graph: GraphLowering, grad: TensorValue, unit: TensorValue, rstd: TensorValue, dims: Sequence[int]
) -> TensorValue:
    """The gradient through `unit = (x - mean) * rstd`, given that of `unit`."""
    count = reduced_count(unit, dims)
    mean_grad = total(graph, grad, dims)
    mean_product = total(graph, combine(graph, ew.mul, grad, unit), dims)

    def formula(g: Expr, y: Expr, r: Expr, sum_g: Expr, sum_gy: Expr) -> Expr:
        n = ir.index_value(count, torch.float32)
        correction = ew.div(ew.add(sum_g, ew.mul(y, sum_gy)), n)
        return ew.mul(ew.sub(g, correction), r)

    return combine(graph, formula, grad, unit, rstd, mean_grad, mean_product)


def column_sum(graph: GraphLowering, value: TensorValue, dims: Sequence[int], output: int) -> TensorValue:
    """The gradient of a weight or bias: a sum over the dimensions that it was broadcast along."""
    summed = graph.reduce("sum", value, dims, False, torch.float32) if dims else value
    return convert(graph.reshape(summed, graph.result_shape(output)), graph.result_dtype(output))


@lower(aten.native_layer_norm_backward.default)
def layer_norm_backward(
    graph: GraphLowering,
    grad: TensorValue,
    value: TensorValue,
    normalized_shape: Sequence[Any],
    mean: TensorValue,
    rstd: TensorValue,
    weight: TensorValue | None,
    bias: TensorValue | None,
    output_mask: Sequence[bool],
) -> tuple[TensorValue | None, ...]:
    grad, mean, rstd = to_float32(grad), to_float32(mean), to_float32(rstd)
    inner = trailing(value, len(normalized_shape))
    outer = [dim for dim in range(value.rank) if dim not in inner]
    unit = normalized(graph, value, mean, rstd)
    through = scaled_and_shifted(graph, grad, weight, None)
    found = row_gradient(graph, through, unit, rstd, inner) if output_mask[0] else None
    return (
        None if found is None else convert(found, graph.result_dtype(0)),
        column_sum(graph, combine(graph, ew.mul, grad, unit), outer, 1) if output_mask[1] else None,
        column_sum(graph, grad, outer, 2) if output_mask[2] else None,
    )


@lower(*overloads("_fused_rms_norm"))
def rms_norm(
    graph: GraphLowering,
    value: TensorValue,
    normalized_shape: Sequence[Any],
    weight: TensorValue | None,
    eps: float | None,
) -> tuple[TensorValue, TensorValue]:
    """(result, 1 / root of the mean square)"""
    eps = torch.finfo(value.dtype).eps if eps is None else eps
    wide = to_float32(value)
    dims = trailing(value, len(normalized_shape))
    squares = reduction_over(graph, wide, dims, True)("sum", combine(graph, lambda x: ew.mul(x, x), wide))
    rstd = inverse_root(graph, quotient(squares, reduced_count(wide, dims)), eps)
    result = scaled_and_shifted(graph, combine(graph, ew.mul, wide, rstd), weight, None)
    return convert(result, graph.result_dtype(0)), convert(rstd, graph.result_dtype(1))


@lower(*overloads("_fused_rms_norm_backward"))
def rms_norm_backward(
    graph: GraphLowering,
    grad: TensorValue,
    value: TensorValue,
    normalized_shape: Sequence[Any],
    rstd: TensorValue,
    weight: TensorValue | None,
    output_mask: Sequence[bool],
) -> tuple[TensorValue | None, ...]:
    grad, rstd = to_float32(grad), to_float32(rstd)
    inner = trailing(value, len(normalized_shape))
    outer = [dim for dim in range(value.rank) if dim not in inner]
    unit = combine(graph, ew.mul, to_float32(value), rstd)
    through = scaled_and_shifted(graph, grad, weight, None)
    product = total(graph, combine(graph, ew.mul, through, unit), inner)
    count = reduced_count(value, inner)

    def formula(g: Expr, y: Expr, r: Expr, s: Expr) -> Expr:
        return ew.mul(ew.sub(g, ew.div(ew.mul(y, s), ir.index_value(count, torch.float32))), r)

    found = combine(graph, formula, through, unit, rstd, product)
    return (
        convert(found, graph.result_dtype(0)) if output_mask[0] else None,
        column_sum(graph, combine(graph, ew.mul, grad, unit), outer, 1) if output_mask[1] else None,
    )


# ---------------------------------------------------------------------------------------------- group norm


def grouped(graph: GraphLowering, value: TensorValue, sizes: Sequence[Any], groups: int) -> TensorValue:
    """(N, C, HxW) of any rank as (N, groups, C / groups, HxW)."""
    batch, channels, pixels = sizes
    return graph.reshape(value, [batch, groups, sympy.sympify(channels) / groups, pixels])


def channel_wise(graph: GraphLowering, value: TensorValue | None, groups: int) -> TensorValue | None:
    """A weight of C elements as (groups, C / groups, 1)."""
    return None if value is None else graph.reshape(value, [groups, value.shape[0] / groups, 1])


@lower(aten.native_group_norm.default)
def group_norm(
    graph: GraphLowering,
    value: TensorValue,
    weight: TensorValue | None,
    bias: TensorValue | None,
    N: Any,
    C: Any,
    HxW: Any,
    group: int,
    eps: float,
) -> tuple[TensorValue, TensorValue, TensorValue]:
    parts = grouped(graph, value, (N, C, HxW), group)
    found = moments(graph, parts, [2, 3])
    rstd = inverse_root(graph, found.variance, eps)
    unit = combine(graph, ew.mul, found.deviation(graph, parts), rstd)
    result = scaled_and_shifted(graph, unit, channel_wise(graph, weight, group), channel_wise(graph, bias, group))
    shaped = (graph.reshape(part, graph.result_shape(k)) for k, part in enumerate((result, found.mean(graph), rstd)))
    return tuple(convert(part, graph.result_dtype(k)) for k, part in enumerate(shaped))  # type: ignore[return-value]


@lower(aten.native_group_norm_backward.default)
def group_norm_backward(
    graph: GraphLowering,
    grad: TensorValue,
    value: TensorValue,
    mean: TensorValue,
    rstd: TensorValue,
    weight: TensorValue | None,
    N: Any,
    C: Any,
    HxW: Any,
    group: int,
    output_mask: Sequence[bool],
) -> tuple[TensorValue | None, ...]:
    parts, grads = (grouped(graph, to_float32(v), (N, C, HxW), group) for v in (value, grad))
    mean, rstd = (graph.reshape(to_float32(v), [N, group, 1, 1]) for v in (mean, rstd))
    unit = normalized(graph, parts, mean, rstd)
    through = scaled_and_shifted(graph, grads, channel_wise(graph, weight, group), None)
    found = None
    if output_mask[0]:
        found = graph.reshape(row_gradient(graph, through, unit, rstd, [2, 3]), graph.result_shape(0))
    return (
        None if found is None else convert(found, graph.result_dtype(0)),
        column_sum(graph, combine(graph, ew.mul, grads, unit), [0, 3], 1) if output_mask[1] else None,
        column_sum(graph, grads, [0, 3], 2) if output_mask[2] else None,
    )


# ---------------------------------------------------------------------------------------------- batch norm


def per_channel(graph: GraphLowering, value: TensorValue | None, rank: int) -> TensorValue | None:
    """A tensor of C elements as (C, 1, 1, ...), which broadcasts along everything but the channels."""
    return None if value is None else graph.reshape(to_float32(value), [value.shape[0]] + [1] * (rank - 2))


def flat_channels(graph: GraphLowering, value: TensorValue) -> TensorValue:
    return graph.reshape(value, [value.numel])


def batch_norm_inference(
    graph: GraphLowering, value: TensorValue, weight: Any, bias: Any, mean: TensorValue, var: TensorValue, eps: float
) -> TensorValue:
    center, scale = per_channel(graph, mean, value.rank), inverse_root(graph, per_channel(graph, var, value.rank), eps)
    unit = normalized(graph, value, center, scale)
    weight, bias = (per_channel(graph, part, value.rank) for part in (weight, bias))
    return convert(scaled_and_shifted(graph, unit, weight, bias), value.dtype)


def batch_mean(center: Expr, shift: Expr) -> Expr:
    """The mean; that of a batch with an infinity is infinite, as torch's running mean becomes."""
    return ew.where(ew.isnan(shift), center, ew.add(center, shift))


def batch_norm_training(
    graph: GraphLowering, value: TensorValue, weight: Any, bias: Any, eps: float
) -> tuple[TensorValue, TensorValue, TensorValue, TensorValue]:
    """(result, mean, 1 / standard deviation, unbiased variance) of the batch; the last three have C elements."""
    dims = [dim for dim in range(value.rank) if dim != 1]
    found = moments(graph, value, dims)
    rstd = inverse_root(graph, found.variance, eps)
    weight, bias = (per_channel(graph, part, value.rank) for part in (weight, bias))
    unit = combine(graph, ew.mul, found.deviation(graph, value), rstd)
    result = convert(scaled_and_shifted(graph, unit, weight, bias), value.dtype)
    mean = combine(graph, batch_mean, found.center, found.shift)
    count, freedom = (ir.index_value(reduced_count(value, dims) - k, torch.float32) for k in (0, 1))
    unbiased = combine(graph, lambda v: ew.div(ew.mul(v, count), freedom), found.variance)
    return result, *(flat_channels(graph, part) for part in (mean, rstd, unbiased))  # type: ignore[return-value]


def blended(graph: GraphLowering, old: TensorValue, new: TensorValue, momentum: float) -> TensorValue:
    """A running statistic after one more batch."""

    def formula(a: Expr, b: Expr) -> Expr:
        return ew.add(ew.mul(a, ew.like(1 - momentum, a)), ew.mul(b, ew.like(momentum, b)))

    return convert(combine(graph, formula, to_float32(old), new), old.dtype)


def empty(graph: GraphLowering, output: int) -> TensorValue:
    return graph.full(graph.result_shape(output), 0, graph.result_dtype(output))


@lower(*overloads("_native_batch_norm_legit", "no_stats"))
def batch_norm_no_stats(
    graph: GraphLowering, value: TensorValue, weight: Any, bias: Any, training: bool, momentum: float, eps: float
) -> tuple[TensorValue, ...]:
    return batch_norm_training(graph, value, weight, bias, eps)[:3]


@lower(*overloads("_native_batch_norm_legit_no_training"))
def batch_norm_no_training(
    graph: GraphLowering,
    value: TensorValue,
    weight: Any,
    bias: Any,
    running_mean: TensorValue,
    running_var: TensorValue,
    momentum: float,
    eps: float,
) -> tuple[TensorValue, ...]:
    result = batch_norm_inference(graph, value, weight, bias, running_mean, running_var, eps)
    return result, empty(graph, 1), empty(graph, 2)


@lower(*overloads("_native_batch_norm_legit_functional"))
def batch_norm_functional(
    graph: GraphLowering,
    value: TensorValue,
    weight: Any,
    bias: Any,
    running_mean: TensorValue,
    running_var: TensorValue,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[TensorValue, ...]:
    """(result, batch mean, batch 1 / deviation, new running mean, new running variance)"""
    if not training:
        result = batch_norm_inference(graph, value, weight, bias, running_mean, running_var, eps)
        return result, empty(graph, 1), empty(graph, 2), running_mean, running_var
    result, mean, rstd, unbiased = batch_norm_training(graph, value, weight, bias, eps)
    updated = (blended(graph, running_mean, mean, momentum), blended(graph, running_var, unbiased, momentum))
    return result, mean, rstd, *updated


@lower(aten.native_batch_norm_backward.default)
def batch_norm_backward(
    graph: GraphLowering,
    grad: TensorValue,
    value: TensorValue,
    weight: TensorValue | None,
    running_mean: TensorValue | None,
    running_var: TensorValue | None,
    save_mean: TensorValue | None,
    save_invstd: TensorValue | None,
    train: bool,
    eps: float,
    output_mask: Sequence[bool],
) -> tuple[TensorValue | None, ...]:
    rank, dims = value.rank, [dim for dim in range(value.rank) if dim != 1]
    grad = to_float32(grad)
    mean = per_channel(graph, save_mean if train else running_mean, rank)
    spread = per_channel(graph, save_invstd if train else running_var, rank)
    rstd = spread if train else inverse_root(graph, spread, eps)
    unit = normalized(graph, value, mean, rstd)
    through = scaled_and_shifted(graph, grad, per_channel(graph, weight, rank), None)
    found = None
    if output_mask[0]:
        found = row_gradient(graph, through, unit, rstd, dims) if train else combine(graph, ew.mul, through, rstd)
    return (
        None if found is None else convert(found, graph.result_dtype(0)),
        column_sum(graph, combine(graph, ew.mul, grad, unit), dims, 1) if output_mask[1] else None,
        column_sum(graph, grad, dims, 2) if output_mask[2] else None,
    )
