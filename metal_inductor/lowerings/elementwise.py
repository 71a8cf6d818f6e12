"""What elementwise lowerings share: promotion and broadcasting of operands, and short names for scalar operations."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import sympy
import torch

from metal_inductor import ir
from metal_inductor.ir import Expr, TensorValue
from metal_inductor.lowerings.registry import METAL_DTYPES, Unsupported
from metal_inductor.torch_compat import elementwise_dtypes


@functools.cache
def _stand_in(dtype: torch.dtype, scalar: bool) -> torch.Tensor:
    return torch.empty(() if scalar else (1,), dtype=dtype, device="meta")


def promoted(*args: Any, kind: str) -> tuple[torch.dtype, torch.dtype]:
    """(computation dtype, result dtype) for `TensorValue`s, Python numbers and sympy scalars, as eager promotes."""

    def proxy(value: Any) -> Any:
        if isinstance(value, TensorValue):
            return _stand_in(value.dtype, value.rank == 0)
        if isinstance(value, sympy.Basic):
            return 1 if value.is_integer else 1.0
        return value

    return elementwise_dtypes(*(proxy(arg) for arg in args if arg is not None), kind=kind)


def number(value: Any, dtype: torch.dtype) -> Expr:
    """A Python or symbolic number as a scalar of `dtype`; integers that do not fit wrap, as in eager."""
    if isinstance(value, sympy.Basic) and not value.is_number:
        return _symbolic_number(value, dtype)
    if isinstance(value, complex) or (isinstance(value, sympy.Basic) and value.is_real is False):
        raise Unsupported("complex numbers have no Metal type")
    if dtype.is_floating_point or dtype == torch.bool:
        return ir.constant(float(value) if dtype.is_floating_point else bool(value), dtype)
    info, value = torch.iinfo(dtype), int(value)
    if not info.min <= value <= info.max:
        value = (value - info.min) % (info.max - info.min + 1) + info.min
    return ir.constant(value, dtype)


def _symbolic_number(value: sympy.Expr, dtype: torch.dtype) -> Expr:
    if not value.is_integer:
        return relabel(ir.index_value(value, torch.float32), dtype)
    return convert(ir.index_value(value, torch.int64), dtype)


def rounded_number(value: Any, dtype: torch.dtype) -> Expr:
    """`number`, rounded to `dtype` first: a scalar that eager stores in a tensor before it computes."""
    if dtype in (torch.float16, torch.bfloat16) and not isinstance(value, sympy.Basic):
        value = torch.tensor(float(value), dtype=torch.float64).to(dtype).item()
    return number(value, dtype)


def convert(value: Expr, dtype: torch.dtype) -> Expr:
    """`value` as an operand of computation dtype `dtype`: only a change of kind converts, floats stay unrounded."""
    if value.dtype.is_floating_point and dtype.is_floating_point:
        return relabel(value, dtype)
    return ir.cast(value, dtype)


def relabel(value: Expr, dtype: torch.dtype) -> Expr:
    """A float under another floating dtype, not rounded: registers hold float32 whatever the dtype."""
    if value.dtype == dtype:
        return value
    if isinstance(value, ir.Constant):
        return ir.constant(value.value, dtype)
    if not dtype.is_floating_point:
        return ir.cast(value, dtype)
    return ir.op("relabel", value, dtype=dtype)


def operand(graph: Any, value: Any, dtype: torch.dtype, shape: tuple) -> Expr:
    """A tensor broadcast to `shape`, or a number, as a scalar expression of `dtype`."""
    if isinstance(value, TensorValue):
        return convert(graph.broadcast_to(value, shape).body, dtype)
    return number(value, dtype)


def elementwise(
    graph: Any,
    build: Callable[..., Expr],
    *args: Any,
    kind: str = "DEFAULT",
    compute: torch.dtype | None = None,
    output: int | None = None,
) -> TensorValue:
    """`build` applied to `args` (tensors and numbers), promoted by `kind` (or to `compute`) and broadcast to the shape
    that torch propagated. `output` picks one of several results."""
    shape, result = graph.result_shape(output), graph.result_dtype(output)
    if compute is None:
        compute = promoted(*args, kind=kind)[0]
    if compute.is_floating_point and result.is_floating_point:
        compute = result
    if compute not in METAL_DTYPES:
        raise Unsupported(f"computes in {str(compute).removeprefix('torch.')}, which has no Metal type")
    body = build(*(operand(graph, arg, compute, shape) for arg in args))
    return TensorValue(shape, result, convert(body, result))


# ---------------------------------------------------------------------------------------------- scalar operations


def unary(name: str) -> Callable[[Expr], Expr]:
    return lambda x: ir.op(name, x, dtype=x.dtype)


def binary(name: str) -> Callable[[Expr, Expr], Expr]:
    return lambda a, b: ir.op(name, a, b, dtype=a.dtype)


def comparison(name: str) -> Callable[[Expr, Expr], Expr]:
    return lambda a, b: ir.op(name, a, b, dtype=torch.bool)


def predicate(name: str) -> Callable[[Expr], Expr]:
    return lambda x: ir.op(name, x, dtype=torch.bool)


add, sub, div = binary("add"), binary("sub"), binary("div")
maximum, minimum = binary("maximum"), binary("minimum")
eq, ne, lt, le, gt, ge = (comparison(name) for name in ("eq", "ne", "lt", "le", "gt", "ge"))
neg, absolute, exp, log, log1p, expm1 = (unary(name) for name in ("neg", "abs", "exp", "log", "log1p", "expm1"))
tanh, sigmoid, erf, erfc, sqrt = (unary(name) for name in ("tanh", "sigmoid", "erf", "erfc", "sqrt"))
isnan = predicate("isnan")


def mul(a: Expr, b: Expr) -> Expr:
    """A product; a factor of one is dropped (exact for every value)."""
    for this, other in ((a, b), (b, a)):
        if isinstance(this, ir.Constant) and this.value == 1 and this.dtype != torch.bool:
            return other
    return ir.op("mul", a, b, dtype=a.dtype)


def where(condition: Expr, a: Expr, b: Expr) -> Expr:
    if isinstance(condition, ir.Constant):
        return a if condition.value else b
    return a if a is b else ir.op("where", condition, a, b, dtype=a.dtype)


def like(value: Any, reference: Expr) -> Expr:
    """The number `value` in the dtype of `reference`."""
    return number(value, reference.dtype)


def as_bool(value: Expr) -> Expr:
    return ir.cast(value, torch.bool)


def both(a: Expr, b: Expr) -> Expr:
    return ir.op("logical_and", a, b, dtype=torch.bool)


def either(a: Expr, b: Expr) -> Expr:
    return ir.op("logical_or", a, b, dtype=torch.bool)


def negate(a: Expr) -> Expr:
    return ir.op("logical_not", a, dtype=torch.bool)
