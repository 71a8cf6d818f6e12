"""Calls of single Metal kernels on a GPU, as `compile_shader` makes them.

Everything that is not a tensor travels in the kernel's parameters: a call copies nothing to device memory, allocates
nothing and waits for nothing, so it can be captured in a CUDA graph.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Mapping, Sequence

import torch

from metal_inductor import torch_compat
from metal_inductor.metal import call_arguments, limits
from metal_inductor.metal.call_arguments import Bound
from metal_inductor.metal.kernel_info import KernelInfo
from metal_inductor.runtime import ptx
from metal_inductor.runtime.cuda import CudaLibrary, Grid, Shape, buffer_indices, check, driver

MAX_PARAMETER_BYTES = 32764 - 1024  # CUDA's limit, less addresses and sizes
_KEPT_CALLS = 4096  # shapes of calls whose checks are not repeated


class CudaRunner:
    """Launches kernels of one library on torch's current stream of its GPU."""

    def __init__(self, source: str, device: torch.device) -> None:
        driver()
        count = torch.cuda.device_count()
        self._index = torch.cuda.current_device() if device.index is None else device.index
        if self._index >= count:
            raise ValueError(f"device '{device}': there are {count} GPUs, cuda:0 to cuda:{count - 1}")
        self.device = torch.device("cuda", self._index)
        self.library = CudaLibrary.load(source, self._index)
        self.kernels = self.library.kernels
        self._parameters: dict[tuple, _Parameters] = {}
        self._calls: dict[tuple, _Call] = {}

    def bind_tensor(self, tensor: torch.Tensor, what: str) -> Bound:
        if tensor.is_cuda and tensor.get_device() == self._index:
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
        values = [item.value for item in bound]
        sizes = tuple([ptx.block_bytes(len(value)) if value.__class__ is bytes else 0 for value in values])
        key = (name, sizes, threads, group_size, *threadgroup_memory.items())
        call = self._calls.get(key)
        if call is None:
            call = self._new_call(self.kernels[name], sizes, threads, group_size, threadgroup_memory)
            if len(self._calls) >= _KEPT_CALLS:
                self._calls.clear()
            self._calls[key] = call
        if torch.cuda.current_device() == self._index:
            self.library.make_current()
            call.launch(values, torch_compat.raw_cuda_stream(self._index))
        else:
            with torch.cuda.device(self._index):
                call.launch(values, torch_compat.raw_cuda_stream(self._index))

    def _new_call(
        self,
        info: KernelInfo,
        sizes: tuple[int, ...],
        threads: Sequence[int],
        group_size: Sequence[int],
        threadgroup_memory: Mapping[int, int],
    ) -> _Call:
        limits.check_geometry(info, threads, group_size)
        limits.check_buffers(info, range(len(sizes)), len(sizes))
        lengths = limits.threadgroup_lengths(info, threadgroup_memory)
        if sum(sizes) > MAX_PARAMETER_BYTES:
            raise ValueError(
                f"kernel '{info.name}': {sum(sizes)} bytes by value, a launch takes {MAX_PARAMETER_BYTES}; pass tensors"
            )
        parameters = self._parameters.get((info.name, sizes))
        if parameters is None:
            parameters = self._parameters[info.name, sizes] = _Parameters(info, sizes)
        return _Call(self.library, info, parameters, Shape(threads, group_size), lengths)


class _Parameters:
    """One block of memory that holds the parameters of a launch, and the table of their addresses in it.

    sizes: bytes of the block that buffer(i) is passed in, 0 for an address.
    """

    def __init__(self, info: KernelInfo, sizes: Sequence[int]) -> None:
        self.indices = buffer_indices(info)
        self.by_value = {index: sizes[index] for index in self.indices if sizes[index]}
        formats = [f"{sizes[index]}s" if sizes[index] else "Q" for index in self.indices]
        formats += [f"{ctypes.sizeof(Grid)}s"] + ["I"] * len(limits.names_by_index(info, "threadgroup"))
        self.pack_into = struct.Struct("=" + "".join(formats)).pack_into
        places = [struct.calcsize("=" + "".join(formats[:count])) for count in range(len(formats) + 1)]
        self.block = ctypes.create_string_buffer(places.pop())
        begin = ctypes.addressof(self.block)
        self._table = (ctypes.c_void_p * len(places))(*(begin + place for place in places))
        self.address = ctypes.addressof(self._table)
        self.lock = threading.Lock()  # one block for all threads: the driver has copied it when a launch returns


class _Call:
    """A launch in all but the values of its buffers: checked, compiled and laid out."""

    def __init__(
        self,
        library: CudaLibrary,
        info: KernelInfo,
        parameters: _Parameters,
        shape: Shape,
        lengths: Sequence[int],
    ) -> None:
        self._parameters = parameters
        self._offsets, shared = _threadgroup_offsets(info, lengths)
        self._launches = []
        for first, blocks in shape.pieces():
            function = library.function(info.name, shape.block_threads, parameters.by_value)
            arguments = (function, *blocks, *shape.block, shared)
            self._launches.append((bytes(shape.grid(first)), arguments))
        self._start = driver().cuLaunchKernel

    def launch(self, values: Sequence[int | bytes], stream: int) -> None:
        parameters = self._parameters
        given = [values[index] for index in parameters.indices]
        for grid, arguments in self._launches:
            with parameters.lock:
                parameters.pack_into(parameters.block, 0, *given, grid, *self._offsets)
                check(self._start(*arguments, stream, parameters.address, 0))


def _threadgroup_offsets(info: KernelInfo, lengths: Sequence[int]) -> tuple[list[int], int]:
    """Where each threadgroup(n) begins behind the kernel's own variables, and the bytes of all."""
    offsets, end = [], limits.aligned(info.threadgroup_bytes)
    for index in sorted(limits.names_by_index(info, "threadgroup")):
        offsets.append(end)
        end += limits.aligned(lengths[index])
    return offsets, end
