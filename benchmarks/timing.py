"""Microseconds of a call, several ways of doing one thing side by side."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

Call = Callable[[], Any]

SHORTEST_RUN_US = 500.0  # a run of calls between two time stamps: starting a CUDA graph costs some 8 us
OTHER_CACHE_BYTES = 48 << 20  # the last-level cache where torch does not say how large it is


def synchronize(device: str) -> None:
    """Waits for all work on the device."""
    if device == "cuda":
        torch.cuda.synchronize()
    elif device == "mps":
        torch.mps.synchronize()


def cache_bytes(device: str) -> int:
    """Bytes that the cache before the device's memory holds."""
    if device == "cuda":
        return torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
    return OTHER_CACHE_BYTES


def medians(
    ways: Mapping[str, Sequence[Call]], device: str, rounds: int, guess_us: float, shortest_us: float = SHORTEST_RUN_US
) -> dict[str, float]:
    """Median microseconds of one call of each way, whose calls are made in turn.

    On CUDA the calls are captured in a graph and replayed: no time of the host is in the figure. Elsewhere they are
    made one after the other, and the host's share is in it. Ways take turns within a round, so that a change of clock
    meets all of them. `guess_us` is about what a call takes: a run repeats its calls up to `shortest_us`.
    """
    runs = {}
    for name, calls in ways.items():
        repeated = list(calls) * max(1, round(shortest_us / (guess_us * len(calls))))
        runs[name] = _captured(repeated) if device == "cuda" else _in_turn(repeated, device)
    samples: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            samples[name].append(run())
    return {name: statistics.median(times) for name, times in samples.items()}


def _captured(calls: Sequence[Call]) -> Callable[[], float]:
    """Replays the calls as one CUDA graph; microseconds of one."""
    for call in calls[:3]:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    graph.replay()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def run() -> float:
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) * 1e3 / len(calls)

    return run


def _in_turn(calls: Sequence[Call], device: str) -> Callable[[], float]:
    """Makes the calls and waits for the device; microseconds of one."""
    calls[0]()

    def run() -> float:
        synchronize(device)
        begin = time.perf_counter()
        for call in calls:
            call()
        synchronize(device)
        return (time.perf_counter() - begin) * 1e6 / len(calls)

    return run
