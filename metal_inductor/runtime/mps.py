"""The Mac's own device, through `torch.mps.compile_shader`. Written to torch's call contract; not yet run on a Mac.

A command buffer is committed, without waiting, by recording one reused event: the only public way. On another stream
than the default one that raises, and work is committed when torch next does so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch


class MpsLibrary:
    """A Metal library that torch compiled, with its kernels by name."""

    def __init__(self, source: str) -> None:
        self._library = torch.mps.compile_shader(source)

    def kernel(self, name: str) -> Any:
        return getattr(self._library, name)


class MpsList:
    """A frozen dispatch list: tensors by slot, kernels called in order."""

    def __init__(self, slots: int) -> None:
        self._bound: list[Any] = [None] * slots
        self._host: dict[int, np.ndarray] = {}
        self._dispatches: list[tuple[Any, tuple[int, ...], list[int], list[int]]] = []
        self._event = torch.mps.Event()

    def add(self, library: MpsLibrary, kernel: str, slots: Sequence[int], threads: Sequence[int], group: Any) -> int:
        function = library.kernel(kernel)
        wanted = int(np.prod(group))
        if wanted > function.max_threads_per_threadgroup:
            raise RuntimeError(
                f"kernel {kernel} needs threadgroups of {wanted} threads, this GPU allows it "
                f"{function.max_threads_per_threadgroup}"
            )
        self._dispatches.append((function, tuple(slots), list(threads), list(group)))
        return len(self._dispatches) - 1

    def set_threads(self, dispatch: int, threads: Sequence[int], group_size: Sequence[int]) -> None:
        function, slots, _, _ = self._dispatches[dispatch]
        self._dispatches[dispatch] = (function, slots, list(threads), list(group_size))

    def bind(self, slot: int, tensor: torch.Tensor) -> None:
        self._bound[slot] = tensor

    def bind_host(self, slot: int, array: np.ndarray) -> None:
        self._host[slot] = array

    def commit(self, begin: int, end: int) -> None:
        for slot, array in self._host.items():
            self._bound[slot] = array.tolist()
        for function, slots, threads, group in self._dispatches[begin:end]:
            if 0 not in threads:
                function(*(self._bound[slot] for slot in slots), threads=threads, group_size=group)
        try:
            self._event.record()
        except NotImplementedError:
            return
