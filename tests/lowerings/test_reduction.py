"""Reductions: eager's dtypes, identities, ties and NaN, and errors no larger than eager's against float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lowerings.compiled import check, run

QUICK = settings(max_examples=8, deadline=None, derandomize=True)
NAN, INF = float("nan"), float("inf")


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def no_worse_than_eager(function: Callable, x: torch.Tensor, ratio: float = 1.5) -> None:
    """The largest error against float64 is at most `ratio` times eager's, or three roundings of the largest result:
    eager accumulates variances in float64."""
    exact = torch.utils._pytree.tree_leaves(function(x.double()))
    eager = torch.utils._pytree.tree_leaves(function(x))
    ours, graphs = run(function, x)
    assert not any(graph.externs for graph in graphs)
    for reference, theirs, mine in zip(exact, eager, torch.utils._pytree.tree_leaves(ours), strict=True):
        assert mine.dtype == theirs.dtype and mine.shape == theirs.shape
        rounding = reference.abs().max() * 3 * torch.finfo(mine.dtype).eps
        limit = max(ratio * (theirs.double() - reference).abs().max(), rounding)
        assert (mine.double() - reference).abs().max() <= limit


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_sums_means_and_variances_are_as_exact_as_eager(dtype: torch.dtype) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            x.sum(), x.sum(-1), x.sum((0, 2), True), x.mean(1), x.mean(), x.var(-1), x.std((0, 1), correction=0),
            *torch.var_mean(x, 2), *torch.std_mean(x, (0, 2), keepdim=True), x.logsumexp(-1), x.norm(), x.prod(1) * 0.5,
        )  # fmt: skip

    no_worse_than_eager(function, (noise(3, 5, 1031) + 0.5).to(dtype))


def test_a_variance_far_from_zero_keeps_its_digits() -> None:
    """Within a few roundings: eager accumulates in float64, which no GPU of Apple's has."""
    x = noise(4, 3000) + 1e4
    function = lambda x: (x.var(-1), x.std(0), x.var(), torch.var_mean(x, 1)[1])  # noqa: E731
    ours, _ = run(function, x)
    for mine, exact in zip(ours, function(x.double()), strict=True):
        torch.testing.assert_close(mine.double(), exact, rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.float32]
)
def test_dtypes_of_results_are_eagers(dtype: torch.dtype) -> None:
    x = torch.randint(0, 3, (4, 6, 5)).to(dtype)

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            x.sum(1), x.sum(), x.sum((0, -1), dtype=torch.float32), x.prod(0), x.amax((0, 2)), x.amin(1, True), x.any(),
            x.any(0), x.all(-1, keepdim=True), x.all(), x.count_nonzero(1), x.count_nonzero(),
            x.sum(-1, dtype=torch.int8) if not x.is_floating_point() else x.mean(-1),
        )  # fmt: skip

    check(function, x)
    if dtype != torch.bool:
        check(lambda x: (x.argmax(1), x.argmin(), x.max(2), x.min(0, True), x.max(), x.min(), x.aminmax(dim=1)), x)


def test_large_integers_are_summed_exactly() -> None:
    x = torch.full((3, 4000), 2**53 + 1)
    check(lambda x: (x.sum(-1), x.amax(0), x.prod(0), x.sum(), x.argmax(-1)), x)


def test_whole_tensors_are_summed_in_several_rows() -> None:
    """As exact as eager whatever the length: 100003 is prime, and from the second on the length is an argument."""
    for length in (100003, 1 << 18, 3 * 5**8, 5):
        x = torch.rand(length, generator=torch.Generator().manual_seed(length))
        no_worse_than_eager(lambda x: (x.sum(), x.mean(), x.var(), x.norm(), x.view(-1, 1).std()), x)
    big = noise(300, 200)
    check(lambda x: (x.amax(), x.amin((0, 1), keepdim=True), (x > 4).any(), (x < 9).all(), x.abs().sum()), big)
    check(lambda x: (x.sum(), x.amax(), x.argmax(), x.prod(), x.count_nonzero()), (big * 9).to(torch.int64))


def test_nan_wins_and_its_first_place_is_found() -> None:
    x = noise(4, 1100)
    x[0, 700], x[0, 900], x[1, 0], x[2, 1099] = NAN, NAN, NAN, NAN
    check(lambda x: (x.amax(-1), x.amin(-1), x.argmax(-1), x.argmin(-1), x.max(0), x.min(-1), x.max(), x.argmax()), x)
    check(lambda x: (x.half().amax(-1), x.nansum(-1), x.isnan().any(-1), x.aminmax()), x, tolerance=1e-4)


def test_ties_take_the_first_place() -> None:
    x = torch.randint(0, 3, (5, 777))
    check(lambda x: (x.argmax(-1), x.argmin(-1), x.argmax(0), x.argmax(), x.float().max(-1), x.char().min(0)), x)


def test_infinities_and_constant_rows() -> None:
    x = torch.tensor([[-INF, -INF], [INF, 1.0], [-INF, INF], [NAN, INF], [0.0, -0.0]])
    check(lambda x: (x.amax(1), x.amin(1), x.sum(1), x.prod(1), x.logsumexp(1), x.mean(1), x.argmax(1)), x)
    check(lambda x: (x.norm(dim=1), torch.var_mean(x, 1), torch.std_mean(x[1:3])), x)


def test_empty_reductions_give_identities() -> None:
    x = torch.empty(3, 0, 2)

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            x.sum(1), x.prod(1), x.mean(1), x.var(1), x.any(1), x.all(1), x.sum(), x.amax(0), x.max(2)[0], x.argmax(0),
            x.logsumexp(1), x.norm(dim=1), x.count_nonzero(1),
        )  # fmt: skip

    check(function, x)


def test_scalars_and_single_elements() -> None:
    x = torch.tensor(3.5)
    check(lambda x: (x.sum(), x.mean(0), x.amax(), x.argmax(0), x.max(0), x.any(), x.norm(), x.prod(-1)), x)
    check(lambda x: (x.var(1), x.std(1, correction=0), x.var(0), x.argmax(1)), noise(3, 1))


@pytest.mark.parametrize("order", [0, 1, 2, 3, 0.5, -1, INF, -INF])
def test_vector_norms(order: float) -> None:
    x = noise(4, 9, 7) + 0.1
    norm = torch.linalg.vector_norm
    check(lambda x: (norm(x, order), norm(x, order, (0, 2)), norm(x, order, -1, True)), x, tolerance=1e-5)


@QUICK
@given(
    st.lists(st.sampled_from([1, 2, 3, 7, 33]), min_size=1, max_size=4),
    st.sets(st.integers(0, 3), max_size=3),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_any_dims_of_any_layout(shape: list[int], dims: set[int], keepdim: bool, random: object) -> None:
    torch._dynamo.reset()
    order = random.sample(range(len(shape)), len(shape))  # type: ignore[attr-defined]
    x = noise(*shape).permute(order)
    chosen = sorted(dim for dim in dims if dim < len(shape)) or [0]

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x * 2).sum(chosen, keepdim) + 1, x.amax(chosen, keepdim), x.mean(chosen, keepdim)

    check(function, x, tolerance=1e-4)


def test_reductions_with_changing_sizes_need_one_graph() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.sum(-1), x.mean(), x.var(0), x.argmax(), x.amax((0, 1)), x.softmax(-1)

    compiled = torch.compile(function, backend="metal_inductor", dynamic=True, fullgraph=True)
    for shape in ((4, 7), (9, 130), (2, 1500)):
        x = noise(*shape)
        torch.testing.assert_close(compiled(x), function(x), rtol=1e-5, atol=1e-5)


def test_one_dimension_of_changing_length() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.sum(), x.amax(), x.amin(), (x > 3).any(), (x < 3).all(), (x * 0 + 1).prod(), x.long().sum(), x.mean()

    compiled = torch.compile(function, backend="metal_inductor", dynamic=True, fullgraph=True)
    for length in (3, 255, 256, 257, 10007):
        x = noise(length)
        torch.testing.assert_close(compiled(x), function(x), rtol=1e-5, atol=1e-5)
