"""The hand-written kernels as a CpuLibrary."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import numpy as np
import pytest

from metal_inductor import cache
from metal_inductor.metal import clang
from metal_inductor.metal.kernel_info import Argument, KernelInfo
from metal_inductor.runtime import cpu


def _info(name: str, buffers: int, **fields: object) -> KernelInfo:
    arguments = tuple(Argument(f"b{i}", "buffer", i, "device", "void*") for i in range(buffers))
    return KernelInfo(name, name, arguments, **fields)


_THREADGROUP_ARGUMENTS = tuple(Argument(f"m{i}", "threadgroup", i, "threadgroup", "char*") for i in range(2))
INFOS = (
    _info("affine", 2),
    _info("describe", 1, uses_fibers=True),
    _info("describe_rows", 1),
    _info("divergent", 1, uses_fibers=True),
    _info("ragged_loop", 1, uses_fibers=True),
    _info("three_ways", 1, uses_fibers=True),
    _info("early_return", 1, uses_fibers=True),
    _info("wide", 1, uses_fibers=True),
    _info("reverse", 2, uses_fibers=True, threadgroup_bytes=4096),
    _info("race", 1, uses_fibers=True, threadgroup_bytes=4),
    _info("unwritten", 1, threadgroup_bytes=4),
    _info("deadlock", 0, uses_fibers=True),
    _info("step", 1),
    _info("busy", 2, uses_fibers=True, max_threads=64),
    KernelInfo(
        "reverse_argument",
        "reverse_argument",
        (*_info("", 2).arguments, *_THREADGROUP_ARGUMENTS),
        uses_fibers=True,
    ),
)


def load_kernels() -> cpu.CpuLibrary:
    source = (pathlib.Path(__file__).parent / "kernels.c").read_text()
    key = cache.key("hand-written kernels", source, clang.identity())
    path = cache.default().get_or_build(key, ".so", lambda: clang.compile_runtime(source))
    infos = {info.name: info for info in INFOS}
    # The same machine code, run thread by thread.
    infos["affine_fibers"] = KernelInfo("affine_fibers", "affine", infos["affine"].arguments, uses_fibers=True)
    return cpu.CpuLibrary(path, infos)


@pytest.fixture(scope="session")
def kernels() -> cpu.CpuLibrary:
    return load_kernels()


@pytest.fixture(autouse=True)
def default_runtime() -> Iterator[None]:
    yield
    cpu.configure(threads=2, schedule=0)


class Launcher:
    """Runs one kernel on numpy arrays and waits."""

    def __init__(self, library: cpu.CpuLibrary) -> None:
        self.library = library

    def __call__(self, name: str, *arrays: np.ndarray, threads: object, group: object, **options: object) -> None:
        self.listed(name, *arrays, threads=threads, group=group, **options).commit()
        cpu.drain()

    def listed(
        self, name: str, *arrays: np.ndarray, threads: object, group: object, repeat: int = 1, **options: object
    ) -> cpu.CpuDispatchList:
        dispatches = cpu.CpuDispatchList(len(arrays))
        dispatches.pointers[:] = [array.ctypes.data for array in arrays]
        for _ in range(repeat):
            dispatches.add(self.library, name, list(range(len(arrays))), axes(threads), axes(group), **options)
        return dispatches


def axes(extents: object) -> tuple[int, int, int]:
    given = extents if isinstance(extents, tuple) else (extents,)
    return (*given, *(1,) * (3 - len(given)))


@pytest.fixture
def launch(kernels: cpu.CpuLibrary) -> Launcher:
    return Launcher(kernels)
