"""Random few-row products with what may be fused to them, against float64: shapes, dtypes, strides and offsets."""

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
SIZES = (1, 2, 3, 7, 8, 15, 16, 31, 33, 40, 64, 96, 129, 257)
DEPTHS = (*SIZES, 320, 512, 777, 1024, 2056)
PROLOGUES = ("none", "none", "rms", "layer", "cast", "pointwise")
EPILOGUES = ("none", "bias", "activation", "gate", "residual", "cast", "second output")
LAYOUTS = ("rows", "rows", "transposed", "strided", "offset")


@dataclass(frozen=True)
class Case:
    """What is drawn of one product or several of one vector."""

    rows: int
    depth: int
    columns: tuple[int, ...]
    dtype: torch.dtype
    layouts: tuple[str, ...]
    vector: str
    prologue: str
    epilogue: str
    other: torch.dtype
    seed: int


@st.composite
def cases(draw):
    count = draw(st.integers(1, 3))
    dtype, other = draw(st.sampled_from(DTYPES)), draw(st.sampled_from(DTYPES))
    return Case(
        draw(st.sampled_from((1, 1, 1, 2, 3, 5, 7, 8))), draw(st.sampled_from(DEPTHS)),
        tuple(draw(st.sampled_from(SIZES)) for _ in range(count)), dtype,
        tuple(draw(st.sampled_from(LAYOUTS)) for _ in range(count)), draw(st.sampled_from(LAYOUTS)),
        draw(st.sampled_from(PROLOGUES)), draw(st.sampled_from(EPILOGUES)), other, draw(st.integers(0, 1 << 30)),
    )  # fmt: skip


def laid_out(values: torch.Tensor, layout: str, offset: int) -> torch.Tensor:
    """`values` in memory of their own, walked in the way that `layout` says."""
    rows, columns = values.shape
    if layout == "rows":
        return values.contiguous()
    if layout == "transposed":
        return values.t().contiguous().t()
    if layout == "strided":
        storage = values.new_zeros(rows * 2 + 1, columns * 3 + offset)
        view = storage[1::2, offset::3][:rows, :columns]
    else:
        view = values.new_zeros(rows * columns + offset)[offset:].view(rows, columns)
    return view.copy_(values)


def inputs(case: Case) -> dict:
    """Vectors and weights whose products are near 1, and what the prologue and the epilogue read."""
    random = torch.Generator().manual_seed(case.seed)

    def normal(*shape, dtype=case.dtype):
        return torch.randn(*shape, generator=random).to(dtype)

    offset = int(torch.randint(1, 9, (), generator=random))
    x = normal(case.rows, case.depth, dtype=case.other if case.prologue == "cast" else case.dtype)
    weights = [
        laid_out(normal(columns, case.depth) / case.depth**0.5, layout, offset)
        for columns, layout in zip(case.columns, case.layouts)
    ]
    return {
        "x": laid_out(x, case.vector, offset),
        "scale": normal(case.depth),
        "weights": weights,
        "gate": laid_out(normal(case.columns[0], case.depth) / case.depth**0.5, case.layouts[0], offset),
        "biases": [normal(columns) for columns in case.columns],
        "residuals": [normal(case.rows, columns) for columns in case.columns],
    }


def vector_of(case: Case, given: dict) -> torch.Tensor:
    x, scale = given["x"], given["scale"]
    if case.prologue == "rms":
        return F.rms_norm(x, x.shape[-1:], scale, 1e-5)
    if case.prologue == "layer":
        return F.layer_norm(x, x.shape[-1:], scale, scale * 0.5)
    if case.prologue == "cast":
        return x.to(scale.dtype)
    return torch.tanh(x) + scale if case.prologue == "pointwise" else x


def function_of(case: Case):
    """The function that is compiled. It takes the dtype of its casts, which float64 does without."""

    def products(given: dict, cast_to: torch.dtype) -> list[torch.Tensor]:
        x = vector_of(case, given)
        results = []
        for number, weight in enumerate(given["weights"]):
            y = F.linear(x, weight, given["biases"][number] if case.epilogue == "bias" else None)
            if case.epilogue == "activation":
                y = F.gelu(y)
            elif case.epilogue == "gate" and number == 0:
                y = F.silu(F.linear(x, given["gate"])) * y
            elif case.epilogue == "residual":
                y = y + given["residuals"][number]
            elif case.epilogue == "cast":
                y = y.to(cast_to)
            elif case.epilogue == "second output":
                results.append(torch.sigmoid(y))
            results.append(y)
        return results

    return products


def sweep(case: Case, policy: str) -> None:
    torch._dynamo.reset()
    function, given = function_of(case), inputs(case)
    truth, eager = function(double(given), torch.float64), function(given, case.other)
    actual, kinds = run(compile_for(policy, function), given, case.other)
    assert "linear" in kinds
    compare(actual, eager, truth, ulps=4 if min(case.columns) < 8 else 1)  # eager's error of few sums is luck


@pytest.mark.parametrize("policy", POLICIES)
@settings(FEW, max_examples=8)
@given(case=cases())
def test_a_few_products(policy, case):
    sweep(case, policy)


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
@settings(MANY, max_examples=400)
@given(case=cases())
def test_many_products(policy, case):
    sweep(case, policy)
