"""Pooling windows with every mixture of stride, padding and dilation, and their gradients."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.lowerings.compiled import check, gradients

QUICK = settings(max_examples=6, deadline=None, derandomize=True)
NAN, INF = float("nan"), float("inf")


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@st.composite
def windows(draw: st.DrawFn) -> dict:
    kernel = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    return {
        "kernel_size": kernel,
        "stride": draw(st.tuples(st.integers(1, 3), st.integers(1, 3))),
        "padding": tuple(draw(st.integers(0, size // 2)) for size in kernel),
        "ceil_mode": draw(st.booleans()),
    }


@QUICK
@given(windows(), st.booleans(), st.sampled_from([None, 3]))
def test_average_pooling_counts_what_eager_counts(window: dict, count_padding: bool, divisor: int | None) -> None:
    torch._dynamo.reset()
    x = noise(2, 3, 7, 8).requires_grad_()
    options = {**window, "count_include_pad": count_padding, "divisor_override": divisor}
    gradients(lambda x: F.avg_pool2d(x, **options), x, tolerance=1e-5)


@QUICK
@given(windows(), st.integers(1, 2))
def test_max_pooling_with_its_positions(window: dict, dilation: int) -> None:
    torch._dynamo.reset()
    assume(all((size - 1) * dilation + 1 <= 7 for size in window["kernel_size"]))
    x = (noise(2, 3, 7, 8) * 2).round()
    options = {**window, "dilation": dilation, "return_indices": True}
    check(lambda x: F.max_pool2d(x, **options), x)
    gradients(lambda x: F.max_pool2d(x, **options)[0], x.requires_grad_(), tolerance=1e-5)


def test_maxima_of_nan_and_of_planes_without_any_value() -> None:
    x = noise(1, 2, 6, 6)
    x[0, 0, 2, 3], x[0, 1] = NAN, -INF
    check(lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True), x)
    check(lambda x: F.max_pool2d(x, 3, 1, 1, dilation=2, return_indices=True), x)


def test_other_average_pools() -> None:
    x = noise(2, 3, 8, 6)
    check(lambda x: (F.avg_pool1d(x[0], 3, 2, 1), F.avg_pool3d(x, 2, 1), F.avg_pool2d(x.half(), 3)), x, tolerance=1e-3)
    check(lambda x: [F.adaptive_avg_pool2d(x, sizes) for sizes in ((4, 3), (5, 4), (1, 1), (9, 7))], x)


def test_gradients_of_adaptive_pools() -> None:
    x = noise(2, 3, 8, 6).requires_grad_()
    gradients(lambda x: [F.adaptive_avg_pool2d(x, sizes) for sizes in ((4, 3), (1, 1), (5, 4), (9, 7))], x)
    gradients(lambda x: F.adaptive_avg_pool3d(x, (2, 3, 4)), x)


def test_channels_last_inputs_keep_their_layout() -> None:
    x = noise(2, 4, 6, 6).to(memory_format=torch.channels_last)
    check(lambda x: (F.avg_pool2d(x, 2), F.max_pool2d(x, 2), F.adaptive_avg_pool2d(x, 3)), x)
