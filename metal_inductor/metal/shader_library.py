"""`compile_shader`: Metal kernels as Python callables, with the call contract of `torch.mps.compile_shader`.

On MPS it is that function. Elsewhere the text is translated and compiled by clang: to native code for the CPU, where a
call returns when the kernel has run, and to PTX for CUDA, where it returns when the kernel is launched.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import torch

from metal_inductor.metal import call_arguments, diagnostics, limits
from metal_inductor.metal.call_arguments import Bound
from metal_inductor.metal.error_buffer import ErrorBuffer
from metal_inductor.metal.kernel_info import KernelInfo

_RUNNERS = {
    "cpu": ("metal_inductor.runtime.cpu_calls", "CpuRunner"),
    "cuda": ("metal_inductor.runtime.cuda_calls", "CudaRunner"),
}
DEVICES = (*_RUNNERS, "mps")


class Runner(Protocol):
    """A Metal library on one device, as a kernel call needs it."""

    device: torch.device
    kernels: Mapping[str, KernelInfo]

    def bind_tensor(self, tensor: torch.Tensor, what: str) -> Bound:
        """The tensor's address, or its bytes; ValueError if it is not on this device. `what` names it in errors."""

    def launch(
        self,
        name: str,
        bound: Sequence[Bound],
        threads: Sequence[int],
        group_size: Sequence[int],
        threadgroup_memory: Mapping[int, int],
    ) -> None:
        """Runs a kernel with `bound[i]` as buffer(i); sizes have three axes. ValueError for what Metal refuses."""


def compile_shader(source: str, device: str | torch.device | None = None) -> Any:
    """Compiles Metal text; each kernel is an attribute of the result.

    device: "mps", "cuda" (or one GPU, "cuda:1") or "cpu"; None: MPS where there is one, else the CPU. Returns torch's
    own library on MPS, a `ShaderLibrary` elsewhere. Warns with MetalWarning, once a text, of what Apple's compiler is
    known to get wrong. Raises SyntaxError with the compiler's message when the text is not
    valid Metal, TypeError when it is no text, ValueError for another device, RuntimeError without the GPU, the driver,
    a package or the compiler that the device needs.
    """
    if not isinstance(source, str):
        raise TypeError(f"source must be a str with Metal text, got {type(source).__name__}")
    default = "mps" if torch.backends.mps.is_available() else "cpu"
    chosen = torch.device(default if device is None else device)
    if chosen.type not in DEVICES:
        raise ValueError(f"device {str(chosen)!r} cannot run Metal kernels; valid devices: {', '.join(DEVICES)}")
    if chosen.type == "mps":
        return torch.mps.compile_shader(source)
    module, name = _RUNNERS[chosen.type]
    library = ShaderLibrary(getattr(importlib.import_module(module), name)(source, chosen))
    diagnostics.warn_once(source)
    return library


class ShaderLibrary:
    """The kernels of one Metal library as attributes; `dir()` lists them. `device`: where they run."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    @property
    def device(self) -> torch.device:
        return self._runner.device

    def __getattr__(self, name: str) -> ShaderKernel:
        if name.startswith("__") or name not in self._runner.kernels:
            names = ", ".join(self._runner.kernels) or "none"
            raise AttributeError(f"no kernel {name!r} in this Metal library; kernels: {names}")
        kernel = ShaderKernel(self._runner, name)
        setattr(self, name, kernel)
        return kernel

    def __dir__(self) -> list[str]:
        return list(self._runner.kernels)


class ShaderKernel:
    """One kernel. Calling it runs it: see `__call__`."""

    thread_execution_width = limits.SIMD_WIDTH

    def __init__(self, runner: Runner, name: str) -> None:
        self._runner = runner
        self._info = runner.kernels[name]
        self.name = name
        self._argument_names = [f"argument {i} of kernel '{name}'" for i in range(limits.MAX_BUFFERS)]

    @property
    def max_threads_per_threadgroup(self) -> int:
        return limits.max_threads(self._info)

    @property
    def static_thread_group_memory_length(self) -> int:
        """Bytes of the kernel's own threadgroup variables, each rounded up to 16."""
        return self._info.threadgroup_bytes

    def __call__(
        self,
        *args: Any,
        threads: int | Sequence[int] | None = None,
        group_size: int | Sequence[int] | None = None,
        arg_casts: str | Mapping[int, str] | None = None,
        threadgroup_memory: Mapping[int, int] | None = None,
        error_buf_idx: int | None = None,
        checks: bool | str | Iterable[str] | None = None,
    ) -> None:
        """Binds argument i to buffer(i) and runs `threads` threads: on the CPU to their end, on CUDA in stream order.

        Arguments: tensors on the library's device (their data from the storage offset on; sizes and strides are not
        passed), CPU tensors of no dimension, int and bool (8 bytes), float (4 bytes), non-empty lists or tuples of
        ints, of floats (4096 bytes at most) or of tensors (an array of addresses; the caller keeps them alive until the
        kernel has run). What is not a tensor of the device is passed by value.
        threads: one to three extents; None: the elements of the first tensor. group_size: threads per threadgroup, as
        many axes. arg_casts: for all numbers, or by argument index, one of fp16, bf16, int32, int16, int8, uint8.
        threadgroup_memory: bytes of each threadgroup(i) argument by i; torch.mps has no such option.
        error_buf_idx: the buffer that is to be c10::metal::ErrorMessages, behind the arguments or instead of one; the
        call then waits for the kernel, to read it.
        checks: on the CPU, what to watch while the kernel runs: True or "all", False, or names among races, bounds,
        alignment, uninitialised and barriers; None: what METAL_INDUCTOR_CHECKS says. They need the kernel compiled anew
        and run it slowly, on one core.
        Raises TypeError for an argument of another type, ValueError for a value that does not fit,
        torch.AcceleratorError for an error that the kernel reported there, and on the CPU MetalRuntimeError when the
        kernel fails, which is a MetalCheckError with `reports` when checks found mistakes.
        """
        runner = self._runner if checks is None else self._with_checks(checks)
        errors = None if error_buf_idx is None else ErrorBuffer(self._runner.device)
        buffers = args if errors is None else errors.among(args, error_buf_idx)
        if len(buffers) > limits.MAX_BUFFERS:
            raise ValueError(f"kernel '{self.name}': {len(buffers)} arguments, Metal has {limits.MAX_BUFFERS} buffers")
        casts = call_arguments.casts_of(arg_casts)
        bound = [
            call_arguments.bind(argument, self._argument_names[i], casts(i), self._runner.bind_tensor)
            for i, argument in enumerate(buffers)
        ]
        extents = _extents("threads", self._default_threads(args) if threads is None else threads)
        group = self._default_group(extents) if group_size is None else _extents("group_size", group_size)
        if len(group) != len(extents):
            raise ValueError(f"kernel '{self.name}': threads={extents} and group_size={group} differ in their axes")
        ones = (1,) * (3 - len(extents))
        try:
            runner.launch(self.name, bound, extents + ones, group + ones, threadgroup_memory or {})
        finally:
            if errors is not None:
                errors.check()  # first: on the CPU, threads that return with an error miss the barriers of the others

    def _with_checks(self, checks: bool | str | Iterable[str]) -> Runner:
        if self._runner.device.type != "cpu":
            raise ValueError(f"kernel '{self.name}': checks={checks!r}: kernels can be checked on the CPU only, "
                             f"not on {self._runner.device}")  # fmt: skip
        return self._runner.with_checks(checks)

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
    if given.__class__ is int:
        return (given,)
    extents = tuple(given) if isinstance(given, (tuple, list, torch.Size)) else (given,)
    if not 1 <= len(extents) <= 3 or not all(isinstance(extent, int) for extent in extents):
        raise ValueError(f"{what}={given!r}: must be an int or one to three ints")
    return tuple(int(extent) for extent in extents)
