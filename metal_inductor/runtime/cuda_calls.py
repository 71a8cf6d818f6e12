"""Calls of single Metal kernels on a GPU, as `compile_shader` makes them.

Everything that is not a tensor travels in the kernel's parameters: a call copies nothing to device memory, allocates
nothing and waits for nothing, so it can be captured in a CUDA graph.
"""

from __future__ import annotations

import contextlib
import ctypes
import struct
import threading
from collections.abc import Mapping, Sequence

import torch

from metal_inductor.metal import call_arguments, limits
from metal_inductor.metal.call_arguments import Bound
from metal_inductor.metal.kernel_info import KernelInfo
from metal_inductor.runtime import ptx
from metal_inductor.runtime.cuda import CudaLibrary, Grid, Shape, buffer_indices, check, driver

MAX_PARAMETER_BYTES = 32764 - 1024  # CUDA's limit, less addresses and sizes


class CudaRunner:
    """Launches kernels of one library on torch's current stream of its GPU."""

    def __init__(self, source: str, device: torch.device) -> None:
        driver()
        count = torch.cuda.device_count()
        index = torch.cuda.current_device() if device.index is None else device.index
        if index >= count:
            raise ValueError(f"device '{device}': there are {count} GPUs, cuda:0 to cuda:{count - 1}")
        self.device = torch.device("cuda", index)
        self.library = CudaLibrary.load(source, index)
        self.kernels = self.library.kernels
        self._calls: dict[tuple, _Call] = {}

    def bind_tensor(self, tensor: torch.Tensor, what: str) -> Bound:
        if tensor.device == self.device:
            plain = call_arguments.plain_tensor(tensor, what, self.device)
            return Bound(plain.data_ptr(), plain)
        if tensor.device.type == "cpu" and tensor.ndim == 0:
            return Bound(call_arguments.tensor_bytes(call_arguments.plain_tensor(tensor, what, self.device)))
        raise ValueError(
            f"{what}: a {tensor.layout} tensor on {tensor.device}; valid are dense tensors on {self.device} and CPU "
            "tensors of no dimension"
        )

    def launch(
        self,
        name: str,
        bound: Sequence[Bound],
        threads: Sequence[int],
        group_size: Sequence[int],
        threadgroup_memory: Mapping[int, int],
    ) -> None:
        info = self.kernels[name]
        limits.check_geometry(info, threads, group_size)
        limits.check_buffers(info, range(len(bound)), len(bound))
        lengths = limits.threadgroup_lengths(info, threadgroup_memory)
        if 0 in threads:
            return
        values = [item.value for item in bound]
        sizes = tuple(ptx.block_bytes(len(value)) if isinstance(value, bytes) else 0 for value in values)
        call = self._calls.get((name, sizes)) or self._new_call(info, sizes)
        current = torch.cuda.current_device() == self.device.index
        with contextlib.nullcontext() if current else torch.cuda.device(self.device):
            self.library.make_current()
            call.launch(values, Shape(threads, group_size), lengths, torch.cuda.current_stream().cuda_stream)

    def _new_call(self, info: KernelInfo, sizes: tuple[int, ...]) -> _Call:
        if sum(sizes) > MAX_PARAMETER_BYTES:
            raise ValueError(
                f"kernel '{info.name}': {sum(sizes)} bytes by value, a launch takes {MAX_PARAMETER_BYTES}; pass tensors"
            )
        call = self._calls[info.name, sizes] = _Call(self.library, info, sizes)
        return call


class _Call:
    """A kernel with some arguments by value: one block of memory that holds the parameters of a launch.

    sizes: bytes of the block that buffer(i) is passed in, 0 for an address.
    """

    def __init__(self, library: CudaLibrary, info: KernelInfo, sizes: Sequence[int]) -> None:
        self._library, self._info = library, info
        self._indices = buffer_indices(info)
        self._by_value = {index: sizes[index] for index in self._indices if sizes[index]}
        self._memory = sorted(limits.names_by_index(info, "threadgroup"))
        formats = [f"{sizes[index]}s" if sizes[index] else "Q" for index in self._indices]
        formats += [f"{ctypes.sizeof(Grid)}s"] + ["I"] * len(self._memory)
        self._pack = struct.Struct("=" + "".join(formats))
        self._block = ctypes.create_string_buffer(self._pack.size)
        places = [struct.calcsize("=" + "".join(formats[:count])) for count in range(len(formats))]
        begin = ctypes.addressof(self._block)
        self._addresses = (ctypes.c_void_p * len(places))(*(begin + place for place in places))
        self._parameters = ctypes.addressof(self._addresses)
        self._lock = (
            threading.Lock()
        )  # the block is one for all threads; the driver has copied it when a launch returns

    def launch(self, values: Sequence[int | bytes], shape: Shape, lengths: Sequence[int], stream: int) -> None:
        function = self._library.function(self._info.name, shape.block_threads, self._by_value)
        given = [values[index] for index in self._indices]
        offsets, shared = self._threadgroup_offsets(lengths)
        start = driver().cuLaunchKernel
        for first, blocks in shape.pieces():
            with self._lock:
                self._pack.pack_into(self._block, 0, *given, bytes(shape.grid(first)), *offsets)
                check(start(function, *blocks, *shape.block, shared, stream, self._parameters, 0))

    def _threadgroup_offsets(self, lengths: Sequence[int]) -> tuple[list[int], int]:
        """Where each threadgroup(n) begins behind the kernel's own variables, and the bytes of all."""
        offsets, end = [], limits.aligned(self._info.threadgroup_bytes)
        for index in self._memory:
            offsets.append(end)
            end += limits.aligned(lengths[index])
        return offsets, end
