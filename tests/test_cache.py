"""The kernel cache: what it stores, survives and repairs."""

from __future__ import annotations

import os
import pathlib
import stat
import subprocess
import sys
import threading
import time
import warnings

import filelock
import pytest

from metal_inductor import cache

KEY = cache.key("a kernel")


@pytest.fixture
def store(tmp_path: pathlib.Path) -> cache.KernelCache:
    return cache.KernelCache(tmp_path / "cache")


def never() -> bytes:
    raise AssertionError("built although the entry is there")


def test_keys_tell_apart_where_parts_begin():
    assert cache.key("ab", "c") != cache.key("a", "bc") != cache.key("abc")
    assert cache.key("1", b"x") == cache.key(1, "x")
    assert len(KEY) == 64 and set(KEY) <= set("0123456789abcdef")


def test_an_entry_is_built_once_and_found_by_other_processes(store):
    path = store.get_or_build(KEY, ".so", lambda: b"code")
    assert path.read_bytes() == b"code" and path.suffix == ".so"
    assert store.get_or_build(KEY, ".so", never) == path
    assert cache.KernelCache(store.directory).get_or_build(KEY, ".so", never) == path


def test_suffixes_are_different_entries(store):
    assert store.get_or_build(KEY, ".so", lambda: b"1") != store.get_or_build(KEY, ".json", lambda: b"2")


def test_counters_count_builds_and_finds(store):
    compiled, reused = cache.counters.compiled, cache.counters.reused
    for _ in range(3):
        store.get_or_build(KEY, ".so", lambda: b"code")
    assert (cache.counters.compiled - compiled, cache.counters.reused - reused) == (1, 2)


def test_a_failed_build_leaves_nothing(store):
    with pytest.raises(SyntaxError, match="no such type"):
        store.get_or_build(KEY, ".so", lambda: (_ for _ in ()).throw(SyntaxError("no such type")))
    assert store.get_or_build(KEY, ".so", lambda: b"code").read_bytes() == b"code"


@pytest.mark.parametrize("damage", [b"", b"cod", b"code and more", b"COde"])
def test_a_damaged_file_is_built_again(store, damage):
    path = store.get_or_build(KEY, ".so", lambda: b"code")
    path.write_bytes(damage)
    repaired = cache.KernelCache(store.directory).get_or_build(KEY, ".so", lambda: b"code")
    assert repaired.read_bytes() == b"code"
    assert cache.KernelCache(store.directory).get_or_build(KEY, ".so", never).read_bytes() == b"code"


def test_a_file_removed_meanwhile_is_built_again(store):
    store.get_or_build(KEY, ".so", lambda: b"code").unlink()
    assert store.get_or_build(KEY, ".so", lambda: b"code").read_bytes() == b"code"


def test_no_temporary_files_stay(store):
    store.get_or_build(KEY, ".so", lambda: b"code")
    assert not [path for path in store.directory.rglob("*") if path.suffix == ".tmp" or path.name.startswith(".")]


@pytest.mark.skipif(os.name != "posix", reason="POSIX modes")
def test_folders_and_files_are_the_users_own(store):
    path = store.get_or_build(KEY, ".so", lambda: b"code")
    for mine in (path, path.parent, path.parent.parent):
        assert stat.S_IMODE(mine.stat().st_mode) == 0o700


def test_threads_that_want_the_same_kernel_compile_it_once(store):
    builds, paths = [], []

    def build() -> bytes:
        builds.append(1)
        time.sleep(0.05)
        return b"code"

    threads = [threading.Thread(target=lambda: paths.append(store.get_or_build(KEY, ".so", build))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(builds) == 1 and len(set(paths)) == 1


def test_processes_that_want_the_same_kernel_compile_it_once(store):
    program = f"""
import pathlib, time
from metal_inductor import cache
def build():
    time.sleep(0.5)
    return b"code"
path = cache.KernelCache({str(store.directory)!r}).get_or_build({KEY!r}, ".so", build)
print(cache.counters.compiled, path.read_bytes())
"""
    running = [subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert sorted(process.communicate(timeout=60)[0] for process in running) == ["0 b'code'\n"] * 2 + ["1 b'code'\n"]


def test_a_lock_that_is_never_released_only_costs_time(tmp_path):
    store = cache.KernelCache(tmp_path, lock_timeout=0.1)
    with store._locked(KEY):
        other = cache.KernelCache(tmp_path, lock_timeout=0.1)
        assert other.get_or_build(KEY, ".so", lambda: b"code").read_bytes() == b"code"


def test_a_file_system_without_locks_only_costs_work(store, monkeypatch):
    def refuse(*arguments: object, **options: object) -> None:
        raise NotImplementedError("no locks here")

    monkeypatch.setattr(filelock, "FileLock", refuse)
    assert store.get_or_build(KEY, ".so", lambda: b"code").read_bytes() == b"code"


class TestUnusableFolder:
    def check(self, directory: pathlib.Path) -> None:
        store = cache.KernelCache(directory)
        with pytest.warns(RuntimeWarning, match="cannot use the kernel cache.*METAL_INDUCTOR_CACHE_DIR"):
            path = store.get_or_build(KEY, ".so", lambda: b"code")
        assert path.read_bytes() == b"code" and directory not in path.parents
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            store.get_or_build(cache.key("another"), ".so", lambda: b"code")
        assert store.get_or_build(KEY, ".so", never) == path

    def test_a_file_in_its_place(self, tmp_path):
        (tmp_path / "cache").write_text("")
        self.check(tmp_path / "cache")

    def test_a_folder_that_cannot_be_made(self):
        self.check(pathlib.Path("/proc/none/cache"))

    def test_a_folder_that_others_can_write(self, tmp_path):
        (tmp_path / "kernels").mkdir()
        (tmp_path / "kernels").chmod(0o777)
        self.check(tmp_path)

    def test_a_disk_that_is_full_later(self, store, monkeypatch):
        store.get_or_build(KEY, ".so", lambda: b"code")
        home, replace = str(store.directory), os.replace

        def full(source: object, target: object) -> None:
            if str(target).startswith(home):
                raise OSError(28, "No space left on device")
            replace(source, target)

        monkeypatch.setattr(os, "replace", full)
        with pytest.warns(RuntimeWarning, match="No space left"):
            path = store.get_or_build(cache.key("later"), ".so", lambda: b"late")
        assert path.read_bytes() == b"late"


def test_the_environment_names_the_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("METAL_INDUCTOR_CACHE_DIR", str(tmp_path / "named"))
    assert tmp_path / "named" in cache.default().get_or_build(KEY, ".so", lambda: b"code").parents
    monkeypatch.setenv("METAL_INDUCTOR_CACHE_DIR", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    if sys.platform != "darwin":
        assert cache.default_directory() == tmp_path / "xdg" / "metal_inductor"


def test_switched_off_it_lives_as_long_as_the_process(tmp_path):
    program = f"""
from metal_inductor import cache
path = cache.default().get_or_build({KEY!r}, ".so", lambda: b"code")
assert cache.default().get_or_build({KEY!r}, ".so", None) == path
print(path)
"""
    settings = {"METAL_INDUCTOR_CACHE": "0", "METAL_INDUCTOR_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | settings, capture_output=True, text=True, check=True
    )
    path = pathlib.Path(done.stdout.strip())
    assert path.suffix == ".so" and not path.exists() and not path.parent.exists()
    assert not list(tmp_path.iterdir())


def test_beyond_the_size_limit_the_least_recently_used_go(store):
    paths = [store.get_or_build(cache.key(i), ".so", lambda i=i: bytes([i]) * 100) for i in range(10)]
    for age, path in enumerate(reversed(paths)):
        os.utime(path, (time.time() - age, time.time() - age))
    cache._prune(store.folder(), limit=500)
    assert [path.exists() for path in paths] == [False] * 6 + [True] * 4


def test_what_dead_processes_left_is_swept(store):
    path = store.get_or_build(KEY, ".so", lambda: b"code")
    old, new = path.parent / ".1-dead.tmp", path.parent / ".2-alive.tmp"
    for leftover in (old, new):
        leftover.touch()
    os.utime(old, (0, 0))
    cache._prune(store.folder())
    assert not old.exists() and new.exists() and path.exists()
