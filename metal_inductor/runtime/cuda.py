"""The CUDA device: Metal libraries translated to PTX, and frozen lists of dispatches on torch's current stream.

Needs an NVIDIA driver and the package `cuda-bindings`; no CUDA toolkit. Work is ordered by the stream, so ATen calls
between dispatches need no waiting, and a "command buffer" is no more than a run of launches.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from metal_inductor import cache, torch_compat
from metal_inductor.metal import limits
from metal_inductor.metal.kernel_info import KernelInfo
from metal_inductor.runtime.cpu import compiler_identity
from metal_inductor.runtime.ptx import PassedByValue, PtxLibrary

OLDEST = (8, 0)  # compute capability: Ampere has the warp reductions and the bfloat matrices that the headers use
NEWEST = (9, 0)  # that the compiler knows; the driver compiles its text for later ones
_MAX_BLOCKS = (2**31 - 1, 65535, 65535)
_MAX_BLOCK_LAYERS = 64  # CUDA's limit for z alone


class CudaError(RuntimeError):
    """The CUDA driver refused a call."""


@functools.cache
def driver() -> Any:
    """The driver API; RuntimeError says what is missing."""
    if torch.version.cuda is None:
        raise RuntimeError("the cuda device needs a torch that is built for CUDA; this one is not")
    if not torch.cuda.is_available():
        raise RuntimeError("the cuda device needs an NVIDIA GPU and its driver; torch finds none")
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


def architecture(index: int | None = None) -> str:
    """The architecture of a GPU (None: the current one), so that PTX may use all of it; RuntimeError if too old."""
    capability = torch.cuda.get_device_capability(index)
    if capability < OLDEST:
        name = torch.cuda.get_device_name(index)
        raise RuntimeError(f"{name} has compute capability {'.'.join(map(str, capability))}; valid are 8.0 and later")
    major, minor = min(capability, NEWEST)
    return f"sm_{major}{minor}"


class Grid(ctypes.Structure):
    """Sizes of a dispatch as a kernel takes them: MslGrid of include/msl/entry_nvptx.h."""

    _fields_ = [(name, ctypes.c_uint32 * 3) for name in ("threads", "group_size", "groups", "first_group")]


class Function(NamedTuple):
    """A loaded kernel and the threads that a block of it may have, by its registers."""

    handle: Any
    max_threads: int


class CudaLibrary:
    """A Metal library on one GPU. Each kernel is compiled by the driver when it is first used.

    `kernels`: KernelInfo by name, with the true bytes of threadgroup memory; `index`: the GPU.
    """

    def __init__(self, ptx: str, kernels: Sequence[KernelInfo], index: int) -> None:
        self.index = index
        self.ptx = PtxLibrary.parse(ptx)
        self.kernels = {info.name: self.ptx.measured(info) for info in kernels}
        for info in self.kernels.values():
            limits.check_declaration(info)
        self._context = check(driver().cuDevicePrimaryCtxRetain(index))
        self._thread = threading.local()
        self._lock = threading.Lock()
        self._functions: dict[tuple, Function] = {}
        self._modules: list[Any] = []

    @classmethod
    def load(cls, source: str, index: int | None = None) -> CudaLibrary:
        """Translates and compiles Metal text for a GPU (None: the current one) through the kernel cache.

        Equal text gives the same library. Raises SyntaxError with the line of the user's text, RuntimeError without GPU
        or driver or package.
        """
        driver()
        index = torch.cuda.current_device() if index is None else index
        target = architecture(index)
        key = cache.key("cuda library", source, target, compiler_identity())
        with _libraries_lock:
            library = _libraries.get((key, index))
        if library is None:
            library = cls(*_compile(key, source, target), index)
            with _libraries_lock:
                library = _libraries.setdefault((key, index), library)
        return library

    def function(self, name: str, threads: int, by_value: Mapping[int, int] | None = None) -> Any:
        """The kernel for blocks of `threads` threads. by_value: bytes of arguments passed by value, by buffer index."""
        info = self.kernels[name]
        sizes = tuple(sorted((by_value or {}).items()))
        function = self._loaded(info, sizes, None)
        if threads > function.max_threads:
            function = self._loaded(info, sizes, limits.max_threads(info))
        return function.handle

    def make_current(self) -> None:
        """Makes the GPU's context current in a thread that has none: torch does so only when it has work."""
        if not getattr(self._thread, "ready", False):
            check(driver().cuCtxSetCurrent(self._context))
            self._thread.ready = True

    def _loaded(self, info: KernelInfo, sizes: tuple[tuple[int, int], ...], max_threads: int | None) -> Function:
        key = (info.name, sizes, max_threads)
        function = self._functions.get(key)
        if function is None:
            with self._lock:
                function = self._functions[key] = self._functions.get(key) or self._load(info, dict(sizes), max_threads)
        return function

    def _load(self, info: KernelInfo, sizes: Mapping[int, int], max_threads: int | None) -> Function:
        api, order = driver(), buffer_indices(info)
        by_parameter = {order.index(index): size for index, size in sizes.items()}
        try:
            text = self.ptx.kernel(info.symbol, by_parameter, max_threads)
        except PassedByValue as error:
            name = limits.names_by_index(info, "buffer")[order[error.parameter]]
            raise ValueError(
                f"kernel '{info.name}' writes to '{name}', buffer({order[error.parameter]}): it must be a tensor on "
                f"cuda:{self.index}, and was given by value"
            ) from None
        with torch.cuda.device(self.index):
            check(api.cuCtxSetCurrent(self._context))
            # a graph may be under capture, which loading has no part in
            mode = check(api.cuThreadExchangeStreamCaptureMode(api.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
            try:
                module = check(api.cuModuleLoadData(text.encode() + b"\0"))
            finally:
                check(api.cuThreadExchangeStreamCaptureMode(mode))
            self._modules.append(module)
            handle = check(api.cuModuleGetFunction(module, info.symbol.encode()))
            attribute = api.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK
            return Function(handle, check(api.cuFuncGetAttribute(attribute, handle)))


_libraries: dict[tuple[str, int], CudaLibrary] = {}
_libraries_lock = threading.Lock()


def _compile(key: str, source: str, target: str) -> tuple[str, list[KernelInfo]]:
    """The PTX and the kernels of a library, from the cache where both entries are there."""
    from metal_inductor.metal import clang
    from metal_inductor.metal.frontend import translate

    translation = functools.cache(lambda: translate(source, target="cuda"))
    store = cache.default()
    described = store.get_or_build(
        cache.key(key, "kernels"),
        ".json",
        lambda: json.dumps([info.to_json() for info in translation().kernels]).encode(),
    )
    path = store.get_or_build(key, ".ptx", lambda: clang.compile_cuda(translation().text, target))
    return path.read_text(), [KernelInfo.from_json(text) for text in json.loads(described.read_bytes())]


def buffer_indices(info: KernelInfo) -> list[int]:
    """The buffers of a kernel in the order of its parameters."""
    return sorted(limits.names_by_index(info, "buffer"))


class Shape:
    """How a dispatch is launched: its blocks in pieces that CUDA allows, and the block's shape."""

    def __init__(self, threads: Sequence[int], group_size: Sequence[int]) -> None:
        self.threads = tuple(map(int, threads))
        self.group_size = tuple(map(int, group_size))
        self.groups = tuple(-(-size // width) for size, width in zip(self.threads, self.group_size, strict=True))
        self.block_threads = self.group_size[0] * self.group_size[1] * self.group_size[2]
        too_deep = self.group_size[2] > _MAX_BLOCK_LAYERS
        self.block = (self.block_threads, 1, 1) if too_deep else self.group_size

    def pieces(self) -> Iterator[tuple[tuple[int, int, int], tuple[int, int, int]]]:
        """(first threadgroup, number of threadgroups) of each launch; none for an empty grid."""
        axes = [
            [(begin, min(most, count - begin)) for begin in range(0, count, most)]
            for count, most in zip(self.groups, _MAX_BLOCKS, strict=True)
        ]
        for x, y, z in itertools.product(*axes):
            yield (x[0], y[0], z[0]), (x[1], y[1], z[1])

    def grid(self, first: Sequence[int] = (0, 0, 0)) -> Grid:
        return Grid(*((ctypes.c_uint32 * 3)(*sizes) for sizes in (self.threads, self.group_size, self.groups, first)))


class CudaList:
    """A frozen dispatch list: every launch's parameters lie ready, pointers are filled in through a table."""

    def __init__(self, slots: int) -> None:
        self.pointers = np.zeros(slots, dtype=np.uint64)
        self._dispatches: list[_Launch] = []
        self._host: dict[int, np.ndarray] = {}

    def add(self, library: CudaLibrary, kernel: str, slots: Sequence[int], threads: Sequence[int], group: Any) -> int:
        places = {index: self._host.get(slot, self.pointers[slot : slot + 1]) for index, slot in enumerate(slots)}
        sizes = {index: self._host[slot].nbytes for index, slot in enumerate(slots) if slot in self._host}
        self._dispatches.append(_Launch(library, kernel, places, sizes, threads, group))
        return len(self._dispatches) - 1

    def set_threads(self, dispatch: int, threads: Sequence[int], group_size: Sequence[int]) -> None:
        self._dispatches[dispatch].set_threads(threads, group_size)

    def bind(self, slot: int, tensor: torch.Tensor) -> None:
        self.pointers[slot] = tensor.data_ptr()

    def bind_host(self, slot: int, array: np.ndarray) -> None:
        """The array's values are parameters of the dispatches added from now on, as they are at each commit."""
        self._host[slot] = array

    def commit(self, begin: int, end: int) -> None:
        stream = torch_compat.raw_cuda_stream(torch.cuda.current_device())
        for dispatch in self._dispatches[begin:end]:
            dispatch.launch(stream)


class _Launch:
    """One dispatch: the array of parameter addresses points into the pointer table, host arrays and the sizes."""

    def __init__(
        self,
        library: CudaLibrary,
        kernel: str,
        places: Mapping[int, np.ndarray],
        by_value: Mapping[int, int],
        threads: Sequence[int],
        group: Sequence[int],
    ) -> None:
        info = library.kernels[kernel]
        self._library, self._kernel = library, kernel
        indices = buffer_indices(info)
        self._places = [places[index] for index in indices]  # keeps them alive
        self._by_value = {index: size for index, size in by_value.items() if index in indices}
        self._shared = info.threadgroup_bytes
        self._addresses = (ctypes.c_void_p * (len(indices) + 1))(*(place.ctypes.data for place in self._places))
        self._parameters = ctypes.addressof(self._addresses)
        self.set_threads(threads, group)

    def set_threads(self, threads: Sequence[int], group: Sequence[int]) -> None:
        shape = Shape(threads, group)
        self._function = self._library.function(self._kernel, shape.block_threads, self._by_value)
        self._block = shape.block
        self._pieces = [(shape.grid(first), blocks) for first, blocks in shape.pieces()]

    def launch(self, stream: int) -> None:
        for grid, blocks in self._pieces:
            self._addresses[len(self._places)] = ctypes.addressof(grid)
            check(
                driver().cuLaunchKernel(
                    self._function, *blocks, *self._block, self._shared, stream, self._parameters, 0
                )
            )
