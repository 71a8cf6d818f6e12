"""Prefix sums, products and extrema equal eager's in one or two kernels."""

from __future__ import annotations

import math

import pytest
import torch

from tests.lowerings.compiled import check


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32, torch.int64, torch.bool, torch.uint8])
def test_sums_and_products(dtype, dim):
    x = torch.randint(0, 3, (4, 9, 6)).to(dtype)
    check(lambda v: (v.cumsum(dim), v.cumprod(dim), (v > 0).cumsum(dim) - 1), x)


def test_sum_in_another_dtype():
    check(lambda v: (v.cumsum(0, dtype=torch.int32), v.cumsum(0, dtype=torch.float32)), torch.arange(30))


@pytest.mark.parametrize("function", [torch.cummax, torch.cummin])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64, torch.bool])
def test_extrema_name_the_last_of_equals(dtype, function):
    x = torch.randint(-2, 3, (5, 12)).to(dtype)
    check(lambda v: (*function(v, 1), *function(v, 0)), x)


def test_not_a_number_stays():
    x = torch.tensor([[1.0, math.nan, 3.0, math.nan, 0.0], [math.inf, -math.inf, 2.0, 2.0, math.nan]])
    check(lambda v: (v.cumsum(1), *torch.cummax(v, 1), *torch.cummin(v, 1)), x)


def test_log_of_summed_exponentials():
    x = torch.tensor([[-math.inf, -math.inf, 1.0, 200.0, 3.0], [1000.0, -1000.0, 0.0, 1.0, 2.0]])
    check(lambda v: torch.logcumsumexp(v, 1), x, tolerance=1e-6)


def test_numbers_without_dimensions_and_empty_rows():
    check(lambda a, b: (a.cumsum(0), b.cumsum(1), b.cumsum(0)), torch.tensor(3.0), torch.empty(3, 0))


def test_long_rows_are_torchs():
    check(lambda v: v.cumsum(0), torch.ones(5000), aten_calls=["aten.cumsum"])
