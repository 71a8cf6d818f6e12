"""What the executor needs of a device, and the devices there are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch


class DispatchList(Protocol):
    """A frozen list of dispatches whose buffers are slots of a pointer table."""

    def add(self, library: Any, kernel: str, slots: Sequence[int], threads: Sequence[int], group: Sequence[int]) -> int:
        """Appends a dispatch: buffer(k) of `kernel` is `slots[k]`; the grid is in threads."""

    def set_threads(self, dispatch: int, threads: Sequence[int], group_size: Sequence[int]) -> None:
        """Changes the grid of a dispatch from the next commit on."""

    def bind(self, slot: int, tensor: torch.Tensor) -> None:
        """Lets `slot` point to the tensor's first element. The caller keeps the tensor alive."""

    def bind_host(self, slot: int, array: np.ndarray) -> None:
        """Lets `slot` hold the values of a host array as they are when a command buffer runs."""

    def commit(self, begin: int, end: int) -> None:
        """Hands dispatches [begin, end) to the device as one command buffer, without waiting."""


class Device(Protocol):
    """A device that runs Metal text."""

    kind: str
    torch_device: torch.device
    reports_errors: bool  # whether an index error can be read after a call without making the host wait for a GPU
    splits_runs: bool  # whether a run is handed over in several command buffers, so that a GPU can start on the first

    def load(self, source: str) -> tuple[Any, bool]:
        """A Metal library through the kernel cache, and whether the compiler had to build it."""

    def new_list(self, slots: int) -> DispatchList:
        """An empty dispatch list with a table of `slots` pointers."""

    def drain(self) -> None:
        """Waits for committed work as far as an ATen call on the device, or the caller, needs it."""


class CpuDevice:
    """Metal text as native code: see `runtime/cpu.py`."""

    kind = "cpu"
    torch_device = torch.device("cpu")
    reports_errors = True
    splits_runs = True

    def load(self, source: str) -> tuple[Any, bool]:
        from metal_inductor import cache
        from metal_inductor.runtime.cpu import CpuLibrary

        before = cache.counters.compiled
        return CpuLibrary.load(source), cache.counters.compiled > before

    def new_list(self, slots: int) -> DispatchList:
        from metal_inductor.runtime import checks

        wanted = checks.resolve(None)
        return CheckedCpuList(slots, wanted) if wanted else CpuList(slots)

    def drain(self) -> None:
        from metal_inductor.runtime.cpu import drain

        drain()


class CpuList:
    """`CpuDispatchList` with tensors in the place of addresses."""

    def __init__(self, slots: int, wanted_checks: int = 0) -> None:
        from metal_inductor.runtime.cpu import CpuDispatchList

        self._list = CpuDispatchList(slots, wanted_checks)
        self.add = self._list.add
        self.set_threads = self._list.set_threads
        self.commit = self._list.commit
        self._arrays: dict[int, np.ndarray] = {}

    def bind(self, slot: int, tensor: torch.Tensor) -> None:
        self._list.pointers[slot] = tensor.data_ptr()

    def bind_host(self, slot: int, array: np.ndarray) -> None:
        self._arrays[slot] = array
        self._list.pointers[slot] = array.ctypes.data


class CheckedCpuList(CpuList):
    """A list whose kernels are checked: it knows where the memory of each buffer ends."""

    def bind(self, slot: int, tensor: torch.Tensor) -> None:
        from metal_inductor.runtime.checks import storage_extent

        super().bind(slot, tensor)
        self._list.extents[slot] = storage_extent(tensor)

    def bind_host(self, slot: int, array: np.ndarray) -> None:
        super().bind_host(slot, array)
        self._list.extents[slot] = array.ctypes.data, array.ctypes.data + array.nbytes


class CudaDevice:
    """Metal text as PTX on torch's current CUDA device and stream: see `runtime/cuda.py`."""

    kind = "cuda"
    torch_device = torch.device("cuda")
    reports_errors = False
    splits_runs = False  # a run is one CUDA graph

    def load(self, source: str) -> tuple[Any, bool]:
        from metal_inductor import cache
        from metal_inductor.runtime.cuda import CudaLibrary

        before = cache.counters.compiled
        return CudaLibrary.load(source), cache.counters.compiled > before

    def new_list(self, slots: int) -> DispatchList:
        from metal_inductor.runtime.cuda_list import CudaList

        return CudaList(slots)

    def drain(self) -> None:
        """Nothing to do: ATen calls and the caller follow in stream order."""


class MpsDevice:
    """The Mac's GPU: see `runtime/mps.py`."""

    kind = "mps"
    torch_device = torch.device("mps")
    reports_errors = False
    splits_runs = True

    def load(self, source: str) -> tuple[Any, bool]:
        from metal_inductor.runtime.mps import MpsLibrary

        return MpsLibrary(source), True

    def new_list(self, slots: int) -> DispatchList:
        from metal_inductor.runtime.mps import MpsList

        return MpsList(slots)

    def drain(self) -> None:
        """Nothing to do: ATen calls and the caller follow in stream order."""


DEVICES = {"cpu": CpuDevice, "cuda": CudaDevice, "mps": MpsDevice}


def device_for(torch_device: torch.device) -> Device:
    """The runtime for tensors on `torch_device`; ValueError where there is none."""
    found = DEVICES.get(torch_device.type)
    if found is None:
        raise ValueError(f"metal_inductor has no runtime for device {torch_device.type!r}; valid: {', '.join(DEVICES)}")
    return found()
