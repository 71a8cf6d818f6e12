"""Variances, standard deviations and the moments that the norms share."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sympy
import torch

from metal_inductor import policy
from metal_inductor.ir import Expr, TensorValue
from metal_inductor.lowerings import elementwise as ew
from metal_inductor.lowerings.common import combine, convert, overloads, to_float32, wrap_dims
from metal_inductor.lowerings.reduction import Dims, quotient, reduced, reduced_count, without
from metal_inductor.lowerings.registry import lower

if TYPE_CHECKING:
    from metal_inductor.lower import GraphLowering

Reduce = Callable[[str, TensorValue], TensorValue]


# ---------------------------------------------------------------------------------------------- moments


@dataclass(frozen=True)
class Moments:
    """`variance`, and the mean as `center + shift`: one float32 keeps too few digits of a mean that is large beside the
    deviations from it. All float32, with the reduced dimensions kept at size one."""

    variance: TensorValue
    center: TensorValue
    shift: TensorValue

    def mean(self, graph: GraphLowering) -> TensorValue:
        return combine(graph, ew.add, self.center, self.shift)

    def deviation(self, graph: GraphLowering, value: TensorValue) -> TensorValue:
        """`value` less the mean."""
        return combine(graph, lambda x, c, s: ew.sub(ew.sub(x, c), s), to_float32(value), self.center, self.shift)


def reduction_over(graph: GraphLowering, value: TensorValue, dims: Sequence[int], in_one_kernel: bool) -> Reduce:
    """A float32 reduction of what is shaped like `value`. `in_one_kernel`: a norm's neighbours can join it only where a
    whole tensor is not reduced in two steps, so only a very long one is."""
    short = policy.known_int(reduced_count(value, dims), policy.MAX_NORM_ROW + 1) <= policy.MAX_NORM_ROW
    step = graph.reduce if in_one_kernel and short else functools.partial(reduced, graph)
    return lambda kind, part: step(kind, part, dims, True, torch.float32)


def moments(
    graph: GraphLowering, value: TensorValue, dims: Sequence[int], correction: Any = 0, in_one_kernel: bool = True
) -> Moments:
    """The moments over `dims` in two passes.

    The rounding error of the mean biases the squared deviations by its square; the sum of the deviations, which is
    zero for the exact mean, takes that out again (Chan, Golub and LeVeque's corrected two-pass algorithm).
    """
    value = to_float32(value)
    reduce = reduction_over(graph, value, dims, in_one_kernel)
    center = quotient(reduce("sum", value), reduced_count(value, dims))
    return moments_about(graph, combine(graph, ew.sub, value, center), center, dims, correction, reduce)


def moments_about(
    graph: GraphLowering,
    deviation: TensorValue,
    center: TensorValue,
    dims: Sequence[int],
    correction: Any,
    reduce: Reduce,
) -> Moments:
    """The second pass of `moments`, over the deviations from `center`."""
    count = reduced_count(deviation, dims)
    first = reduce("sum", deviation)
    second = reduce("sum", combine(graph, lambda d: ew.mul(d, d), deviation))
    shift = quotient(first, count)
    total = combine(graph, _squares_about_mean, second, first, shift)
    freedom = sympy.Max(0, count - sympy.sympify(correction))
    return Moments(quotient(total, freedom), center, shift)


def _squares_about_mean(second: Expr, first: Expr, shift: Expr) -> Expr:
    """`second - first * shift`, never below zero, and infinite where the squares overflow."""
    left = ew.sub(second, ew.mul(first, shift))
    return ew.where(ew.isnan(left), second, ew.maximum(left, ew.like(0, left)))


# ---------------------------------------------------------------------------------------------- var and std

# Squares of deviations beyond these overflow or vanish in float32: they are brought back by a power of two first.
HUGE, TINY, SCALE = 2.0**50, 2.0**-30, 2.0**80


def scaled_moments(
    graph: GraphLowering, value: TensorValue, dims: Sequence[int], correction: Any
) -> tuple[Moments, TensorValue]:
    """The moments of `value` whose variance is that of `value` times the square of the second result, a power of two
    that keeps the squares within float32."""
    value = to_float32(value)
    reduce = reduction_over(graph, value, dims, False)
    center = quotient(reduce("sum", value), reduced_count(value, dims))
    top = reduce("max", combine(graph, ew.absolute, value))
    scale = combine(graph, _scale, top)
    deviation = combine(graph, ew.sub, value, center)
    scaled = combine(graph, ew.mul, deviation, scale)
    return moments_about(graph, scaled, center, dims, correction, reduce), scale


def _scale(top: Expr) -> Expr:
    down, up, one = (ew.like(number, top) for number in (1 / SCALE, SCALE, 1))
    return ew.where(ew.gt(top, ew.like(HUGE, top)), down, ew.where(ew.lt(top, ew.like(TINY, top)), up, one))


def spread(
    graph: GraphLowering, value: TensorValue, dims: Dims, correction: Any, keepdim: bool, root: bool
) -> tuple[TensorValue, TensorValue]:
    """(variance or its root, mean) as torch shapes them."""
    chosen = wrap_dims(dims, value.rank)
    found, scale = scaled_moments(graph, value, chosen, 1 if correction is None else correction)
    if root:
        result = combine(graph, lambda v, s: ew.div(ew.sqrt(v), s), found.variance, scale)
    else:
        result = combine(graph, lambda v, s: ew.div(ew.div(v, s), s), found.variance, scale)
    mean = combine(graph, lambda c, d, s: ew.add(c, ew.div(d, s)), found.center, found.shift, scale)
    both = (convert(without(graph, part, chosen, keepdim), value.dtype) for part in (result, mean))
    return tuple(both)  # type: ignore[return-value]


def bessel(unbiased: bool) -> int:
    return 1 if unbiased else 0


def _register_spread(name: str, root: bool, with_mean: bool) -> None:
    def result(both: tuple[TensorValue, TensorValue]) -> Any:
        return both if with_mean else both[0]

    @lower(*overloads(name, "correction"))
    def lowering(
        graph: GraphLowering, value: TensorValue, dims: Dims = None, *, correction: Any = None, keepdim: bool = False
    ) -> Any:
        return result(spread(graph, value, dims, correction, keepdim, root))

    @lower(*overloads(name, "dim"))
    def lowering_dim(
        graph: GraphLowering, value: TensorValue, dims: Dims, unbiased: bool = True, keepdim: bool = False
    ) -> Any:
        return result(spread(graph, value, dims, bessel(unbiased), keepdim, root))

    @lower(*overloads(name))
    def lowering_default(graph: GraphLowering, value: TensorValue, unbiased: bool = True) -> Any:
        return result(spread(graph, value, None, bessel(unbiased), False, root))


for _name in ("var", "std"):
    _register_spread(_name, _name == "std", False)
    _register_spread(f"{_name}_mean", _name == "std", True)
