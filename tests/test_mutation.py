"""Updates of the caller's tensors happen in place, cost what they change, and alias what eager aliases."""

import pytest
import torch

from metal_inductor import compiler
from metal_inductor.ir import ExternNode


def run_both(function, *inputs):
    """(outputs, inputs after the call) of eager and of the compiled function."""
    results = []
    for call in (function, torch.compile(function, backend="metal_inductor", fullgraph=True)):
        arguments = [value.clone() for value in inputs]
        results.append((call(*arguments), arguments))
    return results


def check(function, *inputs):
    (expected, expected_inputs), (actual, actual_inputs) = run_both(function, *inputs)
    torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(actual_inputs, expected_inputs)


CACHE, NEW, POSITION = torch.randn(2, 3, 12, 8), torch.randn(2, 3, 2, 8), torch.tensor([4, 9])


def index_copy(cache, new, position):
    cache.index_copy_(2, position, new)
    return cache[:, :, :6].sum()


def index_put(cache, new, position):
    cache[:, :, position] = new
    return cache.sum(-1)


def slice_assignment(cache, new, position):
    cache[:, :, 5:7] = new * 2
    return cache.mean()


def strided_slice(cache, new, position):
    cache[:, :, 1:11:5] = new
    return cache + 1


def select_assignment(cache, new, position):
    cache[:, 1] = new[:, 0, :1]
    return cache.amax()


def transposed_view(cache, new, position):
    cache[:, :, 7:9].transpose(1, 2).copy_(new.transpose(1, 2))
    return cache.clone()


def read_before_and_after(cache, new, position):
    before = cache.sum(2)
    cache[:, :, position] = new
    return before, cache.sum(2)


def two_updates(cache, new, position):
    cache[:, :, position] = new
    cache[:, :, :2] = cache[:, :, position] * 3
    return cache.exp()


def add_in_place(cache, new, position):
    cache.add_(1)
    return cache * 2


def copy_of_itself_reversed(cache, new, position):
    cache.copy_(cache.flip(2))
    return cache + 0


def old_value_used_late(cache, new, position):
    old = cache + 0
    cache[:, :, position] = new
    return old * cache


UPDATES = (
    index_copy, index_put, slice_assignment, strided_slice, select_assignment, transposed_view, read_before_and_after,
    two_updates, add_in_place, copy_of_itself_reversed, old_value_used_late,
)  # fmt: skip


@pytest.mark.parametrize("update", UPDATES, ids=lambda function: function.__name__)
def test_updates_leave_what_eager_leaves(update):
    check(update, CACHE, NEW, POSITION)


@pytest.mark.parametrize("outputs", [lambda x: x, lambda x: x.t(), lambda x: x[1:], lambda x: (x, x.view(-1))])
def test_outputs_share_memory_with_inputs_as_in_eager(outputs):
    x = torch.randn(4, 6)
    compiled = torch.compile(lambda x: (outputs(x), x + 1), backend="metal_inductor")
    for actual, expected in zip(_flat(compiled(x)[0]), _flat(outputs(x))):
        assert actual.data_ptr() == expected.data_ptr()
        assert actual.stride() == expected.stride() and actual.shape == expected.shape


def _flat(value):
    return value if isinstance(value, tuple) else (value,)


def test_copies_share_no_memory():
    x = torch.randn(4, 6)
    first, second, third = torch.compile(lambda x: (x.clone(), x + 1, (x + 1).clone()), backend="metal_inductor")(x)
    pointers = {tensor.untyped_storage().data_ptr() for tensor in (x, first, second, third)}
    assert len(pointers) == 4


@pytest.mark.parametrize("view", [torch.view_as_complex, lambda y: y.view(torch.float64), lambda y: (y.sin(), y.mH)])
def test_outputs_that_aten_made_views_of_intermediates_survive_the_next_call(view):
    compiled = torch.compile(lambda x: view(x * 2), backend="metal_inductor")  # exact: its bits are compared
    x, other = torch.randn(4, 2), torch.randn(4, 2)
    actual = compiled(x)
    compiled(other)
    torch.testing.assert_close(actual, view(x * 2))


def test_outputs_that_skip_elements_keep_eagers_strides():
    def function(x, w):
        product = x @ w
        return (product[:, 0:1] ** 2).sum() + product[::2].sin().sum(), product.detach()[:, 1:3]

    x, w = torch.randn(40, 5, requires_grad=True), torch.randn(5, 5, requires_grad=True)
    expected, actual = (call(x, w) for call in (function, torch.compile(function, backend="metal_inductor")))
    assert actual[1].stride() == expected[1].stride()
    gradients = [torch.autograd.grad(result[0], (x, w)) for result in (expected, actual)]
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-4, atol=1e-4)


def test_views_of_one_result_share_its_memory_and_other_results_do_not():
    def function(x):
        y = x.exp()
        return y, y.t(), y[1:], x.exp()

    x = torch.randn(4, 6)
    compiled = torch.compile(function, backend="metal_inductor")
    actual, expected = compiled(x), function(x)
    torch.testing.assert_close(actual, expected)
    places = [[tensor.data_ptr() - group[0].data_ptr() for tensor in group[:3]] for group in (actual, expected)]
    assert places[0] == places[1]
    assert [tensor.stride() for tensor in actual] == [tensor.stride() for tensor in expected]
    assert actual[3].untyped_storage().data_ptr() != actual[0].untyped_storage().data_ptr()


# ---------------------------------------------------------------------------------------------- KV caches


def decode_executor(monkeypatch, model_type="llama"):
    """The executor of a decode step with a static cache, and the cache's shape."""
    transformers = pytest.importorskip("transformers")
    executors = []
    original = compiler.compile_graph

    def recording(*args, **kwargs):
        call = original(*args, **kwargs)
        executors.append(call.executor)
        return call

    monkeypatch.setattr(compiler, "compile_graph", recording)
    sizes = {"vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
    config = transformers.AutoConfig.for_model(model_type, **sizes, **heads)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    cache = transformers.StaticCache(config=config, max_cache_len=40)
    with torch.no_grad():
        model(torch.zeros(1, 3, dtype=torch.long), past_key_values=cache, use_cache=True)
        step = torch.compile(model.forward, backend="metal_inductor", fullgraph=True)
        step(torch.tensor([[5]]), past_key_values=cache, use_cache=True, position_ids=torch.tensor([[3]]))
    assert len(executors) == 1
    return executors[0], (1, 2, 40, 8)


def cache_sized_writes(executor, shape):
    """Steps that write as many elements as the cache holds."""
    numel = torch.Size(shape).numel()
    found = []
    for step in executor.plan.steps:
        if isinstance(step, ExternNode):
            sizes = [executor.buffers[name].value().numel for name in (*step.outputs, *step.mutated) if name]
        else:
            sizes = [node.numel if hasattr(node, "numel") else 0 for node in step.nodes]
            sizes += [
                executor.buffers[name].value().numel for name in step.written if executor.buffers[name].kind != "input"
            ]
        if any(size >= numel for size in sizes):
            found.append(step)
    return found


@pytest.mark.parametrize("model_type", ["llama", "qwen3"])
def test_a_decode_step_writes_only_the_new_slot_of_the_cache(monkeypatch, model_type):
    executor, shape = decode_executor(monkeypatch, model_type)
    assert cache_sized_writes(executor, shape) == []
    written = [name for step in executor.dispatches for name in step.written if executor.buffers[name].kind == "input"]
    caches = [name for name in written if tuple(map(int, executor.buffers[name].shape)) == shape]
    assert len(caches) == 4  # keys and values of two layers


def test_without_the_pass_a_decode_step_would_write_whole_caches(monkeypatch):
    monkeypatch.setattr(compiler, "mark_in_place", lambda graph: 0)
    executor, shape = decode_executor(monkeypatch)
    assert cache_sized_writes(executor, shape)


def test_an_update_that_a_lowering_declines_late_leaves_earlier_readers_intact():
    """The in-place form realizes pending readers before it finds that it cannot go on: all of that is taken back."""

    def function(x, y):
        before = x * 2
        x.index_put_((torch.tensor([1, 3]),), y, accumulate=True)
        return before, x + 1

    check(function, torch.randint(0, 9, (6, 5)), torch.randint(0, 9, (2, 5)))
    check(function, torch.randn(6, 5, dtype=torch.float16), torch.randn(2, 5, dtype=torch.float16))
