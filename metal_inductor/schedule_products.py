"""Few-row products that read one vector: which share threads, which share a dispatch, and which compute the vector.

Runs in three steps: `find_twin` while nodes are placed, then `join` and `absorb_rows` over the finished kernels.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import sympy

from metal_inductor import ir, policy
from metal_inductor.fused_kernel import MAX_BUFFERS, Kernel, memory_of
from metal_inductor.ir import Buffer, Node, TemplateNode


def is_product(node: Node | None) -> bool:
    """Whether `node` is a product of few rows."""
    return isinstance(node, TemplateNode) and node.template == "linear"


def vector_key(node: TemplateNode) -> tuple:
    """Products that agree in this read the same rows and walk their weights alike."""
    return node.operands["a"], node.sizes[0], node.parameters["depth"], weight_layout(node)


def weight_layout(node: TemplateNode) -> str:
    """How a product reads its weight [K, N]: "words" where K is contiguous and every column, like the vector, begins at
    a multiple of 16 bytes; "depth" where K is just contiguous; else "columns"."""
    a, b = node.operands["a"], node.operands["b"]
    if b.stride[0] != 1:
        return "columns"
    word = 16 // b.dtype.itemsize
    steps = (a.offset, b.offset, b.stride[1], node.parameters["depth"], *(a.stride[:1] if node.sizes[0] != 1 else ()))
    aligned = a.stride[1] == 1 and all((sympy.sympify(step) % word) == 0 for step in steps)
    return "words" if aligned else "depth"


class ProductFusion:
    """Fuses the products among `kernels`, the scheduler's list, in place."""

    def __init__(self, kernels: list[Kernel], buffers: dict[str, Buffer]) -> None:
        self.kernels = kernels
        self.buffers = buffers

    # ------------------------------------------------------------------ products of one vector

    def find_twin(self, node: TemplateNode, dependencies: list[Kernel]) -> Kernel | None:
        """A product of the same vector and shape, to whose threads `node` is added."""
        wanted = vector_key(node), node.sizes
        for kernel in reversed(self.kernels[-policy.FUSION_WINDOW :]):
            if not is_product(kernel.head) or (vector_key(kernel.head), kernel.head.sizes) != wanted:
                continue
            bit = 1 << kernel.position
            if kernel in dependencies or any(other.ancestors & bit for other in dependencies):
                continue
            fits = len(kernel.reads() | kernel.writes() | node.reads() | node.writes()) <= MAX_BUFFERS
            if fits and policy.shares_threads(int(node.sizes[0]), len(kernel.heads()) + 1):
                kernel.twins.append(node)
                return kernel
        return None

    def join(self) -> None:
        """Products of one vector that do not wait for each other become parts of one dispatch."""
        first: dict[Any, list[Kernel]] = {}
        for kernel in [kernel for kernel in self.kernels if is_product(kernel.head)]:
            hosts = first.setdefault(vector_key(kernel.head), [])
            host = next((host for host in hosts if self._may_join(host, kernel)), None)
            if host is None:
                hosts.append(kernel)
            else:
                self._join(host, kernel)

    def _may_join(self, host: Kernel, kernel: Kernel) -> bool:
        ordered = host.ancestors & (1 << kernel.position) or kernel.ancestors & (1 << host.position)
        return not ordered and len(host.reads() | host.writes() | kernel.reads() | kernel.writes()) <= MAX_BUFFERS

    def _join(self, host: Kernel, kernel: Kernel) -> None:
        if not host.parts:
            host.parts = [replace(host, parts=[])]
        host.parts.append(kernel)
        mine, other = 1 << host.position, 1 << kernel.position
        host.ancestors |= kernel.ancestors
        self.kernels.remove(kernel)
        for later in self.kernels:
            if later.ancestors & (mine | other):
                later.ancestors = (later.ancestors | mine | host.ancestors) & ~other

    # ------------------------------------------------------------------ the vector of a product

    def absorb_rows(self, outputs: Iterable[str], device: str) -> None:
        """Norms of one row move into the products that read them, which then compute them in every threadgroup."""
        lasting = {memory_of(self.buffers, name) for name in outputs}
        lasting |= {name for name, buffer in self.buffers.items() if buffer.kind in ("input", "constant")}
        reads = {kernel: kernel.reads() for kernel in self.kernels}
        for product in [kernel for kernel in self.kernels if is_product(kernel.head)]:
            source = self._row_before(product, lasting, reads)
            if source is not None and self._row_fits(source, product, device):
                self._absorb(source, product)
                reads[product] = product.reads()

    def _row_before(self, product: Kernel, lasting: set[str], reads: dict[Kernel, set[str]]) -> Kernel | None:
        """The kernel that reduces one row and leaves nothing but the vector of `product`, or None."""
        vector = product.head.operands["a"].buffer
        source = next((k for k in self.kernels if k.head is None and vector in k.writes()), None)
        if source is None or source.rows != 1 or vector in lasting:
            return None
        if any(placed.node.mutates or placed.node.mode != "store" for placed in source.nodes):
            return None
        others = [kernel for kernel in self.kernels if kernel is not source]
        for name in source.writes():
            readers = [kernel for kernel in others if name in reads[kernel]]
            if name in lasting or readers != ([product] if name == vector else []):
                return None
        return source

    def _row_fits(self, source: Kernel, product: Kernel, device: str) -> bool:
        head = product.head
        vector, rows, depth = head.operands["a"], head.sizes[0], head.parameters["depth"]
        whole = self.buffers[vector.buffer]
        if rows != 1 or vector.offset != 0 or vector.stride[1] != 1 or not ir.same(ir.product(whole.shape), depth):
            return False
        if not ir.same(ir.product(source.reduction_sizes), depth) or weight_layout(head) != "words":
            return False
        written = next(placed for placed in source.nodes if placed.node.buffer == vector.buffer)
        columns = sympy.Add(*(node.sizes[1] for node in product.members() if is_product(node)))
        return (
            written.level == "full"
            and not written.node.reduction
            and not any(is_product(n) and n.operands["b"].buffer == vector.buffer for n in product.members())
            and not self._memory(source.reads()) & self._memory(product.writes())
            and len(source.reads() | product.reads() | product.writes()) <= MAX_BUFFERS
            and policy.absorbs_row(columns, depth, whole.dtype.itemsize, device)
        )

    def _memory(self, names: Iterable[str]) -> set[str]:
        return {memory_of(self.buffers, name) for name in names}

    def _absorb(self, source: Kernel, product: Kernel) -> None:
        mine, other = 1 << product.position, 1 << source.position
        waiting = [kernel for kernel in self.kernels if kernel.ancestors & other and kernel is not product]
        if any(product.ancestors & (1 << kernel.position) for kernel in waiting):
            return  # it must run between them
        product.prologue = source
        product.ancestors = (product.ancestors | source.ancestors) & ~other
        self.kernels.remove(source)
        for kernel in waiting:
            kernel.ancestors = (kernel.ancestors | mine | product.ancestors) & ~other
