"""Products with few rows run in our kernel, with their epilogues, at eager's accuracy or better."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.utils._pytree import tree_map

from metal_inductor import compiler, report

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
POLICIES = ("cpu", "mps")


def name(dtype):
    return str(dtype).removeprefix("torch.")


def double(item):
    return item.double() if isinstance(item, torch.Tensor) and item.is_floating_point() else item


def check(function, *args, policy="cpu", templates=None):
    """Each output's largest error against float64 is at most 1.5 times eager's, plus one unit in the last place; no
    ATen call runs; `templates` is how many few-row product kernels there must be."""
    exact, eager = function(*tree_map(double, args)), function(*args)
    compiled = torch.compile(
        function, backend=compiler.backend, fullgraph=True, dynamic=False, options={"policy_device": policy}
    )
    with report.collect() as graphs:
        actual = compiled(*args)
    assert [extern.name for graph in graphs for extern in graph.externs] == []
    if templates is not None:
        assert sum(kernel.kind == "linear" for graph in graphs for kernel in graph.kernels) == templates
    for mine, theirs, truth in zip(actual, eager, exact):
        assert mine.dtype == theirs.dtype and mine.shape == theirs.shape
        ulp = torch.finfo(theirs.dtype).eps * truth.abs().max()
        error, allowed = (mine.double() - truth).abs().max(), (theirs.double() - truth).abs().max() * 1.5 + ulp
        assert error <= allowed, f"{tuple(theirs.shape)}: error {error}, allowed {allowed}"
    return graphs


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("dtype", DTYPES, ids=name)
def test_every_row_count(dtype, policy):
    w, b = torch.randn(33, 65, dtype=dtype), torch.randn(33, dtype=dtype)
    inputs = [torch.randn(rows, 65, dtype=dtype) for rows in (1, 2, 3, 5, 8)]
    check(lambda xs, w, b: [F.linear(x, w, b) for x in xs], inputs, w, b, policy=policy, templates=5)


@pytest.mark.parametrize("policy", POLICIES)
def test_odd_sizes(policy):
    shapes = [(1, 1), (1, 7), (5, 1), (3, 4), (17, 31), (129, 3), (2, 1025)]
    pairs = [(torch.randn(2, k), torch.randn(n, k)) for n, k in shapes]
    check(lambda pairs: [F.linear(x, w) for x, w in pairs], pairs, policy=policy)


@pytest.mark.parametrize("policy", POLICIES)
def test_transposed_strided_and_offset_operands(policy):
    def function(x, w, base):
        weight = base[3:24, 1:38:2]  # 21 x 19, neither dimension dense
        return x @ w, x.flip(0) @ w, F.linear(x, weight), x[1:, ::2] @ w[5:15], x @ w.t().contiguous().t()

    check(function, torch.randn(3, 19), torch.randn(19, 21), torch.randn(30, 40), policy=policy)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=name)
def test_pointwise_epilogues_run_in_the_product_kernel(dtype, policy):
    def function(x, w, b, other):
        return F.gelu(F.linear(x, w, b)), other + F.linear(x, w), F.silu(F.linear(x, w)) * other

    x, w = torch.randn(2, 1, 48, dtype=dtype), torch.randn(35, 48, dtype=dtype)
    b, other = torch.randn(35, dtype=dtype), torch.randn(2, 1, 35, dtype=dtype)
    graphs = check(function, x, w, b, other, policy=policy, templates=1)
    assert graphs[0].dispatches == 1


def test_an_epilogue_reads_the_product_at_its_own_position():
    def function(x, w):
        y = x @ w
        return y + y.flip(-1), y.t().contiguous() * 2

    check(function, torch.randn(4, 9), torch.randn(9, 13))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("length", (1, 5, 31, 33, 1000, 1025, 5000))
def test_reductions_on_the_tiles_of_either_device(length, policy):
    """On a GPU's tiles lanes meet in simd operations and barriers."""

    def function(x):
        return x.sum(-1), x.softmax(-1), x.amax(-1), x.var(-1, correction=0), x.logsumexp(-1)

    check(function, torch.randn(3, length), policy=policy)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("length", (1, 5, 31, 33, 1000, 1025, 5000))
def test_searches_take_the_first_of_equals_and_find_nan(length, policy):
    x = torch.randint(0, 3, (4, length)).float()
    x[1, length // 2] = x[1, length - 1] = torch.nan
    x[2] = 1.0
    x[3] = -torch.inf
    compiled = torch.compile(
        lambda x: (x.argmax(-1), x.argmin(-1), *x.max(-1), x.amin(-1)), backend=compiler.backend, dynamic=False,
        options={"policy_device": policy},
    )  # fmt: skip
    most, least, values, indices, low = compiled(x)

    def first(matches):
        return matches.int().argmax(-1)

    top = torch.where(x.isnan().any(-1, keepdim=True), x.isnan(), x == x.nan_to_num(nan=-9.0).amax(-1, keepdim=True))
    bottom = torch.where(x.isnan().any(-1, keepdim=True), x.isnan(), x == x.nan_to_num(nan=9.0).amin(-1, keepdim=True))
    if length > 1:
        top[3], bottom[3] = True, True
    torch.testing.assert_close(most, first(top))
    torch.testing.assert_close(indices, first(top))
    torch.testing.assert_close(least, first(bottom))
    torch.testing.assert_close(values, x.max(-1).values, equal_nan=True)
    torch.testing.assert_close(low, x.amin(-1), equal_nan=True)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("dtype", DTYPES, ids=name)
def test_products_of_one_vector_share_a_dispatch(dtype, policy):
    def function(x, q, k, v, b):
        return F.linear(x, q, b), F.linear(x, k), F.silu(F.linear(x, k)) * F.linear(x, v)

    for rows in (1, 2):
        x, b = torch.randn(rows, 264, dtype=dtype), torch.randn(70, dtype=dtype)
        weights = [torch.randn(columns, 264, dtype=dtype) / 16 for columns in (70, 33, 33)]
        graphs = check(function, x, *weights, b, policy=policy, templates=1)
        assert graphs[0].dispatches == 1


@pytest.mark.parametrize("policy", POLICIES)
def test_products_that_wait_for_each_other_do_not_share(policy):
    def function(x, a, b):
        y = F.linear(x, a)
        return y, F.linear(x, b * y.sum())

    check(function, torch.randn(1, 64), torch.randn(24, 64), torch.randn(24, 64), policy=policy, templates=2)


@pytest.mark.parametrize("dtype", DTYPES, ids=name)
def test_a_weight_that_begins_in_the_middle_of_a_word(dtype):
    """The graph is compiled for weights at multiples of 16 bytes and later called with one that is not."""
    compiled = torch.compile(
        F.linear, backend=compiler.backend, fullgraph=True, dynamic=False, options={"policy_device": "mps"}
    )
    storage = torch.randn(40 * 128 + 8, dtype=dtype)
    for offset in (0, 1, 3, 8):
        weight, x = storage[offset : offset + 40 * 128].view(40, 128), torch.randn(1, 128, dtype=dtype)
        torch.testing.assert_close(compiled(x, weight), F.linear(x, weight), atol=1e-1, rtol=2e-2)


def test_a_weight_that_the_graph_writes_is_read_where_it_lies():
    def function(x, w):
        w.mul_(2)
        return F.linear(x, w)

    storage = torch.randn(12 * 64 + 1)
    x, mine, theirs = torch.randn(1, 64), storage.clone()[1:].view(12, 64), storage.clone()[1:].view(12, 64)
    compiled = torch.compile(function, backend=compiler.backend, fullgraph=True, options={"policy_device": "mps"})
    torch.testing.assert_close(compiled(x, mine), function(x, theirs))
    torch.testing.assert_close(mine, theirs)


NORMS = {
    "rms": lambda x, g: F.rms_norm(x, x.shape[-1:], g, 1e-6),
    "layer": lambda x, g: F.layer_norm(x, x.shape[-1:], g),
    "l2": lambda x, g: F.normalize(x * g, dim=-1),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=name)
@pytest.mark.parametrize("norm", NORMS)
def test_a_norm_is_computed_by_the_products_that_read_it(norm, dtype):
    def function(x, other, g, a, b, c):
        row = NORMS[norm](x + other, g)
        return F.linear(row, a), F.silu(F.linear(row, b)) * F.linear(row, c)

    for depth in (8, 1000):
        x, other, g = (torch.randn(*shape, dtype=dtype) for shape in ((1, depth), (1, depth), (depth,)))
        weights = [torch.randn(columns, depth, dtype=dtype) / depth**0.5 for columns in (70, 33, 33)]
        graphs = check(function, x, other, g, *weights, policy="mps", templates=1)
        assert graphs[0].dispatches == 1


def test_a_norm_that_others_read_keeps_its_kernel():
    def function(x, g, a):
        row = F.rms_norm(x, x.shape[-1:], g, 1e-6)
        return F.linear(row, a), row

    graphs = check(function, torch.randn(1, 64), torch.randn(64), torch.randn(24, 64), policy="mps", templates=1)
    assert graphs[0].dispatches == 2


def test_a_norm_of_memory_that_is_overwritten_meanwhile():
    def function(x, g, a):
        row = F.rms_norm(x, x.shape[-1:], g, 1e-6)
        y = F.linear(row, a)
        x.copy_(y)
        return x * 2

    x, g, a = torch.randn(1, 64), torch.randn(64), torch.randn(64, 64)
    mine, theirs = x.clone(), x.clone()
    compiled = torch.compile(function, backend=compiler.backend, fullgraph=True, options={"policy_device": "mps"})
    torch.testing.assert_close(compiled(mine, g, a), function(theirs, g, a))
    torch.testing.assert_close(mine, theirs)
