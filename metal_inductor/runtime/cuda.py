"""The CUDA device: Metal libraries translated to PTX, and frozen lists of dispatches on torch's current stream.

Needs an NVIDIA driver and the package `cuda-bindings`; no CUDA toolkit. Work is ordered by the stream, so ATen calls
between dispatches need no waiting, and a "command buffer" is no more than a run of launches.
"""

from __future__ import annotations

import ctypes
import functools
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from metal_inductor import cache
from metal_inductor.metal.kernel_info import KernelInfo
from metal_inductor.runtime.cpu import compiler_identity


class CudaError(RuntimeError):
    """The CUDA driver refused a call."""


@functools.cache
def driver() -> Any:
    """The driver API; RuntimeError says what is missing."""
    try:
        from cuda.bindings import driver as module
    except ImportError:
        raise RuntimeError("the cuda device needs the package 'cuda-bindings': pip install cuda-bindings") from None
    return module


def check(result: tuple) -> Any:
    """The value of a driver call, or CudaError with the driver's own words."""
    status, *values = result
    if int(status) != 0:
        _, text = driver().cuGetErrorString(status)
        raise CudaError(text.decode() if isinstance(text, bytes) else str(text))
    return values[0] if values else None


def architecture() -> str:
    """The GPU's own architecture, so that PTX may use all of it."""
    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}" if (major, minor) <= (9, 0) else "sm_90"


class CudaLibrary:
    """A Metal library as a loaded CUDA module. `kernels`: KernelInfo by name."""

    def __init__(self, ptx: bytes, kernels: Sequence[KernelInfo]) -> None:
        torch.cuda.current_stream()  # makes torch's context current
        torch.zeros(1, device="cuda")
        self.module = check(driver().cuModuleLoadData(ptx + b"\0"))
        self.kernels = {info.name: info for info in kernels}
        self.functions = {
            name: check(driver().cuModuleGetFunction(self.module, info.symbol.encode()))
            for name, info in self.kernels.items()
        }

    @classmethod
    def load(cls, source: str) -> CudaLibrary:
        """Translates and compiles Metal text through the kernel cache. SyntaxError names the line."""
        from metal_inductor.metal import clang
        from metal_inductor.metal.frontend import translate

        target = architecture()
        key = cache.key("cuda library", source, target, compiler_identity())
        translation = functools.cache(lambda: translate(source, target="cuda"))
        store = cache.default()
        described = store.get_or_build(
            cache.key(key, "kernels"),
            ".json",
            lambda: json.dumps([info.to_json() for info in translation().kernels]).encode(),
        )
        path = store.get_or_build(key, ".ptx", lambda: clang.compile_cuda(translation().text, target))
        return cls(path.read_bytes(), [KernelInfo.from_json(text) for text in json.loads(described.read_bytes())])


class CudaList:
    """A frozen dispatch list: every launch's parameters lie ready, pointers are filled in through a table."""

    def __init__(self, slots: int) -> None:
        self.pointers = np.zeros(slots, dtype=np.uint64)
        self._dispatches: list[_Launch] = []
        self._host: dict[int, tuple[np.ndarray, torch.Tensor, torch.Tensor]] = {}

    def add(self, library: CudaLibrary, kernel: str, slots: Sequence[int], threads: Sequence[int], group: Any) -> int:
        self._dispatches.append(_Launch(library, kernel, slots, threads, group, self.pointers))
        return len(self._dispatches) - 1

    def set_threads(self, dispatch: int, threads: Sequence[int], group_size: Sequence[int]) -> None:
        self._dispatches[dispatch].set_threads(threads, group_size)

    def bind(self, slot: int, tensor: torch.Tensor) -> None:
        self.pointers[slot] = tensor.data_ptr()

    def bind_host(self, slot: int, array: np.ndarray) -> None:
        """The array's values travel to the GPU at every commit, in stream order, from pinned memory."""
        staging = torch.empty(len(array), dtype=torch.int64, pin_memory=True)
        on_device = torch.empty(len(array), dtype=torch.int64, device="cuda")
        self._host[slot] = (array, staging, on_device)
        self.pointers[slot] = on_device.data_ptr()

    def commit(self, begin: int, end: int) -> None:
        stream = torch.cuda.current_stream()
        if self._host:
            self._send_sizes(stream)
        handle = stream.cuda_stream
        launch = driver().cuLaunchKernel
        for dispatch in self._dispatches[begin:end]:
            if dispatch.empty:
                continue
            check(
                launch(
                    dispatch.function,
                    *dispatch.blocks,
                    *dispatch.group,
                    dispatch.shared,
                    handle,
                    dispatch.parameters,
                    0,
                )
            )

    def _send_sizes(self, stream: torch.cuda.Stream) -> None:
        """Copies sizes that changed; waits before a staging buffer is overwritten that a copy may still read."""
        for array, staging, on_device in self._host.values():
            if not np.array_equal(staging.numpy(), array):
                stream.synchronize()
                staging.numpy()[:] = array
                on_device.copy_(staging, non_blocking=True)


class _Launch:
    """One launch: the array of parameter addresses points into the pointer table and the grid's sizes."""

    def __init__(self, library: CudaLibrary, kernel: str, slots: Sequence[int], threads: Any, group: Any, table: Any):
        info = library.kernels[kernel]
        self.function = library.functions[kernel]
        self.shared = info.threadgroup_bytes
        self._grid = (ctypes.c_uint32 * 3)()
        indices = sorted(a.index for a in info.arguments if a.kind == "buffer")
        count = len(indices)
        self._addresses = (ctypes.c_void_p * (count + 3))()
        for place, index in enumerate(indices):
            self._addresses[place] = table.ctypes.data + 8 * slots[index]
        for axis in range(3):
            self._addresses[count + axis] = ctypes.addressof(self._grid) + 4 * axis
        self.parameters = ctypes.addressof(self._addresses)
        self.set_threads(threads, group)

    def set_threads(self, threads: Sequence[int], group: Sequence[int]) -> None:
        self.group = tuple(int(size) for size in group)
        self._grid[:] = [int(size) for size in threads]
        self.blocks = tuple(-(-int(size) // width) for size, width in zip(threads, self.group))
        self.empty = 0 in self.blocks
