"""Runs a function eagerly and compiled, and compares everything that a caller can see."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from metal_inductor import compiler, report


def clones(args: Any) -> Any:
    """Copies with the same strides and storage offsets; what requires gradients is a leaf again."""

    def copy(item: Any) -> Any:
        if not isinstance(item, torch.Tensor):
            return item
        memory = torch.empty(0, dtype=item.dtype).set_(item.detach().untyped_storage().clone())
        view = memory.as_strided(item.shape, item.stride(), item.storage_offset())
        return view.requires_grad_(item.requires_grad)

    return tree_map(copy, args)


def run(function: Callable, *args: Any, **options: Any) -> tuple[Any, list[report.GraphReport]]:
    """The compiled result and the reports of the graphs."""
    with report.collect() as graphs:
        result = torch.compile(function, backend=compiler.backend, fullgraph=True, **options)(*args)
    return result, graphs


def check(
    function: Callable,
    *args: Any,
    tolerance: float | None = None,
    aten_calls: Sequence[str] = (),
    **options: Any,
) -> Any:
    """The compiled result, after a comparison of values, dtypes, shapes and strides with eager's, of what the call does
    to its arguments, and of the ATen calls that were needed with `aten_calls`."""
    expected_args, actual_args = clones(args), clones(args)
    expected = function(*expected_args)
    actual, graphs = run(function, *actual_args, **options)
    assert sorted(extern.name for graph in graphs for extern in graph.externs) == sorted(aten_calls)
    same(actual, expected, tolerance)
    same(actual_args, expected_args, tolerance)
    return actual


def same(actual: Any, expected: Any, tolerance: float | None = None) -> None:
    limits = {} if tolerance is None else {"rtol": tolerance, "atol": tolerance}
    ours, theirs = tree_leaves(actual), tree_leaves(expected)
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs):
        if not isinstance(other, torch.Tensor):
            assert mine == other
            continue
        torch.testing.assert_close(mine, other, equal_nan=True, **limits)
        if other.numel() > 1:
            sizes = [size != 1 for size in other.shape]
            steps = [(a, b) for a, b, matters in zip(mine.stride(), other.stride(), sizes) if matters]
            assert all(a == b for a, b in steps), f"strides {mine.stride()} instead of {other.stride()}"


def gradients(function: Callable, *args: Any, tolerance: float | None = None, aten_calls: Sequence[str] = ()) -> None:
    """`check` for the gradients of all arguments that require them, with fixed cotangents."""

    def differentiate(call: Callable, args: Any) -> Any:
        outputs = [out for out in tree_leaves(call(*args)) if isinstance(out, torch.Tensor) and out.requires_grad]
        inputs = [arg for arg in args if isinstance(arg, torch.Tensor) and arg.requires_grad]
        cotangents = [torch.linspace(-1, 1, out.numel()).reshape(out.shape).to(out.dtype) for out in outputs]
        return [out.detach() for out in outputs], torch.autograd.grad(outputs, inputs, cotangents, allow_unused=True)

    expected = differentiate(function, clones(args))
    with report.collect() as graphs:
        actual = differentiate(torch.compile(function, backend=compiler.backend, fullgraph=True), clones(args))
    assert sorted(extern.name for graph in graphs for extern in graph.externs) == sorted(aten_calls)
    same(actual, expected, tolerance)
