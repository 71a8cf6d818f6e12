"""Activation functions and their derivatives."""

from __future__ import annotations

import math
from typing import Any

import torch

from metal_inductor import ir
from metal_inductor.ir import Expr, TensorValue
from metal_inductor.lowerings import elementwise as ew
from metal_inductor.lowerings.elementwise import elementwise, like, where
from metal_inductor.lowerings.registry import lower

aten = torch.ops.aten

# gelu's tanh approximation (Hendrycks and Gimpel, 2016)
_TANH_SCALE = math.sqrt(2.0 / math.pi)
_TANH_CUBE = 0.044715


@lower(aten.relu.default)
def _relu(graph: Any, x: TensorValue) -> TensorValue:
    return elementwise(graph, lambda v: ew.maximum(v, like(0, v)), x)


@lower(aten.silu.default)
def _silu(graph: Any, x: TensorValue) -> TensorValue:
    return elementwise(graph, lambda v: ew.mul(v, ew.sigmoid(v)), x)


@lower(aten.silu_backward.default)
def _silu_backward(graph: Any, grad: TensorValue, x: TensorValue) -> TensorValue:
    def build(g: Expr, v: Expr) -> Expr:
        gate = ew.sigmoid(v)
        return ew.mul(ew.mul(g, gate), ew.add(like(1, v), ew.mul(v, ew.sub(like(1, v), gate))))

    return elementwise(graph, build, grad, x)


@lower(aten.sigmoid_backward.default)
def _sigmoid_backward(graph: Any, grad: TensorValue, output: TensorValue) -> TensorValue:
    return elementwise(graph, lambda g, y: ew.mul(ew.mul(g, ew.sub(like(1, y), y)), y), grad, output)


@lower(aten.tanh_backward.default)
def _tanh_backward(graph: Any, grad: TensorValue, output: TensorValue) -> TensorValue:
    return elementwise(graph, lambda g, y: ew.mul(g, ew.sub(like(1, y), ew.mul(y, y))), grad, output)


@lower(aten.threshold_backward.default)
def _threshold_backward(graph: Any, grad: TensorValue, x: TensorValue, threshold: Any) -> TensorValue:
    def build(g: Expr, v: Expr) -> Expr:
        return where(ew.le(v, like(threshold, v)), like(0, g), g)

    return elementwise(graph, build, grad, x)


@lower(aten.gelu.default)
def _gelu(graph: Any, x: TensorValue, *, approximate: str = "none") -> TensorValue:
    return elementwise(graph, _gelu_tanh if approximate == "tanh" else _gelu_erf, x)


def _gelu_erf(x: Expr) -> Expr:
    half = ew.mul(x, like(0.5, x))
    return ew.mul(half, ew.add(like(1, x), ew.erf(ew.mul(x, like(math.sqrt(0.5), x)))))


def _gelu_inner(x: Expr) -> Expr:
    cube = ew.mul(ew.mul(x, x), x)
    return ew.mul(like(_TANH_SCALE, x), ew.add(x, ew.mul(like(_TANH_CUBE, x), cube)))


def _gelu_tanh(x: Expr) -> Expr:
    return ew.mul(ew.mul(like(0.5, x), x), ew.add(like(1, x), ew.tanh(_gelu_inner(x))))


@lower(aten.gelu_backward.default)
def _gelu_backward(graph: Any, grad: TensorValue, x: TensorValue, *, approximate: str = "none") -> TensorValue:
    slope = _gelu_tanh_slope if approximate == "tanh" else _gelu_erf_slope
    return elementwise(graph, lambda g, v: ew.mul(g, slope(v)), grad, x)


def _gelu_erf_slope(x: Expr) -> Expr:
    """Phi(x) + x phi(x)."""
    distribution = ew.mul(like(0.5, x), ew.add(like(1, x), ew.erf(ew.mul(x, like(math.sqrt(0.5), x)))))
    density = ew.mul(like(1.0 / math.sqrt(2.0 * math.pi), x), ew.exp(ew.mul(ew.mul(x, x), like(-0.5, x))))
    return ew.add(distribution, ew.mul(x, density))


def _gelu_tanh_slope(x: Expr) -> Expr:
    one, half = like(1, x), like(0.5, x)
    wave = ew.tanh(_gelu_inner(x))
    inner_slope = ew.mul(like(_TANH_SCALE, x), ew.add(one, ew.mul(like(3 * _TANH_CUBE, x), ew.mul(x, x))))
    left = ew.mul(half, ew.add(one, wave))
    right = ew.mul(ew.mul(half, x), ew.mul(ew.sub(one, ew.mul(wave, wave)), inner_slope))
    return ew.add(left, right)


@lower(aten.leaky_relu.default)
def _leaky_relu(graph: Any, x: TensorValue, negative_slope: Any = 0.01) -> TensorValue:
    return elementwise(graph, lambda v: where(ew.gt(v, like(0, v)), v, ew.mul(v, like(negative_slope, v))), x)


@lower(aten.hardtanh.default)
def _hardtanh(graph: Any, x: TensorValue, min_val: Any = -1, max_val: Any = 1) -> TensorValue:
    return elementwise(graph, lambda v: ew.minimum(ew.maximum(v, like(min_val, v)), like(max_val, v)), x)


@lower(aten.hardswish.default)
def _hardswish(graph: Any, x: TensorValue) -> TensorValue:
    def build(v: Expr) -> Expr:
        gate = ew.minimum(ew.maximum(ew.add(v, like(3, v)), like(0, v)), like(6, v))
        return ew.div(ew.mul(v, gate), like(6, v))

    return elementwise(graph, build, x)


@lower(aten.elu.default)
def _elu(graph: Any, x: TensorValue, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> TensorValue:
    def build(v: Expr) -> Expr:
        factor = like(scale, v)
        negative = ew.mul(ew.expm1(ew.mul(v, like(input_scale, v))), like(alpha * scale, v))
        return where(ew.gt(v, like(0, v)), ew.mul(v, factor), negative)

    return elementwise(graph, build, x)


@lower(aten.softplus.default)
def _softplus(graph: Any, x: TensorValue, beta: Any = 1, threshold: Any = 20) -> TensorValue:
    def build(v: Expr) -> Expr:
        scaled = ew.mul(v, like(beta, v))
        smooth = ew.div(ew.log1p(ew.exp(scaled)), like(beta, v))
        return where(ew.gt(scaled, like(threshold, v)), v, smooth)

    return elementwise(graph, build, x)


@lower(aten.mish.default)
def _mish(graph: Any, x: TensorValue) -> TensorValue:
    return elementwise(graph, lambda v: ew.mul(v, ew.tanh(ew.log1p(ew.exp(v)))), x)


@lower(aten.log_sigmoid_forward.default)
def _log_sigmoid_forward(graph: Any, x: TensorValue) -> tuple[TensorValue, TensorValue]:
    """The second result, exp(-|x|) on the CPU and empty elsewhere, is what the derivative may reuse."""
    power = ew.exp(ew.neg(ew.absolute(x.body)))
    body = ew.sub(ew.minimum(x.body, like(0, x.body)), ew.log1p(power))
    shape = graph.result_shape(1)
    saved = power if shape == x.shape else ir.constant(0, x.dtype)
    return TensorValue(x.shape, x.dtype, body), TensorValue(shape, x.dtype, saved)


@lower(aten.log_sigmoid_backward.default)
def _log_sigmoid_backward(graph: Any, grad: TensorValue, x: TensorValue, buffer: TensorValue) -> TensorValue:
    return elementwise(graph, lambda g, v: ew.mul(g, ew.sigmoid(ew.neg(v))), grad, x)


@lower(aten._prelu_kernel.default)
def _prelu(graph: Any, x: TensorValue, weight: TensorValue) -> TensorValue:
    return elementwise(graph, lambda v, w: where(ew.gt(v, like(0, v)), v, ew.mul(v, w)), x, weight)


@lower(aten.native_dropout_backward.default)
def _native_dropout_backward(graph: Any, grad: TensorValue, mask: TensorValue, scale: Any) -> TensorValue:
    def build(g: Expr, kept: Expr) -> Expr:
        return ew.mul(ew.mul(g, kept), like(scale, g))

    return elementwise(graph, build, grad, mask, compute=graph.result_dtype())
