"""Tensor IR -> kernels: drops dead nodes, orders by data hazards, and fuses nodes that share an iteration space.

A fused kernel iterates over rows `x` (sizes of the kept dimensions) and, when it reduces, over `r` in each row. A
pointwise node of a reduction kernel is *row-level* (one value a row) or *full-level* (one value an (x, r)). Values flow
between the nodes of a kernel in registers only where the reader wants the very element that the same thread computed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch

from metal_inductor import ir, policy
from metal_inductor.extern import op_name
from metal_inductor.fused_kernel import (
    Declined,
    Kernel,
    Placed,
    Refusal,
    Space,
    memories,
    memory_of,
    too_many_buffers,
)
from metal_inductor.indexing import simplify
from metal_inductor.ir import Buffer, ComputeNode, ExternNode, Node, TemplateNode
from metal_inductor.iteration_space import fits
from metal_inductor.schedule_products import ProductFusion, is_product

# Templates whose output the following pointwise nodes may transform in registers.
EPILOGUE_TEMPLATES = frozenset({"linear", "attention_decode", "attention_tiled"})


@dataclass
class Schedule:
    """`kernels` in an order that respects every hazard; `declined` says why neighbours were not fused."""

    kernels: list[Kernel]
    declined: list[Declined]


def schedule(
    nodes: Sequence[Node], buffers: dict[str, Buffer], outputs: Iterable[str], fusion: bool = True, device: str = "cpu"
) -> Schedule:
    """Live nodes as fused kernels. `outputs` are the buffers that the caller gets; `device` is policy's."""
    live = drop_dead(nodes, buffers, outputs)
    scheduler = Scheduler(buffers, fusion)
    for node in live:
        scheduler.place(node)
    if fusion:
        scheduler.products.join()
        scheduler.products.absorb_rows(outputs, device)
    return Schedule(scheduler.ordered(), scheduler.declined)


def drop_dead(nodes: Sequence[Node], buffers: dict[str, Buffer], outputs: Iterable[str]) -> list[Node]:
    """Nodes whose results are needed by an output or change memory that the caller owns."""
    needed = {memory_of(buffers, name) for name in outputs}
    live: list[Node] = []
    for node in reversed(nodes):
        written = {memory_of(buffers, name) for name in node.writes()}
        owned = any(buffers[name].kind in ("input", "constant") for name in written)
        if owned or written & needed or _has_effect(node):
            live.append(node)
            needed |= {memory_of(buffers, name) for name in node.reads()}
    return live[::-1]


def _has_effect(node: Node) -> bool:
    """ATen calls that must run even if nobody reads their results: random generators, asserts, size bindings."""
    if not isinstance(node, ExternNode):
        return False
    tags = getattr(node.target, "tags", ())
    seeded = any(str(tag).endswith("nondeterministic_seeded") for tag in tags)
    higher_order = isinstance(node.target, torch._ops.HigherOrderOperator)
    return (
        seeded or higher_order or bool(node.mutated) or not node.outputs or all(name is None for name in node.outputs)
    )


class Scheduler:
    """Places nodes one by one, in program order, into the kernels made so far."""

    def __init__(self, buffers: dict[str, Buffer], fusion: bool) -> None:
        self.buffers = buffers
        self.fusion = fusion
        self.kernels: list[Kernel] = []
        self.declined: list[Declined] = []
        self.products = ProductFusion(self.kernels, buffers, self.declined)
        self.writer: dict[str, Kernel] = {}
        self.readers: dict[str, list[Kernel]] = {}
        self.last_effect: Kernel | None = None

    def place(self, node: Node) -> None:
        dependencies = self._dependencies(node)
        home = None
        if self.fusion and isinstance(node, ComputeNode):
            home = self._find_home(node, dependencies)
        elif self.fusion and is_product(node):
            home = self.products.find_twin(node, dependencies)
        if home is None:
            home = self._open(node)
        self._link(home, dependencies)
        if _has_effect(node):
            self.last_effect = home
        for name in node.reads():
            readers = self.readers.setdefault(memory_of(self.buffers, name), [])
            if home not in readers:
                readers.append(home)
        for name in node.writes():
            memory = memory_of(self.buffers, name)
            self.writer[memory] = home
            self.readers[memory] = []

    def _dependencies(self, node: Node) -> list[Kernel]:
        found: list[Kernel] = []
        for name in node.reads() | node.writes():
            writer = self.writer.get(memory_of(self.buffers, name))
            if writer is not None:
                found.append(writer)
        for name in node.writes():
            found += self.readers.get(memory_of(self.buffers, name), [])
        if _has_effect(node) and self.last_effect is not None:
            found.append(self.last_effect)  # random numbers are drawn in eager's order
        return list(dict.fromkeys(found))

    def _open(self, node: Node) -> Kernel:
        kernel = Kernel(position=len(self.kernels))
        if isinstance(node, ComputeNode):
            kernel.row_sizes, kernel.reduction_sizes = node.sizes, node.reduction_sizes
            kernel.nodes.append(Placed(node, {}, "full" if node.reduction else "row"))
        else:
            kernel.head = node
            if isinstance(node, TemplateNode):
                kernel.row_sizes = node.sizes
        self.kernels.append(kernel)
        return kernel

    def _link(self, kernel: Kernel, dependencies: Iterable[Kernel]) -> None:
        before = kernel.ancestors
        for other in dependencies:
            if other is not kernel:
                kernel.ancestors |= other.ancestors | (1 << other.position)
        if kernel.ancestors != before:
            bit = 1 << kernel.position
            for later in self.kernels:
                if later.ancestors & bit:
                    later.ancestors |= kernel.ancestors

    # ------------------------------------------------------------------ fusion

    def _find_home(self, node: ComputeNode, dependencies: list[Kernel]) -> Kernel | None:
        recent = self.kernels[-policy.FUSION_WINDOW :]
        producers = sorted(dependencies, key=lambda kernel: -kernel.position)
        others = [kernel for kernel in reversed(recent) if kernel not in dependencies and kernel.head is None]
        siblings = [kernel for kernel in others if _alike(node, kernel) or node.reads() & kernel.reads()]
        for candidate in producers + siblings:
            refusal = self._why_not(node, candidate, dependencies)
            if refusal is None:
                return candidate
            if candidate in producers or node.reads() & candidate.reads():
                self.declined.append(Declined(candidate.last.name, node.name, refusal))
        return None

    def _why_not(self, node: ComputeNode, kernel: Kernel, dependencies: list[Kernel]) -> Refusal | None:
        """Fuses `node` into `kernel` and returns None, or returns the rule that declined."""
        refusal = self._cannot_host(node, kernel, dependencies) or too_many_buffers(kernel, node)
        if refusal is not None:
            return refusal
        must_share = kernel not in dependencies and not _alike(node, kernel)
        for placed, row_sizes, reduction_sizes, remapped in fits(node, kernel):
            found = self._hazard(placed, kernel, remapped, row_sizes, reduction_sizes)
            if found is None and must_share:
                shape = Kernel(row_sizes=row_sizes, reduction_sizes=reduction_sizes)
                found = self._reads_apart(placed, remapped, shape)
            if found is None:
                kernel.row_sizes, kernel.reduction_sizes = row_sizes, reduction_sizes
                kernel.nodes = [*remapped, placed]
                return None
            refusal = refusal or found
        return refusal or Refusal("shapes", "{} does not fit {}", (_space(node), _space(kernel)))

    def _reads_apart(self, placed: Placed, members: list[Placed], shape: Kernel) -> Refusal | None:
        """None where `placed` reads an element that the same thread reads for `members` anyway, of a buffer as large as
        the iteration space."""
        whole = shape.rows * ir.product(shape.reduction_sizes)
        seen = {place for member in members for place in _places_read(member, shape)}
        for buffer, index in _places_read(placed, shape):
            if (buffer, index) in seen and ir.same(ir.product(self.buffers[buffer].shape), whole):
                return None
        return Refusal("nothing shared", "it reads no element that the kernel's threads read anyway")

    def _cannot_host(self, node: ComputeNode, kernel: Kernel, dependencies: list[Kernel]) -> Refusal | None:
        """Why `kernel` takes no `node`, whatever its shape."""
        if isinstance(kernel.head, ExternNode):
            return Refusal("ATen call", "{} is an ATen call: {}", (op_name(kernel.head.target), kernel.head.reason))
        bit = 1 << kernel.position
        between = next((other for other in dependencies if other is not kernel and other.ancestors & bit), None)
        if between is not None:
            return Refusal("order", "{}, which the second needs, runs between them", (between.last.name,))
        if not isinstance(kernel.head, TemplateNode):
            return None
        template = kernel.head.template
        if template not in EPILOGUE_TEMPLATES:
            return Refusal("epilogue", "the {} kernel takes no epilogue", (template,))
        if node.reduction:
            text = "the {} kernel's epilogue is pointwise: it takes no {}"
            return Refusal("epilogue", text, (template, node.reduction))
        if kernel not in dependencies:
            return Refusal("epilogue", "the {} kernel takes only what follows from its result", (template,))
        return None

    def _hazard(
        self, placed: Placed, kernel: Kernel, members: list[Placed], row_sizes: tuple, reduction_sizes: tuple
    ) -> Refusal | None:
        """Why the threads that compute `members` cannot compute `placed` as well."""
        node = placed.node
        shape = Kernel(row_sizes=row_sizes, reduction_sizes=reduction_sizes)
        if memories(self.buffers, node.writes()) & memories(self.buffers, kernel.reads() | kernel.writes()):
            return Refusal("overwrites", "it overwrites {}, which the kernel reads or writes", (node.buffer,))
        heads = {head.buffer for head in kernel.heads() if isinstance(head, TemplateNode)}
        for name in node.reads() & kernel.writes():
            if name in heads:
                written = self.buffers[name].index(ir.index_symbols(len(kernel.row_sizes)))
                refusal = _other_element(placed, name, written, {}, "row", shape)
            else:
                producer = next(p for p in members if p.node.buffer == name)
                if producer.node.mutates:
                    return Refusal("in place", "the kernel updates {} in place: others of its threads may lag", (name,))
                level = "row" if producer.node.reduction else producer.level
                refusal = _other_element(placed, name, producer.node.index, producer.mapping, level, shape)
            if refusal is not None:
                return refusal
        return None

    # ------------------------------------------------------------------ order

    def ordered(self) -> list[Kernel]:
        """Kernels in a topological order that stays close to program order."""
        done = 0
        result: list[Kernel] = []
        waiting = list(self.kernels)
        while waiting:
            rest: list[Kernel] = []
            for kernel in waiting:
                if kernel.ancestors & ~done == 0:
                    done |= 1 << kernel.position
                    result.append(kernel)
                else:
                    rest.append(kernel)
            if len(rest) == len(waiting):
                raise AssertionError("fusion made a cycle")
            waiting = rest
        return result


def _alike(node: ComputeNode, kernel: Kernel) -> bool:
    """Whether both reduce or neither does: then neighbours share a dispatch without a common value."""
    return bool(node.reduction) == bool(kernel.reduction_sizes)


def _space(where: ComputeNode | Kernel) -> Space:
    return Space(where.sizes if isinstance(where, ComputeNode) else where.row_sizes, where.reduction_sizes)


def _canonical(index: Any, mapping: dict, kernel: Kernel) -> sympy.Expr:
    """An index of a node, in the index symbols of `kernel` and in a form that is equal for equal indices."""
    ranges = kernel.ranges()
    units = {symbol: sympy.Integer(0) for symbol, size in ranges.items() if size == 1}
    return sympy.expand(simplify(sympy.sympify(index).xreplace(mapping).xreplace(units), ranges))


def _places_read(placed: Placed, kernel: Kernel) -> set[tuple[str, sympy.Expr]]:
    """The buffers that `placed` reads, each with an index in the symbols of `kernel`; without data-dependent ones."""
    loads = [load for root in placed.node.roots() for load in ir.loads(root) if not load.indirect]
    return {(load.buffer, _canonical(load.index, placed.mapping, kernel)) for load in loads}


def _other_element(
    placed: Placed, name: str, written: Any, mapping: dict, level: str, kernel: Kernel
) -> Refusal | None:
    """None where every load of buffer `name` in `placed` is of the element that the same thread has produced at index
    `written`; else which is not."""
    if level == "full" and placed.level == "row" and kernel.reduction_sizes:
        return Refusal("elements", "one value a row cannot read all of the row's values of {}", (name,))
    expected = _canonical(written, mapping, kernel)
    for root in placed.node.roots():
        for load in ir.loads(root):
            if load.buffer != name:
                continue
            if load.indirect:
                return Refusal("data-dependent index", "it reads {} at places that depend on data", (name,))
            index = _canonical(load.index, placed.mapping, kernel)
            if index != expected:
                where = (name, index, name, expected)
                return Refusal("elements", "it reads {}[{}] where the thread computes {}[{}]", where)
    return None
