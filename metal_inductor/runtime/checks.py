"""Checks of running kernels on the CPU: which are wanted, and what they found in words.

The checks themselves are in `native/checks.c`; the hooks that call them are put in by `metal/instrumentation.py`.
"""

from __future__ import annotations

import ctypes
import dataclasses
import json
import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import torch

from metal_inductor import config
from metal_inductor.metal.instrumentation import ATOMIC, BASES, WRITE, Instrumented
from metal_inductor.metal.kernel_info import Argument, KernelInfo
from metal_inductor.runtime.errors import MetalRuntimeError

NAMES = ("races", "bounds", "alignment", "uninitialised", "barriers")  # numbered as in checks.c
Checks = bool | str | Iterable[str] | None

_MAX_REPORTS = 64
_ELEMENT_BYTES = {
    "bool": 1, "char": 1, "uchar": 1, "int8_t": 1, "uint8_t": 1, "short": 2, "ushort": 2, "int16_t": 2, "uint16_t": 2,
    "half": 2, "bfloat": 2, "int": 4, "uint": 4, "int32_t": 4, "uint32_t": 4, "unsigned": 4, "float": 4,
    "atomic_int": 4, "atomic_uint": 4, "atomic_float": 4, "atomic_bool": 1, "long": 8, "ulong": 8, "int64_t": 8,
    "uint64_t": 8, "size_t": 8, "atomic_ulong": 8,
}  # fmt: skip


def resolve(given: Checks) -> int:
    """The wanted checks as a set of bits.

    given: None for those of METAL_INDUCTOR_CHECKS, True or "all", False, or names from `NAMES`, as an iterable or as
    text with commas. Raises ValueError for an unknown name and TypeError for another type.
    """
    if given is None:
        return _from_environment()
    if isinstance(given, bool):
        return (1 << len(NAMES)) - 1 if given else 0
    names = re.split(r"[\s,]+", given.strip()) if isinstance(given, str) else given
    if not isinstance(names, Iterable):
        raise TypeError(f"checks must be None, a bool, 'all' or names of checks, got {type(given).__name__}")
    wanted = 0
    for name in names:
        if name in ("all", "none"):
            wanted |= (1 << len(NAMES)) - 1 if name == "all" else 0
        elif name in NAMES:
            wanted |= 1 << NAMES.index(name)
        else:
            raise ValueError(f"unknown check {name!r}; valid are {', '.join(NAMES)} and 'all'")
    return wanted


def _from_environment() -> int:
    text = config.from_environment("checks")
    try:
        return resolve(text or False)
    except ValueError as error:
        raise ValueError(f"environment variable METAL_INDUCTOR_CHECKS={text!r}: {error}") from None


@dataclasses.dataclass(frozen=True)
class Thread:
    """A thread of a dispatch: its threadgroup in the grid, its position in it, its index there."""

    threadgroup: tuple[int, int, int]
    position: tuple[int, int, int]
    index: int

    def __str__(self) -> str:
        where = f"threadgroup {_position(self.threadgroup)}, simdgroup {self.index // 32}, lane {self.index % 32}"
        return f"thread {_position(self.position)} of {where}"


@dataclasses.dataclass(frozen=True)
class Report:
    """One mistake that a kernel made, at its first occurrence.

    kind: the check's name. file, line: of the user's text ("<metal>" is the text given to compile_shader; line 0 where
    none is known). access: what the thread did there, "read", "write", or an atomic form. address: buffer argument or
    threadgroup variable and offset, "" for barriers. The other_* fields are the other side of a race, or for barriers a
    thread that did not come. same_value: a race of two stores that always stored what was there, which is a
    `MetalCheckWarning` unless there are other reports. count: occurrences.
    """

    kind: str
    kernel: str
    file: str
    line: int
    access: str
    address: str
    thread: Thread
    other_thread: Thread | None
    other_file: str
    other_line: int
    other_access: str
    same_value: bool
    count: int
    message: str

    def __str__(self) -> str:
        return self.message


class MetalCheckError(MetalRuntimeError):
    """A kernel made mistakes that the checks found; `reports` lists them in the order of their first occurrence."""

    def __init__(self, reports: Sequence[Report]) -> None:
        super().__init__("\n".join(report.message for report in reports))
        self.reports = list(reports)


class MetalCheckWarning(UserWarning):
    """Threads raced to store the same value: undefined in Metal, harmless on the GPUs there are, and not rare."""


def tell(reports: Sequence[Report]) -> None:
    """Raises MetalCheckError with the reports; when all are races of equal stores, warns of each."""
    if not all(report.same_value for report in reports):
        raise MetalCheckError(reports)
    for report in reports:
        warnings.warn(report.message, MetalCheckWarning, stacklevel=6)  # the caller of the kernel


class CheckedKernel(Protocol):
    """What reports need to know of a kernel."""

    info: KernelInfo
    notes: Notes


@dataclasses.dataclass(frozen=True)
class Notes:
    """What the compiler knew of an instrumented library: see `Instrumented`."""

    places: list[tuple[str, int]]
    variables: list[tuple[str, int, str]]

    @classmethod
    def of(cls, instrumented: Instrumented) -> Notes:
        return cls(instrumented.places, instrumented.variables)

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Notes:
        fields = json.loads(text)
        return cls(*([tuple(item) for item in fields[name]] for name in ("places", "variables")))


def writable_buffers(info: KernelInfo) -> int:
    """Buffers that the kernel may write, a bit each: those that are declared `device` without `const`."""
    bits = 0
    for item in info.arguments:
        pointee = re.split(r"[*&](?=[^*&]*$)", item.type_text)[0]
        if item.kind == "buffer" and item.address_space == "device" and not re.search(r"\bconst\b", pointee):
            bits |= 1 << (item.index or 0)
    return bits


def storage_extent(tensor: torch.Tensor) -> tuple[int, int]:
    """Where the tensor's storage begins and ends."""
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.data_ptr() + storage.nbytes()


@dataclasses.dataclass(frozen=True)
class CheckedRun:
    """The checks of one run: which, where the memory of each buffer begins and ends, and of addresses in buffers."""

    wanted: int
    extents: Sequence[tuple[int, int]]
    others: Sequence[tuple[int, int]] = ()

    def tables(self) -> tuple[ctypes.Array[ctypes.c_uint64], ctypes.Array[ctypes.c_uint64]]:
        """Both lists of (begin, end) as the runtime reads them."""
        return _extent_table(self.extents), _extent_table(self.others)


def _extent_table(extents: Sequence[tuple[int, int]]) -> ctypes.Array[ctypes.c_uint64]:
    return (ctypes.c_uint64 * (2 * len(extents)))(*(address for extent in extents for address in extent))


class _ThreadName(ctypes.Structure):
    _fields_ = [("group", ctypes.c_uint32 * 3), ("position", ctypes.c_uint32 * 3), ("index", ctypes.c_uint32)]

    def thread(self) -> Thread:
        return Thread(tuple(self.group), tuple(self.position), self.index)


class _Report(ctypes.Structure):
    _fields_ = [
        ("kernel", ctypes.c_uint64),
        ("offset", ctypes.c_int64),
        *[
            (name, ctypes.c_uint32)
            for name in ("check", "access", "other_access", "place", "other_place", "base", "index", "bytes")
            + ("same_value", "count", "here", "there", "total")
        ],
        ("thread", _ThreadName),
        ("other", _ThreadName),
    ]


class CheckResult(ctypes.Structure):
    """The reports of one failed command buffer, as `native/queue.c` fills it in."""

    _fields_ = [("count", ctypes.c_uint32), ("unused", ctypes.c_uint32), ("reports", _Report * _MAX_REPORTS)]

    def in_words(self, kernel_of: Callable[[int], CheckedKernel]) -> list[Report]:
        return [_in_words(self.reports[i], kernel_of(self.reports[i].kernel)) for i in range(self.count)]


def _in_words(raw: _Report, kernel: CheckedKernel) -> Report:
    kind = NAMES[raw.check.bit_length() - 1]
    file, line = kernel.notes.places[raw.place]
    other_file, other_line = kernel.notes.places[raw.other_place]
    report = Report(
        kind=kind,
        kernel=kernel.info.name,
        file=file,
        line=line,
        access=_access(raw.access),
        address="" if kind == "barriers" else _address(raw, kernel),
        thread=raw.thread.thread(),
        other_thread=raw.other.thread() if kind in ("races", "barriers") else None,
        other_file=other_file,
        other_line=other_line,
        other_access=_access(raw.other_access),
        same_value=bool(raw.same_value),
        count=raw.count,
        message="",
    )
    again = f" ({raw.count} times in this dispatch)" if raw.count > 1 else ""
    head = f"{file or '<metal>'}:{line}: kernel '{report.kernel}': "
    return dataclasses.replace(report, message=head + _MESSAGES[kind](report, raw) + again)


def _race(report: Report, raw: _Report) -> str:
    same = "; both store the same value, a data race all the same" if report.same_value else ""
    return (
        f"race on {report.address}: {report.access} by {report.thread} at line {report.line} and {report.other_access} "
        f"by {report.other_thread} at {_line(report)} are not ordered by a barrier{same}"
    )


def _bounds(report: Report, raw: _Report) -> str:
    return f"{report.access} of {raw.bytes} bytes out of bounds at {report.address} by {report.thread}"


def _alignment(report: Report, raw: _Report) -> str:
    return f"misaligned {report.access} of {raw.bytes} bytes at {report.address} by {report.thread}"


def _uninitialised(report: Report, raw: _Report) -> str:
    return f"{report.access} of {report.address}, which no thread has written, by {report.thread}"


def _barriers(report: Report, raw: _Report) -> str:
    met = f"barrier reached by {raw.here} of {raw.total} threads, among them {report.thread}; {report.other_thread} "
    if report.other_line:
        others = f" with {raw.there} threads" if raw.there else ""
        return f"{met}waits{others} at another barrier, at {_line(report)}"
    return f"{met}does not come"


_MESSAGES = {
    "races": _race,
    "bounds": _bounds,
    "alignment": _alignment,
    "uninitialised": _uninitialised,
    "barriers": _barriers,
}


def _line(report: Report) -> str:
    """The other side's line, with its file where that differs."""
    return f"line {report.other_line}" + (f" of {report.other_file}" if report.other_file != report.file else "")


def _access(access: int) -> str:
    if access & ATOMIC:
        return "atomic update" if access == 7 else "atomic store" if access & WRITE else "atomic load"
    return "write" if access & WRITE else "read"


def _position(position: tuple[int, int, int]) -> str:
    return f"({', '.join(map(str, position))})"


def _address(raw: _Report, kernel: CheckedKernel) -> str:
    """Name and offset of the memory, with the number of the element where its type is known."""
    base = BASES[raw.base] if raw.base < len(BASES) else "memory behind a pointer"
    if base == "unknown":
        return "an address in no bound buffer"
    if base == "memory behind a pointer":
        return f"memory {raw.index} behind an array of addresses + {raw.offset} bytes"
    if base == "threadgroup variable":
        functions = [f"msl_{entry}_{kernel.info.symbol}" for entry in ("fiber", "loop")]
        names = {offset: name for function, offset, name in kernel.notes.variables if function in functions}
        return f"threadgroup variable '{names.get(raw.index, '?')}' + {raw.offset} bytes"
    kind = "buffer" if base == "buffer" else "threadgroup"
    found = [item for item in kernel.info.arguments if item.kind == kind and item.index == raw.index]
    if not found:
        return f"{kind}({raw.index}) + {raw.offset} bytes"
    return f"argument '{found[0].name}' + {raw.offset} bytes{_element(found[0], raw.offset)}"


def _element(argument: Argument, offset: int) -> str:
    """ " (name[i])" where the type of the elements says how large they are."""
    match = re.search(r"\b(?:packed_)?([a-z_]\w*?)([234]?)\s*(?:const\s*)?\*", argument.type_text)
    if not match or match[1] not in _ELEMENT_BYTES:
        return ""
    packed = "packed_" in match[0]
    count = {"": 1, "2": 2, "3": 3 if packed else 4, "4": 4}[match[2]]
    return f" ({argument.name}[{offset // (_ELEMENT_BYTES[match[1]] * count)}])"
