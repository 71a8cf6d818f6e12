"""The kernels of examples/metal: numpy's results, clean under all checks, and every barrier needed."""

from __future__ import annotations

import functools
import pathlib
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import metal_inductor
from metal_inductor.runtime.checks import MetalCheckError
from metal_inductor.runtime.cpu import configure

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples" / "metal"
BARRIER = re.compile(r"(?:threadgroup|simdgroup)_barrier\(mem_flags::mem_threadgroup\);")
FAST_SEEDS, ALL_SEEDS = (0, 5), range(10)


def rows(shape: tuple[int, int]) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(shape[0] * 10007 + shape[1]))


def softmax(library: Any, size: tuple[int, int, int], checks: str) -> None:
    height, width, threads = size
    x, out = rows((height, width)), torch.empty(height, width)
    library.softmax(x, out, width, threads=height * threads, group_size=threads, checks=checks)
    exact = np.exp(x.double().numpy() - x.double().numpy().max(1, keepdims=True))
    np.testing.assert_allclose(out.numpy(), exact / exact.sum(1, keepdims=True), rtol=1e-5)


def reduction(library: Any, size: tuple[int, int, int], checks: str) -> None:
    height, width, threads = size
    x, mean, variance = rows((height, width)), torch.empty(height), torch.empty(height)
    library.mean_and_variance(x, mean, variance, width, threads=height * threads, group_size=threads, checks=checks)
    np.testing.assert_allclose(mean.numpy(), x.double().numpy().mean(1), atol=1e-6)
    np.testing.assert_allclose(variance.numpy(), x.double().numpy().var(1), rtol=1e-5)


def scan(library: Any, size: tuple[int, int, int], checks: str) -> None:
    height, width, threads = size
    x, out, doubled = rows((height, width)), torch.empty(height, width), torch.empty(height, threads)
    library.scan(x, out, width, threads=height * threads, group_size=threads, checks=checks)
    np.testing.assert_allclose(out.numpy(), x.double().numpy().cumsum(1), atol=1e-4)
    short = x[:, :threads].contiguous()
    library.scan_by_doubling(short, doubled, threads=height * threads, group_size=threads, checks=checks)
    np.testing.assert_allclose(doubled.numpy(), short.double().numpy().cumsum(1), atol=1e-4)


def sort(library: Any, size: tuple[int, int, int], checks: str) -> None:
    height, width, threads = size
    x, out = rows((height, width)), torch.empty(height, width)
    power = 1 << (width - 1).bit_length()
    library.sort(x, out, width, power, threads=height * threads, group_size=threads, checks=checks)
    np.testing.assert_array_equal(out.numpy(), np.sort(x.numpy(), 1))


def matmul(library: Any, size: tuple[int, int, int], checks: str) -> None:
    height, width, depth = size
    a, b = rows((height, depth)), rows((depth, width))
    for name, tile, group in (("matmul_tiled", 16, (16, 16)), ("matmul_simdgroup", 32, (128, 1))):
        c = torch.full((height, width), torch.nan)
        grid = (-(-width // tile) * group[0], -(-height // tile) * group[1])
        getattr(library, name)(a, b, c, height, width, depth, threads=grid, group_size=group, checks=checks)
        np.testing.assert_allclose(c.numpy(), a.double().numpy() @ b.double().numpy(), atol=1e-4)


SIZES: dict[Callable[..., None], list[tuple[int, int, int]]] = {
    softmax: [(2, 300, 64), (3, 77, 100), (1, 2000, 1024)],
    reduction: [(2, 300, 64), (3, 77, 99), (1, 1000, 256)],
    scan: [(2, 300, 64), (2, 301, 100), (1, 1500, 1024)],
    sort: [(2, 100, 64), (2, 37, 16), (1, 1000, 256)],
    matmul: [(33, 47, 21), (16, 20, 65), (70, 35, 40)],
}
FILES = {function.__name__: (EXAMPLES / f"{function.__name__}.metal").read_text() for function in SIZES}
FUNCTIONS = {function.__name__: function for function in SIZES}
REMOVALS = [(name, number) for name, text in FILES.items() for number in range(len(BARRIER.findall(text)))]


def without_barrier(text: str, number: int) -> str:
    """The text without its barrier of that number."""
    match = list(BARRIER.finditer(text))[number]
    return text[: match.start()] + text[match.end() :]


class Renamed:
    """A library whose kernel `name` is another's `name_SUFFIX`."""

    def __init__(self, library: Any, suffix: int) -> None:
        self._library, self._suffix = library, suffix

    def __getattr__(self, name: str) -> Any:
        return getattr(self._library, f"{name}_{self._suffix}")


@functools.cache
def broken_library(name: str) -> Any:
    """All texts of the file that lack one barrier, in one library: the kernels of number n end in _n."""
    head, body = FILES[name].split("using namespace metal;")
    texts = [head + "using namespace metal;"]
    for number in range(len(BARRIER.findall(body))):
        text = re.sub(r"kernel void (\w+)", rf"kernel void \1_{number}", without_barrier(body, number))
        texts.append(f"namespace without_{number} {{{text}}}")
    return metal_inductor.compile_shader("\n".join(texts), device="cpu")


@pytest.fixture(autouse=True)
def fixed_schedule():
    yield
    configure(schedule=0)


def run_intact(name: str, seeds: Any, sizes: int | None = None) -> None:
    library = metal_inductor.compile_shader(FILES[name], device="cpu")
    for seed in seeds:
        configure(schedule=seed)
        for size in SIZES[FUNCTIONS[name]][:sizes]:
            FUNCTIONS[name](library, size, "all")


def run_broken(name: str, number: int, seeds: Any, sizes: int | None = None) -> None:
    library = Renamed(broken_library(name), number)
    for seed in seeds:
        configure(schedule=seed)
        for size in SIZES[FUNCTIONS[name]][:sizes]:
            with pytest.raises(MetalCheckError) as caught:
                FUNCTIONS[name](library, size, "races")
            assert {report.kind for report in caught.value.reports} == {"races"}


@pytest.mark.parametrize("name", FILES)
def test_results_are_right_without_checks(name):
    library = metal_inductor.compile_shader(FILES[name], device="cpu")
    for size in SIZES[FUNCTIONS[name]]:
        FUNCTIONS[name](library, size, "none")


@pytest.mark.parametrize("name", FILES)
def test_intact_kernel_is_never_reported(name):
    run_intact(name, FAST_SEEDS)


@pytest.mark.parametrize(("name", "number"), REMOVALS)
def test_each_missing_barrier_is_reported(name, number):
    run_broken(name, number, FAST_SEEDS, sizes=2)


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_intact_kernel_is_never_reported_under_ten_schedules(name):
    run_intact(name, ALL_SEEDS)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "number"), REMOVALS)
def test_each_missing_barrier_is_reported_under_ten_schedules(name, number):
    run_broken(name, number, ALL_SEEDS)
