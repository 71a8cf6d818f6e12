"""The table ATen op -> lowering, and what a lowering raises to decline."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

METAL_DTYPES = frozenset(
    {
        torch.float32, torch.float16, torch.bfloat16, torch.bool,
        torch.int8, torch.int16, torch.int32, torch.int64,
        torch.uint8, torch.uint16, torch.uint32, torch.uint64,
    }
)  # fmt: skip

_table: dict[Any, Callable[..., Any]] = {}


class Unsupported(Exception):
    """A lowering declines this call; the text is the recorded reason of the ATen call that takes its place."""


def lower(*targets: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers a lowering for op overloads. It is called as `f(graph, *args, **kwargs)` with `TensorValue`s for
    tensors and sympy expressions for symbolic sizes, and returns a `TensorValue` or a tuple of them; `graph` is the
    `GraphLowering` (its `meta`, `result_shape()`, `result_dtype()` describe the result that torch expects)."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        for target in targets:
            if target in _table:
                raise ValueError(f"{target} has a lowering already: {_table[target].__module__}")
            _table[target] = function
        return function

    return register


def find_lowering(target: Any) -> Callable[..., Any] | None:
    import metal_inductor.lowerings  # noqa: F401  (fills the table)

    return _table.get(target)


def registered() -> tuple[Any, ...]:
    """Every op overload that has a lowering."""
    import metal_inductor.lowerings  # noqa: F401

    return tuple(_table)
