"""Positions in sorted sequences: a branch-free binary search, unrolled over the bits of the sequence's length."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sympy
import torch

from metal_inductor import ir, policy
from metal_inductor.ir import Expr, TensorValue
from metal_inductor.lowerings import elementwise as ew
from metal_inductor.lowerings.common import indirect, overloads, read_at
from metal_inductor.lowerings.registry import Unsupported, lower

if TYPE_CHECKING:
    from metal_inductor.lower import GraphLowering


@lower(*overloads("bucketize", "Tensor", "Scalar"))
def bucketize(
    graph: GraphLowering, value: Any, boundaries: TensorValue, *, out_int32: bool = False, right: bool = False
) -> TensorValue:
    return positions(graph, boundaries, value, right)


@lower(*overloads("searchsorted", "Tensor", "Scalar"))
def searchsorted(
    graph: GraphLowering,
    sequence: TensorValue,
    value: Any,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: TensorValue | None = None,
) -> TensorValue:
    if sorter is not None:
        raise Unsupported("searchsorted with a sorter")
    return positions(graph, sequence, value, right or side == "right")


def positions(graph: GraphLowering, sequence: TensorValue, value: Any, right: bool) -> TensorValue:
    """For each element of `value` how many elements of its sequence (the last dimension; leading dimensions agree, or
    there are none) come before it: those below it, with `right` also its equals. NaN comes last."""
    shape, length = graph.result_shape(), sympy.sympify(sequence.shape[-1])
    if not length.is_Integer or int(length).bit_length() > policy.MAX_SEARCH_BITS:
        raise Unsupported("a sorted sequence of unknown or great length")
    compute = ew.promoted(sequence, value, kind="ALWAYS_BOOL")[0]
    wanted = ew.operand(graph, value, compute, shape)
    stored = graph.realize(sequence)  # it is read at many places
    lead = ir.index_symbols(sequence.rank - 1)
    reached: Expr = ir.constant(0, torch.int64)
    for bit in reversed(range(int(length).bit_length())):
        next_one = ew.add(reached, ir.constant(1 << bit, torch.int64))
        last = ew.minimum(next_one, ir.constant(int(length), torch.int64))
        index, pairs = indirect(ew.sub(last, ir.constant(1, torch.int64)))
        found = ew.convert(read_at(graph, stored, [*lead, index], pairs), compute)
        before = ew.negate((ew.gt if right else ew.ge)(found, wanted))
        inside = ew.le(next_one, ir.constant(int(length), torch.int64))
        reached = ew.where(ew.both(inside, before), next_one, reached)
    return TensorValue(shape, graph.result_dtype(), ir.cast(reached, graph.result_dtype()))
