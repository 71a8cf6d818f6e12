"""Before autograd: `scaled_dot_product_attention` becomes `metal_inductor::attention`, which nothing decomposes."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch.fx import GraphModule, Node

from metal_inductor.attention_op import attention
from metal_inductor.lowerings.registry import METAL_DTYPES

PARAMETERS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
DEFAULTS = {"attn_mask": None, "dropout_p": 0.0, "is_causal": False, "scale": None, "enable_gqa": False}
TARGETS = (F.scaled_dot_product_attention, torch.ops.aten.scaled_dot_product_attention.default)


def keep_attention(gm: GraphModule) -> int:
    """Rewrites every call in `gm` and its submodules that the op can express; returns how many."""
    count = 0
    for module in gm.modules():
        if not isinstance(module, GraphModule):
            continue
        for node in list(module.graph.nodes):
            if node.op == "call_function" and node.target in TARGETS and (call := _arguments(node)) is not None:
                node.target = attention.default
                node.args, node.kwargs = call, {}
                count += 1
        module.recompile()
    return count


def _arguments(node: Node) -> tuple | None:
    """The op's arguments, or None where torch's own op must stay: dropout draws from its generator, and other dtypes or
    ranks take paths of their own."""
    given: dict[str, Any] = {**DEFAULTS, **dict(zip(PARAMETERS, node.args)), **node.kwargs}
    query, key, value = (_fake(given[name]) for name in ("query", "key", "value"))
    if given["dropout_p"] != 0.0 or any(x is None for x in (query, key, value)):
        return None
    dtypes = {x.dtype for x in (query, key, value)}
    ranks = {x.dim() for x in (query, key, value)}
    if len(dtypes) != 1 or not dtypes <= METAL_DTYPES or len(ranks) != 1 or not ranks <= {2, 3, 4, 5}:
        return None
    if not next(iter(dtypes)).is_floating_point or (given["is_causal"] and given["attn_mask"] is not None):
        return None
    mask = _fake(given["attn_mask"])
    if mask is not None and mask.dtype not in (torch.bool, query.dtype):
        return None
    if not isinstance(given["is_causal"], bool) or not isinstance(given["enable_gqa"], bool):
        return None
    scale = given["scale"]
    if not isinstance(scale, (float, int, type(None))):
        return None
    return (
        given["query"], given["key"], given["value"], given["attn_mask"], given["is_causal"],
        None if scale is None else float(scale), given["enable_gqa"],
    )  # fmt: skip


def _fake(node: Any) -> torch.Tensor | None:
    value = node.meta.get("example_value", node.meta.get("val")) if isinstance(node, Node) else None
    return value if isinstance(value, torch.Tensor) else None
