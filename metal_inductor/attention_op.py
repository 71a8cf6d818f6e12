"""`metal_inductor::attention`: scaled dot-product attention that stays one node through autograd on every device.

torch decomposes `scaled_dot_product_attention` differently on cpu, cuda and mps; this op hides it until lowering. Its
gradient computes the probabilities again (as in Dao et al., arXiv:2205.14135): in the backward graph where all
scores are few, else in `metal_inductor::attention_backward`, an ATen call that has the scores of some rows at a time.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F

from metal_inductor import policy

NAME = "metal_inductor::attention"
_library = torch.library.Library("metal_inductor", "DEF")
_library.define(
    "attention(Tensor query, Tensor key, Tensor value, Tensor? mask, bool is_causal, float? scale, bool enable_gqa)"
    " -> Tensor"
)
BACKWARD_NAME = "metal_inductor::attention_backward"
_library.define(
    "attention_backward(Tensor gradient, Tensor query, Tensor key, Tensor value, Tensor? mask, bool is_causal,"
    " float? scale, bool enable_gqa, bool mask_gradient) -> (Tensor, Tensor, Tensor, Tensor)"
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


def causal_mask(rows: Any, columns: Any, device: torch.device, first_row: Any = 0) -> torch.Tensor:
    """True where the queries from `first_row` on may look: upper-left aligned, as torch."""
    places = torch.arange(first_row, first_row + rows, device=device)
    return torch.arange(columns, device=device) <= places[:, None]


def _gradients(g: Any, q: Any, k: Any, v: Any, mask: Any, allowed: Any, scale: float) -> tuple:
    """Gradients of query, key, value and scores, all float32, for the rows of `q`; `allowed`: a causal mask or None."""
    scores = q @ k.transpose(-2, -1) * scale
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask.float()
    if allowed is not None:
        scores = scores.masked_fill(~allowed, -torch.inf)
    dead = (scores == -torch.inf).all(-1, keepdim=True)
    probabilities = torch.where(dead, 0.0, torch.softmax(scores, -1))
    d_probabilities = g @ v.transpose(-2, -1)
    d_scores = probabilities * (d_probabilities - (d_probabilities * probabilities).sum(-1, keepdim=True))
    return d_scores @ k * scale, d_scores.transpose(-2, -1) @ q * scale, probabilities.transpose(-2, -1) @ g, d_scores


def _widened(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, enable_gqa: bool) -> tuple:
    """Queries, keys and values in float32, one head of keys for each of queries."""
    q, k, v = query.float(), key.float(), value.float()
    if enable_gqa:
        k, v = _repeat_heads(k, q.shape[-3]), _repeat_heads(v, q.shape[-3])
    return q, k, v


def _mask_rows(mask: torch.Tensor, begin: int, end: int) -> torch.Tensor:
    return mask[..., begin:end, :] if mask.dim() > 1 and mask.shape[-2] > 1 else mask


def _backward_in_rows(gradient, query, key, value, mask, is_causal, scale, enable_gqa, mask_gradient):  # type: ignore[no-untyped-def]
    """The gradients, some rows of scores at a time. That of the mask is empty unless asked for."""
    q, k, v = _widened(query, key, value, enable_gqa)
    g, scale = gradient.float(), 1.0 / math.sqrt(q.shape[-1]) if scale is None else scale
    lead = torch.broadcast_shapes(q.shape[:-2], k.shape[:-2], v.shape[:-2])
    d_query = torch.empty_like(q, memory_format=torch.contiguous_format)
    d_key, d_value = k.new_zeros(*lead, *k.shape[-2:]), v.new_zeros(*lead, *v.shape[-2:])
    d_mask = torch.zeros_like(mask, dtype=torch.float32) if mask_gradient else q.new_empty(0)
    step = policy.gradient_rows(math.prod(lead), k.shape[-2])
    for begin in range(0, q.shape[-2], step):
        rows = slice(begin, min(begin + step, q.shape[-2]))
        allowed = causal_mask(rows.stop - begin, k.shape[-2], q.device, begin) if is_causal else None
        some = None if mask is None else _mask_rows(mask, begin, rows.stop)
        d_rows, d_k, d_v, d_scores = _gradients(g[..., rows, :], q[..., rows, :], k, v, some, allowed, scale)
        d_query[..., rows, :] = d_rows.sum_to_size(d_query[..., rows, :].shape)
        d_key += d_k
        d_value += d_v
        if mask_gradient:
            _mask_rows(d_mask, begin, rows.stop).add_(d_scores.sum_to_size(some.shape))
    d_mask = d_mask.to(mask.dtype) if mask_gradient else d_mask
    folded_key, folded_value = _fold_heads(d_key, key), _fold_heads(d_value, value)
    return d_query.to(query.dtype), folded_key.to(key.dtype), folded_value.to(value.dtype), d_mask


torch.library.impl(BACKWARD_NAME, "CompositeExplicitAutograd", lib=_library)(_backward_in_rows)


@torch.library.register_fake(BACKWARD_NAME, lib=_library)
def _fake_backward(gradient, query, key, value, mask, is_causal, scale, enable_gqa, mask_gradient):  # type: ignore[no-untyped-def]
    shapes = [x.new_empty(x.shape) for x in (query, key, value)]
    return (*shapes, mask.new_empty(mask.shape) if mask_gradient else query.new_empty(0, dtype=torch.float32))


def _backward(ctx: Any, gradient: torch.Tensor) -> tuple:
    query, key, value, mask = ctx.saved_tensors
    mask_gradient = mask is not None and ctx.needs_input_grad[3]
    sizes = (*gradient.shape[:-1], key.shape[-2])
    if not all(isinstance(size, int) for size in sizes) or not policy.gradient_in_graph(math.prod(sizes)):
        d_query, d_key, d_value, d_mask = torch.ops.metal_inductor.attention_backward(
            gradient, query, key, value, mask, ctx.is_causal, ctx.scale, ctx.enable_gqa, mask_gradient
        )
        return d_query, d_key, d_value, d_mask if mask_gradient else None, None, None, None
    q, k, v = _widened(query, key, value, ctx.enable_gqa)
    scale = 1.0 / math.sqrt(q.shape[-1]) if ctx.scale is None else ctx.scale
    allowed = causal_mask(q.shape[-2], k.shape[-2], q.device) if ctx.is_causal else None
    d_query, d_key, d_value, d_scores = _gradients(gradient.float(), q, k, v, mask, allowed, scale)
    d_query = d_query.sum_to_size(query.shape).to(query.dtype)
    d_key, d_value = _fold_heads(d_key, key).to(key.dtype), _fold_heads(d_value, value).to(value.dtype)
    d_mask = d_scores.sum_to_size(mask.shape).to(mask.dtype) if mask_gradient else None
    return d_query, d_key, d_value, d_mask, None, None, None


torch.library.register_autograd(NAME, _backward, setup_context=_setup, lib=_library)

attention = torch.ops.metal_inductor.attention
attention_backward = torch.ops.metal_inductor.attention_backward
