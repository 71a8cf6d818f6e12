"""ATen op -> tensor IR, one file an op family, one small function an op. Importing this package fills the table."""

from metal_inductor.lowerings import creation, gather_scatter, matmul, mutation, norm, pointwise, reduction, view  # noqa: F401
from metal_inductor.lowerings.registry import Unsupported, find_lowering, lower, registered

__all__ = ["Unsupported", "find_lowering", "lower", "registered"]
