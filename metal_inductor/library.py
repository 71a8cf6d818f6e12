"""The Metal library of a graph: compiled through the cache, and what the user is told when it does not compile."""

from __future__ import annotations

import bisect
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from metal_inductor.codegen.kernel import KernelSource, library
from metal_inductor.extern import source_line
from metal_inductor.report import GraphReport
from metal_inductor.runtime.device import Device


class KernelCompileError(RuntimeError):
    """A kernel of ours that the Metal compiler refuses: a bug of metal_inductor, with all that a report of it needs."""


def load_library(device: Device, sources: Sequence[KernelSource], report: GraphReport, dump_dir: str | None) -> Any:
    """The library with every distinct kernel of the graph; None for a graph without kernels.

    Raises KernelCompileError that names the kernel, the model's code line, the compiler's first message and the file
    that holds the text.
    """
    if not sources:
        return None
    text = library(sources)
    try:
        compiled, built = device.load(text)
    except SyntaxError as error:
        raise KernelCompileError(describe(error, text, sources, dump_dir)) from error
    distinct = len({source.name for source in sources})
    report.distinct_kernels = distinct
    report.kernels_compiled, report.kernels_reused = (distinct, 0) if built else (0, distinct)
    return compiled


def describe(error: SyntaxError, text: str, sources: Sequence[KernelSource], dump_dir: str | None) -> str:
    """The message of a KernelCompileError; writes `text` to a file that stays."""
    if dump_dir is not None:
        Path(dump_dir).mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(
        "w", prefix="metal_inductor_", suffix=".metal", dir=dump_dir, delete=False
    ) as file:
        file.write(text)
    first = str(error).splitlines()[0] if str(error) else type(error).__name__
    source = kernel_at(text, error.lineno or 0, sources)
    lines = [f"a Metal kernel does not compile: {first}", f"  text: {file.name}"]
    if source is not None:
        origins = [source_line(node.origin) for node in source.nodes if node.origin is not None]
        where = next((line for line in origins if line), "not known")
        lines[1:1] = [f"  kernel: {source.name}", f"  model code: {where}"]
    return "\n".join(lines)


def kernel_at(text: str, line: int, sources: Sequence[KernelSource]) -> KernelSource | None:
    """The kernel whose text holds line `line` (from 1) of the library; None for the shared functions before them."""
    begins = []
    for source in {source.name: source for source in sources}.values():
        begins.append((text.count("\n", 0, text.index(source.text)) + 1, source))
    begins.sort(key=lambda pair: pair[0])
    position = bisect.bisect_right([begin for begin, _ in begins], line) - 1
    return begins[position][1] if position >= 0 else None
