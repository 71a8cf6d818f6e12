"""Which ATen ops AOTAutograd splits into simpler ones before the graph is lowered."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch

from metal_inductor.torch_compat import all_decompositions, core_decompositions

aten = torch.ops.aten

# Core ops that torch can split further, and that have no lowering of their own.
_EXTRA = (
    "_adaptive_avg_pool2d", "adaptive_max_pool2d", "adaptive_max_pool3d", "_addmm_activation", "addmv", "dist",
    "grid_sampler_2d", "upsample_bilinear2d", "upsample_bicubic2d", "upsample_trilinear3d",
    "upsample_nearest2d", "tril_indices", "triu_indices", "narrow_copy", "unbind_copy", "permute_copy",
    "as_strided_copy", "view_copy", "slice_scatter", "index_select",
    "rrelu_with_noise_backward", "native_batch_norm", "_native_batch_norm_legit",
    "_native_batch_norm_legit_functional", "_batch_norm_with_update_functional", "_batch_norm_no_update",
    "batch_norm_backward",
)  # fmt: skip

# Random ops draw from torch's generator in eager's order: their decompositions would draw other numbers.
_RANDOM = ("bernoulli", "rrelu", "rrelu_with_noise", "alpha_dropout", "native_dropout", "cauchy", "exponential",
           "geometric", "log_normal", "normal", "uniform", "randn")  # fmt: skip


def _overloads(name: str) -> list[Any]:
    packet = getattr(aten, name, None)
    return [] if packet is None else [getattr(packet, overload) for overload in packet.overloads()]


def _addbmm(base: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, beta: float = 1, alpha: float = 1) -> torch.Tensor:
    """base (n, p) and the sum over the batch of a (k, n, m) @ b (k, m, p): one product over k * m."""
    rows = a.permute(1, 0, 2).reshape(a.shape[1], -1)
    return aten.addmm(base, rows, b.reshape(-1, b.shape[2]), beta=beta, alpha=alpha)


def _cdist(a: torch.Tensor, b: torch.Tensor, p: float, compute_mode: int | None) -> torch.Tensor:
    """Distances between the rows of a (..., n, d) and of b (..., m, d), summed from the differences unless torch would
    take a matrix product."""
    large = a.shape[-2] > 25 or b.shape[-2] > 25
    if p == 2 and (compute_mode == 1 or (compute_mode in (None, 0) and large)):
        return aten._euclidean_dist(a, b)
    gap = (a.unsqueeze(-2) - b.unsqueeze(-3)).abs()
    if gap.shape[-1] == 0:
        return gap.sum(-1)
    if p == 0:
        return (gap != 0).to(gap.dtype).sum(-1)
    if p in (1, math.inf):
        return gap.sum(-1) if p == 1 else gap.amax(-1)
    return (gap * gap).sum(-1).sqrt() if p == 2 else gap.pow(p).sum(-1).pow(1.0 / p)


def _trilinear(
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    expand_a: list[int],
    expand_b: list[int],
    expand_c: list[int],
    sumdim: list[int],
    unroll_dim: int = 1,
) -> torch.Tensor:
    """The product of three tensors, each with new dimensions of size one, summed over `sumdim`."""
    product = torch.ones((), dtype=a.dtype, device=a.device)
    for factor, dims in ((a, expand_a), (b, expand_b), (c, expand_c)):
        for dim in dims:
            factor = factor.unsqueeze(dim)
        product = product * factor
    return product.sum(sumdim) if sumdim else product


# Ours, for ops that torch does not split.
_OWN = {
    "addbmm": _addbmm,
    "_cdist_forward": _cdist,
    "_trilinear": _trilinear,
}


@functools.cache
def _table() -> dict[Any, Any]:
    from metal_inductor.lowerings import registered

    every = all_decompositions()
    table = core_decompositions()
    for name in _EXTRA:
        table.update({target: every[target] for target in _overloads(name) if target in every})
    table.update({getattr(aten, name).default: function for name, function in _OWN.items()})
    for target in [*registered(), *(target for name in _RANDOM for target in _overloads(name))]:
        table.pop(target, None)
    return table


def table() -> dict[Any, Any]:
    """The decompositions for `aot_autograd`: torch's core set and a few more, without random ops and without what has
    a lowering, which stays whole."""
    return dict(_table())
