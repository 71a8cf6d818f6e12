"""Elementwise arithmetic, comparisons, logic, rounding and selection.

Half-precision operands are computed in float32 and rounded where they are stored or explicitly cast. Functions of one
argument (exp, erf, ...) are in `pointwise_math`, activations in `pointwise_activation`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from metal_inductor import ir
from metal_inductor.ir import Expr, TensorValue
from metal_inductor.lowerings import elementwise as ew
from metal_inductor.lowerings import pointwise_activation, pointwise_math, scan, search  # noqa: F401  (fill the table)
from metal_inductor.lowerings.common import overloads
from metal_inductor.lowerings.elementwise import elementwise, like, number, where
from metal_inductor.lowerings.registry import Unsupported, lower

aten = torch.ops.aten
prims = torch.ops.prims


# ---------------------------------------------------------------------------------------------- arithmetic


def _scaled(value: Expr, alpha: Any) -> Expr:
    return value if alpha is None or alpha == 1 else ew.mul(value, like(alpha, value))


@lower(*overloads("add", "Tensor", "Scalar"))
def _add(graph: Any, a: Any, b: Any, alpha: Any = 1) -> TensorValue:
    return elementwise(graph, lambda x, y: ew.add(x, _scaled(y, alpha)), a, b)


@lower(*overloads("sub", "Tensor", "Scalar"))
def _sub(graph: Any, a: Any, b: Any, alpha: Any = 1) -> TensorValue:
    return elementwise(graph, lambda x, y: ew.sub(x, _scaled(y, alpha)), a, b)


@lower(*overloads("rsub", "Tensor", "Scalar"))
def _rsub(graph: Any, a: Any, b: Any, alpha: Any = 1) -> TensorValue:
    return elementwise(graph, lambda x, y: ew.sub(y, _scaled(x, alpha)), a, b)


@lower(*overloads("mul", "Tensor", "Scalar"))
def _mul(graph: Any, a: Any, b: Any) -> TensorValue:
    return elementwise(graph, ew.mul, a, b)


@lower(*overloads("div", "Tensor", "Scalar"), *overloads("true_divide", "Tensor", "Scalar"))
def _div(graph: Any, a: Any, b: Any) -> TensorValue:
    return elementwise(graph, ew.div, a, b, kind="INT_TO_FLOAT")


@lower(*overloads("div", "Tensor_mode", "Scalar_mode"))
def _div_mode(graph: Any, a: Any, b: Any, *, rounding_mode: str | None) -> TensorValue:
    if rounding_mode is None:
        return _div(graph, a, b)
    return elementwise(graph, ew.binary("floor_div" if rounding_mode == "floor" else "trunc_div"), a, b)


@lower(*overloads("floor_divide", "default", "Scalar"))
def _floor_divide(graph: Any, a: Any, b: Any) -> TensorValue:
    return elementwise(graph, ew.binary("floor_div"), a, b)


@lower(*overloads("pow", "Tensor_Tensor"))
def _pow(graph: Any, base: Any, exponent: Any) -> TensorValue:
    return elementwise(graph, ew.binary("pow"), base, exponent)


@lower(*overloads("pow", "Scalar"))
def _pow_of_scalar(graph: Any, base: Any, exponent: TensorValue) -> TensorValue:
    if base == 1:
        return graph.full(exponent.shape, 1, graph.result_dtype())
    if base == 2 and graph.result_dtype().is_floating_point:
        return elementwise(graph, lambda _, y: ew.unary("exp2")(y), base, exponent)
    return elementwise(graph, ew.binary("pow"), base, exponent)


@lower(*overloads("pow", "Tensor_Scalar"))
def _pow_to_scalar(graph: Any, base: TensorValue, exponent: Any) -> TensorValue:
    return elementwise(graph, lambda x, y: _power(x, y, exponent), base, exponent)


def _power(x: Expr, y: Expr, exponent: Any) -> Expr:
    """The special exponents are those of eager, which takes a root or a product for them."""
    if x.dtype == torch.bool or not isinstance(exponent, (int, float)):
        return ew.binary("pow")(x, y)
    if exponent in (0, 1):
        return like(1, x) if exponent == 0 else x
    if exponent in (2, 3):
        return ew.mul(ew.mul(x, x), x) if exponent == 3 else ew.mul(x, x)
    if x.dtype.is_floating_point and exponent in (0.5, -0.5, -1, -2):
        root = {0.5: "sqrt", -0.5: "rsqrt"}.get(exponent)
        return ew.unary(root)(x) if root else ew.unary("reciprocal")(x if exponent == -1 else ew.mul(x, x))
    return ew.binary("pow")(x, y)


@lower(aten.addcmul.default)
def _addcmul(graph: Any, base: Any, a: Any, b: Any, *, value: Any = 1) -> TensorValue:
    return elementwise(graph, lambda x, y, z: ew.add(x, ew.mul(_scaled(y, value), z)), base, a, b)


@lower(aten.addcdiv.default)
def _addcdiv(graph: Any, base: Any, a: Any, b: Any, *, value: Any = 1) -> TensorValue:
    def build(x: Expr, y: Expr, z: Expr) -> Expr:
        return ew.add(x, ew.div(_scaled(y, value), z))

    return elementwise(graph, build, base, a, b, kind="INT_TO_FLOAT")


@lower(*overloads("lerp", "Scalar", "Tensor"))
def _lerp(graph: Any, start: Any, end: Any, weight: Any) -> TensorValue:
    """From the nearer end, so that both ends are exact."""

    def build(a: Expr, b: Expr, w: Expr) -> Expr:
        step = ew.sub(b, a)
        near = ew.add(a, ew.mul(w, step))
        far = ew.sub(b, ew.mul(step, ew.sub(like(1, w), w)))
        return where(ew.lt(ew.absolute(w), like(0.5, w)), near, far)

    return elementwise(graph, build, start, end, weight)


# ---------------------------------------------------------------------------------------------- tables

_BINARY = {
    "maximum": ("maximum", "DEFAULT", ("default",)),
    "minimum": ("minimum", "DEFAULT", ("default",)),
    "fmax": ("fmax", "DEFAULT", ("default",)),
    "fmin": ("fmin", "DEFAULT", ("default",)),
    "remainder": ("remainder", "DEFAULT", ("Tensor", "Scalar", "Scalar_Tensor")),
    "fmod": ("fmod", "DEFAULT", ("Tensor", "Scalar")),
    "gcd": ("gcd", "DEFAULT", ("default",)),
    "bitwise_and": ("bitwise_and", "DEFAULT", ("Tensor", "Scalar", "Scalar_Tensor")),
    "bitwise_or": ("bitwise_or", "DEFAULT", ("Tensor", "Scalar", "Scalar_Tensor")),
    "bitwise_xor": ("bitwise_xor", "DEFAULT", ("Tensor", "Scalar", "Scalar_Tensor")),
    "__and__": ("bitwise_and", "DEFAULT", ("Tensor", "Scalar")),
    "__or__": ("bitwise_or", "DEFAULT", ("Tensor", "Scalar")),
    "__xor__": ("bitwise_xor", "DEFAULT", ("Tensor", "Scalar")),
    "bitwise_left_shift": ("shift_left", "DEFAULT", ("Tensor", "Tensor_Scalar", "Scalar_Tensor")),
    "bitwise_right_shift": ("shift_right", "DEFAULT", ("Tensor", "Tensor_Scalar", "Scalar_Tensor")),
    "__lshift__": ("shift_left", "DEFAULT", ("Tensor", "Scalar")),
    "__rshift__": ("shift_right", "DEFAULT", ("Tensor", "Scalar")),
    "atan2": ("atan2", "INT_TO_FLOAT", ("default",)),
    "copysign": ("copysign", "INT_TO_FLOAT", ("Tensor", "Scalar")),
    "hypot": ("hypot", "DEFAULT", ("default",)),
    "nextafter": ("nextafter", "DEFAULT", ("default",)),
    "logaddexp": ("logaddexp", "DEFAULT", ("default",)),
    "logaddexp2": ("logaddexp2", "DEFAULT", ("default",)),
    "igamma": ("igamma", "DEFAULT", ("default",)),
    "igammac": ("igammac", "DEFAULT", ("default",)),
    "special_zeta": ("zeta", "INT_TO_FLOAT", ("default", "self_scalar", "other_scalar")),
}
_SAME_DTYPE = {
    "neg": "neg", "abs": "abs", "floor": "floor", "ceil": "ceil", "trunc": "trunc", "round": "round",
    "sign": "sign", "sgn": "sign", "bitwise_not": "bitwise_not",
}  # fmt: skip
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
_CLASSIFICATIONS = ("isnan", "isinf", "isfinite", "signbit")


def _register_binary(name: str, op: str, kind: str, suffixes: tuple[str, ...]) -> None:
    @lower(*overloads(name, *suffixes))
    def lowering(graph: Any, a: Any, b: Any) -> TensorValue:
        if op == "nextafter" and graph.result_dtype() != torch.float32:
            raise Unsupported("nextafter of half-precision numbers")
        return elementwise(graph, ew.binary(op), a, b, kind=kind)


def _register_unary(name: str, op: str) -> None:
    @lower(*overloads(name, "default"))
    def lowering(graph: Any, x: TensorValue) -> TensorValue:
        return elementwise(graph, ew.unary(op), x)


def _register_comparison(name: str) -> None:
    @lower(*overloads(name, "Tensor", "Scalar"))
    def lowering(graph: Any, a: Any, b: Any) -> TensorValue:
        compute = ew.promoted(a, b, kind="ALWAYS_BOOL")[0]
        shape = graph.result_shape()
        sides = [_compared(graph, side, compute, shape) for side in (a, b)]
        return TensorValue(shape, torch.bool, ew.comparison(name)(*sides))


def _compared(graph: Any, side: Any, compute: torch.dtype, shape: tuple) -> Expr:
    """Eager stores a number in a tensor of the promoted dtype before it compares: that rounds it to half precision."""
    if isinstance(side, TensorValue):
        return ew.operand(graph, side, compute, shape)
    return ew.rounded_number(side, compute)


def _register_classification(name: str) -> None:
    @lower(*overloads(name, "default"))
    def lowering(graph: Any, x: TensorValue) -> TensorValue:
        return TensorValue(x.shape, torch.bool, ew.predicate(name)(x.body))


for _name, (_op, _kind, _suffixes) in _BINARY.items():
    _register_binary(_name, _op, _kind, _suffixes)
for _name, _op in _SAME_DTYPE.items():
    _register_unary(_name, _op)
for _name in _COMPARISONS:
    _register_comparison(_name)
for _name in _CLASSIFICATIONS:
    _register_classification(_name)


# ---------------------------------------------------------------------------------------------- logic


def _logical(name: str) -> Callable[..., TensorValue]:
    def lowering(graph: Any, *args: Any) -> TensorValue:
        shape = graph.result_shape()
        sides = [ew.as_bool(graph.broadcast_to(arg, shape).body) for arg in args]
        return TensorValue(shape, torch.bool, ir.op(name, *sides, dtype=torch.bool))

    return lowering


for _name in ("logical_and", "logical_or", "logical_xor", "logical_not"):
    lower(getattr(aten, _name).default)(_logical(_name))


@lower(aten.isposinf.default)
def _isposinf(graph: Any, x: TensorValue) -> TensorValue:
    return _is_value(x, float("inf"))


@lower(aten.isneginf.default)
def _isneginf(graph: Any, x: TensorValue) -> TensorValue:
    return _is_value(x, float("-inf"))


def _is_value(x: TensorValue, value: float) -> TensorValue:
    same = ew.eq(x.body, like(value, x.body)) if x.dtype.is_floating_point else ir.constant(False, torch.bool)
    return TensorValue(x.shape, torch.bool, same)


# ---------------------------------------------------------------------------------------------- rounding, integers


@lower(aten.round.decimals)
def _round_decimals(graph: Any, x: TensorValue, *, decimals: int) -> TensorValue:
    """Scaled by a power of ten, rounded half to even, scaled back, as eager does it."""
    if not x.dtype.is_floating_point:
        return x
    rounding = ew.unary("round")
    if decimals == 0:
        return elementwise(graph, rounding, x)
    scale, shrink = float(10 ** abs(decimals)), decimals < 0

    def build(value: Expr) -> Expr:
        factor = like(scale, value)
        first, second = (ew.div, ew.mul) if shrink else (ew.mul, ew.div)
        return second(rounding(first(value, factor)), factor)

    return elementwise(graph, build, x)


@lower(aten.frac.default)
def _frac(graph: Any, x: TensorValue) -> TensorValue:
    return elementwise(graph, lambda v: ew.sub(v, ew.unary("trunc")(v)), x)


@lower(aten.lcm.default)
def _lcm(graph: Any, a: Any, b: Any) -> TensorValue:
    def build(x: Expr, y: Expr) -> Expr:
        common = ew.binary("gcd")(x, y)
        return where(ew.eq(common, like(0, x)), like(0, x), ew.absolute(ew.mul(ew.binary("trunc_div")(x, common), y)))

    return elementwise(graph, build, a, b)


@lower(*overloads("ldexp", "Tensor"))
def _ldexp(graph: Any, x: Any, exponent: Any) -> TensorValue:
    return elementwise(graph, ew.binary("ldexp"), x, exponent, kind="INT_TO_FLOAT")


@lower(aten.frexp.Tensor)
def _frexp(graph: Any, x: TensorValue) -> tuple[TensorValue, TensorValue]:
    mantissa = ir.op("frexp_mantissa", x.body, dtype=x.dtype)
    exponent = ir.op("frexp_exponent", x.body, dtype=torch.int32)
    return TensorValue(x.shape, x.dtype, mantissa), TensorValue(x.shape, torch.int32, exponent)


@lower(aten.heaviside.default)
def _heaviside(graph: Any, x: Any, values: Any) -> TensorValue:
    def build(v: Expr, at_zero: Expr) -> Expr:
        return where(ew.eq(v, like(0, v)), at_zero, ir.cast(ew.gt(v, like(0, v)), v.dtype))

    return elementwise(graph, build, x, values)


# ---------------------------------------------------------------------------------------------- selection, bounds


@lower(aten.where.self)
def _where(graph: Any, condition: TensorValue, a: Any, b: Any) -> TensorValue:
    chosen = ew.as_bool(graph.broadcast_to(condition, graph.result_shape()).body)
    return elementwise(graph, lambda x, y: where(chosen, x, y), a, b, compute=graph.result_dtype())


@lower(*overloads("masked_fill", "Scalar", "Tensor"))
def _masked_fill(graph: Any, x: TensorValue, mask: TensorValue, value: Any) -> TensorValue:
    chosen = ew.as_bool(graph.broadcast_to(mask, graph.result_shape()).body)
    return elementwise(graph, lambda v, filler: where(chosen, filler, v), x, value, compute=x.dtype)


@lower(*overloads("clamp", "default", "Tensor"))
def _clamp(graph: Any, x: TensorValue, min: Any = None, max: Any = None) -> TensorValue:
    if min is None or max is None:
        bound, limit = (max, ew.minimum) if min is None else (min, ew.maximum)
        return elementwise(graph, limit, x, bound)
    return elementwise(graph, lambda v, low, high: ew.minimum(ew.maximum(v, low), high), x, min, max)


@lower(*overloads("clamp_min", "default", "Tensor"))
def _clamp_min(graph: Any, x: TensorValue, min: Any) -> TensorValue:
    return elementwise(graph, ew.maximum, x, min)


@lower(*overloads("clamp_max", "default", "Tensor"))
def _clamp_max(graph: Any, x: TensorValue, max: Any) -> TensorValue:
    return elementwise(graph, ew.minimum, x, max)


@lower(aten.nan_to_num.default)
def _nan_to_num(graph: Any, x: TensorValue, nan: Any = None, posinf: Any = None, neginf: Any = None) -> TensorValue:
    if not x.dtype.is_floating_point:
        return x
    info = torch.finfo(x.dtype)
    high, low = (info.max if posinf is None else posinf), (info.min if neginf is None else neginf)

    def build(v: Expr) -> Expr:
        finite = where(ew.eq(v, like(float("inf"), v)), like(high, v), v)
        finite = where(ew.eq(v, like(float("-inf"), v)), like(low, v), finite)
        return where(ew.isnan(v), like(0.0 if nan is None else nan, v), finite)

    return elementwise(graph, build, x)


# ---------------------------------------------------------------------------------------------- copies, conversions


@lower(aten._to_copy.default)
def _to_copy(graph: Any, x: TensorValue, **kwargs: Any) -> TensorValue:
    device = kwargs.get("device")
    if device is not None and torch.device(device).type != graph.device.type:
        raise Unsupported(f"copy to {device}")
    return TensorValue(x.shape, graph.result_dtype(), ir.cast(x.body, graph.result_dtype()))


@lower(prims.convert_element_type.default)
def _convert_element_type(graph: Any, x: TensorValue, dtype: torch.dtype) -> TensorValue:
    return TensorValue(x.shape, dtype, ir.cast(x.body, dtype))


@lower(aten.clone.default, aten.lift.default, aten.positive.default, aten.conj_physical.default)
def _identity(graph: Any, x: TensorValue, **kwargs: Any) -> TensorValue:
    return x


@lower(aten.copy.default)
def _copy(graph: Any, x: TensorValue, source: TensorValue, non_blocking: bool = False) -> TensorValue:
    return TensorValue(x.shape, x.dtype, ir.cast(graph.broadcast_to(source, x.shape).body, x.dtype))


@lower(*overloads("fill", "Scalar", "Tensor"))
def _fill(graph: Any, x: TensorValue, value: Any) -> TensorValue:
    body = ir.cast(value.at([]), x.dtype) if isinstance(value, TensorValue) else number(value, x.dtype)
    return TensorValue(x.shape, x.dtype, body)
