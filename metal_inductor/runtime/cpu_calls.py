"""Calls of single Metal kernels on the CPU, as `compile_shader` makes them."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

import torch

from metal_inductor.metal import call_arguments
from metal_inductor.metal.call_arguments import Bound
from metal_inductor.runtime import checks, cpu


class CpuRunner:
    """Runs kernels of one library; arguments passed by value are copied to memory of their own."""

    def __init__(self, source: str, device: torch.device) -> None:
        self.device = device
        self._source = source
        self._checks = checks.resolve(None)
        self.library = cpu.CpuLibrary.load(source, checked=bool(self._checks))
        self.kernels = self.library.kernels

    def with_checks(self, wanted: checks.Checks) -> CpuRunner:
        """The same library with other checks: see `checks.resolve`."""
        runner = copy.copy(self)
        runner._checks = checks.resolve(wanted)
        runner.library = cpu.CpuLibrary.load(self._source, checked=bool(runner._checks))
        return runner

    def bind_tensor(self, tensor: torch.Tensor, what: str) -> Bound:
        if tensor.device.type != "cpu":
            raise ValueError(f"{what}: a {tensor.layout} tensor on {tensor.device}; valid are dense tensors on cpu")
        plain = call_arguments.plain_tensor(tensor, what, "cpu")
        return Bound(plain.data_ptr(), plain)

    def launch(
        self,
        name: str,
        bound: Sequence[Bound],
        threads: Sequence[int],
        group_size: Sequence[int],
        threadgroup_memory: Mapping[int, int],
    ) -> None:
        # `placed` keeps the copies alive: the run has ended when this function returns.
        placed = [call_arguments.in_memory(item.value) if isinstance(item.value, bytes) else item for item in bound]
        addresses = [item.value for item in placed]
        checked = _checked_run(self._checks, bound, addresses) if self._checks else None
        cpu.run(self.library, name, addresses, threads, group_size, threadgroup_memory, checked)


def _checked_run(wanted: int, bound: Sequence[Bound], addresses: Sequence[int]) -> checks.CheckedRun:
    """Buffers end where their tensor's storage does, as a Metal buffer would, and values with their last byte."""
    extents, others = [], []
    for item, address in zip(bound, addresses, strict=True):
        if isinstance(item.owner, torch.Tensor):
            extents.append(checks.storage_extent(item.owner))
            continue
        extents.append((address, address + len(item.value)))
        others += [checks.storage_extent(element.owner) for element in item.owner or ()]
    return checks.CheckedRun(wanted, extents, others)
