"""ATen op -> tensor IR, one file an op family, one small function an op. Importing this package fills the table."""

from metal_inductor.lowerings import (  # noqa: F401
    assemble,
    attention,
    creation,
    gather_scatter,
    matmul,
    mutation,
    norm,
    pointwise,
    pooling,
    reduction,
    variance,
    view,
)
from metal_inductor.lowerings.registry import Unsupported, find_lowering, lower, registered

__all__ = ["Unsupported", "find_lowering", "lower", "registered"]
