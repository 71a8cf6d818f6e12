"""What a caller of `torch.compile` sees: options are checked, sizes are arguments, command buffers are cut."""

from __future__ import annotations

import pytest
import torch

from metal_inductor import compiler, report


def test_unknown_options_and_modes_are_refused_by_name():
    for wrong in ({"options": {"fusoin": True}}, {"mode": "fastest"}):
        with pytest.raises(Exception, match="fusoin|fastest"):
            torch.compile(lambda x: x + 1, backend=compiler.backend, **wrong)(torch.ones(2))


def test_lengths_of_a_dynamic_dimension_share_one_compilation():
    def function(x, row):
        y = (x * row).softmax(-1)
        return y.flip(0), y.sum(0), y.t().reshape(-1), y.argmax(0)

    compiled = torch.compile(function, backend=compiler.backend, fullgraph=True)
    row = torch.randn(7)
    with report.collect() as graphs:
        for length in (5, 3, 4, 17, 33, 300):
            x = torch.randn(length, 7)
            torch._dynamo.mark_dynamic(x, 0)
            torch.testing.assert_close(compiled(x, row), function(x, row))
    (graph,) = graphs
    assert graph.calls == 6


@pytest.mark.parametrize("commit_every, buffers", [(1, 6), (4, 2), (16, 1)])
def test_command_buffers_hold_as_many_kernels_as_asked(commit_every, buffers):
    def function(x, w):
        for _ in range(6):
            x = x @ w
        return x

    x, w = torch.randn(2, 16), torch.randn(16, 16) / 4
    compiled = torch.compile(function, backend=compiler.backend, dynamic=False, options={"commit_every": commit_every})
    with report.collect() as graphs:
        torch.testing.assert_close(compiled(x, w), function(x, w))
    assert graphs[0].command_buffers == buffers
