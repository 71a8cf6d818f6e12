"""Whole compiled graphs run under the checks: the backend's own kernels are clean, and mistakes in lists are found."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from metal_inductor.compiler import backend
from metal_inductor.runtime.checks import MetalCheckError, MetalCheckWarning, resolve, storage_extent
from metal_inductor.runtime.cpu import CpuDispatchList, CpuLibrary, drain
from metal_inductor.runtime.device import CheckedCpuList, CpuDevice, CpuList

pytestmark = pytest.mark.filterwarnings(f"error::{MetalCheckWarning.__module__}.{MetalCheckWarning.__name__}")


class Block(torch.nn.Module):
    """One layer of a decoder with grouped queries, on one new token and the keys and values before it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.query, self.key_value = torch.nn.RMSNorm(64), torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)
        self.up, self.down = torch.nn.Linear(64, 96), torch.nn.Linear(96, 64)

    def forward(self, x: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        normed = self.norm(x)
        query = self.query(normed).view(1, 1, 4, 16).transpose(1, 2)
        key, value = self.key_value(normed).view(1, 1, 2, 2, 16).transpose(1, 3).unbind(2)
        keys, values = torch.cat([keys, key], 2), torch.cat([values, value], 2)
        attended = F.scaled_dot_product_attention(query, keys, values, enable_gqa=True)
        x = x + attended.transpose(1, 2).reshape(1, 1, 64)
        return x + self.down(F.silu(self.up(x)))


def kinds_of_kernels(x: torch.Tensor, index: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Row and column reductions, softmax, normalisation, running sums, gathers, atomic sums, products."""
    normed = F.layer_norm(x, (x.shape[1],))
    return (
        torch.softmax(x, -1),
        normed,
        x.var(0),
        x.argmax(1),
        x.cumsum(1),
        x[index].sum(-1),
        torch.zeros_like(x).index_add(0, index, normed[: len(index)]),
        x.t() @ x,
        x @ x[0],
    )


@pytest.fixture
def all_checks(monkeypatch):
    monkeypatch.setenv("METAL_INDUCTOR_CHECKS", "all")


def agree(function, *arguments):
    actual = torch.compile(function, backend=backend)(*arguments)
    torch.testing.assert_close(actual, function(*arguments), atol=1e-4, rtol=1e-4)


def test_kernels_of_many_kinds_are_clean(all_checks):
    agree(kinds_of_kernels, torch.randn(33, 70), torch.randint(0, 33, (20,)))


def test_a_decoding_step_is_clean(all_checks):
    with torch.no_grad():
        agree(
            Block().requires_grad_(False), torch.randn(1, 1, 64), torch.randn(1, 2, 19, 16), torch.randn(1, 2, 19, 16)
        )


def test_an_update_of_a_part_reads_no_value_for_the_rest(all_checks):
    def update(cache: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        cache[1, 2:6:2, :2] = value[0, :, :2] * 2
        return cache.sum((0, 2))

    cache, value = torch.randn(2, 8, 3), torch.randn(1, 2, 3)
    expected = cache.clone()
    sums = update(expected, value)
    torch.testing.assert_close(torch.compile(update, backend=backend)(cache, value), sums)
    assert torch.equal(cache, expected)


@pytest.mark.slow
def test_training_is_clean(all_checks):
    model = torch.nn.Sequential(
        torch.nn.Linear(40, 24), torch.nn.GELU(), torch.nn.LayerNorm(24), torch.nn.Linear(24, 5)
    )
    given = torch.randn(7, 40)
    loss = torch.compile(lambda x: model(x).square().mean(), backend=backend)(given)
    actual = torch.autograd.grad(loss, list(model.parameters()))
    expected = torch.autograd.grad(model(given).square().mean(), list(model.parameters()))
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-4)


def test_sizes_that_change_are_clean(all_checks):
    compiled = torch.compile(lambda x: torch.softmax(x * 2, -1), backend=backend, dynamic=True)
    for size in (3, 50, 40, 700):
        given = torch.randn(5, size)
        torch.testing.assert_close(compiled(given), torch.softmax(given * 2, -1))


def test_only_checked_graphs_pay(monkeypatch):
    monkeypatch.delenv("METAL_INDUCTOR_CHECKS", raising=False)
    assert type(CpuDevice().new_list(3)) is CpuList
    monkeypatch.setenv("METAL_INDUCTOR_CHECKS", "races")
    assert type(CpuDevice().new_list(3)) is CheckedCpuList


SHIFT = """
#include <metal_stdlib>
kernel void shift(device float* out, device const float* in, uint i [[thread_position_in_grid]]) { out[i] = in[i + 1]; }
"""


def test_a_mistake_in_a_list_is_raised_by_the_drain():
    """The command buffer ends behind the dispatch that made it; what is committed later runs."""
    library = CpuLibrary.load(SHIFT, checked=True)
    given, middle, last = torch.arange(9.0), torch.zeros(8), torch.zeros(8)
    dispatches = CpuDispatchList(3, resolve("bounds"))
    for slot, tensor in enumerate((given, middle, last)):
        dispatches.pointers[slot] = tensor.data_ptr()
        dispatches.extents[slot] = storage_extent(tensor)
    dispatches.add(library, "shift", [1, 0], (8, 1, 1), (8, 1, 1))
    dispatches.add(library, "shift", [2, 1], (8, 1, 1), (8, 1, 1))  # reads one element too many
    dispatches.add(library, "shift", [1, 2], (7, 1, 1), (7, 1, 1))
    dispatches.commit(0, 3)
    with pytest.raises(MetalCheckError) as caught:
        drain()
    assert [report.address for report in caught.value.reports] == ["argument 'in' + 32 bytes (in[8])"]
    assert middle.tolist() == [1, 2, 3, 4, 5, 6, 7, 8] and last.tolist() == [2, 3, 4, 5, 6, 7, 8, 0]
    dispatches.commit(2, 3)
    drain()
    assert middle.tolist() == [3, 4, 5, 6, 7, 8, 0, 8]
