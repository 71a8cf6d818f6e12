"""Positions in sorted sequences equal eager's, ties, NaN and infinities included."""

from __future__ import annotations

import math

import pytest
import torch

from tests.lowerings.compiled import check


@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("length", [1, 2, 3, 7, 8, 9, 100])
def test_bucketize(length, right):
    boundaries = torch.randint(0, 12, (length,)).float().sort().values
    x = torch.cat([torch.arange(-1, 13).float(), torch.tensor([0.5, math.nan, math.inf, -math.inf])]).reshape(2, 9)
    check(lambda v, b: torch.bucketize(v, b, right=right), x, boundaries)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.float32, torch.bfloat16])
def test_searchsorted_in_rows(dtype):
    rows = torch.randint(0, 20, (3, 4, 13)).sort(-1).values.to(dtype)
    x = torch.randint(-2, 23, (3, 4, 5)).to(dtype)
    check(lambda s, v: (torch.searchsorted(s, v), torch.searchsorted(s, v, side="right", out_int32=True)), rows, x)


def test_searchsorted_of_a_number():
    check(lambda s: torch.searchsorted(s * 2, 3.0) + 0, torch.arange(9).float())
