"""The closing copies of a graph: what AOTAutograd leaves of updates of the caller's own tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from metal_inductor import ir
from metal_inductor.ir import TensorValue
from metal_inductor.lowerings.registry import Unsupported, lower

if TYPE_CHECKING:
    from metal_inductor.lower import GraphLowering


@lower(torch.ops.aten.copy_.default)
def copy_(graph: GraphLowering, base: TensorValue, source: TensorValue, non_blocking: Any = False) -> TensorValue:
    """Writes `source` into the memory of `base`; nothing where an in-place update has already done so."""
    owner = graph.whole_buffer(base)
    if owner is None:
        raise Unsupported("copy_ into a tensor that is not one whole buffer")
    if source.dtype == base.dtype and graph.whole_buffer(source) is owner:
        return base
    graph.realize_readers(owner.name)
    value = graph.broadcast_to(source, base.shape)
    value = TensorValue(value.shape, base.dtype, ir.cast(value.body, base.dtype))
    indices = ir.index_symbols(value.rank)
    if any(load.buffer == owner.name and load.index != owner.index(indices) for load in ir.loads(value.body)):
        value = graph.realize(value, force=True)
    return graph.scatter(owner, base.shape, indices, value.body)
