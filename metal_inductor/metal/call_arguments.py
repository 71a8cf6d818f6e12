"""What a kernel call binds: Python values as addresses (tensors) or as the bytes that the kernel reads."""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

MAX_INLINE_BYTES = 4096  # of one argument passed by value, as in Metal's setBytes

_CASTS: dict[str, Callable[[Sequence[float]], bytes]] = {
    "fp16": lambda values: _floats(values, torch.float16),
    "bf16": lambda values: _floats(values, torch.bfloat16),
    "int32": lambda values: _integers(values, 4),
    "int16": lambda values: _integers(values, 2),
    "int8": lambda values: _integers(values, 1),
    "uint8": lambda values: _integers(values, 1),
}
_NARROWER = {torch.float64: torch.float32, torch.complex128: torch.complex64}


class Bound(NamedTuple):
    """One argument: its address, or its bytes where it is passed by value; `owner` keeps the memory alive."""

    value: int | bytes
    owner: object = None


BindTensor = Callable[[torch.Tensor, str], Bound]


def _no_cast(_: int) -> None:
    return None


def casts_of(given: str | Mapping[int, str] | None) -> Callable[[int], str | None]:
    """From an argument's index to its cast; ValueError for an unknown one."""
    if given is None:
        return _no_cast
    names = [given] if isinstance(given, str) else list(given.values()) if isinstance(given, Mapping) else []
    if not isinstance(given, (str, Mapping)):
        raise TypeError(f"arg_casts must be a str or a dict from argument index to str, got {type(given).__name__}")
    for name in names:
        if name not in _CASTS:
            raise ValueError(f"arg_casts: unknown cast {name!r}; valid casts: {', '.join(_CASTS)}")
    if isinstance(given, Mapping):
        return lambda index: given.get(index)
    return lambda index: given


def bind(argument: Any, what: str, cast: str | None, bind_tensor: BindTensor) -> Bound:
    """The argument as a kernel gets it. `what` names it in errors; `bind_tensor` binds a tensor as the device does."""
    if isinstance(argument, torch.Tensor):
        return bind_tensor(argument, what)
    if isinstance(argument, (bool, int, float)):
        return Bound(_number_bytes([argument], what, cast))
    if not isinstance(argument, (list, tuple)):
        raise TypeError(f"{what}: {_described(argument)}; valid are tensors, int, bool, float and lists of them")
    if not argument:
        raise ValueError(f"{what}: an empty {type(argument).__name__} has no type to pass")
    bound = _bind_list(argument, what, cast, bind_tensor)
    if len(bound.value) > MAX_INLINE_BYTES:
        raise ValueError(
            f"{what}: {len(bound.value)} bytes by value, Metal passes at most {MAX_INLINE_BYTES}; pass a tensor"
        )
    return bound


def _bind_list(elements: Sequence[Any], what: str, cast: str | None, bind_tensor: BindTensor) -> Bound:
    kind = type(elements).__name__
    if all(isinstance(element, torch.Tensor) for element in elements):
        bound = [bind_tensor(element, what) for element in elements]
        if any(isinstance(item.value, bytes) for item in bound):
            raise ValueError(f"{what}: a {kind} of tensors is an array of addresses, and a CPU tensor has none here")
        return Bound(struct.pack(f"={len(bound)}Q", *(item.value for item in bound)), bound)
    for element in elements:
        if not isinstance(element, (bool, int, float)):
            raise TypeError(f"{what}: {_described(element)} in a {kind}; valid are numbers or tensors")
    return Bound(_number_bytes(elements, what, cast))


def _described(argument: Any) -> str:
    return "None" if argument is None else f"a {type(argument).__name__}"


def plain_tensor(tensor: torch.Tensor, what: str, device: torch.device | str) -> torch.Tensor:
    """The tensor, a scalar of a type that Metal lacks narrowed; raises where the memory says something else."""
    if tensor.layout != torch.strided:
        raise ValueError(f"{what}: a {tensor.layout} tensor on {tensor.device}; valid are dense tensors on {device}")
    if tensor.is_conj() or tensor.is_neg():
        raise ValueError(f"{what}: a lazily conjugated or negated view; resolve_conj() and resolve_neg() make it plain")
    narrower = _NARROWER.get(tensor.dtype)
    if narrower is None:
        return tensor
    if tensor.ndim:
        raise TypeError(f"{what}: a {tensor.dtype} tensor, which Metal has no type for; use {narrower}")
    return tensor.detach().to(narrower)


def tensor_bytes(tensor: torch.Tensor) -> bytes:
    """The bytes of a CPU scalar tensor."""
    return tensor.detach().reshape(1).view(torch.uint8).numpy().tobytes()


def _number_bytes(values: Sequence[float], what: str, cast: str | None) -> bytes:
    """Integers as 8 bytes and floats as 4 unless cast; the first element decides which of them a list holds."""
    try:
        if cast is not None:
            return _CASTS[cast](values)
        if isinstance(values[0], float):
            return struct.pack(f"={len(values)}f", *(ctypes.c_float(value).value for value in values))
        if any(isinstance(value, float) for value in values):
            raise TypeError(f"{what}: a list that begins with an int must hold ints only")
        return struct.pack(f"={len(values)}q", *values)
    except (OverflowError, ValueError, struct.error) as error:
        raise ValueError(f"{what}: {list(values)} does not fit {cast or 'a 64-bit integer'}: {error}") from None


def _floats(values: Sequence[float], dtype: torch.dtype) -> bytes:
    narrow = torch.tensor([float(value) for value in values], dtype=torch.float64, device="cpu").to(dtype)
    return narrow.view(torch.uint8).numpy().tobytes()


def _integers(values: Sequence[float], size: int) -> bytes:
    """Truncated towards zero and wrapped to `size` bytes, like a C cast."""
    return b"".join((math.trunc(value) & (1 << 8 * size) - 1).to_bytes(size, "little") for value in values)


def in_memory(data: bytes) -> Bound:
    """The bytes in host memory of their own, aligned for every Metal vector type."""
    owner = ctypes.create_string_buffer(len(data) + 16)
    address = (ctypes.addressof(owner) + 15) // 16 * 16
    ctypes.memmove(address, data, len(data))
    return Bound(address, owner)
