"""Metal Shading Language anywhere: front-end, standard-library headers, and kernels callable from Python."""

from __future__ import annotations

import importlib
from typing import Any

_MODULES = {
    "ShaderLibrary": "shader_library",
    "compile_shader": "shader_library",
    "Diagnostic": "diagnostics",
    "MetalWarning": "diagnostics",
    "diagnose": "diagnostics",
}
__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    """Loads the callable side at first use: the front-end itself needs no torch."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; public names: {', '.join(__all__)}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
