"""Random attention of few query rows against float64: heads, dimensions, masks, lengths, layouts and what they hide."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.accuracy import FEW, MANY, compare, compile_for, double, run

POLICIES = ("mps", "cpu")
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
DIMENSIONS = (1, 2, 7, 8, 16, 33, 40, 64, 64, 72, 80, 96, 128, 128, 192, 256)
KEYS = (0, 1, 2, 7, 31, 33, 64, 127, 128, 129, 200, 257, 333, 512, 700)
LAYOUTS = ("dense", "tokens first", "part of a cache", "every second key", "offset")
MASKS = ("none", "none", "bool", "float", "causal", "window", "computed")
SPECIALS = ("none", "none", "none", "hidden", "nan key", "inf value")


@dataclass(frozen=True)
class Case:
    """What is drawn of one call; `batch` has no dimension for rank 3, and up to two."""

    batch: tuple[int, ...]
    kv_heads: int
    groups: int
    rows: int
    keys: int
    dim: int
    value_dim: int
    dtype: torch.dtype
    layouts: tuple[str, str, str]
    mask: str
    spread: tuple[bool, ...]
    blind_row: bool
    special: str
    scale: float | None
    seed: int

    @property
    def heads(self) -> int:
        return self.kv_heads * self.groups


@st.composite
def cases(draw):
    batch = draw(st.sampled_from(((), (1,), (1,), (2,), (2, 1))))
    dim = draw(st.sampled_from(DIMENSIONS))
    return Case(
        batch, draw(st.integers(1, 3)), draw(st.sampled_from((1, 1, 2, 3, 4, 8))), draw(st.integers(1, 8)),
        draw(st.sampled_from(KEYS)), dim, draw(st.sampled_from((dim, dim, *DIMENSIONS))), draw(st.sampled_from(DTYPES)),
        tuple(draw(st.sampled_from(LAYOUTS)) for _ in range(3)), draw(st.sampled_from(MASKS)),
        tuple(draw(st.booleans()) for _ in range(len(batch) + 3)), draw(st.booleans()), draw(st.sampled_from(SPECIALS)),
        draw(st.sampled_from((None, None, 0.3))), draw(st.integers(0, 1 << 30)),
    )  # fmt: skip


def laid_out(values: torch.Tensor, layout: str) -> torch.Tensor:
    """[..., heads, tokens, dim] in memory of their own, walked in the way that `layout` says."""
    *lead, heads, tokens, dim = values.shape
    if layout == "tokens first":
        return values.transpose(-3, -2).contiguous().transpose(-3, -2)
    if layout == "part of a cache":
        view = values.new_zeros(*lead, heads, tokens + 5, dim)[..., :tokens, :]
    elif layout == "every second key":
        view = values.new_zeros(*lead, heads, 2 * tokens, dim)[..., ::2, :]
    elif layout == "offset":
        view = values.new_zeros(values.numel() + 3)[3:].view(values.shape)
    else:
        view = torch.empty_like(values)
    return view.copy_(values)


def inputs(case: Case) -> dict:
    """Query, key, value and the mask, of which `spread` says which dimensions are broadcast."""
    random = torch.Generator().manual_seed(case.seed)

    def normal(*shape):
        return torch.randn(*shape, generator=random).to(case.dtype)

    query = normal(*case.batch, case.heads, case.rows, case.dim)
    key = normal(*case.batch, case.kv_heads, case.keys, case.dim)
    value = normal(*case.batch, case.kv_heads, case.keys, case.value_dim)
    full = (*case.batch, case.heads, case.rows, case.keys)
    shape = tuple(1 if spread and size else size for spread, size in zip(case.spread, full))
    mask = None
    if case.mask in ("bool", "float"):
        mask = torch.rand(shape, generator=random) > 0.3
        if case.blind_row:
            mask[..., 0, :] = False
        if case.mask == "float" and case.special in ("nan key", "inf value"):
            mask[...] = True  # what is added to NaN hides nothing
    special = int(torch.randint(max(case.keys, 1), (), generator=random))
    if case.special == "hidden" and case.mask == "bool" and case.keys:
        mask[..., special : special + 1] = False
        key[..., special, :], value[..., special, :] = torch.nan, torch.inf
    elif case.special == "nan key" and case.keys:
        key[..., special, 0] = torch.nan
    elif case.special == "inf value" and case.keys:
        value[..., special, 0] = torch.inf
    if case.mask == "float":
        mask = torch.where(mask, normal(*shape), -torch.inf).to(case.dtype)
    parts = [laid_out(x, layout) for x, layout in zip((query, key, value), case.layouts)]
    return {"qkv": parts, "mask": mask, "position": torch.tensor(max(case.keys - case.rows, 0))}


def mask_of(case: Case, given: dict) -> torch.Tensor | None:
    """The mask that the call gets: given, or computed from positions as a decoder does."""
    if case.mask not in ("window", "computed"):
        return given["mask"]
    keys = torch.arange(case.keys)[None]
    rows = given["position"] + torch.arange(case.rows)[:, None]
    return (keys <= rows) & (keys > rows - 64) if case.mask == "window" else keys <= rows


def function_of(case: Case):
    def attend(given: dict) -> list[torch.Tensor]:
        mask, causal = mask_of(case, given), case.mask == "causal"
        return [
            F.scaled_dot_product_attention(
                *given["qkv"], attn_mask=mask, is_causal=causal, scale=case.scale, enable_gqa=case.groups > 1
            )
        ]

    return attend


def reference(case: Case, given: dict) -> torch.Tensor:
    """The definition in float64: a key that is hidden from a row adds nothing to it, a row that sees no key is 0."""
    query, key, value = double(given["qkv"])
    key, value = (x.repeat_interleave(case.groups, dim=-3) for x in (key, value))
    scores = query @ key.transpose(-2, -1) * (case.dim**-0.5 if case.scale is None else case.scale)
    mask = mask_of(case, given)
    if case.mask == "causal":
        mask = torch.ones(case.rows, case.keys, dtype=torch.bool).tril()
    visible = torch.ones_like(scores, dtype=torch.bool)
    if mask is not None:
        visible &= mask if mask.dtype == torch.bool else mask != -torch.inf
        scores = scores + torch.where(mask == -torch.inf, 0.0, mask.double()) if mask.dtype != torch.bool else scores
    scores = scores.masked_fill(~visible, -torch.inf)
    weights = torch.where(visible.any(-1, keepdim=True), scores.softmax(-1), 0.0)
    terms = torch.where(visible[..., None], weights[..., None] * value[..., None, :, :], 0.0)
    return terms.sum(-2)


def eagers(function, given: dict, truth: torch.Tensor) -> torch.Tensor:
    """What torch computes; where it makes NaN of what is hidden, and of rows that see nothing, the truth."""
    (result,) = function(given)
    return torch.where(result.isnan() & truth.isfinite(), truth.to(result.dtype), result)


def sweep(case: Case, policy: str) -> None:
    torch._dynamo.reset()
    function, given = function_of(case), inputs(case)
    truth = reference(case, given)
    (actual,), kinds = run(compile_for(policy, function), given)
    assert "attention_decode" in kinds or case.keys == 0
    eager = eagers(function, given, truth)
    if case.special == "inf value":  # we too may make NaN of an infinity that is hidden from one row only
        astray = actual.isnan() & function(given)[0].isnan() & truth.isfinite()
        actual = torch.where(astray, truth.to(actual.dtype), actual)
    compare([actual], [eager], [truth], ulps=2)


@pytest.mark.parametrize("policy", POLICIES)
@settings(FEW, max_examples=10)
@given(case=cases())
def test_a_few_calls(policy, case):
    sweep(case, policy)


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
@settings(MANY, max_examples=400)
@given(case=cases())
def test_many_calls(policy, case):
    sweep(case, policy)
