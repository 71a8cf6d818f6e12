"""Kernels -> steps: where every buffer lives, when it dies, and where command buffers are cut."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy

from metal_inductor.codegen.kernel import KernelSource
from metal_inductor.fused_kernel import memory_of
from metal_inductor.ir import Buffer, ExternNode

ALIGNMENT = 256  # bytes; Apple's recommended buffer offset, and a multiple of every vector load


@dataclass(frozen=True)
class Interval:
    """An intermediate of `size` bytes (an expression of sizes) that is live in steps first..last."""

    buffer: str
    size: Any
    first: int
    last: int


@dataclass
class Plan:
    """`steps` in order; `arena` are the intermediates that share one block of memory; `late[k]` are buffers to allocate
    before step `k`, their size being known only then; `dies_after[k]` lists what no step after `k` reads and the arena
    does not hold; `segments` are step ranges: each a maximal run of dispatches, or one ATen call."""

    steps: list[KernelSource | ExternNode]
    arena: list[Interval]
    late: dict[int, list[str]]
    dies_after: dict[int, list[str]]
    segments: list[tuple[int, int]]
    command_buffers: int
    symbols: set[sympy.Symbol] = field(default_factory=set)


def byte_size(buffer: Buffer) -> sympy.Expr:
    """Bytes from the first to the last element of a dense buffer."""
    if any(size == 0 for size in buffer.shape):
        return sympy.Integer(0)
    last = sympy.Add(*((size - 1) * step for size, step in zip(buffer.shape, buffer.stride)))
    return sympy.expand((last + 1) * buffer.dtype.itemsize)


def make_plan(
    steps: Sequence[KernelSource | ExternNode], buffers: dict[str, Buffer], known: set[sympy.Symbol], commit_every: int
) -> Plan:
    """Lifetimes and command buffers for `steps`. `known` are the symbols bound by the graph's inputs."""
    first, last = lifetimes(steps, buffers)
    extern_made = {name for step in steps if isinstance(step, ExternNode) for name in step.outputs if name}
    arena, late, dies = [], {}, {}
    for name, begin in first.items():
        buffer = buffers[name]
        if buffer.kind != "intermediate":
            continue
        if name in extern_made:
            dies.setdefault(last[name], []).append(name)
            continue
        size = byte_size(buffer)
        if size.free_symbols - known:
            late.setdefault(begin, []).append(name)
            dies.setdefault(last[name], []).append(name)
        else:
            arena.append(Interval(name, size, begin, last[name]))
    for name, buffer in buffers.items():
        if (
            buffer.kind == "output"
            and name in first
            and name not in extern_made
            and byte_size(buffer).free_symbols - known
        ):
            late.setdefault(first[name], []).append(name)
    symbols = {
        symbol
        for buffer in buffers.values()
        for size in (*buffer.shape, *buffer.stride)
        for symbol in size.free_symbols
    }
    segments = split_at_calls(steps)
    runs = [(begin, end) for begin, end in segments if not isinstance(steps[begin], ExternNode)]
    count = sum(len(command_buffer_cuts(end - begin, commit_every)) for begin, end in runs)
    return Plan(list(steps), arena, late, dies, segments, count, symbols | known)


def lifetimes(
    steps: Sequence[KernelSource | ExternNode], buffers: dict[str, Buffer]
) -> tuple[dict[str, int], dict[str, int]]:
    """First and last step that touches the memory of each buffer."""
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for k, step in enumerate(steps):
        touched: Iterable[str] = step.reads() | step.writes() if isinstance(step, ExternNode) else step.buffers
        for name in touched:
            for owner in {name, memory_of(buffers, name)}:
                first.setdefault(owner, k)
                last[owner] = k
    return first, last


def split_at_calls(steps: Sequence[Any]) -> list[tuple[int, int]]:
    """(first step, past the last step) of each ATen call and of each maximal run of dispatches between them."""
    segments: list[tuple[int, int]] = []
    for is_call, group in itertools.groupby(range(len(steps)), lambda k: isinstance(steps[k], ExternNode)):
        run = list(group)
        segments += [(k, k + 1) for k in run] if is_call else [(run[0], run[-1] + 1)]
    return segments


def command_buffer_cuts(dispatches: int, commit_every: int) -> list[tuple[int, int]]:
    """(begin, end) of each command buffer of a run: one every `commit_every` dispatches, and the rest."""
    return [(k, min(k + commit_every, dispatches)) for k in range(0, dispatches, commit_every)]


def arena_layout(arena: Sequence[Interval], evaluate: Callable[[Any], int]) -> tuple[dict[str, int], int, int]:
    """Byte offsets of the intermediates, the arena's size, and the sum of sizes without sharing. Greedy by size: the
    largest first, each at the lowest gap that is free during its life (Pisarchyk and Lee, arXiv:2001.03288)."""
    sized = [(align(evaluate(item.size)), item) for item in arena]
    placed: list[tuple[int, int, Interval]] = []
    offsets: dict[str, int] = {}
    total = 0
    for size, item in sorted(sized, key=lambda pair: (-pair[0], pair[1].first)):
        offset = 0
        overlapping = (p for p in placed if p[2].first <= item.last and item.first <= p[2].last)
        for begin, end, _ in sorted(overlapping, key=lambda p: p[:2]):
            if begin - offset >= size:
                break
            offset = max(offset, end)
        placed.append((offset, offset + size, item))
        offsets[item.buffer] = offset
        total = max(total, offset + size)
    return offsets, total, sum(size for size, _ in sized)


def align(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def storage_numel(buffer: Buffer, evaluate: Callable[[Any], int]) -> int:
    return evaluate(byte_size(buffer)) // buffer.dtype.itemsize
