"""Few-row products that read one vector: which share threads, which share a dispatch, and which compute the vector.

Runs in three steps: `find_twin` while nodes are placed, then `join` and `absorb_rows` over the finished kernels.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import sympy

from metal_inductor import ir, policy
from metal_inductor.fused_kernel import Declined, Kernel, Refusal, memories, memory_of, too_many_buffers
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

    def __init__(self, kernels: list[Kernel], buffers: dict[str, Buffer], declined: list[Declined]) -> None:
        self.kernels = kernels
        self.buffers = buffers
        self.declined = declined

    def _decline(self, first: Kernel, second: Node, refusal: Refusal) -> None:
        self.declined.append(Declined(first.last.name, second.name, refusal))

    # ------------------------------------------------------------------ products of one vector

    def find_twin(self, node: TemplateNode, dependencies: list[Kernel]) -> Kernel | None:
        """A product of the same vector and shape, to whose threads `node` is added."""
        wanted = vector_key(node), node.sizes
        for kernel in reversed(self.kernels[-policy.FUSION_WINDOW :]):
            if not is_product(kernel.head) or (vector_key(kernel.head), kernel.head.sizes) != wanted:
                continue
            refusal = self._why_not_twin(kernel, node, dependencies)
            if refusal is None:
                kernel.twins.append(node)
                return kernel
            self._decline(kernel, node, refusal)
        return None

    def _why_not_twin(self, kernel: Kernel, node: TemplateNode, dependencies: list[Kernel]) -> Refusal | None:
        bit = 1 << kernel.position
        if kernel in dependencies or any(other.ancestors & bit for other in dependencies):
            return Refusal("order", "one product waits for the other")
        rows, products = int(node.sizes[0]), len(kernel.heads()) + 1
        if not policy.shares_threads(rows, products):
            most = policy.MAX_SHARED_ACCUMULATORS
            return Refusal("accumulators", "a thread would sum {} values, of at most {}", (rows * products, most))
        return too_many_buffers(kernel, node)

    def join(self) -> None:
        """Products of one vector that do not wait for each other become parts of one dispatch."""
        hosts: dict[str, list[Kernel]] = {}
        for kernel in [kernel for kernel in self.kernels if is_product(kernel.head)]:
            candidates = hosts.setdefault(kernel.head.operands["a"].buffer, [])
            refusals = []
            for host in candidates:
                refusal = _why_not_join(host, kernel)
                if refusal is None:
                    self._join(host, kernel)
                    break
                refusals.append((host, refusal))
            else:
                for host, refusal in refusals:
                    self._decline(host, kernel.head, refusal)
                candidates.append(kernel)

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
            vector = product.head.operands["a"].buffer
            source = next((k for k in self.kernels if k.head is None and vector in k.writes()), None)
            if source is None:
                continue
            refusal = self._why_not_before(source, product, lasting, reads) or self._why_not_absorb(
                source, product, device
            )
            refusal = refusal or self._absorb(source, product)
            if refusal is None:
                reads[product] = product.reads()
            else:
                self._decline(source, product.head, refusal)

    def _why_not_before(
        self, source: Kernel, product: Kernel, lasting: set[str], reads: dict[Kernel, set[str]]
    ) -> Refusal | None:
        """None where `source` reduces one row and leaves nothing but the vector of `product`."""
        vector = product.head.operands["a"].buffer
        if not source.reduction_sizes:
            return Refusal("prologue", "a product computes only a vector that is the norm of a row")
        if source.rows != 1:
            return Refusal("prologue", "a product computes the norm of one row, not of {}", (source.rows,))
        if any(placed.node.mutates or placed.node.mode != "store" for placed in source.nodes):
            return Refusal("prologue", "it updates memory, which only one threadgroup may do")
        others = [kernel for kernel in self.kernels if kernel is not source and kernel is not product]
        for name in source.writes():
            reader = next((kernel for kernel in others if name in reads[kernel]), None)
            if name in lasting:
                return Refusal("prologue", "the caller wants {} in memory", (name,))
            if reader is not None:
                return Refusal("prologue", "{} reads {} as well", (reader.last.name, name))
            if name != vector and name in reads[product]:
                return Refusal("prologue", "the product reads {} beside its vector", (name,))
        return None

    def _why_not_absorb(self, source: Kernel, product: Kernel, device: str) -> Refusal | None:
        """None where each threadgroup of `product` can compute its vector by `source`, and policy wants it."""
        head = product.head
        vector, rows, depth = head.operands["a"], head.sizes[0], head.parameters["depth"]
        whole = self.buffers[vector.buffer]
        if rows != 1:
            return Refusal("prologue", "the product has {} rows: only one is computed in every threadgroup", (rows,))
        if vector.offset != 0 or vector.stride[1] != 1 or not ir.same(ir.product(whole.shape), depth):
            return Refusal("prologue", "the vector is a part of {} or lies apart in memory", (vector.buffer,))
        reduced = ir.product(source.reduction_sizes)
        if not ir.same(reduced, depth):
            return Refusal("prologue", "the row has {} elements, the vector {}", (reduced, depth))
        if weight_layout(head) != "words":
            text = "the weight's columns are not contiguous words of 16 bytes (layout: {})"
            return Refusal("prologue", text, (weight_layout(head),))
        written = next(placed for placed in source.nodes if placed.node.buffer == vector.buffer)
        if written.level != "full" or written.node.reduction:
            return Refusal("prologue", "{} is one value a row", (vector.buffer,))
        if any(is_product(n) and n.operands["b"].buffer == vector.buffer for n in product.members()):
            return Refusal("prologue", "{} is a weight as well", (vector.buffer,))
        if memories(self.buffers, source.reads()) & memories(self.buffers, product.writes()):
            return Refusal("overwrites", "the product overwrites what its vector is computed from")
        columns = sympy.Add(*(node.sizes[1] for node in product.members() if is_product(node)))
        reason = policy.why_not_absorb_row(columns, depth, whole.dtype.itemsize, device)
        return too_many_buffers(source, product) or (Refusal("policy", reason) if reason else None)

    def _absorb(self, source: Kernel, product: Kernel) -> Refusal | None:
        """Makes `source` the prologue of `product` and returns None, unless a kernel must run between them."""
        mine, other = 1 << product.position, 1 << source.position
        waiting = [kernel for kernel in self.kernels if kernel.ancestors & other and kernel is not product]
        between = next((kernel for kernel in waiting if product.ancestors & (1 << kernel.position)), None)
        if between is not None:
            return Refusal("order", "{}, which the product needs, runs between them", (between.last.name,))
        product.prologue = source
        product.ancestors = (product.ancestors | source.ancestors) & ~other
        self.kernels.remove(source)
        for kernel in waiting:
            kernel.ancestors = (kernel.ancestors | mine | product.ancestors) & ~other
        return None


def _why_not_join(host: Kernel, kernel: Kernel) -> Refusal | None:
    """Why two products that read one buffer as their vector do not lie side by side in one grid."""
    mine, other = host.head, kernel.head
    if (mine.operands["a"], mine.sizes[0]) != (other.operands["a"], other.sizes[0]):
        return Refusal("products", "they read different rows of {}", (mine.operands["a"].buffer,))
    layouts = weight_layout(mine), weight_layout(other)
    if layouts[0] != layouts[1]:
        return Refusal("products", "their weights are laid out differently: {} and {}", layouts)
    if vector_key(mine) != vector_key(other):
        depths = mine.parameters["depth"], other.parameters["depth"]
        return Refusal("products", "they sum over different depths: {} and {}", depths)
    if host.ancestors & (1 << kernel.position) or kernel.ancestors & (1 << host.position):
        return Refusal("order", "one product waits for the other")
    return too_many_buffers(host, kernel)
