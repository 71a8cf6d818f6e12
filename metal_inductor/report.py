"""What was compiled and what ran, as data: one `GraphReport` a compiled graph, kept for as long as the graph lives."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass
class KernelReport:
    """One dispatch of the plan."""

    name: str
    kind: str  # pointwise, reduction or the template's name
    ops: tuple[str, ...]  # ATen ops fused into it
    source_line: str  # the model's code line of its first op
    buffers_written: tuple[str, ...] = ()


@dataclass
class ExternReport:
    """One ATen call of the plan, with the reason why it has no kernel."""

    name: str
    reason: str
    source_line: str


@dataclass
class GraphReport:
    """Counts are per call of the graph; seconds are wall time of this process."""

    name: str
    kind: str  # inference, forward or backward
    device: str = ""
    kernels: list[KernelReport] = field(default_factory=list)
    externs: list[ExternReport] = field(default_factory=list)
    command_buffers: int = 0
    kernels_compiled: int = 0  # distinct Metal kernels that the compiler built for this graph
    kernels_reused: int = 0  # distinct kernels found in the cache
    distinct_kernels: int = 0
    stage_seconds: dict[str, float] = field(default_factory=dict)
    peak_intermediate_bytes: int = 0
    unshared_intermediate_bytes: int = 0
    calls: int = 0

    @property
    def dispatches(self) -> int:
        return len(self.kernels)

    @property
    def extern_calls(self) -> Counter[str]:
        return Counter(extern.name for extern in self.externs)

    @property
    def compile_seconds(self) -> float:
        return sum(self.stage_seconds.values())

    def to_dict(self) -> dict:
        """Plain data for JSON."""
        return {**asdict(self), "dispatches": self.dispatches, "extern_calls": dict(self.extern_calls)}


_listeners: list[list[GraphReport]] = []
_lock = threading.Lock()


def publish(report: GraphReport) -> None:
    """Called by the compiler once a graph is ready."""
    with _lock:
        for listener in _listeners:
            listener.append(report)


@contextmanager
def collect() -> Iterator[list[GraphReport]]:
    """The reports of all graphs compiled inside the `with` block, by any thread; their `calls` go on counting later."""
    reports: list[GraphReport] = []
    with _lock:
        _listeners.append(reports)
    try:
        yield reports
    finally:
        with _lock:
            _listeners.remove(reports)


def describe_steps(report: GraphReport, plan: Any) -> None:
    """Fills the report's kernels, ATen calls and command buffers from the plan."""
    from metal_inductor.extern import op_name, source_line
    from metal_inductor.ir import ExternNode

    for step in plan.steps:
        if isinstance(step, ExternNode):
            report.externs.append(ExternReport(op_name(step.target), step.reason, source_line(step.origin)))
            continue
        origins = [node.origin for node in step.nodes if node.origin is not None]
        ops = tuple(dict.fromkeys(op_name(origin.target) for origin in origins if origin.op == "call_function"))
        where = source_line(origins[0]) if origins else ""
        report.kernels.append(KernelReport(step.name, step.kind, ops, where, buffers_written=step.written))
    report.command_buffers = plan.command_buffers
