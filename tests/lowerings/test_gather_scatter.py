"""Reads and writes at places that come from data, and tensors put together from parts."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lowerings.compiled import check, gradients, run

QUICK = settings(max_examples=10, deadline=None, derandomize=True)


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def integers(*values: int) -> torch.Tensor:
    return torch.tensor(values)


# ---------------------------------------------------------------------------------------------- reads


def test_gathers_read_what_eager_reads() -> None:
    x, rows, deep = noise(5, 4, 6), integers(4, 0, 0, 2), torch.randint(0, 4, (3, 2, 6))

    def function(x: torch.Tensor, rows: torch.Tensor, deep: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            x.index_select(1, rows % 4), x.index_select(-1, rows.int()),
            x.gather(1, deep), (x * 2).gather(-2, deep) + 1,
            x.take(deep - 50), torch.nn.functional.embedding(deep, x[:, 0]), x[rows] + 1, x.take_along_dim(deep[:1], 1),
        )  # fmt: skip

    check(function, x, rows, deep)


ADVANCED: dict[str, Callable] = {
    "one": lambda x, i, j: x[i],
    "negative": lambda x, i, j: x[i - 3],
    "middle": lambda x, i, j: x[:, j],
    "neighbours": lambda x, i, j: x[:, i, j],
    "apart": lambda x, i, j: x[i, :, j],
    "outer product": lambda x, i, j: x[i[:, None], j[None]],
    "two-dimensional": lambda x, i, j: x[:, i.view(1, 3).expand(2, 3)],
    "with a slice": lambda x, i, j: x[1:, i, ::2],
    "with a number": lambda x, i, j: x[i, 2],
    "computed": lambda x, i, j: (x * 2 + 1)[i.flip(0)] - 1,
    "nested": lambda x, i, j: x[i[j - 1]],
    "of a position": lambda x, i, j: torch.arange(5)[i] + 1,
    "of nothing": lambda x, i, j: x[i[:0]],
}


def test_advanced_indices_place_their_dimensions_as_eager_places_them() -> None:
    x = noise(4, 4, 4)
    check(lambda *a: {name: index(*a) for name, index in ADVANCED.items()}, x, integers(0, 3, 2), integers(1, 1, 2))


def test_indices_of_zero_dimensional_tensors() -> None:
    x = torch.tensor(3.0)
    check(lambda x, i: (x.index_select(0, i), x.gather(0, i[0]), x.scatter(0, i[0], 7.0)), x, integers(0))


@pytest.mark.parametrize("index", [5, -6])
def test_reads_out_of_range_are_errors(index: int) -> None:
    compiled = torch.compile(lambda x, i: x[i] + 1, backend="metal_inductor")
    with pytest.raises(IndexError, match="out of (range|bounds)"):
        compiled(noise(5, 2), integers(0, index)).sum().item()


def test_a_negative_index_is_an_error_where_eager_does_not_wrap_it() -> None:
    compiled = torch.compile(lambda w, i: torch.nn.functional.embedding(i, w), backend="metal_inductor")
    with pytest.raises(IndexError, match="out of (range|bounds)"):
        compiled(noise(5, 2), integers(0, -1)).sum().item()


# ---------------------------------------------------------------------------------------------- writes


def test_scatters_write_what_eager_writes() -> None:
    x, source = noise(5, 4), noise(6, 7, seed=1)
    index = torch.stack([torch.randperm(5)[:3] for _ in range(4)], 1)

    def function(x: torch.Tensor, index: torch.Tensor, source: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rows = index[:, 0]
        return (
            x.scatter(0, index, source), x.scatter(0, index[:2], 9.0), x.scatter_add(0, index, source),
            x.scatter(0, index, source, reduce="add"), x.scatter_reduce(0, index, source, "sum", include_self=False),
            x.scatter_reduce(0, index % 2, source, "mean"), x.index_add(0, rows, source[:3, :4], alpha=2),
            x.index_copy(0, rows, source[3:, 1:5]), x.index_fill(0, rows - 5, 4.0),
            x.index_fill(1, rows[:1] % 4, x[0, 0]),
            x.index_put((rows,), source[:3, :4]), x.index_put((rows, index[:, 1] % 4), source[0, :3]),
            x.index_put((rows - 5,), source[0, 0]), x.put(index[:, 0], source[0, :3]),
        )  # fmt: skip

    check(function, x, index, source)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.int16, torch.uint8])
def test_every_duplicate_is_added(dtype: torch.dtype) -> None:
    x, source = torch.arange(8).to(dtype), torch.arange(1, 7).to(dtype)

    def function(x: torch.Tensor, i: torch.Tensor, s: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.index_put((i,), s, accumulate=True)
        return y, x.scatter_add(0, i, s), x.index_add(0, i, s), x.index_put((i,), s[0], accumulate=True)

    check(function, x, integers(7, 1, 7, 7, 0, 1), source)


@pytest.mark.parametrize("reduce", ["sum", "mean", "prod", "amax", "amin"])
@pytest.mark.parametrize("include_self", [True, False])
def test_scattered_reductions_with_nan(reduce: str, include_self: bool) -> None:
    x, source = noise(5, 4), noise(7, 4, seed=1)
    x[0, 0], source[2, 1] = float("nan"), float("nan")
    index = torch.tensor([0, 0, 1, 4, 4, 4, 1])

    def function(x: torch.Tensor, i: torch.Tensor, s: torch.Tensor) -> tuple[torch.Tensor, ...]:
        whole = i[:, None].expand(-1, 4)
        results = (
            x.scatter_reduce(0, whole, s, reduce, include_self=include_self),
            x.scatter_reduce(0, whole[:, :2], s, reduce, include_self=include_self),
            x.scatter_reduce(1, i[:3, None] % 4, s, reduce, include_self=include_self),
        )
        if reduce == "sum":
            return results
        return *results, x.index_reduce(0, i, s, reduce, include_self=include_self)

    check(function, x, index, source)


def test_scattered_reductions_of_int64_are_exact() -> None:
    x, source = torch.arange(5) + 2**53, torch.arange(-3, 4) * 2**40
    index = torch.tensor([0, 0, 1, 4, 4, 4, 1])

    def function(x: torch.Tensor, i: torch.Tensor, s: torch.Tensor) -> tuple[torch.Tensor, ...]:
        reduced = [x.scatter_reduce(0, i, s, reduce) for reduce in ("sum", "prod", "amax", "amin")]
        return *reduced, x.scatter_add(0, i, s), x.index_add(0, i, s, alpha=3), x.scatter(0, i, 7, reduce="add")

    check(function, x, index, source)


def test_masks_as_indices_are_selections() -> None:
    x = noise(4, 5)

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y, z, w = x.clone(), x.clone(), x.clone()
        y[y > 0] = -1
        z[:, 1:4][z[:, 1:4] < 0] = 7
        w[w[:, 0] > 0] = x[0]
        return y, z, w, x.index_put((x > 0,), torch.tensor(2.0), accumulate=True)

    check(function, x)


def test_a_mask_with_a_value_for_each_element_stays_an_aten_call() -> None:
    x = noise(6)
    check(lambda x, v: x.index_put((x > -100,), v), x, noise(6, seed=1), aten_calls=["aten.index_put"])


def test_writes_out_of_range_are_errors_and_leave_memory_alone() -> None:
    storage = torch.zeros(64)

    def function(view: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return view.index_copy_(0, index, torch.ones(1))

    with pytest.raises(IndexError, match="out of (range|bounds)"):
        torch.compile(function, backend="metal_inductor")(storage[:5], integers(8)).sum().item()
    assert storage.count_nonzero() == 0


def test_embedding_gradients_add_up_and_skip_padding() -> None:
    weight = noise(7, 3).requires_grad_()
    index = torch.tensor([[1, 2, 1], [6, 0, 1]])
    gradients(lambda w, i: torch.nn.functional.embedding(i, w, padding_idx=0), weight, index)
    half = weight.detach().half().requires_grad_()
    gradients(lambda w, i: torch.nn.functional.embedding(i, w), half, index, tolerance=2e-3)


def test_gradients_of_indexing() -> None:
    x, i = noise(5, 4).requires_grad_(), integers(3, 0, 3)
    gradients(lambda x, i: (x[i], x.gather(0, i[:, None]), x[1:, ::2] * 2, x[-1], x.index_select(1, i)), x, i)


# ---------------------------------------------------------------------------------------------- in place


CACHE_WRITES: dict[str, Callable] = {
    "index_copy_": lambda cache, i, v: cache.index_copy_(1, i, v),
    "index_put_": lambda cache, i, v: cache.index_put_((torch.arange(2)[:, None], i), v),
    "setitem with an index": lambda cache, i, v: cache.__setitem__((slice(None), i), v),
    "setitem with a slice": lambda cache, i, v: cache.__setitem__((slice(None), slice(3, 5)), v),
    "setitem with a position": lambda cache, i, v: cache.__setitem__((slice(None), -2), v[:, 0]),
    "a slice of a slice": lambda cache, i, v: cache.__setitem__((1, slice(2, 6, 2), slice(0, 2)), v[0, :, :2]),
}


@pytest.mark.parametrize("name", CACHE_WRITES)
def test_a_cache_is_updated_where_it_lies(name: str) -> None:
    def function(cache: torch.Tensor, index: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        CACHE_WRITES[name](cache, index, value * 2)
        return cache.sum((0, 2))

    check(function, noise(2, 8, 3), integers(6, 1), noise(2, 2, 3, seed=1))


@pytest.mark.parametrize("name", CACHE_WRITES)
def test_a_cache_update_writes_only_the_new_elements(name: str) -> None:
    """The kernels of a large cache must not touch the rest of it: no second buffer of its size exists."""
    cache, values = noise(2, 512, 3), noise(2, 2, 3, seed=1)

    def function(cache: torch.Tensor, index: torch.Tensor, value: torch.Tensor) -> None:
        CACHE_WRITES[name](cache, index, value * 2)

    _, graphs = run(function, cache, integers(6, 1), values)
    assert graphs[0].peak_intermediate_bytes < cache.nbytes // 8


# ---------------------------------------------------------------------------------------------- assembled tensors


def test_joined_tensors() -> None:
    a, b = noise(2, 3), noise(4, 3, seed=1)

    def function(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            torch.cat([a, b * 2, a]), torch.cat([a, a[:, :0], a[:, 1:]], -1) + 1, torch.stack([a, a * 2], 1),
            torch.cat([torch.empty(0), a.half(), b.int()]), torch.cat([b.flip(0)[:1] for _ in range(40)]),
            torch.hstack([a, a]), torch.cat([a.sum(0, True), b[1:2]]).t(), torch.cat([a[:0], b[:0]]),
        )  # fmt: skip

    check(function, a, b)


@QUICK
@given(st.lists(st.integers(-3, 4), min_size=4, max_size=4))
def test_padding_by_any_amounts(amounts: list[int]) -> None:
    torch._dynamo.reset()
    x = noise(7, 7)
    check(lambda x: torch.nn.functional.pad(x * 2, amounts, value=1.5), x)


def test_padding_modes_and_dtypes() -> None:
    pad = torch.nn.functional.pad
    modes = ("reflect", "replicate", "circular")
    check(lambda x: [pad(x, (2, 1), mode) for mode in modes], noise(2, 3, 5))
    for dtype in (torch.int8, torch.bool, torch.bfloat16, torch.int64):
        check(lambda x: pad(x, (1, 2, 0, 1)), torch.ones(2, 3).to(dtype))


def test_gradients_of_padding() -> None:
    x = noise(2, 3, 4, 5).requires_grad_()
    pad = torch.nn.functional.pad
    gradients(lambda x: [pad(x, (2, 1, 1, 3), mode) for mode in ("replicate", "reflect", "circular")], x)
    gradients(lambda x: (pad(x, (2, 1, 0, 3, 1, 1), "replicate"), pad(x[0], (-1, 2), "replicate")), x)


def test_parts_are_overwritten() -> None:
    x = noise(6, 7)

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        src = torch.ones(6, 7) * x.sum()
        return (
            x.slice_scatter(src[:2], 0, 1, 6, 3), x.slice_scatter(src[:, :3], 1, -3), x.select_scatter(src[0], 0, -2),
            x.diagonal_scatter(src[0, :5], 2),
            x.diagonal_scatter(src[0, :6], -1, 1, 0), x.slice_scatter(src[:0], 0, 6),
            torch.as_strided_scatter(x, src[:2, :3], (2, 3), (14, 2), 1), x.tril(1), x.triu(-1),
        )  # fmt: skip

    check(function, x)


def test_gradients_of_assembled_tensors() -> None:
    x = noise(3, 5).requires_grad_()
    pad = torch.nn.functional.pad

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        joined = torch.cat([x, x * 2], 1), torch.stack([x, x])
        return *joined, pad(x, (1, -2)), x.diagonal(1), x.unfold(1, 3, 1), x.repeat(2, 1)

    gradients(function, x)
