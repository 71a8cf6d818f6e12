"""Rows of reductions as a GPU walks them: split over many threadgroups, read in words and held in registers, or with
lanes on neighbouring columns. Errors are measured against float64, beside eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils._pytree import tree_leaves

from metal_inductor import policy, report
from metal_inductor.runtime.checks import MetalCheckWarning
from tests.lowerings.compiled import clones, run, same

NAN, INF = float("nan"), float("inf")
GPU = {"policy_device": "mps"}


def noise(*shape: int, dtype: torch.dtype = torch.float32, scale: float = 1.0) -> torch.Tensor:
    return (torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))) * scale).to(dtype)


def on_gpu(function: Callable, *args: Any, dispatches: int) -> list[torch.Tensor]:
    """Results of the GPU's kernels, of which the graph must have `dispatches`; values as exact as eager's."""
    torch._dynamo.reset()
    copies = clones(args)
    result, graphs = run(function, *copies, options=GPU, dynamic=False)
    assert [len(graph.kernels) for graph in graphs] == [dispatches], graphs
    assert not any(graph.externs for graph in graphs)
    same(copies, args)
    ours, eager = tree_leaves(result), tree_leaves(function(*args))
    wide = [arg.double() if arg.is_floating_point() else arg for arg in args]
    for mine, theirs, exact in zip(ours, eager, tree_leaves(function(*wide)), strict=True):
        assert mine.dtype == theirs.dtype and mine.shape == theirs.shape
        if not mine.is_floating_point():
            assert torch.equal(mine, theirs)
            continue
        torch.testing.assert_close(mine, theirs, rtol=1e-2, atol=1e-2, equal_nan=True)
        finite = exact.isfinite() & theirs.isfinite()
        if finite.any():
            errors = [(value.double() - exact)[finite].abs().max() for value in (mine, theirs)]
            rounding = 3 * torch.finfo(mine.dtype).eps * exact[finite].abs().max()
            assert errors[0] <= max(1.5 * errors[1], rounding)
    return ours


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((1, 128256), torch.float32),  # whole words
        ((1, 50257), torch.float32),  # a word that the row ends in
        ((2, 50257), torch.bfloat16),  # rows that begin within words
        ((3, 40000), torch.float16),
    ],
)
def test_a_long_softmax_is_two_dispatches(shape: tuple[int, int], dtype: torch.dtype) -> None:
    on_gpu(lambda x: (x.softmax(-1) * 2).float(), noise(*shape, dtype=dtype, scale=3), dispatches=2)


def test_rows_too_long_for_registers_stay_one_dispatch_where_there_are_many() -> None:
    x = noise(70, 34000, dtype=torch.bfloat16, scale=3)
    on_gpu(lambda x: (x.softmax(-1) * 2).float(), x, dispatches=1)
    on_gpu(lambda x, w: F.layer_norm(x, (20000,), w), x[:, :20000].float(), noise(20000), dispatches=1)


def test_chains_are_fused_before_and_after_a_long_row() -> None:
    x, mask = noise(2, 40000), noise(2, 40000).cos() > 0
    scaled = lambda x, m: torch.where(m, x.half() * 0.3, -INF).log_softmax(-1).exp() + 1  # noqa: E731
    on_gpu(scaled, x, mask, dispatches=2)
    on_gpu(lambda x: (x * 2).argmax(-1) + 1, x, dispatches=2)


def test_long_rows_without_finite_elements_are_nan() -> None:
    x = noise(5, 33000)
    x[0], x[1, 20000:], x[2, 777], x[3, 5] = -INF, -INF, NAN, INF
    probabilities, logarithms = on_gpu(lambda x: (x.softmax(-1), x.log_softmax(-1)), x, dispatches=2)
    for value in (probabilities, logarithms):
        assert [bool(row.isnan().any()) for row in value] == [True, False, True, True, False]
        assert value[0].isnan().all() and value[2].isnan().all() and value[3].isnan().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32])
def test_the_first_of_equal_extrema_is_found_in_a_long_row(dtype: torch.dtype) -> None:
    x = (noise(2, 70001) * 4).to(dtype)
    x[1] = 7
    function = lambda x: (x.argmax(-1), x.argmin(-1), *x.max(-1))  # noqa: E731
    on_gpu(function, x, dispatches=2)


def test_the_first_nan_of_a_long_row_wins() -> None:
    x = noise(4, 40001)
    x[0, 30000], x[0, 333], x[1], x[2, 40000], x[3, 39999] = NAN, NAN, -INF, NAN, INF
    argmax, argmin, *_ = on_gpu(lambda x: (x.argmax(-1), x.argmin(-1), x.amax(-1), x.amin(-1)), x, dispatches=2)
    assert argmax.tolist() == [333, 0, 40000, 39999] and argmin[:3].tolist() == [333, 0, 40000]


def test_long_integers_and_truths_are_exact() -> None:
    x = torch.full((2, 70000), 2**40 + 1)
    x[1, 69999] = 2**50
    on_gpu(lambda x: (x.sum(-1), x.argmax(-1), x.amin(-1), (x > 2**45).any(-1), (x > 5).all(-1)), x, dispatches=2)


def test_a_norm_of_few_long_rows_takes_a_dispatch_for_each_walk() -> None:
    on_gpu(lambda x, w: F.layer_norm(x, (40000,), w) + 1, noise(2, 40000) + 3, noise(40000), dispatches=3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("length", [96, 1000, 2048, 4097])
def test_rows_that_fit_in_registers(length: int, dtype: torch.dtype) -> None:
    """Norms and softmax of many rows: one dispatch, whole words or not."""
    x, weight = noise(9, length, dtype=dtype, scale=2), noise(length, dtype=dtype)
    on_gpu(lambda x, w: (x.softmax(-1), F.rms_norm(x + 1, (length,), w)), x, weight, dispatches=1)


def test_a_row_may_begin_anywhere() -> None:
    """Views that begin within a word, with rows farther apart than they are long, are read as they lie."""
    memory = noise(7, 1040)
    for begin, end in ((8, 1032), (1, 1025), (3, 1000)):
        on_gpu(lambda x: x.softmax(-1), memory[:, begin:end], dispatches=1)
    on_gpu(lambda x: (x[:, 1:].softmax(-1), x[1:, :512].sum(-1)), memory, dispatches=2)
    on_gpu(lambda x: x.softmax(-1), noise(40010)[5:].view(1, -1), dispatches=2)


@pytest.mark.parametrize("shape", [(513, 300), (4096, 40), (65, 3, 50), (2000, 5)])
def test_neighbouring_rows_are_reduced_side_by_side(shape: tuple[int, ...]) -> None:
    x = noise(*shape)
    result = policy.column_tiling(x[0].numel(), shape[0], 4, "mps")
    assert result.columns and result.rows_per_group > 1
    function = lambda x: (x.sum(0), x.argmax(0), x.amin(0), x.mean(0))  # noqa: E731
    on_gpu(function, x, dispatches=2 if result.splits > 1 else 1)


def test_a_softmax_along_columns_and_ties_and_nan() -> None:
    x = (noise(2, 200, 50) * 3).round()
    x[0, 7, 3], x[0, 90, 3], x[1, :, 4] = NAN, NAN, -INF
    torch._dynamo.reset()
    function = lambda x: (x.softmax(1), x.argmax(1), x.max(1))  # noqa: E731
    result, _ = run(function, x, options=GPU, dynamic=False)
    same(result, function(x), 1e-6)


def test_lengths_that_change_are_walked_whole() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: (x.softmax(-1), x.sum(0)), backend="metal_inductor", options=GPU, dynamic=True)
    with report.collect() as graphs:
        for rows, length in ((3, 50), (5, 3001), (2, 40000)):
            x = noise(rows, length)
            same(compiled(x), (x.softmax(-1), x.sum(0)), 1e-5)
    assert len(graphs) == 1


def test_gradients_of_long_softmaxes() -> None:
    for function in (torch.softmax, torch.log_softmax):
        x, weight = noise(2, 40000, scale=2).requires_grad_(), noise(2, 40000)
        torch._dynamo.reset()
        compiled = torch.compile(lambda x: (function(x, -1) * weight).sum(), backend="metal_inductor", options=GPU)  # noqa: B023
        (ours,) = torch.autograd.grad(compiled(x), x)
        exact_input = x.detach().double().requires_grad_()
        (exact,) = torch.autograd.grad((function(exact_input, -1) * weight.double()).sum(), exact_input)
        (eager,) = torch.autograd.grad((function(x, -1) * weight).sum(), x)
        limit = max(1.5 * (eager - exact).abs().max(), 3 * torch.finfo(torch.float32).eps * exact.abs().max())
        assert (ours - exact).abs().max() <= limit


@pytest.mark.filterwarnings(f"error::{MetalCheckWarning.__module__}.{MetalCheckWarning.__name__}")
def test_threads_neither_race_nor_leave_their_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METAL_INDUCTOR_CHECKS", "all")
    on_gpu(lambda x: (x.softmax(-1), x.argmax(-1)), noise(1, 16391), dispatches=2)
    on_gpu(lambda x, w: F.rms_norm(x, (1029,), w), noise(3, 1029), noise(1029), dispatches=1)
    on_gpu(lambda x: (x.sum(0), x.argmax(0)), noise(4200, 9), dispatches=2)
