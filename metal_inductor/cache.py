"""The kernel cache: compiled kernels on disk, shared by all processes of a user.

An entry is one file, `<folder>/kernels/<first two of key>/<key>-<digest of its bytes><suffix>`. The name says what
the file must contain, so a truncated or altered file is recognised, deleted and built again. Writers use a temporary
name in the same folder and a rename; no reader ever sees half a file, and the lock only saves work. A folder that
cannot be used is replaced, after one warning, by a temporary one that lasts as long as the process.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import logging
import os
import pathlib
import shutil
import sys
import tempfile
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Iterator

import filelock

from metal_inductor import config

log = logging.getLogger(__name__)

LOCK_TIMEOUT_SECONDS = 120.0  # longer than any one kernel compiles; whoever waited that long compiles it once more
TEMPORARY_FILE_SECONDS = 3600.0  # older temporary files belong to processes that died
SIZE_LIMIT_BYTES = 2 << 30  # beyond it the least recently used entries go, down to 90 %
_DIGEST_LENGTH = 16


class Counters:
    """How many entries this process compiled and how many it found on disk or had already loaded. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.compiled = 0
        self.reused = 0

    def add(self, *, compiled: int = 0, reused: int = 0) -> None:
        with self._lock:
            self.compiled += compiled
            self.reused += reused

    def reset(self) -> None:
        with self._lock:
            self.compiled = self.reused = 0

    def __repr__(self) -> str:
        return f"Counters(compiled={self.compiled}, reused={self.reused})"


counters = Counters()


def key(*parts: str | bytes | int) -> str:
    """Hex sha256 of the parts; where one part ends and the next begins counts."""
    digest = hashlib.sha256()
    for part in parts:
        data = part if isinstance(part, bytes) else str(part).encode()
        digest.update(b"%d:" % len(data))
        digest.update(data)
    return digest.hexdigest()


def default_directory() -> pathlib.Path:
    """`METAL_INDUCTOR_CACHE_DIR`, else the platform's cache folder."""
    chosen = config.from_environment("cache_dir")
    if chosen:
        return pathlib.Path(chosen).expanduser().absolute()
    if sys.platform == "darwin":
        base = pathlib.Path("~/Library/Caches").expanduser()
    else:
        base = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return base.absolute() / "metal_inductor"


def default() -> KernelCache:
    """The cache that the environment asks for now: on disk, or temporary with `METAL_INDUCTOR_CACHE=0`."""
    directory = default_directory() if config.from_environment("cache") else None
    return _caches.setdefault(directory, KernelCache(directory))


class KernelCache:
    """A cache in `directory`, which is created when needed; None: in a temporary folder of this process."""

    def __init__(self, directory: str | os.PathLike[str] | None, lock_timeout: float = LOCK_TIMEOUT_SECONDS) -> None:
        self.directory = None if directory is None else pathlib.Path(directory)
        self.lock_timeout = lock_timeout
        self._usable: bool | None = None
        self._verified: dict[tuple[str, str], pathlib.Path] = {}

    def get_or_build(self, key: str, suffix: str, build: Callable[[], bytes]) -> pathlib.Path:
        """Path of the entry `key`; `build()` makes its bytes unless a sound file is there.

        key: hex text from `key()`. suffix: file-name ending such as `.so`. What `build` raises is passed on and nothing
        is stored. Callers in other threads or processes that ask for the same key wait for the first one.
        """
        found = self._find(key, suffix)
        if found is None:
            with self._locked(key):
                found = self._find(key, suffix)
                if found is None:
                    path = self._store(key, suffix, build())
                    counters.add(compiled=1)
                    return path
        counters.add(reused=1)
        return found

    def folder(self) -> pathlib.Path:
        """Where the entries are: private to the user, made if missing, a temporary one if it cannot be made."""
        if self.directory is None or self._usable is False:
            return _temporary_folder()
        if self._usable is None:
            try:
                _make_private(self.directory / "kernels")
                self._usable = True
            except OSError as error:
                return self._give_up(error)
            _prune(self.directory / "kernels")
        return self.directory / "kernels"

    def _give_up(self, error: OSError) -> pathlib.Path:
        if self._usable is not False:
            self._usable = False
            warnings.warn(
                f"metal_inductor cannot use the kernel cache {self.directory} ({error}); kernels are compiled anew in "
                "each process. METAL_INDUCTOR_CACHE_DIR names another folder, METAL_INDUCTOR_CACHE=0 silences this.",
                RuntimeWarning,
                stacklevel=2,
            )
        return _temporary_folder()

    def _find(self, key: str, suffix: str) -> pathlib.Path | None:
        verified = self._verified.get((key, suffix))
        if verified is not None and verified.exists():
            return verified
        try:
            candidates = sorted((self.folder() / key[:2]).glob(f"{key}-*{suffix}"))
        except OSError:
            return None
        for path in candidates:
            if _is_sound(path, key, suffix):
                with contextlib.suppress(OSError):
                    os.utime(path)  # last use, for the size limit
                self._verified[key, suffix] = path
                return path
            log.debug("cache entry %s is damaged: built again", path)
            with contextlib.suppress(OSError):
                path.unlink()
        return None

    def _store(self, key: str, suffix: str, data: bytes) -> pathlib.Path:
        name = f"{key}-{hashlib.sha256(data).hexdigest()[:_DIGEST_LENGTH]}{suffix}"
        try:
            path = _write(self.folder() / key[:2] / name, data)
        except OSError as error:
            path = _write(self._give_up(error) / key[:2] / name, data)
        self._verified[key, suffix] = path
        return path

    @contextlib.contextmanager
    def _locked(self, key: str) -> Iterator[None]:
        """Holds the lock of `key` if it can be had in time; file systems without locks cost only duplicate work."""
        lock = None
        try:
            folder = self.folder() / "locks"
            folder.mkdir(mode=0o700, exist_ok=True)
            lock = filelock.FileLock(folder / f"{key[:32]}.lock", timeout=self.lock_timeout)
            lock.acquire()
        except (filelock.Timeout, OSError, NotImplementedError) as error:
            log.debug("no lock for cache entry %s (%s): compiled without it", key, error)
            lock = None
        try:
            yield
        finally:
            if lock is not None:
                lock.release()


_caches: dict[pathlib.Path | None, KernelCache] = {}
_temporary_lock = threading.Lock()
_temporary: dict[int, pathlib.Path] = {}  # by process: a forked child makes its own


def _make_private(folder: pathlib.Path) -> None:
    """Makes the folder with mode 0700. OSError if it cannot be written or others could plant code in it."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.stat()
    if hasattr(os, "geteuid") and (status.st_uid != os.geteuid() or status.st_mode & 0o022):
        raise PermissionError(f"{folder} belongs to, or can be written by, another user")
    probe = folder / f".probe-{os.getpid()}-{uuid.uuid4().hex}"
    probe.touch()
    probe.unlink()


def _temporary_folder() -> pathlib.Path:
    folder = _temporary.get(os.getpid())
    if folder is None or not folder.exists():
        with _temporary_lock:
            folder = _temporary.get(os.getpid())
            if folder is None or not folder.exists():
                folder = _temporary[os.getpid()] = pathlib.Path(tempfile.mkdtemp(prefix="metal_inductor-"))
    return folder


@atexit.register
def _remove_temporary_folder() -> None:
    folder = _temporary.get(os.getpid())
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)


def _is_sound(path: pathlib.Path, key: str, suffix: str) -> bool:
    digest = path.name[len(key) + 1 : len(path.name) - len(suffix)]
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:_DIGEST_LENGTH] == digest
    except OSError:
        return False


def _write(path: pathlib.Path, data: bytes) -> pathlib.Path:
    path.parent.mkdir(mode=0o700, exist_ok=True)
    temporary = path.parent / f".{os.getpid()}-{uuid.uuid4().hex}.tmp"
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o700), "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    return path


def _prune(folder: pathlib.Path, limit: int = SIZE_LIMIT_BYTES) -> None:
    """Removes what dead processes left and, beyond the limit, the entries that were used longest ago."""
    entries, now = [], time.time()
    for path in folder.glob("*/*"):
        with contextlib.suppress(OSError):  # another process prunes too
            status = path.stat()
            if path.suffix in (".tmp", ".lock"):
                if now - status.st_mtime > TEMPORARY_FILE_SECONDS:
                    path.unlink()
            else:
                entries.append((status.st_mtime, status.st_size, path))
    size = sum(entry[1] for entry in entries)
    for _, bytes_freed, path in sorted(entries) if size > limit else ():
        if size <= limit * 0.9:
            break
        with contextlib.suppress(OSError):
            path.unlink()
        size -= bytes_freed
