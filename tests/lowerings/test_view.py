"""Views: every one is exact, shares nothing it should not share, and needs no ATen call."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lowerings.compiled import check, run

QUICK = settings(max_examples=12, deadline=None, derandomize=True)


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.arange(int(torch.tensor(shape).prod()), dtype=dtype).reshape(shape)


VIEWS = {
    "permute": lambda x: x.permute(2, 0, 1) + 1,
    "transpose of negative dims": lambda x: x.transpose(-1, -3) * 2,
    "movedim": lambda x: torch.movedim(x, (0, -1), (-1, 0)) + 1,
    "unsqueeze and squeeze": lambda x: (
        x.unsqueeze(-2).squeeze(2) + 1,
        x[:1].squeeze(0) * 2,
        x[:, :1].squeeze((0, 1)) + 1,
    ),
    "flatten and unflatten": lambda x: x.flatten(1).unflatten(1, (5, 4)) + 1,
    "view across merged dims": lambda x: x.view(6, 10) + 1,
    "reshape of a transposed tensor": lambda x: x.transpose(0, 2).reshape(-1, 6) + 1,
    "expand": lambda x: x[:, :1].expand(3, 7, -1) + 1,
    "broadcast_to": lambda x: torch.broadcast_to(x[0], (2, 3, 4, 5)) * 2,
    "flip": lambda x: x.flip(0, -1) + 1,
    "roll": lambda x: (x.roll(2, 1), x.roll((-7, 1), (0, 2)) + 1, x.roll(7)),
    "roll twice along one dim": lambda x: x.roll((1, 1), (1, 1)) + 1,
    "rot90": lambda x: (x.rot90(1, (1, 2)), x.rot90(2, (0, 1)), x.rot90(-1, (0, 2)) + 1, x.rot90(4) + 1),
    "repeat with new dims": lambda x: x.repeat(2, 1, 3, 2) + 1,
    "tile": lambda x: x.tile(2, 3) + 1,
    "repeat_interleave": lambda x: x.repeat_interleave(3, 1) + 1,
    "slice with steps": lambda x: x[1::2, -3:, 1:-1:3] + 1,
    "slice beyond the ends": lambda x: (x[-100:2] + 1, x[2:100] + 1, x[:, 3:1] + 1),
    "select": lambda x: (x[-1] + 1, x[:, 2] * 2, x[..., -5] + 1),
    "split": lambda x: [part + 1 for part in x.split(3, 1)],
    "split with sizes": lambda x: [part * 2 for part in x.split([1, 0, 4], -1)],
    "chunk": lambda x: [part + 1 for part in x.chunk(3, 2)],
    "unbind": lambda x: [part + 1 for part in x.unbind(-2)],
    "narrow": lambda x: x.narrow(1, -3, 2) + 1,
    "diagonal": lambda x: (x.diagonal(1, 0, 2) + 1, x.diagonal(-2, -2, -1) * 2),
    "unfold": lambda x: x.unfold(2, 3, 2) + 1,
    "as_strided": lambda x: x.as_strided((3, 4), (7, 2), 5) + 1,
    "as_strided of a view": lambda x: x[1].as_strided((3,), (2,)) + 1,
    "pixel_shuffle": lambda x: torch.pixel_shuffle(x.transpose(0, 1), 1) + 1,
    "swapaxes of a flipped slice": lambda x: x.flip(1)[1:, ::2].swapaxes(0, 1) - 1,
}


NEEDS_CONTIGUOUS = ("view across merged dims", "as_strided", "as_strided of a view")


def all_views(names: list[str]) -> Callable:
    return lambda x: {name: VIEWS[name](x) for name in names}


def test_a_view_addresses_the_elements_that_eager_addresses() -> None:
    check(all_views(list(VIEWS)), numbers(3, 4, 5))


def test_views_of_inputs_with_strides_and_offsets() -> None:
    names = [name for name in VIEWS if name not in NEEDS_CONTIGUOUS]
    check(all_views(names), numbers(5, 6, 15)[1:4].transpose(1, 2)[:, 2:10:2, 1:])


def test_views_of_an_as_strided_base_count_from_its_storage() -> None:
    base = numbers(60)
    check(lambda x: x.as_strided((4,), (3,), 40) + 1, base[37:57].view(4, 5)[:, 1:4])
    check(lambda x: (x + 1).as_strided((2, 2), (1, 4), 1) * 2, base)


@pytest.mark.parametrize("source", [torch.float32, torch.int32, torch.float16, torch.int16, torch.bfloat16])
def test_bits_under_another_dtype(source: torch.dtype) -> None:
    value = torch.tensor([0.0, -0.0, 1.5, float("inf"), float("-inf"), 3.0]).to(source)
    for target in (
        (torch.int32, torch.float32) if source.itemsize == 4 else (torch.int16, torch.float16, torch.bfloat16)
    ):
        result, _ = run(lambda x, target=target: (x + 0).view(target), value)
        assert torch.equal(result.view(torch.uint8), (value + 0).view(target).view(torch.uint8))


def test_empty_and_scalar_tensors_pass_through_views() -> None:
    check(
        lambda x: (x.reshape(0, 7) + 1, x.transpose(0, 1) + 1, x.flip(0) + 1, x.roll(1, 0) + 1, x.repeat(2, 0) + 1),
        torch.empty(0, 3),
    )
    check(
        lambda x: (x.reshape(1, 1) + 1, x.t() + 1, x.expand(3) + 1, x.unfold(0, 1, 1) + 1, x.repeat(2) + 1),
        torch.tensor(2.5),
    )


@st.composite
def slices(draw: st.DrawFn) -> tuple[int, slice]:
    size = draw(st.integers(0, 9))
    bound = st.one_of(st.none(), st.integers(-12, 12))
    return size, slice(draw(bound), draw(bound), draw(st.one_of(st.none(), st.integers(1, 4))))


@QUICK
@given(slices())
def test_any_slice_is_clamped_as_eager_clamps_it(case: tuple[int, slice]) -> None:
    size, part = case
    torch._dynamo.reset()
    check(lambda x: x[part] + 1, numbers(size))


@QUICK
@given(
    st.permutations([2, 3, 4]), st.sampled_from([(24,), (4, 6), (6, 4), (2, 12), (12, 2), (2, 2, 6), (3, 8), (8, 3)])
)
def test_any_reshape_of_any_permutation(sizes: list[int], target: tuple[int, ...]) -> None:
    torch._dynamo.reset()
    check(lambda x: x.permute(2, 0, 1).reshape(target) + 1, numbers(*sizes))


def test_slices_with_changing_bounds_need_one_graph() -> None:
    def function(x: torch.Tensor, n: int) -> tuple[torch.Tensor, ...]:
        return x[n:] + 1, x[:-n] * 2, x[-n:].sum(), x.narrow(0, n, 2) + 1, x.roll(n, 0) + 1, x.select(0, -n) + 1

    compiled = torch.compile(function, backend="metal_inductor", dynamic=True, fullgraph=True)
    for rows, n in ((9, 3), (12, 5), (20, 2)):
        x = numbers(rows, 3)
        torch.testing.assert_close(compiled(x, n), function(x, n))


def test_reshapes_with_changing_sizes_need_one_graph() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        heads = x.view(x.shape[0], x.shape[1], 2, -1).transpose(1, 2)
        return heads.reshape(x.shape[0] * 2, -1) + 1, torch.cat(heads.chunk(2, -1), 0), heads.flip(2).flatten(1, 2) * 2

    compiled = torch.compile(function, backend="metal_inductor", dynamic=True, fullgraph=True)
    for shape in ((2, 3, 8), (3, 5, 8), (1, 7, 12)):
        x = numbers(*shape)
        torch.testing.assert_close(compiled(x), function(x))
