"""`metal_inductor::attention`: scaled dot-product attention that stays one node through autograd on every device.

torch decomposes `scaled_dot_product_attention` differently on cpu, cuda and mps; this op hides it until lowering. Its
gradient recomputes the probabilities (as in Dao et al., arXiv:2205.14135, without the tiling).
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F

NAME = "metal_inductor::attention"
_library = torch.library.Library("metal_inductor", "DEF")
_library.define(
    "attention(Tensor query, Tensor key, Tensor value, Tensor? mask, bool is_causal, float? scale, bool enable_gqa)"
    " -> Tensor"
)


def _eager(query, key, value, mask, is_causal, scale, enable_gqa):  # type: ignore[no-untyped-def]
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa
    ).contiguous()


torch.library.impl(NAME, "CompositeExplicitAutograd", lib=_library)(_eager)


@torch.library.register_fake(NAME, lib=_library)
def _fake(query, key, value, mask, is_causal, scale, enable_gqa):  # type: ignore[no-untyped-def]
    heads = query.shape[:-3] if query.dim() > 3 else ()
    batch = torch.broadcast_shapes(heads, key.shape[:-3], value.shape[:-3]) if query.dim() > 3 else ()
    middle = (query.shape[-3],) if query.dim() > 2 else ()
    return query.new_empty((*batch, *middle, query.shape[-2], value.shape[-1]))


def _setup(ctx: Any, inputs: tuple, output: torch.Tensor) -> None:
    query, key, value, mask, is_causal, scale, enable_gqa = inputs
    ctx.save_for_backward(query, key, value, mask)
    ctx.is_causal, ctx.scale, ctx.enable_gqa = is_causal, scale, enable_gqa


def _repeat_heads(x: torch.Tensor, heads: Any) -> torch.Tensor:
    groups = heads // x.shape[-3]
    return x if groups == 1 else x.repeat_interleave(groups, dim=-3)


def _fold_heads(gradient: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """The gradient of `_repeat_heads`, and of broadcasting over the batch."""
    heads = x.shape[-3] if x.dim() > 2 else 1
    if x.dim() > 2 and gradient.shape[-3] != heads:
        gradient = gradient.unflatten(-3, (heads, gradient.shape[-3] // heads)).sum(-3)
    return gradient.sum_to_size(x.shape)


def causal_mask(rows: Any, columns: Any, device: torch.device) -> torch.Tensor:
    """True where a query may look: upper-left aligned, as torch."""
    return torch.ones(rows, columns, dtype=torch.bool, device=device).tril()


def _backward(ctx: Any, gradient: torch.Tensor) -> tuple:
    query, key, value, mask = ctx.saved_tensors
    q, g = query.float(), gradient.float()
    k, v = key.float(), value.float()
    if ctx.enable_gqa:
        k, v = _repeat_heads(k, q.shape[-3]), _repeat_heads(v, q.shape[-3])
    scale = 1.0 / math.sqrt(q.shape[-1]) if ctx.scale is None else ctx.scale
    scores = q @ k.transpose(-2, -1) * scale
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask.float()
    if ctx.is_causal:
        allowed = causal_mask(q.shape[-2], k.shape[-2], q.device)
        scores = scores.masked_fill(~allowed, -torch.inf)
    dead = (scores == -torch.inf).all(-1, keepdim=True)
    probabilities = torch.where(dead, 0.0, torch.softmax(scores, -1))
    d_value = probabilities.transpose(-2, -1) @ g
    d_probabilities = g @ v.transpose(-2, -1)
    d_scores = probabilities * (d_probabilities - (d_probabilities * probabilities).sum(-1, keepdim=True))
    d_query = (d_scores @ k * scale).sum_to_size(query.shape).to(query.dtype)
    d_key = _fold_heads(d_scores.transpose(-2, -1) @ q * scale, key).to(key.dtype)
    d_mask = None
    if mask is not None and ctx.needs_input_grad[3]:
        d_mask = d_scores.sum_to_size(mask.shape).to(mask.dtype)
    return d_query, d_key, _fold_heads(d_value, value).to(value.dtype), d_mask, None, None, None


torch.library.register_autograd(NAME, _backward, setup_context=_setup, lib=_library)

attention = torch.ops.metal_inductor.attention
