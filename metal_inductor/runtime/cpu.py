"""The CPU device: Metal libraries translated to machine code, and frozen lists of dispatches for them.

The work is done by the C code in `native/`, which clang compiles at first use; this module loads it, checks what Python
hands it and turns its errors into exceptions. Dispatches run in commit order on one worker thread, which splits large
ones over the cores. With one thread (`METAL_INDUCTOR_CPU_THREADS=1`) every result is reproducible to the last bit; with
more, only floating-point atomics between threadgroups depend on timing.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import importlib.metadata
import json
import os
import pathlib
import shutil
import tempfile
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

import metal_inductor
from metal_inductor import cache, config
from metal_inductor.metal import limits
from metal_inductor.metal.kernel_info import KernelInfo
from metal_inductor.runtime import checks
from metal_inductor.runtime.errors import MetalRuntimeError

if TYPE_CHECKING:
    from metal_inductor.metal import frontend

_NATIVE_SOURCES = (
    "platform.h", "abi.h", "context.c", "core.h", "job.h", "simdgroup.c", "division.c", "faults.c", "checks.c",
    "checked_dispatch.c", "dispatch.c", "pool.c", "queue.c",
)  # fmt: skip
_ERROR_BYTES = 512
_Geometry = ctypes.c_uint32 * 6
_POINTER = ctypes.c_void_p
_SIGNATURES = {  # name: (result, arguments)
    "msl_initialise": (None, ()),
    "msl_configure": (None, (ctypes.c_uint32, ctypes.c_uint64)),
    "msl_completed": (ctypes.POINTER(ctypes.c_uint64), ()),
    "msl_kernel_create": (_POINTER, (ctypes.c_char_p, _POINTER, _POINTER, ctypes.c_uint32, ctypes.c_uint32)),
    "msl_kernel_instrument": (ctypes.c_int, (_POINTER, _POINTER, _POINTER, ctypes.c_uint64)),
    "msl_list_create": (_POINTER, (_POINTER, _POINTER)),
    "msl_list_check": (None, (_POINTER, ctypes.c_uint32, ctypes.c_uint32)),
    "msl_list_free": (None, (_POINTER,)),
    "msl_list_add": (ctypes.c_int, (_POINTER, _POINTER, _Geometry, _POINTER, ctypes.c_uint32, ctypes.c_uint32)),
    "msl_list_set_threads": (None, (_POINTER, ctypes.c_uint32, _Geometry)),
    "msl_list_commit": (ctypes.c_uint64, (_POINTER, ctypes.c_uint32, ctypes.c_uint32)),
    "msl_run": (ctypes.c_int, (_POINTER, _Geometry, _POINTER, ctypes.c_uint32, _POINTER, ctypes.c_char_p)),
    "msl_drain": (ctypes.c_int, (ctypes.c_char_p, _POINTER)),
}


class _RunOptions(ctypes.Structure):
    """`RunOptions` of native/queue.c."""

    _fields_ = [
        *[(name, ctypes.c_uint32) for name in ("length_count", "checks", "other_count", "unused")],
        *[(name, _POINTER) for name in ("lengths", "extents", "others", "checked")],
    ]


_PLAIN_RUN = _RunOptions()


class _Native:
    """The loaded runtime: its C functions as attributes without the `msl_` prefix."""

    def __init__(self) -> None:
        self._library = _load_runtime()
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(self._library, name)
            function.restype, function.argtypes = result, arguments
            setattr(self, name.removeprefix("msl_"), function)
        self._threads = config.from_environment("cpu_threads") or _cores()
        self._schedule = config.from_environment("cpu_schedule")
        self.completed_tickets = self.completed()
        self.initialise()
        self.configure(self._threads, self._schedule)
        self.in_flight: dict[int, object] = {}  # ticket -> the list whose pointer table the worker reads
        self._error = threading.local()

    def reset_after_fork(self) -> None:
        self.in_flight.clear()
        self.initialise()

    def reconfigure(self, threads: int | None, schedule: int | None) -> None:
        self._threads = self._threads if threads is None else threads or _cores()
        self._schedule = self._schedule if schedule is None else schedule
        self.configure(self._threads, self._schedule)

    def error_buffer(self) -> ctypes.Array[ctypes.c_char]:
        if not hasattr(self._error, "buffer"):
            self._error.buffer = ctypes.create_string_buffer(_ERROR_BYTES)
        return self._error.buffer

    def check_result(self) -> checks.CheckResult:
        if not hasattr(self._error, "checked"):
            self._error.checked = checks.CheckResult()
        self._error.checked.count = 0
        return self._error.checked

    def keep(self, ticket: int, owner: object) -> None:
        """Keeps `owner` alive until the command buffer `ticket` is done. Each dictionary step is atomic: no lock."""
        self.in_flight[ticket] = owner
        if len(self.in_flight) > 64:
            completed = self.completed_tickets[0]
            for done in [old for old in list(self.in_flight) if old <= completed]:
                self.in_flight.pop(done, None)


def _cores() -> int:
    """Cores this process may use, which in a container are fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def native_source() -> str:
    """The C text of the runtime, one translation unit; compiler messages name the files."""
    folder = pathlib.Path(__file__).parent / "native"
    return "\n".join(f'#line 1 "{name}"\n{(folder / name).read_text()}' for name in _NATIVE_SOURCES)


def _load_runtime() -> ctypes.CDLL:
    """Compiles and loads the runtime, visible to the kernel libraries that are loaded later."""
    from metal_inductor.metal import clang

    def compiled(source: str) -> pathlib.Path:
        key = cache.key("cpu runtime", source, clang.identity())
        return cache.default().get_or_build(key, ".so", lambda: clang.compile_runtime(source))

    source = native_source()
    try:
        return _load_shared(compiled(source), ctypes.RTLD_GLOBAL)
    except OSError as error:
        if "static TLS" not in str(error):
            raise
        # Other libraries of the process have used up what the loader reserves for the fast thread-local model.
        return _load_shared(compiled('#define MSL_TLS_MODEL "global-dynamic"\n' + source), ctypes.RTLD_GLOBAL)


def _load_shared(path: pathlib.Path, mode: int = ctypes.RTLD_LOCAL) -> ctypes.CDLL:
    """dlopen; a cache on a file system mounted noexec is copied to a temporary file first."""
    try:
        return ctypes.CDLL(str(path), mode=mode)
    except OSError as error:
        if "failed to map segment" not in str(error) and "not permitted" not in str(error):
            raise
    with tempfile.TemporaryDirectory(prefix="metal_inductor-") as folder:
        return ctypes.CDLL(shutil.copy(path, folder), mode=mode)


_native: _Native | None = None
_native_lock = threading.Lock()


def _runtime() -> _Native:
    global _native
    if _native is None:
        with _native_lock:
            if _native is None:
                _native = _Native()
    return _native


def _after_fork() -> None:
    global _native_lock, _libraries_lock
    _native_lock, _libraries_lock = threading.Lock(), threading.Lock()
    if _native is not None:
        _native.reset_after_fork()


os.register_at_fork(after_in_child=_after_fork)


def configure(threads: int | None = None, schedule: int | None = None) -> None:
    """Waits for all work, then sets the number of OS threads (0: one per core) and the seed of the schedule (0: fixed).

    None leaves a value as it is. First they come from METAL_INDUCTOR_CPU_THREADS and METAL_INDUCTOR_CPU_SCHEDULE.
    """
    for name, value in (("threads", threads), ("schedule", schedule)):
        if value is not None and (not isinstance(value, int) or value < 0):
            raise ValueError(f"{name}={value!r}: must be an integer of at least 0")
    drain()
    _runtime().reconfigure(threads, schedule)


def drain() -> None:
    """Waits, without the GIL, for everything that this process committed.

    Raises MetalRuntimeError for the first kernel that failed since the last drain.
    """
    if _native is None:
        return
    native = _native
    error = native.error_buffer()
    checked = native.check_result()
    failed = native.drain(error, ctypes.byref(checked))
    completed = native.completed_tickets[0]
    for ticket in [ticket for ticket in list(native.in_flight) if ticket <= completed]:
        native.in_flight.pop(ticket, None)
    _tell(error.value.decode() if failed else None, checked)


def _tell(error: str | None, checked: checks.CheckResult) -> None:
    """Raises the error of a command buffer, or what checks found in it; of a harmless finding it warns."""
    if checked.count:
        checks.tell(checked.in_words(lambda handle: _checked_kernels[handle]))
    if error is not None:
        raise MetalRuntimeError(error)


@atexit.register
def _drain_at_exit() -> None:
    """Memory of the process must not go while a kernel still writes to it; nobody is left to hear of an error."""
    if _native is not None:
        _native.drain(_native.error_buffer(), None)


class CpuLibrary:
    """One translated and loaded Metal library. `kernels`: KernelInfo by kernel name.

    notes: of a library that is instrumented for checks, else None.
    """

    def __init__(
        self, path: pathlib.Path, kernels: Mapping[str, KernelInfo], notes: checks.Notes | None = None
    ) -> None:
        self.path = path
        self.kernels = dict(kernels)
        self.notes = notes
        _runtime()  # loaded first: the library's undefined symbols resolve to it
        shared = _load_shared(path)
        self._kernels = {name: _Kernel(info, shared, notes) for name, info in self.kernels.items()}

    @classmethod
    def load(
        cls, source: str, include_dirs: Sequence[str | os.PathLike[str]] = (), checked: bool | None = None
    ) -> CpuLibrary:
        """Translates, compiles and loads Metal text through the kernel cache; equal text gives the same library.

        checked: with hooks for the run-time checks; None: when METAL_INDUCTOR_CHECKS asks for any.
        Raises SyntaxError with the line of the user's text when it is not valid Metal.
        """
        checked = bool(checks.resolve(None)) if checked is None else checked
        what = "checked cpu library" if checked else "cpu library"
        key = cache.key(what, source, *map(os.fspath, include_dirs), compiler_identity())
        with _libraries_lock:
            library = _libraries.get(key)
        if library is None:
            library = cls(*_compile(key, source, include_dirs, checked))
            with _libraries_lock:
                library = _libraries.setdefault(key, library)
        return library

    def kernel(self, name: str) -> _Kernel:
        """KeyError names the kernels there are."""
        if name not in self._kernels:
            raise KeyError(f"no kernel {name!r} in this Metal library; kernels: {', '.join(self.kernels) or 'none'}")
        return self._kernels[name]


_libraries: dict[str, CpuLibrary] = {}
_libraries_lock = threading.Lock()


@functools.cache
def compiler_identity() -> str:
    """Changes with everything that a compiled library depends on besides its text."""
    from metal_inductor.metal import clang

    folder = pathlib.Path(clang.__file__).parent
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix not in (".pyc", ".pyo"))
    versions = (metal_inductor.__version__, importlib.metadata.version("torch"))  # torch: its Metal headers
    return cache.key(*versions, clang.identity(), *(path.read_bytes() for path in files))


def _compile(
    key: str, source: str, include_dirs: Sequence[str | os.PathLike[str]], checked: bool
) -> tuple[pathlib.Path, dict[str, KernelInfo], checks.Notes | None]:
    """The shared object, the kernels and the notes of a library, from the cache where all entries are there."""

    @functools.cache
    def translation() -> frontend.Translation:
        from metal_inductor.metal.frontend import translate

        return translate(source, target="cpu", include_dirs=tuple(map(os.fspath, include_dirs)))

    @functools.cache
    def compiled() -> tuple[bytes, bytes]:
        """The shared object and the notes of a checked one."""
        from metal_inductor.metal import clang

        if not checked:
            return clang.compile_cpu(translation().text), b""
        code, instrumented = clang.compile_cpu_checked(translation().text)
        return code, checks.Notes.of(instrumented).to_json().encode()

    def described() -> bytes:
        from metal_inductor.metal.threadgroup_memory import measured_on_cpu

        kernels = measured_on_cpu(translation().kernels, translation().text)
        return json.dumps([info.to_json() for info in kernels]).encode()

    store = cache.default()
    kernels = store.get_or_build(cache.key(key, "kernels"), ".json", described)
    path = store.get_or_build(key, ".so", lambda: compiled()[0])
    notes = store.get_or_build(cache.key(key, "notes"), ".json", lambda: compiled()[1]) if checked else None
    infos = [KernelInfo.from_json(text) for text in json.loads(kernels.read_bytes())]
    return path, {info.name: info for info in infos}, checks.Notes.from_json(notes.read_text()) if notes else None


_checked_kernels: dict[int, _Kernel] = {}  # by handle, for reports


class _Kernel:
    """One kernel with its record in the runtime; checks what a dispatch of it is given."""

    def __init__(self, info: KernelInfo, shared: ctypes.CDLL, notes: checks.Notes | None) -> None:
        limits.check_declaration(info)
        self.info = info
        self.notes = notes
        # Threadgroup memory is per threadgroup, which the loop over a whole row does not know.
        has_memory = info.threadgroup_bytes > 0 or any(item.kind == "threadgroup" for item in info.arguments)
        as_fibers = info.uses_fibers or has_memory or notes is not None
        loop = None if as_fibers else _address(shared, f"msl_loop_{info.symbol}")
        fiber = _address(shared, f"msl_fiber_{info.symbol}")
        # The runtime is loaded before any library: `shared` has its undefined symbols from it.
        self.handle = _runtime().kernel_create(info.name.encode(), fiber, loop, as_fibers, info.threadgroup_bytes)
        if not self.handle or (notes is not None and not self._instrument(shared)):
            raise MemoryError("no memory for a kernel record")

    def _instrument(self, shared: ctypes.CDLL) -> bool:
        _checked_kernels[self.handle] = self
        sites, image = _address(shared, "msl_check_sites"), _address(shared, "msl_check_image")
        return bool(_runtime().kernel_instrument(self.handle, sites, image, checks.writable_buffers(self.info)))

    def geometry(self, threads: Sequence[int], group_size: Sequence[int]) -> ctypes.Array[ctypes.c_uint32]:
        """Sizes of a dispatch, three axes each, as the runtime takes them. ValueError names what is out of range."""
        limits.check_geometry(self.info, threads, group_size)
        return _Geometry(*threads, *group_size)

    def check_buffers(self, slots: Sequence[int]) -> None:
        """ValueError when a buffer that the kernel declares has no slot, or more are bound than Metal has."""
        limits.check_buffers(self.info, [index for index, slot in enumerate(slots) if slot >= 0], len(slots))

    def threadgroup_lengths(self, lengths: Mapping[int, int]) -> list[int]:
        """Bytes of threadgroup(0), threadgroup(1), ...; ValueError if one is missing or all exceed Metal's memory."""
        return limits.threadgroup_lengths(self.info, lengths)


def _address(shared: ctypes.CDLL, symbol: str) -> int | None:
    return ctypes.cast(getattr(shared, symbol), ctypes.c_void_p).value


def run(
    library: CpuLibrary,
    name: str,
    pointers: Sequence[int],
    threads: Sequence[int],
    group_size: Sequence[int],
    threadgroup_lengths: Mapping[int, int] | None = None,
    checked: checks.CheckedRun | None = None,
) -> None:
    """Runs one kernel, behind all committed work, and waits. pointers[i]: address of buffer(i), 0 if unbound.

    threadgroup_lengths: bytes of each threadgroup(i) argument. checked: for a library that was loaded so.
    Raises ValueError for a bad geometry or a missing buffer, MetalRuntimeError when the kernel fails, MetalCheckError
    when checks found mistakes.
    """
    kernel = library.kernel(name)
    sizes = kernel.geometry(threads, group_size)
    kernel.check_buffers(range(len(pointers)))
    native = _runtime()
    options, result = _PLAIN_RUN, native.check_result()
    table = kernel.threadgroup_lengths(threadgroup_lengths or {})
    if table or checked:
        lengths = (ctypes.c_uint32 * len(table))(*table)
        options = _RunOptions(length_count=len(table), lengths=ctypes.addressof(lengths))
    if checked:
        extents, others = checked.tables()
        options.extents, options.others = ctypes.addressof(extents), ctypes.addressof(others)
        options.checks, options.other_count = checked.wanted, len(checked.others)
        options.checked = ctypes.addressof(result)
    error = native.error_buffer()
    addresses = (ctypes.c_uint64 * len(pointers))(*pointers)
    failed = native.run(kernel.handle, sizes, addresses, len(pointers), ctypes.byref(options), error)
    if failed or result.count:
        _tell(error.value.decode() if failed else None, result)


class CpuDispatchList:
    """A frozen list of dispatches that read their buffers' addresses from one table when they run.

    n_slots: entries of `pointers`, a uint64 array that the caller fills before a commit and leaves alone until drained.
    wanted: checks for the kernels of checked libraries, as `checks.resolve` gives them; `extents` (uint64 [n_slots, 2])
    then has to hold where the memory behind each pointer begins and ends.
    Several threads may each commit their own list; one list belongs to one thread at a time.
    """

    def __init__(self, n_slots: int, wanted: int = 0) -> None:
        self.pointers = np.zeros(n_slots, np.uint64)
        self.extents = np.zeros((n_slots if wanted else 0, 2), np.uint64)
        self._wanted = wanted
        self._native = _runtime()
        self._list = self._native.list_create(self.pointers.ctypes.data, self.extents.ctypes.data)
        if not self._list:
            raise MemoryError("no memory for a dispatch list")
        self._kernels: list[_Kernel] = []

    def __len__(self) -> int:
        return len(self._kernels)

    def __del__(self) -> None:
        if getattr(self, "_list", None):  # in-flight lists are referenced by the runtime and do not come here
            self._native.list_free(self._list)
            self._list = None

    def add(
        self,
        library: CpuLibrary,
        kernel_name: str,
        slots: Sequence[int],
        threads: Sequence[int],
        group_size: Sequence[int],
        threadgroup_lengths: Mapping[int, int] | None = None,
    ) -> int:
        """Appends a dispatch and returns its index.

        slots[i]: index into `pointers` for buffer(i), -1 for none. threads, group_size: three axes each; a zero in
        threads makes the dispatch do nothing. threadgroup_lengths: bytes of each threadgroup(i) argument.
        Raises KeyError for an unknown kernel and ValueError for a geometry, slot or length out of range.
        """
        kernel = library.kernel(kernel_name)
        for index, slot in enumerate(slots):
            if not -1 <= slot < len(self.pointers):
                raise ValueError(
                    f"kernel '{kernel_name}': buffer({index}) names slot {slot}, valid are -1 to "
                    f"{len(self.pointers) - 1}"
                )
        kernel.check_buffers(slots)
        lengths = kernel.threadgroup_lengths(threadgroup_lengths or {})
        sizes = kernel.geometry(threads, group_size)
        table = (ctypes.c_int32 * (len(slots) + len(lengths)))(*slots, *lengths)
        index = self._native.list_add(self._list, kernel.handle, sizes, table, len(slots), len(lengths))
        if index < 0:
            raise MemoryError("no memory for a dispatch")
        if self._wanted and kernel.notes is not None:
            self._native.list_check(self._list, index, self._wanted)
        self._kernels.append(kernel)
        return index

    def set_threads(self, index: int, threads: Sequence[int], group_size: Sequence[int]) -> None:
        """Changes the geometry of a dispatch for the commits to come."""
        self._native.list_set_threads(self._list, index, self._kernels[index].geometry(threads, group_size))

    def commit(self, begin: int = 0, end: int | None = None) -> None:
        """Hands dispatches begin .. end-1 to the worker as one command buffer and returns at once."""
        end = len(self._kernels) if end is None else end
        if not 0 <= begin <= end <= len(self._kernels):
            raise ValueError(f"commit({begin}, {end}): the list has dispatches 0 .. {len(self._kernels) - 1}")
        if begin == end:
            return
        ticket = self._native.list_commit(self._list, begin, end)
        if not ticket:
            raise MetalRuntimeError("no memory for a command buffer, or the system refuses a worker thread")
        self._native.keep(ticket, self)
