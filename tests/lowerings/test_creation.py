"""Tensors made from sizes and numbers, compiled, equal eager's without an ATen call."""

from __future__ import annotations

import pytest
import torch

from tests.lowerings.compiled import check, run

DTYPES = (
    torch.float32, torch.float16, torch.bfloat16, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8,
)  # fmt: skip


def name(dtype):
    return str(dtype).removeprefix("torch.")


@pytest.mark.parametrize("dtype", (*DTYPES, torch.bool), ids=name)
def test_fills(dtype):
    def function(x):
        made = torch.full((2, 3), 1, dtype=dtype), torch.zeros(3, dtype=dtype), torch.ones(2, 2, dtype=dtype)
        alike = torch.zeros_like(x), torch.ones_like(x), torch.full_like(x, 1), x.new_full((4,), 0), x.new_ones(2)
        return made + alike

    check(function, torch.ones(3, 2).to(dtype))


def test_a_fill_in_half_precision_is_rounded():
    check(lambda x: x + torch.full((4,), 0.1, dtype=torch.float16).float(), torch.ones(4), tolerance=0.0)


@pytest.mark.parametrize("dtype", DTYPES, ids=name)
def test_ranges_of_every_dtype(dtype):
    def function(x):
        return torch.arange(9, dtype=dtype), torch.arange(2, 9, dtype=dtype), torch.arange(1, 20, 3, dtype=dtype) + x

    check(function, torch.ones(7).to(dtype))


def test_ranges_with_fractions_and_negative_steps():
    def function(x):
        down, fine, mixed = torch.arange(5, -3, -2), torch.arange(0.5, 3, 0.25), torch.arange(-1, 1, 0.1)
        return down, fine + x, mixed

    check(function, torch.zeros(10))


def test_large_integer_ranges_do_not_overflow():
    check(lambda x: torch.arange(11, dtype=torch.int64) * 1000000000 + x, torch.zeros(11, dtype=torch.int64))


def test_a_range_as_long_as_the_input():
    def function(x):
        return torch.arange(x.shape[0]) + x[:, 0], torch.zeros(x.shape[0], 2)

    for rows in (3, 7):
        check(function, torch.rand(rows, 2), dynamic=True)


@pytest.mark.parametrize("steps", [1, 2, 5, 100])
def test_evenly_spaced_numbers_hit_both_ends(steps):
    def function(x):
        return torch.linspace(-1.5, 7.25, steps) + x, torch.logspace(-1, 2, steps) * (x + 1)

    check(function, torch.zeros(steps), tolerance=2e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool], ids=name)
def test_identity(dtype):
    check(lambda x: (torch.eye(4, dtype=dtype), torch.eye(3, 5, dtype=dtype), x + 1), torch.ones(1))


@pytest.mark.parametrize("diagonal", [-3, -1, 0, 1, 4])
def test_triangles(diagonal):
    x = torch.rand(2, 4, 5)
    x[0, 0, 1] = torch.nan
    check(lambda v: (v.tril(diagonal), v.triu(diagonal), (v > 0.5).tril(diagonal)), x)


def test_uninitialised_memory_has_the_right_shape_and_dtype():
    x = torch.rand(4, dtype=torch.float16)
    result, graphs = run(lambda v: (torch.empty_like(v).fill_(3), v.new_empty(2, 3)), x)
    assert torch.equal(result[0], torch.full((4,), 3, dtype=torch.float16))
    assert result[1].shape == (2, 3) and result[1].dtype == torch.float16
    assert not [extern for graph in graphs for extern in graph.externs]
