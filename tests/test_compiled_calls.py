"""Compiled functions are reentrant, adapt to sizes without recompiling, and report what goes wrong."""

import os
import signal
import threading

import pytest
import torch

from metal_inductor import config
from metal_inductor.report import collect


def work(x, w):
    return torch.softmax((x @ w).relu() + x.sum(-1, keepdim=True), -1).cumsum(-1) * 2


@pytest.mark.parametrize("count", [2, 4])
def test_threads_share_one_compiled_function(count):
    w = torch.randn(33, 33)
    compiled = torch.compile(work, backend="metal_inductor")
    inputs = [torch.randn(9, 33) for _ in range(count)]
    compiled(inputs[0], w)
    wrong, start = [], threading.Barrier(count)

    def loop(x):
        expected = work(x, w)
        start.wait(timeout=60)
        for _ in range(60):
            if not torch.allclose(compiled(x, w), expected, atol=1e-5):
                wrong.append(x)

    threads = [threading.Thread(target=loop, args=(x,)) for x in inputs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert not any(thread.is_alive() for thread in threads)
    assert not wrong


def test_a_call_within_a_call():
    compiled = torch.compile(lambda x: torch.ops.mi_test.inner(x * 2) + x.sum(0), backend="metal_inductor")
    depth = []
    library = torch.library.Library("mi_test", "FRAGMENT")
    library.define("inner(Tensor x) -> Tensor")

    def inner(x):
        depth.append(1)
        return compiled(x) + 1 if len(depth) < 3 else x + 1

    library.impl("inner", inner, "CompositeExplicitAutograd")
    torch.library.register_fake("mi_test::inner", lambda x: torch.empty_like(x), lib=library)
    x = torch.randn(5, 5)
    first = 4 * x * 2 + 1  # the innermost call: inner(8x) = 8x + 1
    expected = ((first + (4 * x).sum(0)) + 1 + (2 * x).sum(0)) + 1 + x.sum(0)
    torch.testing.assert_close(compiled(x), expected)
    assert len(depth) == 3


def test_a_fork_after_compiling_computes_in_the_child():
    """Without ATen calls: torch's own matrix product waits for ever in a child of a process that has used OpenMP."""
    x, w = torch.randn(9, 33), torch.randn(2, 33)
    compiled = torch.compile(lambda x, w: torch.softmax(w @ x.t(), -1), backend="metal_inductor")
    expected = compiled(x, w)
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        os._exit(0 if torch.equal(compiled(x, w), expected) else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert torch.equal(compiled(x, w), expected)


def test_outputs_are_fresh_and_inputs_untouched():
    x = torch.randn(7, 5)
    before = x.clone()
    compiled = torch.compile(lambda x: x.exp() + x.sum(0), backend="metal_inductor")
    first, second = compiled(x), compiled(x)
    assert first.data_ptr() != second.data_ptr()
    assert torch.equal(first, second) and torch.equal(x, before)


def test_a_second_length_is_the_last_compilation():
    def function(x, w):
        y = torch.nn.functional.silu(x @ w)
        return (y - y.mean(-1, keepdim=True)).view(x.shape[0] * 2, -1), y.argmax(0)

    w = torch.randn(8, 6)
    compiled = torch.compile(function, backend="metal_inductor")
    with collect() as reports:
        for length in (5, 9, 12, 17, 40, 3):
            x = torch.randn(length, 8)
            torch.testing.assert_close(compiled(x, w), function(x, w))
    assert len(reports) == 2
    assert reports[1].calls == 5


def test_data_dependent_sizes():
    def function(x):
        return x[x > 0].exp().sum(), (x > 0).nonzero() * 2

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(function, backend="metal_inductor", fullgraph=True)
        for seed in range(3):
            x = torch.randn(11, generator=torch.Generator().manual_seed(seed))
            torch.testing.assert_close(compiled(x), function(x))


@pytest.mark.parametrize(
    "draw",
    [
        lambda x: torch.nn.functional.dropout(x, 0.3) + torch.rand_like(x),
        lambda x: (torch.randn(4, 5), torch.bernoulli(x.sigmoid()), torch.randint(0, 9, (7,))),
        lambda x: torch.rand(3) * x.sum() + torch.randn(3),
    ],
)
def test_random_numbers_are_eagers(draw):
    x = torch.randn(6, 6)
    torch.manual_seed(3)
    expected = draw(x)
    torch.manual_seed(3)
    torch.testing.assert_close(torch.compile(draw, backend="metal_inductor")(x), expected)


def test_an_index_out_of_range_is_an_index_error():
    compiled = torch.compile(lambda table, index: table[index] * 2, backend="metal_inductor")
    table = torch.randn(10, 3)
    index = torch.tensor([1, 10])
    with pytest.raises(IndexError, match="out of range"):
        compiled(table, index)
    torch.testing.assert_close(compiled(table, index - 1), table[index - 1] * 2)


def test_a_refused_fallback_names_op_reason_and_line():
    compiled = torch.compile(lambda x: x.sort().values, backend="metal_inductor", options={"fallback": "error"})
    with pytest.raises(Exception, match="aten.sort would run as an ATen call: no lowering") as caught:
        compiled(torch.randn(5))
    assert "test_compiled_calls.py" in str(caught.value)


def test_stages_are_dumped(tmp_path):
    torch.compile(lambda x: x.sin().sum(), backend="metal_inductor", options={"dump_dir": str(tmp_path)})(torch.ones(4))
    (folder,) = tmp_path.iterdir()
    names = sorted(path.name for path in folder.iterdir())
    stages = ("rewrite", "lower", "schedule", "render", "plan", "compile")
    assert names == [f"{k:02d}_{stage}.txt" for k, stage in enumerate(stages, 1)]
    assert "kernel void reduction_" in (folder / "04_render.txt").read_text()


@pytest.mark.parametrize("mode", list(config.MODES))
def test_torchs_modes_are_accepted(mode):
    x = torch.randn(4)
    torch.testing.assert_close(torch.compile(lambda x: x * 2, backend="metal_inductor", mode=mode)(x), x * 2)


def test_unfused_kernels_give_the_same():
    x, w = torch.randn(9, 33), torch.randn(33, 33)
    plain = torch.compile(work, backend="metal_inductor", options={"fusion": False})
    with collect() as reports:
        torch.testing.assert_close(plain(x, w), work(x, w))
    torch._dynamo.reset()
    with collect() as fused:
        torch.compile(work, backend="metal_inductor")(x, w)
    assert fused[0].dispatches < reports[0].dispatches
