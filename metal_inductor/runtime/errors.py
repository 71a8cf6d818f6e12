"""Errors that kernels raise while they run."""

from __future__ import annotations


class MetalRuntimeError(RuntimeError):
    """A kernel failed while running; the rest of its command buffer did not run."""
