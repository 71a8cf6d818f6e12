"""The kernels of examples/metal: numpy's results, clean under all checks, and every barrier needed."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import re
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
import torch

import metal_inductor
from metal_inductor.runtime.checks import MetalCheckError
from metal_inductor.runtime.cpu import configure

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples" / "metal"
BARRIER = re.compile(r"(?:threadgroup|simdgroup)_barrier\(mem_flags::mem_threadgroup\);")
KERNEL = re.compile(r"(?:^\[\[.*\]\]\n)?^kernel void (\w+)\(.*?^}\n", re.M | re.S)
PREAMBLE = "#include <metal_stdlib>\nusing namespace metal;\n"
FAST_SEEDS, ALL_SEEDS = (0, 5), range(10)
Size = tuple[int, int, int]


def rows(shape: tuple[int, int]) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(shape[0] * 10007 + shape[1]))


def softmax(kernel: Any, size: Size, checks: str) -> None:
    height, width, threads = size
    x, out = rows((height, width)), torch.empty(height, width)
    kernel(x, out, width, threads=height * threads, group_size=threads, checks=checks)
    exact = np.exp(x.double().numpy() - x.double().numpy().max(1, keepdims=True))
    np.testing.assert_allclose(out.numpy(), exact / exact.sum(1, keepdims=True), rtol=1e-5)


def mean_and_variance(kernel: Any, size: Size, checks: str) -> None:
    height, width, threads = size
    x, mean, variance = rows((height, width)), torch.empty(height), torch.empty(height)
    kernel(x, mean, variance, width, threads=height * threads, group_size=threads, checks=checks)
    np.testing.assert_allclose(mean.numpy(), x.double().numpy().mean(1), atol=1e-6)
    np.testing.assert_allclose(variance.numpy(), x.double().numpy().var(1), rtol=1e-5)


def scan(kernel: Any, size: Size, checks: str) -> None:
    height, width, threads = size
    x, out = rows((height, width)), torch.empty(height, width)
    kernel(x, out, width, threads=height * threads, group_size=threads, checks=checks)
    np.testing.assert_allclose(out.numpy(), x.double().numpy().cumsum(1), atol=1e-4)


def scan_by_doubling(kernel: Any, size: Size, checks: str) -> None:
    height, _, width = size
    x, out = rows((height, width)), torch.empty(height, width)
    kernel(x, out, threads=height * width, group_size=width, checks=checks)
    np.testing.assert_allclose(out.numpy(), x.double().numpy().cumsum(1), atol=1e-4)


def sort(kernel: Any, size: Size, checks: str) -> None:
    height, width, threads = size
    x, out = rows((height, width)), torch.empty(height, width)
    power = 1 << (width - 1).bit_length()
    kernel(x, out, width, power, threads=height * threads, group_size=threads, checks=checks)
    np.testing.assert_array_equal(out.numpy(), np.sort(x.numpy(), 1))


def matmul(kernel: Any, size: Size, checks: str, tile: int, group: tuple[int, int]) -> None:
    height, width, depth = size
    a, b, c = rows((height, depth)), rows((depth, width)), torch.full((height, width), torch.nan)
    grid = (-(-width // tile) * group[0], -(-height // tile) * group[1])
    kernel(a, b, c, height, width, depth, threads=grid, group_size=group, checks=checks)
    np.testing.assert_allclose(c.numpy(), a.double().numpy() @ b.double().numpy(), atol=1e-4)


@dataclasses.dataclass(frozen=True)
class Example:
    """A kernel of a file, how to run it and compare it with numpy, and at which sizes."""

    file: str
    run: Callable[[Any, Size, str], None]
    sizes: list[Size]

    def text(self, name: str) -> str:
        """The file without its first lines and without its other kernels."""
        body = (EXAMPLES / self.file).read_text().split("using namespace metal;")[1]
        return KERNEL.sub(lambda match: match[0] if match[1] == name else "", body)


ROW_SIZES = [(2, 300, 64), (3, 77, 99), (1, 2000, 1024)]
MATRIX_SIZES = [(33, 47, 21), (16, 20, 65), (70, 35, 40)]
EXAMPLE_KERNELS = {
    "softmax": Example("softmax.metal", softmax, ROW_SIZES),
    "mean_and_variance": Example("reduction.metal", mean_and_variance, [*ROW_SIZES[:2], (1, 1000, 256)]),
    "scan": Example("scan.metal", scan, [(2, 300, 64), (2, 301, 100), (1, 1500, 1024)]),
    "scan_by_doubling": Example("scan.metal", scan_by_doubling, ROW_SIZES),
    "sort": Example("sort.metal", sort, [(2, 100, 64), (2, 37, 16), (1, 1000, 256)]),
    "matmul_tiled": Example(
        "matmul.metal", functools.partial(matmul, tile=16, group=(16, 16)), [*MATRIX_SIZES, (5, 6, 17)]
    ),
    "matmul_simdgroup": Example("matmul.metal", functools.partial(matmul, tile=32, group=(128, 1)), MATRIX_SIZES),
}
TEXTS = {name: example.text(name) for name, example in EXAMPLE_KERNELS.items()}
REMOVALS = [(name, number) for name, text in TEXTS.items() for number in range(len(BARRIER.findall(text)))]


def without_barrier(text: str, number: int) -> str:
    """The text without its barrier of that number."""
    match = list(BARRIER.finditer(text))[number]
    return text[: match.start()] + text[match.end() :]


@functools.cache
def library() -> Any:
    """Each kernel as it is, and for each of its barriers once without it: `name_0`, `name_1` and so on."""
    variants = list(TEXTS.items())
    variants += [
        (f"{name}_{number}", without_barrier(TEXTS[name], number).replace(f" {name}(", f" {name}_{number}("))
        for name, number in REMOVALS
    ]
    namespaces = [f"namespace text_of_{name} {{{text}}}" for name, text in variants]
    return metal_inductor.compile_shader(PREAMBLE + "\n".join(namespaces), device="cpu")


@pytest.fixture(autouse=True)
def fixed_schedule():
    yield
    configure(schedule=0)


def run_intact(name: str, seeds: Iterable[int], checks: str = "all") -> None:
    example = EXAMPLE_KERNELS[name]
    for seed in seeds:
        configure(schedule=seed)
        for size in example.sizes:
            example.run(getattr(library(), name), size, checks)


def run_broken(name: str, number: int, seeds: Iterable[int], sizes: int | None = None) -> None:
    example = EXAMPLE_KERNELS[name]
    for seed in seeds:
        configure(schedule=seed)
        for size in example.sizes[:sizes]:
            with pytest.raises(MetalCheckError) as caught:
                example.run(getattr(library(), f"{name}_{number}"), size, "races")
            assert {report.kind for report in caught.value.reports} == {"races"}


def test_every_barrier_is_found():
    texts = [path.read_text() for path in EXAMPLES.glob("*.metal")]
    assert len(REMOVALS) == sum(len(BARRIER.findall(text)) for text in texts) == 17


@pytest.mark.parametrize("name", EXAMPLE_KERNELS)
def test_results_are_right_without_checks(name):
    run_intact(name, [0], "none")


@pytest.mark.parametrize("name", EXAMPLE_KERNELS)
def test_intact_kernel_is_never_reported(name):
    run_intact(name, FAST_SEEDS)


@pytest.mark.parametrize(("name", "number"), REMOVALS)
def test_each_missing_barrier_is_reported(name, number):
    run_broken(name, number, FAST_SEEDS, sizes=2)


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLE_KERNELS)
def test_intact_kernel_is_never_reported_under_ten_schedules(name):
    run_intact(name, ALL_SEEDS)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "number"), REMOVALS)
def test_each_missing_barrier_is_reported_under_ten_schedules(name, number):
    run_broken(name, number, ALL_SEEDS)
