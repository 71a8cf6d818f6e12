"""The machine and the versions behind a figure: every result file carries them."""

from __future__ import annotations

import datetime
import os
import platform
import shlex
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import metal_inductor

PACKAGES = ("torch", "triton", "transformers", "cuda-bindings", "ziglang")


def best_device() -> str:
    """The device of the figures where none is asked for."""
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def provenance() -> dict[str, Any]:
    """Where a result file comes from: the command, without this machine's folders, the day and the machine."""
    arguments = [Path(word).name if Path(word).is_absolute() else word for word in sys.argv[1:]]
    return {
        "command": shlex.join(["python", *_module_or_script(), *arguments]),
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": describe(),
    }


def _module_or_script() -> list[str]:
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return ["-m", spec.name] if spec is not None else sys.argv[:1]


def describe() -> dict[str, Any]:
    """Processor, cores, system and versions as plain data."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "python": platform.python_version(),
        "cuda": torch.version.cuda,
        **{package: _version(package) for package in PACKAGES},
        "metal-inductor": metal_inductor.__version__,
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
