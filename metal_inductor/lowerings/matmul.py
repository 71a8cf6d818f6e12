"""Matrix products: few rows run in the one-row kernel, the rest stays with the vendor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sympy
import torch

from metal_inductor import ir, policy
from metal_inductor.ir import TensorValue
from metal_inductor.lowerings.registry import Unsupported, lower

if TYPE_CHECKING:
    from metal_inductor.lower import GraphLowering

aten = torch.ops.aten
FLOATS = (torch.float32, torch.float16, torch.bfloat16)


@lower(aten.mm.default)
def mm(graph: GraphLowering, a: TensorValue, b: TensorValue) -> TensorValue:
    """[M, K] x [K, N] with at most `policy.MAX_LINEAR_ROWS` rows (or columns: then the transposed product)."""
    if a.dtype not in FLOATS or b.dtype != a.dtype:
        raise Unsupported("matrix product of a dtype other than float32, float16 and bfloat16")
    rows, columns = a.shape[0], b.shape[1]
    if rows.is_Integer and int(rows) <= policy.MAX_LINEAR_ROWS:
        return _linear(graph, a, b)
    if columns.is_Integer and int(columns) <= policy.MAX_LINEAR_ROWS:
        product = _linear(graph, _transpose(graph, b), _transpose(graph, a))
        return _transpose(graph, product)
    raise Unsupported("matrix product with many rows: the vendor's by design")


@lower(aten.bmm.default)
def bmm(graph: GraphLowering, a: TensorValue, b: TensorValue) -> TensorValue:
    """[B, M, K] x [B, K, N]; in a kernel only where K is 1 and the product is an outer one, as in rotary tables."""
    if a.shape[2] != 1 or a.dtype not in FLOATS or b.dtype != a.dtype:
        raise Unsupported("batched matrix product: the vendor's by design")
    shape = (a.shape[0], a.shape[1], b.shape[2])
    column = graph.view_as(a, shape, lambda i, j, k: (i, j, sympy.Integer(0)))
    row = graph.view_as(b, shape, lambda i, j, k: (i, sympy.Integer(0), k))
    return TensorValue(shape, a.dtype, ir.op("mul", column.body, row.body, dtype=a.dtype))


def _transpose(graph: GraphLowering, value: TensorValue) -> TensorValue:
    return graph.view_as(value, (value.shape[1], value.shape[0]), lambda i, j: (j, i))


def _linear(graph: GraphLowering, a: TensorValue, b: TensorValue) -> TensorValue:
    operands = {"a": graph.in_memory(a), "b": graph.in_memory(b)}
    return graph.template("linear", (a.shape[0], b.shape[1]), a.dtype, operands, {"depth": a.shape[1]})


@lower(aten.mv.default)
def mv(graph: GraphLowering, matrix: TensorValue, vector: TensorValue) -> TensorValue:
    row = graph.reshape(vector, (1, vector.shape[0]))
    if matrix.dtype not in FLOATS or vector.dtype != matrix.dtype:
        raise Unsupported("matrix product of a dtype other than float32, float16 and bfloat16")
    return graph.reshape(_linear(graph, row, _transpose(graph, matrix)), (matrix.shape[0],))


@lower(aten.addmm.default)
def addmm(
    graph: GraphLowering, bias: TensorValue, a: TensorValue, b: TensorValue, *, beta: Any = 1, alpha: Any = 1
) -> TensorValue:
    product = mm(graph, a, b)
    body = _scaled(product.body, alpha, a.dtype)
    if beta != 0:
        addend = graph.broadcast_to(bias, product.shape)
        body = ir.op("add", body, _scaled(addend.body, beta, a.dtype), dtype=a.dtype)
    return TensorValue(product.shape, a.dtype, body)


def _scaled(body: ir.Expr, factor: Any, dtype: torch.dtype) -> ir.Expr:
    if isinstance(factor, (int, float)) and factor == 1:
        return body
    scale = ir.index_value(factor, dtype) if isinstance(factor, sympy.Expr) else ir.constant(factor, dtype)
    return ir.op("mul", body, scale, dtype=dtype)


@lower(aten.dot.default, aten.vdot.default)
def dot(graph: GraphLowering, a: TensorValue, b: TensorValue) -> TensorValue:
    if a.dtype not in FLOATS:
        raise Unsupported("dot product of integers")
    body = ir.op("mul", a.body, b.body, dtype=a.dtype)
    return graph.reduce("sum", TensorValue(a.shape, a.dtype, body), [0], keepdim=False)
