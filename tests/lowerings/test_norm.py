"""Softmax and normalisations, forward and backward, against float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from tests.lowerings.compiled import check, gradients, run

NAN, INF = float("nan"), float("inf")


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def no_worse_than_eager(function: Callable, *args: torch.Tensor) -> None:
    """The largest error against float64 is at most 1.5 times eager's, or three roundings of the largest result:
    eager accumulates variances in float64."""
    exact = function(*(arg.double() for arg in args))
    eager, (ours, graphs) = function(*args), run(function, *args)
    assert not any(graph.externs for graph in graphs)
    assert ours.dtype == eager.dtype and ours.stride() == eager.stride()
    rounding = exact.abs().max() * 3 * torch.finfo(ours.dtype).eps
    limit = max(1.5 * (eager.double() - exact).abs().max(), rounding)
    assert (ours.double() - exact).abs().max() <= limit


HALVES = [torch.float32, torch.float16, torch.bfloat16]


@pytest.mark.parametrize("dtype", HALVES)
def test_norms_are_as_exact_as_eager(dtype: torch.dtype) -> None:
    x, w, b = (noise(6, 5, 96) * 3 + 2).to(dtype), noise(96, seed=1).to(dtype), noise(96, seed=2).to(dtype)
    no_worse_than_eager(lambda x: x.softmax(-1), x)
    no_worse_than_eager(lambda x: x.log_softmax(1), x)
    no_worse_than_eager(lambda x, w, b: F.layer_norm(x, (96,), w, b), x, w, b)
    no_worse_than_eager(lambda x, w: F.rms_norm(x, (96,), w), x, w)
    no_worse_than_eager(lambda x, w: F.rms_norm(x, (5, 96), eps=1e-3), x, w)


def test_half_precision_softmax_in_float32() -> None:
    check(lambda x: (x.softmax(-1, dtype=torch.float32), x.log_softmax(0, dtype=torch.float32)), noise(7, 300).half())


def test_softmax_of_infinities_and_nan() -> None:
    x = torch.tensor([[-INF, -INF, -INF], [INF, 1.0, 2.0], [NAN, 1.0, -INF], [-INF, 0.0, 0.0], [1e30, -1e30, 0.0]])
    check(lambda x: (x.softmax(-1), x.log_softmax(-1), x.softmax(0), x.half().softmax(1)), x)


def test_softmax_of_one_column_scalar_and_nothing() -> None:
    check(lambda x: (x.softmax(-1), x[:, 0].softmax(0), x[:0].softmax(-1), x[:, :0].softmax(-1)), noise(3, 1))
    check(lambda x: (x.softmax(0), x.log_softmax(-1)), torch.tensor(2.0))


def test_layer_norm_of_tiny_and_huge_variances() -> None:
    x = torch.stack([torch.full((512,), 3.0), noise(512) * 1e-6, noise(512) * 1e6, noise(512) + 1e4])
    no_worse_than_eager(lambda x: F.layer_norm(x, (512,)), x)


def test_layer_norm_of_a_slice_and_of_several_dims() -> None:
    x, w = noise(4, 6, 10), noise(3, 5, seed=1)
    check(lambda x, w: F.layer_norm(x[:, 1:4, ::2], (3, 5), w), x, w, tolerance=1e-5)
    check(lambda x: F.layer_norm(x.transpose(0, 2), (4,)), x, tolerance=1e-5)
    check(lambda x: F.layer_norm(x[:0], (10,)), x)


def test_group_and_instance_norm() -> None:
    x, w, b = noise(3, 8, 5, 7), noise(8, seed=1), noise(8, seed=2)
    check(lambda x, w, b: (F.group_norm(x, 4, w, b), F.group_norm(x, 1), F.instance_norm(x)), x, w, b, tolerance=1e-5)
    check(lambda x, w, b: F.group_norm(x[..., 0, 0], 2, w, b), x, w, b, tolerance=1e-5)


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_and_its_running_statistics(training: bool) -> None:
    for shape in ((6, 4), (6, 4, 9), (6, 4, 3, 5)):
        x, w, b, mean, var = noise(*shape) * 2 + 1, noise(4), noise(4, seed=1), noise(4, seed=2), noise(4, seed=3).abs()

        def function(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, *running: torch.Tensor) -> torch.Tensor:
            return F.batch_norm(x, *running, w, b, training=training, momentum=0.3)

        check(function, x, w, b, mean, var, tolerance=1e-5)
    check(lambda x: F.batch_norm(x, None, None, training=True), noise(5, 3), tolerance=1e-5)


GRADIENTS: dict[str, tuple[Callable, tuple[int, ...]]] = {
    "softmax": (lambda x, w, b: (x * w).softmax(-1) + b, (4, 6)),
    "log_softmax": (lambda x, w, b: (x * w + b).log_softmax(-1), (4, 6)),
    "layer norm": (lambda x, w, b: F.layer_norm(x, (6,), w, b), (4, 5, 6)),
    "rms norm": (lambda x, w, b: F.rms_norm(x, (6,), w) + b, (4, 5, 6)),
    "group norm": (lambda x, w, b: F.group_norm(x, 3, w, b), (4, 6, 5)),
    "batch norm": (lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True), (4, 6, 5)),
    "batch norm in evaluation": (lambda x, w, b: F.batch_norm(x, torch.zeros(6), torch.ones(6), w, b), (4, 6, 5)),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name: str) -> None:
    function, shape = GRADIENTS[name]
    x, w, b = (noise(*size, seed=k).requires_grad_() for k, size in enumerate((shape, (6,), (6,))))
    gradients(function, x, w, b, tolerance=1e-5)


def test_a_gradient_without_that_of_the_input() -> None:
    x, w, b = noise(4, 6), noise(6, seed=1).requires_grad_(), noise(6, seed=2).requires_grad_()
    gradients(lambda x, w, b: F.layer_norm(x, (6,), w, b), x, w, b, tolerance=1e-5)


def test_losses_and_their_gradients() -> None:
    x, target = noise(5, 9).requires_grad_(), torch.tensor([1, 8, -100, 0, 1])
    weight = noise(9, seed=1).abs()

    def function(x: torch.Tensor, target: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            F.cross_entropy(x, target), F.cross_entropy(x, target, weight, label_smoothing=0.1),
            F.nll_loss(x.log_softmax(1), target, reduction="none"), F.mse_loss(x, x.detach().flip(0)),
            F.cross_entropy(x.view(1, 9, 5), target.clamp(0)[None], reduction="sum"),
        )  # fmt: skip

    gradients(function, x, target, weight, tolerance=1e-5)
