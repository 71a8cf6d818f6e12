"""Attention equals eager's for every mask, layout of heads and head dimension, on the tiles of either device."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.utils._pytree import tree_map

from metal_inductor import compiler, report

POLICIES = ("cpu", "mps")
attend = F.scaled_dot_product_attention


def double(item):
    return item.double() if isinstance(item, torch.Tensor) and item.is_floating_point() else item


def check(function, *args, policy="cpu", kernels=None):
    """Errors against float64 at most 1.5 times eager's plus one unit in the last place; `kernels`: how many attention
    kernels, with no ATen call beside them."""
    exact, eager = function(*tree_map(double, args)), function(*args)
    compiled = torch.compile(
        function, backend=compiler.backend, fullgraph=True, dynamic=False, options={"policy_device": policy}
    )
    with report.collect() as graphs:
        actual = compiled(*args)
    if kernels is not None:
        assert [extern.name for extern in graphs[0].externs] == []
        assert sum(kernel.kind == "attention_decode" for kernel in graphs[0].kernels) == kernels
    for mine, theirs, truth in zip(actual, eager, exact):
        assert mine.dtype == theirs.dtype and mine.shape == theirs.shape
        truth = truth.nan_to_num(0.0)
        ulp = torch.finfo(theirs.dtype).eps * truth.abs().max()
        error = (mine.double() - truth).abs().max()
        allowed = (theirs.double().nan_to_num(0.0) - truth).abs().max() * 1.5 + 2 * ulp
        assert error <= allowed, f"{tuple(theirs.shape)}: error {error}, allowed {allowed}"
    return graphs


def qkv(rows=1, keys=19, dim=16, value_dim=None, heads=4, kv_heads=None, batch=(2,), dtype=torch.float32):
    kv = (*batch, kv_heads or heads, keys)
    return (
        torch.randn(*batch, heads, rows, dim, dtype=dtype),
        torch.randn(*kv, dim, dtype=dtype),
        torch.randn(*kv, value_dim or dim, dtype=dtype),
    )


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("dtype", (torch.float32, torch.float16, torch.bfloat16), ids=str)
def test_one_to_eight_rows(dtype, policy):
    calls = [qkv(rows, dtype=dtype) for rows in (1, 2, 5, 8)]
    check(lambda calls: [attend(*call) for call in calls], calls, policy=policy, kernels=4)


@pytest.mark.parametrize("policy", POLICIES)
def test_head_dimensions(policy):
    calls = [qkv(dim=dim, value_dim=value_dim) for dim, value_dim in
             ((1, 1), (33, 33), (40, 24), (64, 64), (80, 128), (128, 7))]  # fmt: skip
    check(lambda calls: [attend(*call) for call in calls], calls, policy=policy, kernels=6)


@pytest.mark.parametrize("policy", POLICIES)
def test_numbers_of_keys(policy):
    calls = [qkv(2, keys=keys) for keys in (1, 7, 8, 31, 33, 257)]
    check(lambda calls: [attend(*call) for call in calls], calls, policy=policy, kernels=6)


@pytest.mark.parametrize("policy", POLICIES)
def test_grouped_queries(policy):
    calls = [qkv(rows, heads=6, kv_heads=groups) for rows, groups in ((1, 1), (1, 2), (3, 3), (2, 6))]
    check(lambda calls: [attend(*call, enable_gqa=True) for call in calls], calls, policy=policy, kernels=4)


@pytest.mark.parametrize("policy", POLICIES)
def test_masks_broadcast(policy):
    masks = [torch.rand(shape) > 0.4 for shape in ((3, 19), (1, 19), (2, 1, 3, 19), (4, 1, 19), (2, 4, 3, 1))]
    masks += [torch.randn(shape) for shape in ((3, 19), (2, 1, 1, 19), (1, 4, 3, 19))]
    check(lambda call, masks: [attend(*call, attn_mask=m) for m in masks], qkv(3), masks, policy=policy, kernels=8)


@pytest.mark.parametrize("policy", POLICIES)
def test_causal_is_aligned_to_the_upper_left(policy):
    calls = [qkv(rows, keys=keys) for rows, keys in ((1, 9), (5, 5), (4, 9), (8, 3))]
    check(lambda calls: [attend(*call, is_causal=True) for call in calls], calls, policy=policy, kernels=4)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("boolean", (True, False))
def test_rows_that_may_look_nowhere_are_zero(boolean, policy):
    mask = torch.ones(3, 19, dtype=torch.bool)
    mask[1] = False
    given = mask if boolean else torch.where(mask, 0.0, -torch.inf)
    compiled = torch.compile(
        lambda call, mask: attend(*call, attn_mask=mask), backend=compiler.backend, options={"policy_device": policy}
    )
    call = qkv(3)
    actual, expected = compiled(call, given), attend(*call, attn_mask=given)
    assert (actual[:, :, 1] == 0).all()
    torch.testing.assert_close(actual[:, :, ::2], expected[:, :, ::2])


@pytest.mark.parametrize("policy", POLICIES)
def test_ranks_scales_and_strides(policy):
    def function(two, three, five, packed):
        query, key, value = packed.view(2, 5, 3, 4, 16).permute(2, 0, 3, 1, 4)
        return attend(*two), attend(*three, scale=0.3), attend(*five), attend(query, key, value, scale=2)

    two = tuple(torch.randn(rows, 16) for rows in (3, 7, 7))
    three = tuple(torch.randn(4, rows, 16) for rows in (3, 7, 7))
    check(function, two, three, qkv(2, batch=(2, 3)), torch.randn(2, 5, 192), policy=policy, kernels=4)


def test_many_rows():
    calls = [qkv(rows, keys=rows) for rows in (9, 40)]
    check(lambda calls: [attend(*c, is_causal=causal) for c in calls for causal in (True, False)], calls)


def gradients(call, tensors):
    leaves = [tensor.clone().requires_grad_() for tensor in tensors]
    output = call(*leaves)
    cotangent = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).reshape(output.shape)
    return [output.detach(), *torch.autograd.grad(output, leaves, cotangent)]


def bool_mask(q, k, v):
    return attend(q, k, v, attn_mask=torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril(2))


TRAINED = {
    "plain": (attend, qkv(5)),
    "causal": (lambda q, k, v: attend(q, k, v, is_causal=True), qkv(7, keys=7)),
    "bool mask": (bool_mask, qkv(5)),
    "float mask": (lambda q, k, v, m: attend(q, k, v, attn_mask=m), (*qkv(5), torch.randn(4, 1, 19))),
    "grouped": (lambda q, k, v: attend(q, k, v, enable_gqa=True), qkv(3, heads=6, kv_heads=2)),
    "wide values": (lambda q, k, v: attend(q, k, v, scale=0.5), qkv(12, dim=8, value_dim=24)),
    "two dimensions": (attend, tuple(torch.randn(rows, 8) for rows in (3, 6, 6))),
}


@pytest.mark.parametrize("case", TRAINED)
def test_gradients_are_eagers(case):
    call, tensors = TRAINED[case]
    expected = gradients(call, tensors)
    actual = gradients(torch.compile(call, backend=compiler.backend, fullgraph=True), tensors)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


LONG = {  # rows, keys, dim, value_dim, heads, kv_heads
    "one row for each of eight heads that share keys": (1, 1000, 64, 64, 8, 1),
    "rows and heads that make no whole tile": (3, 700, 64, 64, 6, 2),
    "a value dimension of its own": (1, 333, 128, 64, 4, 2),
    "words that do not fill the lanes": (2, 500, 80, 96, 4, 4),
    "one word": (1, 130, 8, 8, 2, 1),
    "a simdgroup a key": (1, 257, 128, 128, 2, 1),
}


@pytest.mark.parametrize("case", LONG)
def test_long_caches_are_split(case):
    dtype = (torch.bfloat16, torch.float16, torch.float32)[list(LONG).index(case) % 3]
    rows, keys, dim, value_dim, heads, kv_heads = LONG[case]
    q, k, v = qkv(rows, keys, dim, value_dim, heads, kv_heads, dtype=dtype)
    bools = torch.rand(rows, keys) > 0.3
    bools[0, : keys // 2] = False
    floats = torch.randn(2, heads, rows, keys, dtype=dtype)

    def function(q, k, v, bools, floats):
        plain = attend(q, k, v, enable_gqa=True)
        return plain, attend(q, k, v, bools, enable_gqa=True), attend(q, k, v, floats, enable_gqa=True, scale=0.3)

    graphs = check(function, q, k, v, bools, floats, policy="mps", kernels=3)
    assert sum(kernel.kind == "attention_combine" for kernel in graphs[0].kernels) == 3


def test_long_caches_with_causal_rows_epilogues_and_rows_that_see_nothing():
    q, k, v = qkv(4, 600, 32, heads=4, kv_heads=2)
    nothing = torch.zeros(4, 600, dtype=torch.bool)
    nothing[1:, 500:] = True

    def function(q, k, v, nothing):
        causal = F.gelu(attend(q, k, v, is_causal=True, enable_gqa=True)) + q
        return causal, attend(q * 2, k, v, nothing, enable_gqa=True)

    check(function, q, k, v, nothing, policy="mps", kernels=2)


def test_what_a_mask_hides_may_be_anything():
    q, k, v = qkv(1, 400, 64, heads=4, kv_heads=2, batch=(1,))
    k[:, :, 300:], v[:, :, 300:] = torch.nan, torch.inf
    mask = torch.arange(400) < 300
    compiled = torch.compile(
        lambda *call: attend(*call, enable_gqa=True), backend=compiler.backend, options={"policy_device": "mps"}
    )
    expected = attend(q, k[:, :, :300], v[:, :, :300], enable_gqa=True)
    torch.testing.assert_close(compiled(q, k, v, mask.view(1, 400)), expected)


def test_a_cache_that_begins_in_the_middle_of_a_word_and_is_written():
    def function(q, k, v, new):
        k[:, :, 5:6].copy_(new)
        return attend(q, k, v)

    q, k, v = qkv(1, 200, 64, heads=2, batch=(1,))
    new, storage = torch.randn(1, 2, 1, 64), torch.zeros(k.numel() + 1)
    compiled = torch.compile(function, backend=compiler.backend, dynamic=False, options={"policy_device": "mps"})
    for offset in (0, 1):
        cache = storage[offset : offset + k.numel()].view_as(k).copy_(k)
        expected = k.clone()
        torch.testing.assert_close(compiled(q, cache, v, new), function(q, expected, v, new))
        torch.testing.assert_close(cache, expected)
