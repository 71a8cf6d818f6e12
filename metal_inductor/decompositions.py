"""Which ATen ops AOTAutograd splits into simpler ones before the graph is lowered."""

from __future__ import annotations

import functools
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


@functools.cache
def _table() -> dict[Any, Any]:
    from metal_inductor.lowerings import registered

    every = all_decompositions()
    table = core_decompositions()
    for name in _EXTRA:
        table.update({target: every[target] for target in _overloads(name) if target in every})
    for target in [*registered(), *(target for name in _RANDOM for target in _overloads(name))]:
        table.pop(target, None)
    return table


def table() -> dict[Any, Any]:
    """The decompositions for `aot_autograd`: torch's core set and a few more, without random ops and without what has
    a lowering, which stays whole."""
    return dict(_table())
