"""Scaled dot-product attention: few query rows in the decode kernels, many in tiles, what is left in an ATen call."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._sympy.functions import FloorDiv

from metal_inductor import attention_op, ir, policy
from metal_inductor.ir import TensorValue
from metal_inductor.lowerings.registry import Unsupported, lower

if TYPE_CHECKING:
    from metal_inductor.lower import GraphLowering

aten = torch.ops.aten


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
    """softmax(Q K^T * scale + mask) V over [batch, heads, length, dim], in the kernel that `policy` chooses."""
    shape = graph.result_shape()
    lead, length, keys = shape[:-2], query.shape[-2], key.shape[-2]
    if not query.shape[-1].is_Integer or not value.shape[-1].is_Integer:
        raise Unsupported("attention with a symbolic head dimension")
    if keys == 0:  # a row that sees nothing is 0
        return graph.full(shape, 0.0, query.dtype)
    dim, value_dim = int(query.shape[-1]), int(value.shape[-1])
    kernel = policy.attention_kernel(length, dim, value_dim, ir.product(lead), keys, graph.policy_device)
    if kernel is None:
        raise Unsupported("attention with many query rows or a large head dimension")
    if kernel == "attention_tiled":
        key, value = _in_memory_if_heavy(graph, key), _in_memory_if_heavy(graph, value)
    operands: dict[str, Any] = {
        name: _with_lead(graph, x, lead, enable_gqa).body
        for name, x in (("query", query), ("key", key), ("value", value))
    }
    if mask is not None:
        wide = graph.broadcast_to(mask, (*lead, length, keys))
        operands["mask"] = _flatten_lead(graph, wide).body
    parameters = {
        "heads": ir.product(lead), "length": int(length) if length.is_Integer else length, "keys": keys,
        "dim": dim, "value_dim": value_dim, "causal": is_causal,
        "scale": 1.0 / math.sqrt(dim) if scale is None else float(scale),
        "mask_dtype": None if mask is None else mask.dtype,
    }  # fmt: skip
    out_shape = (ir.product(lead), length, value_dim)
    stride = (value_dim, value_dim * lead[-1], 1) if _tokens_first(graph, lead) else None
    return graph.reshape(graph.template(kernel, out_shape, query.dtype, operands, parameters, stride), shape)


def _tokens_first(graph: GraphLowering, lead: tuple) -> bool:
    """Whether everybody wants the result with its heads behind its rows, where one stride leads from head to head."""
    swaps = {(aten.transpose.int, (1, 2)), (aten.permute.default, (0, 2, 1, 3))}
    users = _users(graph.node)
    if len(lead) != 2 or lead[0] != 1 or not users:
        return False
    return all((user.target, _dims(user)) in swaps for user in users)


def _users(node: Any) -> list[Any]:
    """Who reads the result, be it as a view of the same shape."""
    found = []
    for user in node.users:
        same = user.target == aten.view.default and user.meta["val"].shape == node.meta["val"].shape
        found += _users(user) if same else [user]
    return found


def _dims(node: Any) -> tuple:
    """The dimensions of a transposition (in order) or permutation of four, counted from the first."""
    if node.target == aten.transpose.int:
        return tuple(sorted(dim % 4 for dim in node.args[1:]))
    return tuple(dim % 4 for dim in node.args[1]) if node.target == aten.permute.default else ()


@lower(attention_op.attention_backward.default)
def attention_backward(graph: GraphLowering, *arguments: Any) -> TensorValue:
    raise Unsupported("gradient of attention: products of many rows, for some rows of scores at a time")


def _in_memory_if_heavy(graph: GraphLowering, x: TensorValue) -> TensorValue:
    """Every tile of queries reads all keys and values: what takes more than a little to compute is computed once."""
    nodes = list(ir.walk(x.body))
    operations = sum(isinstance(node, (ir.Op, ir.Masked)) for node in nodes)
    loads = sum(isinstance(node, ir.Load) for node in nodes)
    return graph.realize(x) if policy.tiles_read_memory(operations, loads) else x


def _with_lead(graph: GraphLowering, x: TensorValue, lead: tuple, enable_gqa: bool) -> TensorValue:
    """[prod(lead), rows, columns], heads repeated for grouped queries and the batch broadcast: views only."""
    if enable_gqa and x.rank > 2 and x.shape[-3] != lead[-1]:
        groups = lead[-1] / x.shape[-3]
        shape = (*x.shape[:-3], lead[-1], *x.shape[-2:])
        head = x.rank - 3
        x = graph.view_as(x, shape, lambda *i: (*i[:head], FloorDiv(i[head], groups), *i[head + 1 :]))
    return _flatten_lead(graph, graph.broadcast_to(x, (*lead, *x.shape[-2:])))


def _flatten_lead(graph: GraphLowering, x: TensorValue) -> TensorValue:
    return graph.reshape(x, (ir.product(x.shape[:-2]), *x.shape[-2:]))
