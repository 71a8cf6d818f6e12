"""What lies in the kernel cache's folder: the `cache` subcommand, and the demo's question whether a start is cold."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from metal_inductor import cache, config


def entries() -> list[Path]:
    """The files of all entries on disk; locks and temporary files of writers are none."""
    folder = cache.default_directory() / "kernels"
    return sorted(path for path in folder.glob("??/*") if path.is_file() and not path.name.startswith("."))


def info() -> dict[str, Any]:
    sizes = []
    for path in entries():
        with contextlib.suppress(FileNotFoundError):  # another process prunes
            sizes.append(path.stat().st_size)
    return {
        "directory": str(cache.default_directory()),
        "in use": "yes" if config.from_environment("cache") else "no, METAL_INDUCTOR_CACHE is off",
        "entries": len(sizes),
        "bytes": sum(sizes),
    }


def clear() -> int:
    """Removes every entry; returns how many. Processes that have loaded one keep it."""
    removed = 0
    for path in entries():
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
            removed += 1
    return removed
