"""Where the time of a decode step goes on an NVIDIA GPU: kernels by kind and the gaps between them."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

PAUSE_SECONDS = 0.01  # between steps, so that the timeline shows where one ends

_OURS = re.compile(r"msl_k\d+")  # the symbols that the translator of Metal text gives
# What the kernels of torch, its libraries and Triton are called; the first that is found counts.
_KINDS = {
    "attention": re.compile(r"flash|fmha|attention|sdpa", re.IGNORECASE),
    "matrix product": re.compile(r"gemm|gemv|nvjet|cutlass|cublas|splitk|dot_kernel|triton_\w*mm_", re.IGNORECASE),
    "reduction": re.compile(r"triton_(red|per)|reduce|softmax|norm|argmax", re.IGNORECASE),
    "copy": re.compile(r"memcpy|memset|copy|fill|arange", re.IGNORECASE),
    "pointwise": re.compile(r"triton_poi|triton_for|elementwise|index|cat", re.IGNORECASE),
}


@dataclass(frozen=True)
class Span:
    """What ran on the GPU, in microseconds."""

    name: str
    begin: float
    end: float


def profile(step: Callable[[], Any], steps: int, ours: Sequence[str]) -> dict[str, Any]:
    """Averages over `steps` calls of `step`, each started on an idle GPU; the first of all is not counted.

    `ours` are the kinds of our own kernels in the order of the plan. The result has "kinds", each with the "kernels"
    and "us" of a step, "kernels_us", "gaps_us" and the "span_us" from the first kernel's begin to the last one's end.
    """
    timelines = split(recorded(step, steps + 1), PAUSE_SECONDS / 2 * 1e6)[1:]
    if len(timelines) != steps:
        raise RuntimeError(f"the profiler shows {len(timelines)} steps on the GPU instead of {steps}")
    return average([breakdown(timeline, ours) for timeline in timelines])


def recorded(step: Callable[[], Any], steps: int) -> list[Span]:
    """Everything that ran on the GPU while `step` was called, in the order of its begin."""
    from torch.profiler import ProfilerActivity

    with torch.profiler.profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(steps):
            step()
            torch.cuda.synchronize()
            time.sleep(PAUSE_SECONDS)
    spans = [
        Span(event.name, event.time_range.start, event.time_range.end)
        for event in profiler.events()
        if event.device_type == torch.autograd.DeviceType.CUDA and not event.is_user_annotation
    ]
    return sorted(spans, key=lambda span: span.begin)


def split(spans: Sequence[Span], pause_us: float) -> list[list[Span]]:
    """The timeline in parts that are at least `pause_us` apart."""
    parts: list[list[Span]] = []
    last_end = float("-inf")
    for span in spans:
        if span.begin - last_end >= pause_us:
            parts.append([])
        parts[-1].append(span)
        last_end = max(last_end, span.end)
    return parts


def breakdown(timeline: Sequence[Span], ours: Sequence[str]) -> dict[str, Any]:
    """One step's kernels by kind. A gap is time in which nothing ran."""
    mine = [span for span in timeline if _OURS.fullmatch(span.name)]
    known = ours if len(ours) == len(mine) else ["ours"] * len(mine)
    kinds = dict(zip(map(id, mine), known))
    totals: dict[str, dict[str, float]] = {}
    busy, end = 0.0, timeline[0].begin
    for span in timeline:
        total = totals.setdefault(kinds.get(id(span)) or kind(span.name), {"kernels": 0, "us": 0.0})
        total["kernels"] += 1
        total["us"] += span.end - span.begin
        busy += max(0.0, span.end - max(end, span.begin))
        end = max(end, span.end)
    whole = end - timeline[0].begin
    return {"kinds": totals, "kernels_us": busy, "gaps_us": whole - busy, "span_us": whole}


def kind(name: str) -> str:
    """What a kernel that is not ours does, by its name."""
    return next((kind for kind, pattern in _KINDS.items() if pattern.search(name)), "other")


def kind_of_ours(template: str) -> str:
    """The kind of one of our kernels, by its template, in the words used for torch's."""
    if template.startswith("attention"):
        return "attention"
    return "matrix product" if template in ("linear", "product") else template


def average(steps: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The mean of several breakdowns."""
    names = sorted({name for step in steps for name in step["kinds"]})
    nothing = {"kernels": 0, "us": 0.0}

    def mean(values: Sequence[float]) -> float:
        return round(sum(values) / len(values), 2)

    kinds = {
        name: {key: mean([step["kinds"].get(name, nothing)[key] for step in steps]) for key in nothing}
        for name in names
    }
    return {"kinds": kinds} | {key: mean([step[key] for step in steps]) for key in steps[0] if key != "kinds"}
