"""Metal Shading Language anywhere: front-end, standard-library headers, and kernels callable from Python."""

from __future__ import annotations

from typing import Any

__all__ = ["ShaderLibrary", "compile_shader"]


def __getattr__(name: str) -> Any:
    """Loads the callable side at first use: the front-end itself needs no torch."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; public names: {', '.join(__all__)}")
    from metal_inductor.metal import shader_library

    return getattr(shader_library, name)
