"""The decomposition table: what is split, what stays whole, and our own splits against eager."""

from __future__ import annotations

import math

import pytest
import torch

from metal_inductor import decompositions
from metal_inductor.lowerings import registered
from tests.lowerings.compiled import check

aten = torch.ops.aten


def test_what_has_a_lowering_stays_whole():
    assert not set(decompositions.table()) & set(registered())


def test_random_ops_stay_torchs_so_that_they_draw_the_same_numbers():
    table = decompositions.table()
    assert not {aten.native_dropout.default, aten.bernoulli.default, aten.uniform.default} & set(table)


def test_the_table_is_the_callers_own():
    decompositions.table().clear()
    assert decompositions.table()


@pytest.mark.parametrize("p", [0.0, 1.0, 2.0, 2.5, math.inf])
def test_distances(p):
    check(lambda a, b: torch.cdist(a, b, p=p), torch.randn(2, 5, 7), torch.randn(2, 9, 7), tolerance=2e-6)


def test_batched_product_summed_over_the_batch():
    a, b, base = torch.randn(3, 4, 5), torch.randn(3, 5, 6), torch.randn(4, 6)
    check(lambda x, y, z: torch.addbmm(z, x, y, beta=0.5, alpha=2), a, b, base, tolerance=1e-5)


def test_bilinear():
    a, b, weight, bias = torch.randn(6, 3), torch.randn(6, 4), torch.randn(5, 3, 4), torch.randn(5)
    check(torch.nn.functional.bilinear, a, b, weight, bias, tolerance=1e-5)
