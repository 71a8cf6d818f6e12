"""Matrix products: few rows run in the one-row kernel, the rest stays with the vendor; attention."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import sympy
import torch

from metal_inductor import attention_op, ir, policy
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


@lower(attention_op.attention.default)
def attention(
    graph: GraphLowering,
    query: TensorValue,
    key: TensorValue,
    value: TensorValue,
    mask: TensorValue | None,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> TensorValue:
    """softmax(Q K^T * scale + mask) V over [batch, heads, length, dim], for few query rows."""
    shape = graph.result_shape()
    length, dim, keys, value_dim = query.shape[-2], query.shape[-1], key.shape[-2], value.shape[-1]
    if not all(size.is_Integer for size in (length, dim, value_dim)):
        raise Unsupported("attention with a symbolic number of query rows or head dimension")
    if not policy.attention_in_kernel(int(length), int(dim), int(value_dim), ir.product(shape[:-2]), keys):
        raise Unsupported("attention with many query rows or a large head dimension")
    lead = shape[:-2]
    q = _with_lead(graph, query, lead, enable_gqa)
    k = _with_lead(graph, key, lead, enable_gqa)
    v = _with_lead(graph, value, lead, enable_gqa)
    operands: dict[str, Any] = {"query": q.body, "key": k.body, "value": v.body}
    if mask is not None:
        wide = graph.broadcast_to(mask, (*lead, length, keys))
        operands["mask"] = _flatten_lead(graph, wide).body
    parameters = {
        "heads": ir.product(lead), "length": int(length), "keys": keys, "dim": int(dim), "value_dim": int(value_dim),
        "scale": 1.0 / math.sqrt(int(dim)) if scale is None else float(scale), "causal": is_causal,
        "mask_dtype": None if mask is None else mask.dtype,
    }  # fmt: skip
    out_shape = (ir.product(lead), length, value_dim)
    result = graph.template("attention_decode", out_shape, query.dtype, operands, parameters)
    return graph.reshape(result, shape)


def _with_lead(graph: GraphLowering, x: TensorValue, lead: tuple, enable_gqa: bool) -> TensorValue:
    """[prod(lead), rows, columns], heads repeated for grouped queries and the batch broadcast: views only."""
    if enable_gqa and x.rank > 2 and x.shape[-3] != lead[-1]:
        groups = lead[-1] / x.shape[-3]
        shape = (*x.shape[:-3], lead[-1], *x.shape[-2:])
        head = x.rank - 3
        x = graph.view_as(x, shape, lambda *i: (*i[:head], _quotient(i[head], groups), *i[head + 1 :]))
    return _flatten_lead(graph, graph.broadcast_to(x, (*lead, *x.shape[-2:])))


def _quotient(index: sympy.Expr, groups: Any) -> sympy.Expr:
    from torch.utils._sympy.functions import FloorDiv

    return FloorDiv(index, groups)


def _flatten_lead(graph: GraphLowering, x: TensorValue) -> TensorValue:
    return graph.reshape(x, (ir.product(x.shape[:-2]), *x.shape[-2:]))
