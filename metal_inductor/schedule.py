"""Tensor IR -> kernels: drops dead nodes, orders by data hazards, and fuses nodes that share an iteration space.

A fused kernel iterates over rows `x` (sizes of the kept dimensions) and, when it reduces, over `r` in each row. A
pointwise node of a reduction kernel is *row-level* (one value a row) or *full-level* (one value an (x, r)). Values flow
between the nodes of a kernel in registers only where the reader wants the very element that the same thread computed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import sympy
import torch
from torch.utils._sympy.functions import FloorDiv, ModularIndexing

from metal_inductor import ir, policy
from metal_inductor.indexing import reshape_map, simplify
from metal_inductor.ir import Buffer, ComputeNode, ExternNode, Node, TemplateNode

# Metal binds at most 31 buffers; sizes and the error word take two.
MAX_BUFFERS = 28
# Templates whose output the following pointwise nodes may transform in registers.
EPILOGUE_TEMPLATES = frozenset({"linear", "attention_decode"})


@dataclass(eq=False)
class Placed:
    """A compute node inside a kernel: its index symbols in terms of the kernel's, and its level ("row" or "full")."""

    node: ComputeNode
    mapping: dict[sympy.Symbol, Any]
    level: str


@dataclass(eq=False)
class Kernel:
    """Nodes that run as one dispatch (`nodes`), or one template or ATen call (`head`) with its epilogue in `nodes`.

    Products of one vector share a dispatch: `twins` have the head's shape and are computed by the same threads, so that
    an epilogue may use them together; `parts` are kernels whose threads lie side by side in one grid. Every threadgroup
    of a product computes its vector by `prologue`, a kernel of one row.
    """

    head: Node | None = None
    twins: list[TemplateNode] = field(default_factory=list)
    parts: list[Kernel] = field(default_factory=list)
    prologue: Kernel | None = None
    nodes: list[Placed] = field(default_factory=list)
    row_sizes: tuple[Any, ...] = ()
    reduction_sizes: tuple[Any, ...] = ()
    position: int = 0
    ancestors: int = 0  # bit set of kernel positions

    def members(self) -> list[Node]:
        first = self.prologue.members() if self.prologue else []
        if self.parts:
            return first + [node for part in self.parts for node in part.members()]
        return [*first, *self.heads(), *(placed.node for placed in self.nodes)]

    def heads(self) -> list[Node]:
        return [*([self.head] if self.head is not None else []), *self.twins]

    def reads(self) -> set[str]:
        return set().union(*(node.reads() for node in self.members()))

    def writes(self) -> set[str]:
        return set().union(*(node.writes() for node in self.members()))

    @property
    def rows(self) -> sympy.Expr:
        return ir.product(self.row_sizes)

    @property
    def is_extern(self) -> bool:
        return isinstance(self.head, ExternNode)

    def ranges(self) -> dict[sympy.Symbol, Any]:
        table = dict(zip(ir.index_symbols(len(self.row_sizes)), self.row_sizes))
        table.update({ir.reduction_symbol(k): size for k, size in enumerate(self.reduction_sizes)})
        return table


@dataclass
class Schedule:
    """`kernels` in an order that respects every hazard; `declined` says why neighbours were not fused."""

    kernels: list[Kernel]
    declined: list[tuple[str, str, str]]


def schedule(
    nodes: Sequence[Node], buffers: dict[str, Buffer], outputs: Iterable[str], fusion: bool = True, device: str = "cpu"
) -> Schedule:
    """Live nodes as fused kernels. `outputs` are the buffers that the caller gets; `device` is policy's."""
    live = drop_dead(nodes, buffers, outputs)
    scheduler = Scheduler(buffers, fusion)
    for node in live:
        scheduler.place(node)
    if fusion:
        scheduler.join_products()
        scheduler.absorb_rows(outputs, device)
    return Schedule(scheduler.ordered(), scheduler.declined)


def memory_of(buffers: dict[str, Buffer], name: str) -> str:
    """The buffer that owns the memory of `name`."""
    while buffers[name].alias_of is not None:
        name = buffers[name].alias_of  # type: ignore[assignment]
    return name


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
        self.declined: list[tuple[str, str, str]] = []
        self.writer: dict[str, Kernel] = {}
        self.readers: dict[str, list[Kernel]] = {}
        self.last_effect: Kernel | None = None

    def place(self, node: Node) -> None:
        dependencies = self._dependencies(node)
        home = None
        if self.fusion and isinstance(node, ComputeNode):
            home = self._find_home(node, dependencies)
        elif self.fusion and is_product(node):
            home = self._find_twin(node, dependencies)
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
        producers = [kernel for kernel in dependencies if not kernel.is_extern]
        producers.sort(key=lambda kernel: -kernel.position)
        siblings = [k for k in reversed(recent) if k not in dependencies and k.head is None and _alike(node, k)]
        for candidate in producers + siblings:
            reason = self._why_not(node, candidate, dependencies)
            if reason is None:
                return candidate
            if candidate in producers:
                self.declined.append((candidate.members()[-1].name, node.name, reason))
        return None

    def _why_not(self, node: ComputeNode, kernel: Kernel, dependencies: list[Kernel]) -> str | None:
        """Fuses `node` into `kernel` and returns None, or returns the rule that declined."""
        bit = 1 << kernel.position
        if any(other is not kernel and other.ancestors & bit for other in dependencies):
            return "another kernel must run between them"
        if isinstance(kernel.head, TemplateNode):
            if kernel not in dependencies or kernel.head.template not in EPILOGUE_TEMPLATES or node.reduction:
                return "a template takes only its own pointwise epilogue"
        if len(kernel.reads() | kernel.writes() | node.reads() | node.writes()) > MAX_BUFFERS:
            return f"more than {MAX_BUFFERS} buffers"
        fit = fit_iteration_space(node, kernel)
        if fit is None:
            return "different iteration spaces"
        placed, row_sizes, reduction_sizes, remapped = fit
        reason = self._hazard(placed, kernel, remapped, row_sizes, reduction_sizes)
        if reason is None:
            kernel.row_sizes, kernel.reduction_sizes = row_sizes, reduction_sizes
            kernel.nodes = [*remapped, placed]
        return reason

    def _hazard(
        self, placed: Placed, kernel: Kernel, members: list[Placed], row_sizes: tuple, reduction_sizes: tuple
    ) -> str | None:
        node = placed.node
        ranges = Kernel(row_sizes=row_sizes, reduction_sizes=reduction_sizes).ranges()
        shared = node.reads() & kernel.writes()
        if {memory_of(self.buffers, n) for n in node.writes()} & {
            memory_of(self.buffers, n) for n in kernel.reads() | kernel.writes()
        }:
            return "it overwrites what the kernel reads or writes"
        for name in shared:
            if isinstance(kernel.head, TemplateNode) and name in {head.buffer for head in kernel.heads()}:
                written = self.buffers[name].index(ir.index_symbols(len(kernel.row_sizes)))
                if not self._same_element(placed, name, written, {}, "row", ranges, reduction_sizes):
                    return "it reads other elements than the thread computes"
                continue
            producer = next(p for p in members if p.node.buffer == name)
            if producer.node.mutates:
                return "the kernel writes in place what it reads"
            level = "row" if producer.node.reduction else producer.level
            if not self._same_element(
                placed, name, producer.node.index, producer.mapping, level, ranges, reduction_sizes
            ):
                return "it reads other elements than the thread computes"
        return None

    def _same_element(
        self, placed: Placed, name: str, written: Any, mapping: dict, level: str, ranges: dict, reduction_sizes: tuple
    ) -> bool:
        """Whether every load of buffer `name` in `placed` is of the element that the same thread has produced."""
        if level == "full" and placed.level == "row" and reduction_sizes:
            return False
        units = {symbol: sympy.Integer(0) for symbol, size in ranges.items() if size == 1}

        def canonical(index: Any, table: dict) -> sympy.Expr:
            return sympy.expand(simplify(sympy.sympify(index).xreplace(table).xreplace(units), ranges))

        expected = canonical(written, mapping)
        for root in placed.node.roots():
            for load in ir.loads(root):
                if load.buffer != name:
                    continue
                if load.indirect or canonical(load.index, placed.mapping) != expected:
                    return False
        return True

    # ------------------------------------------------------------------ products of one vector

    def _find_twin(self, node: TemplateNode, dependencies: list[Kernel]) -> Kernel | None:
        """A product of the same vector and shape, to whose threads `node` is added."""
        for kernel in reversed(self.kernels[-policy.FUSION_WINDOW :]):
            if not is_product(kernel.head) or _vector(kernel.head) != _vector(node) or kernel.head.sizes != node.sizes:
                continue
            bit = 1 << kernel.position
            if kernel in dependencies or any(other.ancestors & bit for other in dependencies):
                continue
            fits = len(kernel.reads() | kernel.writes() | node.reads() | node.writes()) <= MAX_BUFFERS
            if fits and policy.shares_threads(int(node.sizes[0]), len(kernel.heads()) + 1):
                kernel.twins.append(node)
                return kernel
        return None

    def join_products(self) -> None:
        """Products of one vector that do not wait for each other become parts of one dispatch."""
        first: dict[Any, list[Kernel]] = {}
        for kernel in [kernel for kernel in self.kernels if is_product(kernel.head)]:
            hosts = first.setdefault(_vector(kernel.head), [])
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


def is_product(node: Node | None) -> bool:
    """Whether `node` is a product of few rows."""
    return isinstance(node, TemplateNode) and node.template == "linear"


def _vector(node: TemplateNode) -> tuple:
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


def _alike(node: ComputeNode, kernel: Kernel) -> bool:
    """Neighbours without a common value share a dispatch only if both reduce or neither does."""
    return bool(node.reduction) == bool(kernel.reduction_sizes)


Fit = tuple[Placed, tuple, tuple, list[Placed]]


def fit_iteration_space(node: ComputeNode, kernel: Kernel) -> Fit | None:
    """How `node` runs inside `kernel`: its placement, the kernel's new sizes and its remapped members."""
    rows, reduced = node.numel, node.reduction_numel if node.reduction else None
    if kernel.reduction_sizes:
        kernel_rows, kernel_reduced = kernel.rows, ir.product(kernel.reduction_sizes)
        if node.reduction:
            if not (ir.same(rows, kernel_rows) and ir.same(reduced, kernel_reduced)):
                return None
            return _fit_both(node, kernel)
        if ir.same(rows, kernel_rows):
            return _fit_rows(node, kernel, "row")
        if ir.same(rows, kernel_rows * kernel_reduced):
            return _fit_full(node, kernel)
        return None
    if not node.reduction:
        return _fit_rows(node, kernel, "row") if ir.same(rows, kernel.rows) else None
    if isinstance(kernel.head, TemplateNode):
        return None
    if ir.same(rows * reduced, kernel.rows):
        return _fit_prologue(node, kernel)
    return _open_reduction(node, kernel) if ir.same(rows, kernel.rows) else None


def has_division(mapping: dict[sympy.Symbol, Any]) -> bool:
    return any(sympy.sympify(value).has(FloorDiv, ModularIndexing) for value in mapping.values())


def dimension_map(source: tuple, target: tuple) -> dict[sympy.Symbol, Any]:
    """The index symbols of an iteration space `source` in terms of those of `target`."""
    if source == target:
        return {}
    return dict(zip(ir.index_symbols(len(source)), reshape_map(source, target)))


def _remap(members: list[Placed], mapping: dict, ranges: dict) -> list[Placed]:
    """`members` after the kernel's own symbols were replaced through `mapping`."""
    if not mapping:
        return list(members)
    result = []
    for placed in members:
        inner = placed.mapping or {symbol: symbol for symbol in mapping}
        moved = {s: simplify(sympy.sympify(e).xreplace(mapping), ranges) for s, e in inner.items()}
        result.append(Placed(placed.node, moved, placed.level))
    return result


def _fit_rows(node: ComputeNode, kernel: Kernel, level: str) -> Fit:
    """Same rows: keep the kernel's dimensions, unless the node's are a refinement that needs no division."""
    mapping = dimension_map(node.sizes, kernel.row_sizes)
    if has_division(mapping) and kernel.head is None and not kernel.reduction_sizes:
        inverse = dimension_map(kernel.row_sizes, node.sizes)
        if not has_division(inverse):
            ranges = dict(zip(ir.index_symbols(len(node.sizes)), node.sizes))
            return Placed(node, {}, level), node.sizes, (), _remap(kernel.nodes, inverse, ranges)
    return Placed(node, mapping, level), kernel.row_sizes, kernel.reduction_sizes, list(kernel.nodes)


def _fit_both(node: ComputeNode, kernel: Kernel) -> Fit:
    mapping = dimension_map(node.sizes, kernel.row_sizes)
    mapping = {**mapping, **reduction_map(node.reduction_sizes, kernel.reduction_sizes)}
    return Placed(node, mapping, "full"), kernel.row_sizes, kernel.reduction_sizes, list(kernel.nodes)


def reduction_map(source: tuple, target: tuple) -> dict[sympy.Symbol, Any]:
    if source == target:
        return {}
    to_reduction = {ir.index_symbol(k): ir.reduction_symbol(k) for k in range(len(target))}
    indices = reshape_map(source, target)
    return {ir.reduction_symbol(k): sympy.sympify(e).xreplace(to_reduction) for k, e in enumerate(indices)}


def _full_mapping(sizes: tuple, row_sizes: tuple, reduction_sizes: tuple) -> dict[sympy.Symbol, Any]:
    """Index symbols of a pointwise space `sizes` in terms of rows and reduction, row-major: flat = row * R + r."""
    n = len(row_sizes)
    combined = tuple(row_sizes) + tuple(reduction_sizes)
    to_kernel = {ir.index_symbol(n + k): ir.reduction_symbol(k) for k in range(len(reduction_sizes))}
    indices = ir.index_symbols(len(sizes)) if sizes == combined else reshape_map(sizes, combined)
    return {ir.index_symbol(k): sympy.sympify(e).xreplace(to_kernel) for k, e in enumerate(indices)}


def _fit_full(node: ComputeNode, kernel: Kernel) -> Fit:
    mapping = _full_mapping(node.sizes, kernel.row_sizes, kernel.reduction_sizes)
    return Placed(node, mapping, "full"), kernel.row_sizes, kernel.reduction_sizes, list(kernel.nodes)


def _fit_prologue(node: ComputeNode, kernel: Kernel) -> Fit:
    """A pointwise kernel whose every element is one (row, r) of the reduction `node`."""
    mapping = _full_mapping(kernel.row_sizes, node.sizes, node.reduction_sizes)
    shape = Kernel(row_sizes=node.sizes, reduction_sizes=node.reduction_sizes)
    members = [Placed(p.node, p.mapping, "full") for p in _remap(kernel.nodes, mapping, shape.ranges())]
    return Placed(node, {}, "full"), node.sizes, node.reduction_sizes, members


def _open_reduction(node: ComputeNode, kernel: Kernel) -> Fit:
    """A pointwise kernel with one value a row of the reduction `node`: its values stay row-level."""
    ranges = Kernel(row_sizes=node.sizes, reduction_sizes=node.reduction_sizes).ranges()
    members = _remap(kernel.nodes, dimension_map(kernel.row_sizes, node.sizes), ranges)
    return Placed(node, {}, "full"), node.sizes, node.reduction_sizes, members
