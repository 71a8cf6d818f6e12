"""Memory of a call: results are fresh, arguments stay as they were, and calls in forked children work."""

from __future__ import annotations

import os
import threading
import time

import pytest
import torch

from metal_inductor import compiler, report


def normalized(x, row):
    y = (x * row).softmax(-1)
    return (y - y.mean(0)).cumsum(-1), y.argmax(-1), y.amax(0)


def inputs(seed=0, rows=12):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 40, generator=generator), torch.randn(40, generator=generator)


def test_results_of_earlier_calls_are_never_overwritten():
    compiled = torch.compile(normalized, backend=compiler.backend, dynamic=False)
    results = [(compiled(*inputs(seed)), normalized(*inputs(seed))) for seed in range(8)]
    torch.testing.assert_close([mine for mine, _ in results], [theirs for _, theirs in results])
    storages = {tensor.untyped_storage().data_ptr() for mine, _ in results for tensor in mine}
    assert len(storages) == 8 * 3


def test_intermediates_share_memory():
    def function(x, w):
        for _ in range(12):
            x = torch.tanh(x @ w)  # a kernel each time: two buffers that take turns are enough
        return x

    x, w = torch.randn(4, 64), torch.randn(64, 64) / 8
    with report.collect() as graphs:
        actual = torch.compile(function, backend=compiler.backend, dynamic=False)(x, w)
    torch.testing.assert_close(actual, function(x, w))
    (graph,) = graphs
    assert 0 < graph.peak_intermediate_bytes <= graph.unshared_intermediate_bytes / 4


def test_a_call_that_fails_leaves_the_function_usable():
    compiled = torch.compile(lambda x, index: x[index].exp(), backend=compiler.backend)
    x, _ = inputs()
    for _ in range(3):
        with pytest.raises(IndexError, match="out of range"):
            compiled(x, torch.tensor([0, 12]))
        torch.testing.assert_close(compiled(x, torch.tensor([0, -12])), x[[0, 0]].exp())


def exit_code(child, seconds=30.0):
    """The exit code of the process `child`; it is ended and None is returned where it takes longer."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform has no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forked_children_compute_with_kernels_of_their_parent(monkeypatch):
    """Kernels only: torch's own matrix products hang in a child forked after OpenMP has started. The graph's executor
    alone: a child forked while another thread is inside Dynamo's guards waits for their lock for ever."""
    calls = []
    original = compiler.compile_graph

    def recording(*args, **kwargs):
        calls.append(original(*args, **kwargs))
        return calls[-1]

    monkeypatch.setattr(compiler, "compile_graph", recording)
    torch.compile(normalized, backend=compiler.backend, dynamic=False)(*inputs())
    (call,) = calls
    arguments = [value for value in inputs() if isinstance(value, torch.Tensor)]
    expected = call(list(arguments))
    running = threading.Thread(target=lambda: [call(list(arguments)) for _ in range(200)])
    running.start()  # a child is forked while another thread of the parent computes
    children = []
    for _ in range(3):
        child = os.fork()
        if child == 0:
            right = all(torch.equal(a, b) for a, b in zip(call(list(arguments)), expected))
            os._exit(0 if right else 1)
        children.append(child)
    assert [exit_code(child) for child in children] == [0, 0, 0]
    running.join(timeout=60)
    assert not running.is_alive()
    assert all(torch.equal(a, b) for a, b in zip(call(list(arguments)), expected))
