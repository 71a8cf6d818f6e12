"""Which nodes share a kernel: what saves memory traffic is fused, what a hazard forbids is not, dead nodes vanish."""

from __future__ import annotations

import pytest
import torch

from metal_inductor import compiler, report


def kernels(function, *args, **options):
    """The kernels of the compiled graph, after a comparison of its results and of its arguments with eager's."""
    expected_args, actual_args = ([arg.clone() for arg in args] for _ in range(2))
    expected = function(*expected_args)
    compiled = torch.compile(function, backend=compiler.backend, fullgraph=True, dynamic=False, options=options)
    with report.collect() as graphs:
        actual = compiled(*actual_args)
    torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(actual_args, expected_args)
    return graphs[0].kernels


X, ROW = torch.randn(9, 40), torch.randn(40)
FUSED = {
    "a chain of pointwise ops": (lambda x, row: ((x * 2).sin() + row).relu(), 1),
    "softmax": (lambda x, row: x.softmax(-1), 1),
    "a norm with its weight": (lambda x, row: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * row, 1),
    "two results of one space": (lambda x, row: (x.exp() + row, (x * 3).cos()), 1),
    "a pointwise op before a sum": (lambda x, row: (x * row).tanh().sum(-1), 1),
    "a reshape between ops": (lambda x, row: (x.exp().view(3, 120) * 2).sin(), 1),
    "sums over the same rows": (lambda x, row: (x.sum(-1), x.amax(-1), (x * x).sum(-1)), 1),
    "a sum of columns after one of rows": (lambda x, row: (x / x.exp().sum(-1, keepdim=True)).sum(0), 2),
    "a value wanted at another place": (lambda x, row: (lambda y: y + y.flip(0))(x.softmax(-1)), 2),
}


@pytest.mark.parametrize("case", FUSED)
def test_kernel_counts(case):
    function, count = FUSED[case]
    assert len(kernels(function, X, ROW)) == count


@pytest.mark.parametrize("case", FUSED)
def test_without_fusion_the_results_are_the_same(case):
    function, count = FUSED[case]
    assert len(kernels(function, X, ROW, fusion=False)) >= count


def test_what_nobody_reads_is_not_computed():
    def function(x, row):
        x.softmax(-1).cumsum(0)
        return row + 1

    (only,) = kernels(function, X, ROW)
    assert not any("softmax" in op or "cumsum" in op for op in only.ops)


def test_an_update_waits_for_readers_of_the_old_contents():
    def function(x, row):
        before = x.flip(0) * 2
        x[1] = row
        after = x.sum(0)
        x[2] = after
        return before, after, x * 2

    kernels(function, X, ROW)


def test_kernels_bind_at_most_what_metal_allows():
    def function(*parts):
        return torch.stack([part.sin() + other for part, other in zip(parts, parts[1:] + parts[:1])]).sum(0)

    kernels(function, *[torch.randn(5) for _ in range(50)])


def test_random_graphs_agree_with_eager():
    """Chains of ops with different iteration spaces in random order, where a wrong hazard shows as a wrong number."""
    steps = [
        lambda x: x.sin() + x.roll(1, 0), lambda x: x - x.mean(-1, keepdim=True), lambda x: x.t().contiguous().t() * 2,
        lambda x: x.softmax(0), lambda x: x.view(-1).view(x.shape) + x.amax(),
        lambda x: torch.where(x > 0, x, x.flip(1)),
        lambda x: x.clone().index_fill_(0, torch.tensor([1]), 0.5), lambda x: x / (1 + x.abs().sum(0, keepdim=True)),
    ]  # fmt: skip
    for seed in range(6):
        generator = torch.Generator().manual_seed(seed)
        order = torch.randint(0, len(steps), (6,), generator=generator).tolist()

        def function(x, order=order):
            kept = []
            for k in order:
                x = steps[k](x)
                kept.append(x.sum(-1))
            return x, *kept, kept[0] + kept[-1]

        kernels(function, torch.randn(6, 6, generator=generator))
        torch._dynamo.reset()
