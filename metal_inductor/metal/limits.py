"""What Metal refuses of a library or a dispatch, whatever device it runs on here: each check names what is valid."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from .kernel_info import DEFAULT_MAX_THREADS, MAX_THREADGROUP_BYTES, KernelInfo

MAX_BUFFERS = 31
SIMD_WIDTH = 32
MEMORY_ALIGNMENT = 16  # of each block of threadgroup memory


def max_threads(info: KernelInfo) -> int:
    """Threads that a threadgroup of the kernel may have."""
    return min(info.max_threads, DEFAULT_MAX_THREADS)


def check_declaration(info: KernelInfo) -> None:
    """SyntaxError for a kernel that Metal's own compiler refuses."""
    for index, name in names_by_index(info, "buffer").items():
        if index >= MAX_BUFFERS:
            raise SyntaxError(
                f"kernel '{info.name}': argument '{name}' is buffer({index}), Metal has buffer(0) to "
                f"buffer({MAX_BUFFERS - 1})"
            )
    if info.threadgroup_bytes > MAX_THREADGROUP_BYTES:
        raise SyntaxError(
            f"kernel '{info.name}': {info.threadgroup_bytes} bytes of threadgroup memory, Metal has "
            f"{MAX_THREADGROUP_BYTES}"
        )


def names_by_index(info: KernelInfo, kind: str) -> dict[int, str]:
    """Names of the arguments of one kind."""
    return {item.index: item.name for item in info.arguments if item.kind == kind and item.index is not None}


def check_geometry(info: KernelInfo, threads: Sequence[int], group_size: Sequence[int]) -> None:
    """ValueError unless both have three axes and sizes that Metal dispatches."""
    where = "kernel '{}': threads={}, group_size={}: {}".format
    if len(threads) != 3 or len(group_size) != 3:
        raise ValueError(where(info.name, threads, group_size, "both must have 3 axes"))
    x, y, z = threads
    if min(threads) < 0 or max(threads) >= 1 << 32 or x * y * z >= 1 << 63:
        valid = "each axis of threads must be in 0 .. 2**32-1, and their product below 2**63"
        raise ValueError(where(info.name, threads, group_size, valid))
    a, b, c = group_size
    if min(group_size) < 1 or a * b * c > max_threads(info):
        valid = f"each axis of group_size must be at least 1 and their product at most {max_threads(info)}"
        raise ValueError(where(info.name, threads, group_size, valid))


def check_buffers(info: KernelInfo, bound: Collection[int], count: int) -> None:
    """ValueError when a buffer that the kernel declares is not among the `bound` indices, or `count` is too many."""
    if count > MAX_BUFFERS:
        raise ValueError(f"kernel '{info.name}': {count} buffers are bound, Metal has {MAX_BUFFERS}")
    for index, name in names_by_index(info, "buffer").items():
        if index not in bound:
            raise ValueError(f"kernel '{info.name}': argument '{name}', buffer({index}), is not bound")


def threadgroup_lengths(info: KernelInfo, lengths: Mapping[int, int]) -> list[int]:
    """Bytes of threadgroup(0), threadgroup(1), ...; ValueError if one is missing or all exceed Metal's memory."""
    indices = names_by_index(info, "threadgroup")
    for index in lengths:
        if index not in indices:
            raise ValueError(
                f"kernel '{info.name}': threadgroup({index}) has a length but is no argument; "
                f"its arguments: {sorted(indices) or 'none'}"
            )
    for index in indices:
        if lengths.get(index, 0) <= 0:
            raise ValueError(f"kernel '{info.name}': threadgroup({index}) needs a length in bytes: {dict(lengths)}")
    table = [lengths.get(index, 0) for index in range(max(indices, default=-1) + 1)]
    total = sum(aligned(length) for length in [info.threadgroup_bytes, *table])
    if total > MAX_THREADGROUP_BYTES:
        raise ValueError(
            f"kernel '{info.name}': {total} bytes of threadgroup memory, Metal has {MAX_THREADGROUP_BYTES}"
        )
    return table


def aligned(length: int) -> int:
    """A length of threadgroup memory up to where the next block may begin."""
    return -(-length // MEMORY_ALIGNMENT) * MEMORY_ALIGNMENT
