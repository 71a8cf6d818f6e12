"""A `torch.compile` backend for Apple GPUs whose Metal kernels also run on a CPU.

`torch.compile(model, backend="metal_inductor")` needs no import of this package. Public names are loaded at first use,
so that the import itself is cheap.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_HOMES = {  # public name -> (module, attribute in it; None: the module itself)
    "backend": ("metal_inductor.compiler", "backend"),
    "compile_shader": ("metal_inductor.metal", "compile_shader"),
    "MetalRuntimeError": ("metal_inductor.runtime.errors", "MetalRuntimeError"),
    "MetalCheckError": ("metal_inductor.runtime.checks", "MetalCheckError"),
    "MetalCheckWarning": ("metal_inductor.runtime.checks", "MetalCheckWarning"),
    "cache": ("metal_inductor.cache", None),
    "config": ("metal_inductor.config", None),
    "report": ("metal_inductor.report", None),
}

__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; public names: {', '.join(__all__)}")
    module, attribute = _HOMES[name]
    loaded = importlib.import_module(module)
    return getattr(loaded, attribute) if attribute else loaded


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
