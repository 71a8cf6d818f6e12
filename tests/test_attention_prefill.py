"""Attention of many query rows, in the kernel that a GPU gets: against float64, without scores in memory."""

from __future__ import annotations

import ctypes
import mmap
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from metal_inductor import policy, report
from metal_inductor.runtime.checks import MetalCheckWarning
from tests.accuracy import FEW, MANY, compare, compile_for, double, run
from tests.test_attention_accuracy import cases, eagers, function_of, inputs, reference

attend = F.scaled_dot_product_attention
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def check(function, *args, tiled):
    """Errors against float64 beside eager's; `tiled`: how many kernels of many-row attention there are, and that no
    other kernel runs."""
    results, kinds = run(compile_for("mps", function), *args)
    assert kinds == ["attention_tiled"] * tiled
    compare(results, function(*args), function(*double(args)), ulps=2)


def qkv(rows, keys, dim=16, value_dim=None, heads=2, kv_heads=None, batch=(1,), dtype=torch.float32):
    """Query, key and value, each amid NaN: what is read outside of them shows."""

    def amid_nan(*shape):
        memory = torch.full((*shape[:-2], shape[-2] + 3, shape[-1] + 8), torch.nan, dtype=dtype)
        view = memory[..., 1:-2, :-8]
        return view.copy_(torch.randn(shape, dtype=dtype))

    kv = (*batch, kv_heads or heads, keys)
    return amid_nan(*batch, heads, rows, dim), amid_nan(*kv, dim), amid_nan(*kv, value_dim or dim)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_lengths(dtype):
    calls = [qkv(rows, keys, dtype=dtype) for rows, keys in ((9, 1), (33, 31), (64, 64), (70, 129))]
    check(lambda calls: [attend(*call) for call in calls], calls, tiled=4)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_head_dimensions(dtype):
    dims = ((33, 40), (72, 5), (80, 96), (192, 128), (256, 256))
    calls = [qkv(11, 37, dim, value_dim, dtype=dtype) for dim, value_dim in dims]
    check(lambda calls: [attend(*call) for call in calls], calls, tiled=len(dims))


def test_masks_broadcast():
    shapes = ((10, 19), (1, 19), (2, 1, 10, 19), (4, 1, 19), (2, 4, 10, 1))
    masks = [torch.rand(shape) > 0.4 for shape in shapes] + [torch.randn(shape) for shape in shapes[1:]]
    call = qkv(10, 19, heads=4, batch=(2,))
    check(lambda call, masks: [attend(*call, attn_mask=m) for m in masks], call, masks, tiled=9)


def test_causal_rows_are_aligned_to_the_upper_left():
    calls = [qkv(rows, keys, heads=3) for rows, keys in ((9, 40), (40, 9), (65, 65))]
    check(lambda calls: [attend(*call, is_causal=True) for call in calls], calls, tiled=3)


def test_ranks_groups_scales_and_strides():
    def function(two, three, five, grouped, packed):
        query, key, value = packed.view(2, 20, 3, 4, 16).permute(2, 0, 3, 1, 4)
        results = attend(*two), attend(*three, scale=0.3), attend(*five), attend(query, key, value, scale=2)
        return *results, attend(*grouped, enable_gqa=True)

    two = tuple(torch.randn(rows, 16) for rows in (9, 7, 7))
    three = tuple(torch.randn(4, rows, 16) for rows in (9, 17, 17))
    grouped = qkv(12, 20, heads=6, kv_heads=2)
    five = qkv(9, 20, batch=(2, 3))
    check(function, two, three, five, grouped, torch.randn(2, 20, 192), tiled=5)


def test_operands_and_results_are_computed_on_the_way():
    def function(q, k, v, residual):
        return [F.gelu(attend(q * 2, k.half(), v)) + residual]

    q, k, v = qkv(20, 40, dtype=torch.float16)
    residual = torch.randn(1, 2, 20, 16)
    results, kinds = run(compile_for("mps", function), q, k.float(), v, residual)
    assert kinds == ["attention_tiled"]
    truth = F.gelu(attend(*double([q * 2, k, v]))) + residual.double()
    half_units = torch.finfo(torch.float16).eps / torch.finfo(torch.float32).eps
    compare(results, function(q, k, v, residual), [truth], ulps=2 * half_units)


def test_results_are_written_with_their_heads_side_by_side():
    def function(call):
        return [attend(*call).transpose(1, 2).reshape(1, 20, -1)]

    check(function, qkv(20, 40, value_dim=24, heads=3), tiled=1)


@pytest.mark.parametrize("boolean", (True, False))
def test_rows_that_may_look_nowhere_are_zero(boolean):
    mask = torch.ones(40, 70, dtype=torch.bool)
    mask[:35] = False
    given = mask if boolean else torch.where(mask, 0.0, -torch.inf)
    call = qkv(40, 70)
    (actual,), _ = run(compile_for("mps", lambda call, mask: [attend(*call, attn_mask=mask)]), call, given)
    assert (actual[:, :, :35] == 0).all()
    torch.testing.assert_close(actual[:, :, 35:], attend(*call)[:, :, 35:])


def test_a_float_mask_of_the_smallest_number_hides_only_beside_others():
    mask = torch.full((12, 40), torch.finfo(torch.float32).min)
    mask[:6, :20] = 0.0
    check(lambda call, mask: [attend(*call, attn_mask=mask)], qkv(12, 40), mask, tiled=1)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_a_mask_hides_may_be_anything(dtype):
    q, k, v = qkv(20, 60, heads=1, dtype=dtype)
    k[:, :, 45:], v[:, :, 45:] = torch.nan, torch.inf
    mask = torch.arange(60) < 45
    function = compile_for("mps", lambda q, k, v, mask: [attend(q, k, v, mask), attend(q, k, v, is_causal=True)])
    actual, _ = run(function, q, k, v, mask.view(1, 60))
    expected = attend(q, k[:, :, :45], v[:, :, :45]), attend(q, k[:, :, :20], v[:, :, :20], is_causal=True)
    for mine, theirs in zip(actual, expected):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=2 * torch.finfo(dtype).eps)


def test_nan_and_infinities_reach_the_rows_that_see_them():
    q, k, v = qkv(20, 60, heads=1)
    k[..., 30, 0], v[..., 50, 3] = torch.nan, -torch.inf
    seen = torch.ones(20, 60, dtype=torch.bool)
    seen[:10, 30], seen[5:15, 50] = False, False
    (actual,), _ = run(compile_for("mps", lambda q, k, v, mask: [attend(q, k, v, mask)]), q, k, v, seen)
    assert actual[0, 0, 10:].isnan().all()
    assert (actual[0, 0, :5, 3] == -torch.inf).all()
    finite = actual[0, 0, :10].isfinite()
    assert finite[5:].all() and finite.sum() == finite.numel() - 5


def test_blocks_of_keys_that_nobody_sees_are_not_read():
    """They lie in memory that no one may read."""
    page, dim, keys = mmap.PAGESIZE, 32, 256
    libc = ctypes.CDLL(None, use_errno=True)

    def cache(first_page, last_page):
        memory = mmap.mmap(-1, keys * dim * 4)
        tensor = torch.frombuffer(memory, dtype=torch.float32).view(1, 1, keys, dim).normal_()
        for begin in range(0, keys * dim * 4, page):
            if not first_page <= begin // page < last_page:
                assert libc.mprotect(ctypes.c_void_p(tensor.data_ptr() + begin), page, 0) == 0
        return tensor

    per_page = page // (dim * 4)
    q, mask = torch.randn(1, 1, 40, dim), torch.zeros(40, keys, dtype=torch.bool)
    mask[:20, 3 * per_page : 3 * per_page + 9] = True
    causal, masked = (cache(0, 2), cache(0, 2)), (cache(3, 4), cache(3, 4))
    function = compile_for("mps", lambda q, a, b, m: [attend(q, *a, is_causal=True), attend(q, *b, attn_mask=m)])
    actual, kinds = run(function, q, causal, masked, mask)
    assert kinds == ["attention_tiled"] * 2
    first, third = slice(0, 40), slice(3 * per_page, 3 * per_page + 9)
    torch.testing.assert_close(actual[0], attend(q, *(x[:, :, first] for x in causal), is_causal=True))
    torch.testing.assert_close(actual[1][:, :, :20], attend(q, *(x[:, :, third] for x in masked))[:, :, :20])
    assert (actual[1][:, :, 20:] == 0).all()


@pytest.mark.filterwarnings(f"error::{MetalCheckWarning.__module__}.{MetalCheckWarning.__name__}")
def test_threads_neither_race_nor_leave_their_buffers(monkeypatch):
    monkeypatch.setenv("METAL_INDUCTOR_CHECKS", "all")
    q, k, v = (torch.randn(1, 1, rows, 24) for rows in (40, 70, 70))
    v[..., 60, 2] = torch.inf
    mask = torch.rand(40, 70) > 0.5
    mask[:, 32:60], mask[:, 60] = False, torch.arange(40) % 2 == 0
    function = compile_for("mps", lambda q, k, v, m: [attend(q, k, v, m), attend(q, k, v, is_causal=True)])
    actual, _ = run(function, q, k, v, mask)
    finite = v.nan_to_num(posinf=0.0)
    expected = attend(q, k, finite, mask), attend(q, k, finite, is_causal=True)
    assert (actual[0][..., ::2, 2] == torch.inf).all()
    torch.testing.assert_close(actual[0].nan_to_num(posinf=0.0)[..., 3:], expected[0][..., 3:])
    torch.testing.assert_close(actual[1], expected[1])


def test_lengths_may_change():
    function = torch.compile(
        lambda q, k, v: attend(q * 2, k, v, is_causal=True, enable_gqa=True),
        backend="metal_inductor", fullgraph=True, options={"policy_device": "mps"},
    )  # fmt: skip
    with report.collect() as graphs:
        for rows, keys in ((12, 30), (40, 90), (75, 33), (130, 200)):
            call = qkv(rows, keys, heads=4, kv_heads=2)
            torch.testing.assert_close(function(*call), attend(call[0] * 2, *call[1:], is_causal=True, enable_gqa=True))
    assert len(graphs) <= 2
    assert {kernel.kind for graph in graphs for kernel in graph.kernels} == {"attention_tiled"}


def test_scores_are_never_in_memory():
    q, k, v = qkv(200, 300, heads=4)
    mask = torch.rand(200, 300) > 0.5
    function = compile_for("mps", lambda q, k, v, m: torch.sin(attend(torch.cos(q), k, v, m)))
    with report.collect() as graphs, torch.no_grad():
        function(q, k, v, mask)
    assert [kernel.kind for kernel in graphs[0].kernels] == ["attention_tiled"]
    assert graphs[0].unshared_intermediate_bytes == 0


def test_a_cpu_keeps_torchs_own_kernel_for_many_rows():
    q, k, v = qkv(300, 400, dim=64, heads=4)
    with report.collect() as graphs:
        actual = torch.compile(lambda q, k, v: attend(q, k, v), backend="metal_inductor")(q, k, v)
    assert [extern.name for extern in graphs[0].externs] == ["metal_inductor.attention"]
    assert "many query rows" in graphs[0].externs[0].reason
    torch.testing.assert_close(actual, attend(q, k, v))


# ------------------------------------------------------------------ gradients


def float_masked(q, k, v, mask):
    return attend(q, k, v, attn_mask=mask)


TRAINED = {
    "plain": (attend, qkv(12, 19)),
    "causal": (lambda q, k, v: attend(q, k, v, is_causal=True), qkv(20, 15)),
    "float mask": (float_masked, (*qkv(12, 19, heads=4), torch.randn(4, 1, 19))),
    "mask of rows": (float_masked, (*qkv(12, 19, heads=4), torch.randn(12, 19))),
    "grouped": (lambda q, k, v: attend(q, k, v, enable_gqa=True), qkv(13, 19, heads=6, kv_heads=2)),
    "wide values": (lambda q, k, v: attend(q, k, v, scale=0.5), qkv(12, 19, dim=8, value_dim=24)),
    "half": (attend, qkv(12, 19, dtype=torch.float16)),
}


def gradients(call, tensors):
    leaves = [tensor.clone().requires_grad_() for tensor in tensors]
    output = call(*leaves)
    cotangent = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).reshape(output.shape)
    return [output.detach(), *torch.autograd.grad(output, leaves, cotangent)]


@pytest.mark.parametrize("in_rows", (False, True))
@pytest.mark.parametrize("case", TRAINED)
def test_gradients(case, in_rows, monkeypatch):
    if in_rows:
        monkeypatch.setattr(policy, "MAX_GRADIENT_SCORES", 20)
    call, tensors = TRAINED[case]
    with report.collect() as graphs:
        actual = gradients(compile_for("mps", call), tensors)
    forward, backward = graphs
    assert [kernel.kind for kernel in forward.kernels] == ["attention_tiled"]
    assert ("metal_inductor.attention_backward" in backward.extern_calls) == in_rows
    compare(actual, gradients(call, tensors), gradients(call, double(tensors)), ulps=4)


def test_the_gradient_of_long_attention_holds_no_scores_in_the_plan(monkeypatch):
    monkeypatch.setattr(policy, "MAX_GRADIENT_SCORES", 1000)
    call, tensors = lambda q, k, v: attend(q, k, v, is_causal=True), qkv(150, 150)
    with report.collect() as graphs:
        gradients(compile_for("mps", call), tensors)
    reasons = [extern.reason for graph in graphs for extern in graph.externs]
    assert len(reasons) == 1 and "rows of scores at a time" in reasons[0]
    assert all(graph.unshared_intermediate_bytes < 150 * 150 * 4 for graph in graphs)


# ------------------------------------------------------------------ random calls


@st.composite
def long_cases(draw):
    case = draw(cases())
    return replace(
        case,
        rows=draw(st.integers(9, 80)),
        groups=min(case.groups, 2),
        keys=min(case.keys, 150),
        value_dim=min(case.value_dim, 128),
    )


def sweep(case):
    torch._dynamo.reset()
    function, given = function_of(case), inputs(case)
    truth = reference(case, given)
    (actual,), kinds = run(compile_for("mps", function), given)
    assert "attention_tiled" in kinds or not truth.numel() or case.keys == 0
    if case.special == "hidden":  # torch makes NaN of it in every row
        given["qkv"] = [x.nan_to_num(0.0, posinf=0.0) for x in given["qkv"]]
    compare([actual], [eagers(function, given, truth)], [truth], ulps=2)


@settings(FEW, max_examples=6)
@given(case=long_cases())
def test_a_few_random_calls(case):
    sweep(case)


@pytest.mark.slow
@settings(MANY, max_examples=300)
@given(case=long_cases())
def test_many_random_calls(case):
    sweep(case)
