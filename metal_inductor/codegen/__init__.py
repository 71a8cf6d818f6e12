"""From scheduled kernels to Metal text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from metal_inductor.codegen.attention import AttentionBuilder
from metal_inductor.codegen.attention_tiled import TiledAttentionBuilder
from metal_inductor.codegen.kernel import KernelBuilder, KernelSource, library
from metal_inductor.codegen.product import ProductBuilder
from metal_inductor.codegen.reduction import ReductionBuilder
from metal_inductor.fused_kernel import Kernel, memory_of
from metal_inductor.ir import Buffer, ComputeNode, ExternNode, TemplateNode
from metal_inductor.schedule_products import is_product

__all__ = ["KernelSource", "build_sources", "library"]

TEMPLATE_BUILDERS = {"attention_decode": AttentionBuilder, "attention_tiled": TiledAttentionBuilder}


def build_sources(
    kernels: Sequence[Kernel], buffers: dict[str, Buffer], outputs: Iterable[str], device: str
) -> list[KernelSource | ExternNode]:
    """The steps of the plan. A kernel stores only what another step or the caller reads."""
    readers: dict[str, set[int]] = {}
    for position, kernel in enumerate(kernels):
        for node in kernel.members():
            for name in node.reads():
                readers.setdefault(memory_of(buffers, name), set()).add(position)
    lasting = {memory_of(buffers, name) for name in outputs}
    lasting |= {name for name, buffer in buffers.items() if buffer.kind in ("input", "constant")}
    steps: list[KernelSource | ExternNode] = []
    for position, kernel in enumerate(kernels):
        if isinstance(kernel.head, ExternNode):
            steps.append(kernel.head)
            continue
        kept = {
            name
            for name in kernel.writes()
            if memory_of(buffers, name) in lasting or readers.get(name, set()) - {position} or _mutates(kernel, name)
        }
        if is_product(kernel.head):
            steps.append(ProductBuilder(kernel, buffers, kept, device).build())
        elif isinstance(kernel.head, TemplateNode):
            builder = TEMPLATE_BUILDERS[kernel.head.template]
            steps += builder(kernel, buffers, kept, device).build()
        else:
            builder = ReductionBuilder if kernel.reduction_sizes else KernelBuilder
            steps += builder(kernel, buffers, kept, device).build()
    return steps


def _mutates(kernel: Kernel, name: str) -> bool:
    nodes = kernel.members()
    return any(isinstance(node, ComputeNode) and node.buffer == name and node.mutates for node in nodes)
