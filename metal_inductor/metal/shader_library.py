"""`compile_shader`: Metal kernels as Python callables, with the call contract of `torch.mps.compile_shader`.

On MPS it is that function. On the CPU the text is translated and compiled by clang, arguments are CPU tensors, and a
call returns when the kernel has run.
"""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from metal_inductor.runtime import cpu

DEVICES = ("cpu", "mps")

_CASTS: dict[str, Callable[[Sequence[float]], bytes]] = {
    "fp16": lambda values: _floats(values, torch.float16),
    "bf16": lambda values: _floats(values, torch.bfloat16),
    "int32": lambda values: _integers(values, 4),
    "int16": lambda values: _integers(values, 2),
    "int8": lambda values: _integers(values, 1),
    "uint8": lambda values: _integers(values, 1),
}


def compile_shader(source: str, device: str | torch.device | None = None) -> Any:
    """Compiles Metal text; each kernel is an attribute of the result.

    device: "mps" or "cpu"; None: MPS where it is available, else the CPU. Returns torch's own library on MPS, a
    `ShaderLibrary` on the CPU. Raises SyntaxError with the compiler's message when the text is not valid Metal,
    TypeError when it is no text, ValueError for another device.
    """
    if not isinstance(source, str):
        raise TypeError(f"source must be a str with Metal text, got {type(source).__name__}")
    chosen = torch.device(device) if device is not None else None
    kind = chosen.type if chosen else ("mps" if torch.backends.mps.is_available() else "cpu")
    if kind not in DEVICES:
        raise ValueError(f"device {str(chosen)!r} cannot run Metal kernels; valid devices: {', '.join(DEVICES)}")
    if kind == "mps":
        return torch.mps.compile_shader(source)
    return ShaderLibrary(cpu.CpuLibrary.load(source))


class ShaderLibrary:
    """The kernels of one Metal library on the CPU, as attributes; `dir()` lists them."""

    def __init__(self, library: cpu.CpuLibrary) -> None:
        self._library = library

    def __getattr__(self, name: str) -> ShaderKernel:
        if name.startswith("__") or name not in self._library.kernels:
            names = ", ".join(self._library.kernels) or "none"
            raise AttributeError(f"no kernel {name!r} in this Metal library; kernels: {names}")
        kernel = ShaderKernel(self._library, name)
        setattr(self, name, kernel)
        return kernel

    def __dir__(self) -> list[str]:
        return list(self._library.kernels)


class ShaderKernel:
    """One kernel. Calling it runs it: see `__call__`."""

    thread_execution_width = cpu.SIMD_WIDTH

    def __init__(self, library: cpu.CpuLibrary, name: str) -> None:
        self._library = library
        self._info = library.kernels[name]
        self.name = name

    @property
    def max_threads_per_threadgroup(self) -> int:
        return min(self._info.max_threads, cpu.MAX_THREADS_PER_THREADGROUP)

    @property
    def static_thread_group_memory_length(self) -> int:
        """Bytes of the kernel's own threadgroup variables."""
        return self._info.threadgroup_bytes

    def __call__(
        self,
        *args: Any,
        threads: int | Sequence[int] | None = None,
        group_size: int | Sequence[int] | None = None,
        arg_casts: str | Mapping[int, str] | None = None,
    ) -> None:
        """Binds argument i to buffer(i), runs `threads` threads and returns when they are done.

        Arguments: CPU tensors (their data from the storage offset on; sizes and strides are not passed), int and bool
        (8 bytes), float (4 bytes), non-empty lists or tuples of ints, of floats or of tensors (an array of addresses).
        threads: one to three extents; None: the elements of the first tensor. group_size: threads per threadgroup, as
        many axes. arg_casts: for all numbers, or by argument index, one of fp16, bf16, int32, int16, int8, uint8.
        Raises TypeError for an argument of another type, ValueError for a value that does not fit, and
        MetalRuntimeError when the kernel fails.
        """
        if len(args) > cpu.MAX_BUFFERS:
            raise ValueError(f"kernel '{self.name}': {len(args)} arguments, Metal has {cpu.MAX_BUFFERS} buffers")
        casts = _casts(arg_casts)
        bound = [_bind(argument, f"argument {i} of kernel '{self.name}'", casts(i)) for i, argument in enumerate(args)]
        extents = _extents("threads", self._default_threads(args) if threads is None else threads)
        group = self._default_group(extents) if group_size is None else _extents("group_size", group_size)
        if len(group) != len(extents):
            raise ValueError(f"kernel '{self.name}': threads={extents} and group_size={group} differ in their axes")
        ones = (1,) * (3 - len(extents))
        # `bound` keeps the copies alive: the run has ended when this call returns.
        cpu.run(self._library, self.name, [address for address, _ in bound], extents + ones, group + ones)

    def _default_threads(self, args: Sequence[Any]) -> int:
        for argument in args:
            if isinstance(argument, torch.Tensor):
                return argument.numel()
        raise ValueError(f"kernel '{self.name}': without a tensor argument, threads must be given")

    def _default_group(self, extents: tuple[int, ...]) -> tuple[int, ...]:
        """As on MPS, but no wider than the grid: lanes beyond it would idle."""
        width = max(1, min(extents[0], self.max_threads_per_threadgroup))
        return (width,) + (1,) * (len(extents) - 1)


def _extents(what: str, given: int | Sequence[int]) -> tuple[int, ...]:
    extents = tuple(given) if isinstance(given, (tuple, list, torch.Size)) else (given,)
    if not 1 <= len(extents) <= 3 or not all(isinstance(extent, int) for extent in extents):
        raise ValueError(f"{what}={given!r}: must be an int or one to three ints")
    return tuple(int(extent) for extent in extents)


def _casts(given: str | Mapping[int, str] | None) -> Callable[[int], str | None]:
    """From an argument's index to its cast; ValueError for an unknown one."""
    names = [given] if isinstance(given, str) else list(given.values()) if isinstance(given, Mapping) else []
    if given is not None and not isinstance(given, (str, Mapping)):
        raise TypeError(f"arg_casts must be a str or a dict from argument index to str, got {type(given).__name__}")
    for name in names:
        if name not in _CASTS:
            raise ValueError(f"arg_casts: unknown cast {name!r}; valid casts: {', '.join(_CASTS)}")
    if isinstance(given, Mapping):
        return lambda index: given.get(index)
    return lambda index: given


def _bind(argument: Any, what: str, cast: str | None) -> tuple[int, object]:
    """Address of the argument's bytes, and the object that owns them."""
    if isinstance(argument, torch.Tensor):
        return _bind_tensor(argument, what)
    if isinstance(argument, (bool, int, float)):
        return _copied(_number_bytes([argument], what, cast))
    if not isinstance(argument, (list, tuple)):
        raise TypeError(f"{what}: {_described(argument)}; valid are CPU tensors, int, bool, float and lists of them")
    if not argument:
        raise ValueError(f"{what}: an empty {type(argument).__name__} has no type to pass")
    if all(isinstance(element, torch.Tensor) for element in argument):
        owned = [_bind_tensor(element, what) for element in argument]
        address, owner = _copied(struct.pack(f"={len(owned)}Q", *(address for address, _ in owned)))
        return address, (owner, owned)
    for element in argument:
        if not isinstance(element, (bool, int, float)):
            raise TypeError(
                f"{what}: {_described(element)} in a {type(argument).__name__}; valid are numbers or tensors"
            )
    return _copied(_number_bytes(argument, what, cast))


def _described(argument: Any) -> str:
    return "None" if argument is None else f"a {type(argument).__name__}"


def _bind_tensor(tensor: torch.Tensor, what: str) -> tuple[int, object]:
    if tensor.device.type != "cpu" or tensor.layout != torch.strided:
        raise ValueError(f"{what}: a {tensor.layout} tensor on {tensor.device}; valid are dense tensors on cpu")
    if tensor.is_conj() or tensor.is_neg():
        raise ValueError(f"{what}: a lazily conjugated or negated view; resolve_conj() and resolve_neg() make it plain")
    narrower = {torch.float64: torch.float32, torch.complex128: torch.complex64}.get(tensor.dtype)
    if narrower is None:
        return tensor.data_ptr(), tensor
    if tensor.ndim:
        raise TypeError(f"{what}: a {tensor.dtype} tensor, which Metal has no type for; use {narrower}")
    return _bind_tensor(tensor.detach().to(narrower), what)


def _number_bytes(values: Sequence[float], what: str, cast: str | None) -> bytes:
    """Integers as 8 bytes and floats as 4 unless cast; the first element decides which of them a list holds."""
    try:
        if cast is not None:
            return _CASTS[cast](values)
        if isinstance(values[0], float):
            return bytes((ctypes.c_float * len(values))(*values))
        if any(isinstance(value, float) for value in values):
            raise TypeError(f"{what}: a list that begins with an int must hold ints only")
        return struct.pack(f"={len(values)}q", *values)
    except (OverflowError, ValueError, struct.error) as error:
        raise ValueError(f"{what}: {list(values)} does not fit {cast or 'a 64-bit integer'}: {error}") from None


def _floats(values: Sequence[float], dtype: torch.dtype) -> bytes:
    narrow = torch.tensor([float(value) for value in values], dtype=torch.float64).to(dtype)
    return narrow.view(torch.uint8).numpy().tobytes()


def _integers(values: Sequence[float], size: int) -> bytes:
    """Truncated towards zero and wrapped to `size` bytes, like a C cast."""
    return b"".join((math.trunc(value) & (1 << 8 * size) - 1).to_bytes(size, "little") for value in values)


def _copied(data: bytes) -> tuple[int, object]:
    """Bytes in memory of their own, aligned for every Metal vector type."""
    owner = ctypes.create_string_buffer(len(data) + 16)
    address = (ctypes.addressof(owner) + 15) // 16 * 16
    ctypes.memmove(address, data, len(data))
    return address, owner
