"""Elementwise functions: exponentials, logarithms, trigonometry and the special functions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from metal_inductor.ir import Expr, TensorValue
from metal_inductor.lowerings import elementwise as ew
from metal_inductor.lowerings.common import overloads
from metal_inductor.lowerings.elementwise import elementwise, like, where
from metal_inductor.lowerings.registry import Unsupported, lower

aten = torch.ops.aten

# ATen op -> scalar operation; integers are computed in float32
_FUNCTIONS = {
    **{
        name: name
        for name in (
            "sqrt", "rsqrt", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin",
            "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "sigmoid", "erf", "erfc", "erfinv",
            "lgamma", "digamma", "i0", "reciprocal",
        )
    },
    "special_i0e": "i0e", "special_i1": "i1", "special_i1e": "i1e", "special_erfcx": "erfcx",
    "special_ndtri": "ndtri", "special_log_ndtr": "log_ndtr",
    "special_modified_bessel_i0": "i0", "special_modified_bessel_i1": "i1",
    "special_bessel_j0": "bessel_j0", "special_bessel_j1": "bessel_j1",
    "special_bessel_y0": "bessel_y0", "special_bessel_y1": "bessel_y1",
    "special_modified_bessel_k0": "bessel_k0", "special_modified_bessel_k1": "bessel_k1",
    "special_scaled_modified_bessel_k0": "bessel_k0e", "special_scaled_modified_bessel_k1": "bessel_k1e",
    "special_spherical_bessel_j0": "spherical_bessel_j0",
}  # fmt: skip


# ATen op -> (scalar operation, the shifted ones are taken at 2x - 1)
_POLYNOMIALS = {
    **{f"special_chebyshev_polynomial_{kind}": (f"chebyshev_{kind}", False) for kind in "tuvw"},
    **{f"special_shifted_chebyshev_polynomial_{kind}": (f"chebyshev_{kind}", True) for kind in "tuvw"},
    "special_hermite_polynomial_h": ("hermite_h", False), "special_hermite_polynomial_he": ("hermite_he", False),
    "special_laguerre_polynomial_l": ("laguerre", False), "special_legendre_polynomial_p": ("legendre", False),
}  # fmt: skip


def _register(name: str, op: str) -> None:
    @lower(*overloads(name))
    def lowering(graph: Any, x: TensorValue) -> TensorValue:
        return elementwise(graph, ew.unary(op), x, kind="INT_TO_FLOAT")


def _register_polynomial(name: str, op: str, shifted: bool) -> None:
    @lower(*overloads(name, "default", "x_scalar", "n_scalar"))
    def lowering(graph: Any, x: Any, order: Any) -> TensorValue:
        def build(v: Expr, n: Expr) -> Expr:
            return ew.binary(op)(ew.sub(ew.mul(like(2, v), v), like(1, v)) if shifted else v, n)

        return elementwise(graph, build, x, order, kind="INT_TO_FLOAT")


for _name, _op in _FUNCTIONS.items():
    _register(_name, _op)
for _name, (_op, _shifted) in _POLYNOMIALS.items():
    _register_polynomial(_name, _op, _shifted)


def _composed(*targets: Any) -> Callable[[Callable[[Expr], Expr]], Callable[[Expr], Expr]]:
    """Registers `build(x)` as the lowering of ops of one argument; integers are computed in float32."""

    def register(build: Callable[[Expr], Expr]) -> Callable[[Expr], Expr]:
        lower(*targets)(lambda graph, x: elementwise(graph, build, x, kind="INT_TO_FLOAT"))
        return build

    return register


@_composed(aten.deg2rad.default)
def _deg2rad(x: Expr) -> Expr:
    return ew.mul(x, like(math.pi / 180.0, x))


@_composed(aten.rad2deg.default)
def _rad2deg(x: Expr) -> Expr:
    return ew.mul(x, like(180.0 / math.pi, x))


@_composed(aten.sinc.default)
def _sinc(x: Expr) -> Expr:
    angle = ew.mul(x, like(math.pi, x))
    return where(ew.eq(x, like(0, x)), like(1, x), ew.div(ew.unary("sin")(angle), angle))


@_composed(aten.special_ndtr.default)
def _ndtr(x: Expr) -> Expr:
    """The normal distribution function through erfc, which keeps the left tail."""
    return ew.mul(like(0.5, x), ew.erfc(ew.mul(x, like(-math.sqrt(0.5), x))))


@_composed(aten.special_entr.default)
def _entr(x: Expr) -> Expr:
    zero = like(0, x)
    inside = where(ew.eq(x, zero), zero, ew.neg(ew.mul(x, ew.log(x))))
    return where(ew.lt(x, zero), like(-math.inf, x), inside)


def _times_log(x: Expr, logarithm: Expr, y: Expr) -> Expr:
    """x * logarithm, where zero times anything but NaN is zero."""
    product = where(ew.eq(x, like(0, x)), like(0, x), ew.mul(x, logarithm))
    return where(ew.isnan(y), y, product)


@lower(aten.xlogy.Tensor, aten.xlogy.Scalar_Self, aten.xlogy.Scalar_Other)
def _xlogy(graph: Any, x: Any, y: Any) -> TensorValue:
    return elementwise(graph, lambda a, b: _times_log(a, ew.log(b), b), x, y, kind="INT_TO_FLOAT")


@lower(aten.special_xlog1py.default, aten.special_xlog1py.self_scalar, aten.special_xlog1py.other_scalar)
def _xlog1py(graph: Any, x: Any, y: Any) -> TensorValue:
    return elementwise(graph, lambda a, b: _times_log(a, ew.log1p(b), b), x, y, kind="INT_TO_FLOAT")


@lower(aten.logit.default)
def _logit(graph: Any, x: TensorValue, eps: float | None = None) -> TensorValue:
    def build(v: Expr) -> Expr:
        if eps is not None and eps >= 0:
            v = ew.minimum(ew.maximum(v, like(eps, v)), like(1.0 - eps, v))
        return ew.log(ew.div(v, ew.sub(like(1, v), v)))

    return elementwise(graph, build, x, kind="INT_TO_FLOAT")


@lower(aten.polygamma.default)
def _polygamma(graph: Any, n: int, x: TensorValue) -> TensorValue:
    """(-1)^(n+1) n! zeta(n + 1, x)."""
    if n > 33:
        raise Unsupported("polygamma: the factorial of the order overflows float32")
    scale = math.factorial(n) * (1 if n % 2 else -1)

    def build(v: Expr) -> Expr:
        if n < 2:
            return ew.unary("trigamma" if n else "digamma")(v)
        return ew.mul(ew.binary("zeta")(like(n + 1, v), v), like(scale, v))

    return elementwise(graph, build, x, kind="INT_TO_FLOAT")


@lower(*overloads("angle"))
def _angle(graph: Any, x: TensorValue) -> TensorValue:
    """Of a real number: pi for the negative ones, zero otherwise, NaN for NaN."""

    def build(v: Expr) -> Expr:
        turned = where(ew.lt(v, like(0, v)), like(math.pi, v), like(0, v))
        return where(ew.isnan(v), v, turned)

    return elementwise(graph, build, x, kind="INT_TO_FLOAT")
