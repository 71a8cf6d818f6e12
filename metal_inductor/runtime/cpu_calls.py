"""Calls of single Metal kernels on the CPU, as `compile_shader` makes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from metal_inductor.metal import call_arguments
from metal_inductor.metal.call_arguments import Bound
from metal_inductor.runtime import cpu


class CpuRunner:
    """Runs kernels of one library; arguments passed by value are copied to memory of their own."""

    def __init__(self, source: str, device: torch.device) -> None:
        self.device = device
        self.library = cpu.CpuLibrary.load(source)
        self.kernels = self.library.kernels

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
        cpu.run(self.library, name, [item.value for item in placed], threads, group_size, threadgroup_memory)
