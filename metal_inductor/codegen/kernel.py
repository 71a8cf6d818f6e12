"""A scheduled kernel as Metal text and launch geometry."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jinja2
import sympy

from metal_inductor import ir, policy
from metal_inductor.codegen import ops
from metal_inductor.codegen.emitter import Emitter, Signature, to_storage
from metal_inductor.fused_kernel import Kernel, Placed
from metal_inductor.indexing import simplify
from metal_inductor.ir import Buffer, ComputeNode

MAX_INT = 2**31 - 1


@dataclass
class KernelSource:
    """One dispatch: Metal text, buffers in binding order (then the sizes array and the error word where used), and the
    grid in threads with its threadgroup, as expressions of the graph's sizes."""

    name: str
    text: str
    kind: str
    buffers: tuple[str, ...]
    written: tuple[str, ...]
    sizes: tuple[tuple[str, Any], ...]
    uses_errors: bool
    threads: tuple[Any, Any, Any]
    group_size: tuple[int, int, int]
    helpers: frozenset[str] = frozenset()
    aligned: frozenset[str] = frozenset()  # buffers that are read 16 bytes at a time
    nodes: list[ir.Node] = field(default_factory=list)


@functools.cache
def environment() -> jinja2.Environment:
    """Jinja over `metal_inductor/templates`: strict about undefined names, whitespace kept as written."""
    return jinja2.Environment(
        loader=jinja2.PackageLoader("metal_inductor", "templates"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def render(template: str, **context: Any) -> str:
    return environment().get_template(template).render(**context)


def finish(
    kind: str, body_template: str, signature: Signature, threads: tuple, group_size: tuple, nodes: list, **context: Any
) -> KernelSource:
    """Renders the template, names the kernel after its text, and packs what the launch needs."""
    placeholder = "KERNEL_NAME"
    text = render(
        body_template,
        name=placeholder,
        parameters=signature.parameters(),
        group_size=group_size,
        **context,
    )
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    name = f"{kind}_{digest}"
    return KernelSource(
        name=name,
        text=text.replace(placeholder, name),
        kind=kind,
        buffers=tuple(signature.names),
        written=tuple(b for b in signature.names if b in signature.written),
        sizes=tuple(signature.sizes),
        uses_errors=signature.uses_errors,
        threads=threads,
        group_size=group_size,
        helpers=frozenset(signature.helpers),
        aligned=frozenset(signature.aligned),
        nodes=nodes,
    )


def library(sources: Sequence[KernelSource]) -> str:
    """One Metal text with every distinct kernel of `sources` once, and the functions that they call."""
    distinct = {source.name: source for source in sources}
    helpers = frozenset().union(*(source.helpers for source in distinct.values()))
    words = any(source.aligned for source in distinct.values())
    header = render("header.metal.j2", functions=ops.functions(sorted(helpers)), words=words)
    return header + "\n".join(source.text for source in distinct.values())


# ---------------------------------------------------------------------------------------------- dimensions


def merge_dimensions(
    symbols: Sequence[sympy.Symbol], sizes: Sequence[Any], indices: Sequence[sympy.Expr]
) -> tuple[list[tuple[sympy.Symbol, Any]], dict[sympy.Symbol, Any]]:
    """Fewest loop dimensions for `indices`: drops those of size one and merges neighbours that every index walks as
    one. Returns the remaining (symbol, size) and what each dropped symbol becomes."""
    kept: list[tuple[sympy.Symbol, Any]] = []
    replaced: dict[sympy.Symbol, Any] = {}
    current = list(indices)
    for symbol, size in zip(symbols, sizes):
        if size == 1:
            replaced[symbol] = sympy.Integer(0)
            current = [e.xreplace({symbol: sympy.Integer(0)}) for e in current]
            continue
        if kept and all(_walks_as_one(e, kept[-1][0], symbol, size) for e in current):
            outer, outer_size = kept.pop()
            current = [sympy.expand(e.xreplace({outer: sympy.Integer(0)})) for e in current]
            kept.append((symbol, outer_size * size))
            replaced[outer] = sympy.Integer(0)
            continue
        kept.append((symbol, size))
    return kept, replaced


def _walks_as_one(expr: sympy.Expr, outer: sympy.Symbol, inner: sympy.Symbol, inner_size: Any) -> bool:
    free = expr.free_symbols
    if outer not in free and inner not in free:
        return True
    expanded = sympy.expand(expr)
    outer_step, inner_step = expanded.coeff(outer), expanded.coeff(inner)
    rest = sympy.expand(expanded - outer_step * outer - inner_step * inner)
    steps = outer_step.free_symbols | inner_step.free_symbols | rest.free_symbols
    if outer in steps or inner in steps:
        return False
    return sympy.expand(outer_step - inner_step * inner_size) == 0


def index_expressions(roots: Sequence[ir.Expr]) -> list[sympy.Expr]:
    """Every index expression in `roots`."""
    found: dict[sympy.Expr, None] = {}
    for expr in ir.walk(*roots):
        if isinstance(expr, ir.Load):
            found[expr.index] = None
        elif isinstance(expr, ir.Index):
            found[expr.expr] = None
    return list(found)


def needs_long(sizes: Sequence[Any], buffers: Sequence[Buffer]) -> bool:
    """Whether 32-bit index arithmetic could overflow, or a size is not known before the call."""
    totals = [ir.product(sizes)]
    for buffer in buffers:
        totals.append(sympy.Add(*((s - 1) * abs(t) for s, t in zip(buffer.shape, buffer.stride) if s != 0)) + 1)
    return any(not total.is_Integer or int(total) > MAX_INT for total in totals)


# ---------------------------------------------------------------------------------------------- members


@dataclass
class Member:
    """A compute node with its expressions in the kernel's own index symbols."""

    node: ComputeNode
    level: str
    body: ir.Expr
    index: sympy.Expr
    indirect: tuple
    predicate: ir.Expr | None
    checks: tuple
    kept: bool
    phase: int = 0
    accumulator: str = ""

    def roots(self) -> list[ir.Expr]:
        extra = [value for _, value in self.indirect] + [check[0] for check in self.checks]
        return [self.body, *extra] + ([self.predicate] if self.predicate is not None else [])


def place_member(placed: Placed, ranges: dict, kept: bool) -> Member:
    node = placed.node

    def move(expr: ir.Expr) -> ir.Expr:
        return ir.substitute(expr, placed.mapping, lambda e: simplify(e, ranges))

    indirect = tuple((symbol, move(value)) for symbol, value in node.indirect)
    index = simplify(sympy.sympify(node.index).xreplace(placed.mapping), ranges)
    predicate = None if node.predicate is None else move(node.predicate)
    checks = tuple((move(value), size, message) for value, size, message in node.checks)
    return Member(node, placed.level, move(node.body), index, indirect, predicate, checks, kept)


def transform_members(members: list[Member], replaced: dict[sympy.Symbol, Any], ranges: dict) -> None:
    """Applies a change of index symbols to every member."""

    def move(expr: ir.Expr) -> ir.Expr:
        return ir.substitute(expr, replaced, lambda e: simplify(e, ranges))

    for member in members:
        member.body = move(member.body)
        member.index = simplify(member.index.xreplace(replaced), ranges)
        member.indirect = tuple((symbol, move(value)) for symbol, value in member.indirect)
        member.predicate = None if member.predicate is None else move(member.predicate)
        member.checks = tuple((move(value), size, message) for value, size, message in member.checks)


def store_member(emitter: Emitter, member: Member, guard: str = "") -> None:
    """Computes and writes one member where `guard` holds; scatters check their predicate and indices first.

    Where a predicate does not hold, the value is not computed either: its loads may lie outside their buffers.
    """
    value = emitter.value(member.body) if member.predicate is None else ""
    conditions = [guard] if guard else []
    if member.predicate is not None:
        conditions.append(emitter.value(member.predicate))
    for expr, size, _ in member.checks:
        emitter.signature.uses_errors = True
        conditions.append(f"in_range({emitter.value(expr)}, {emitter.index(sympy.sympify(size))}, errors)")
    if not conditions:
        emitter.store(member.node, member.index, member.indirect, value)
        return
    with emitter.only_where(" && ".join(conditions)):
        emitter.store(member.node, member.index, member.indirect, value or emitter.value(member.body))


# ---------------------------------------------------------------------------------------------- pointwise


class KernelBuilder:
    """Builds the source of one fused kernel. `kept` are the buffers whose contents somebody else reads."""

    def __init__(
        self,
        kernel: Kernel,
        buffers: dict[str, Buffer],
        kept: set[str],
        device: str,
        signature: Signature | None = None,
    ) -> None:
        self.kernel = kernel
        self.buffers = buffers
        self.device = device
        self.ranges = kernel.ranges()
        self.members = [place_member(placed, self.ranges, placed.node.buffer in kept) for placed in kernel.nodes]
        self.signature = signature or Signature(buffers)
        used = [buffers[name] for name in kernel.reads() | kernel.writes()]
        sizes = tuple(kernel.row_sizes) + tuple(kernel.reduction_sizes)
        self.index_type = "long" if needs_long(sizes, used) else "int"

    def _indices(self, symbols: Sequence[sympy.Symbol]) -> list[sympy.Expr]:
        found = [member.index for member in self.members]
        for member in self.members:
            found += index_expressions(member.roots())
        return [expr for expr in found if expr.free_symbols & set(symbols)]

    def _merge(self, symbols: Sequence[sympy.Symbol], sizes: Sequence[Any]) -> list[tuple[sympy.Symbol, Any]]:
        kept, replaced = merge_dimensions(symbols, sizes, self._indices(symbols))
        for symbol in symbols:
            self.ranges.pop(symbol, None)
        self.ranges.update(dict(kept))
        transform_members(self.members, replaced, self.ranges)
        return kept

    def _emitter(self) -> Emitter:
        emitter = Emitter(self.signature, self.ranges, self.index_type)
        for member in self.members:
            name = member.node.buffer
            if member.node.mutates:
                continue
            emitter.produced[name] = functools.partial(self._produce, emitter, member)
        return emitter

    def _produce(self, emitter: Emitter, member: Member) -> str:
        return emitter.value(member.body)

    def build(self) -> list[KernelSource]:
        symbols = ir.index_symbols(len(self.kernel.row_sizes))
        dims = self._merge(symbols, self.kernel.row_sizes)
        emitter = self._emitter()
        emitter.symbol_names = {symbol: symbol.name for symbol, _ in dims}
        for member in self.members:
            if member.kept:
                store_member(emitter, member)
        threads, lines = grid_indices(dims, self.index_type, emitter)
        group = policy.pointwise_group(threads, self.device)
        source = finish(
            "pointwise", "pointwise.metal.j2", self.signature, threads, group,
            [m.node for m in self.members], index_type=self.index_type, prologue=lines, body=emitter.take_lines(),
        )  # fmt: skip
        return [source]


def split_index(flat: str, dims: Sequence[tuple[sympy.Symbol, Any]], index_type: str, emitter: Emitter) -> list[str]:
    """Statements that recover each dimension's index from the row-major position `flat`."""
    lines = []
    step: sympy.Expr = sympy.Integer(1)
    for position, (symbol, size) in enumerate(reversed(dims)):
        text = flat if step == 1 else f"({flat} / {emitter.index(step)})"
        if position < len(dims) - 1:
            text = f"({text} % {emitter.index(size)})"
        lines.append(f"const {index_type} {symbol.name} = {text};")
        step = step * size
    return lines[::-1]


def grid_indices(
    dims: Sequence[tuple[sympy.Symbol, Any]], index_type: str, emitter: Emitter
) -> tuple[tuple[Any, Any, Any], list[str]]:
    """A grid of up to three dimensions, innermost first, and the statements that name its indices."""
    if not dims:
        return (sympy.Integer(1),) * 3, []
    inner = list(dims[::-1])
    threads = [inner[0][1], inner[1][1] if len(inner) > 1 else sympy.Integer(1), ir.product(s for _, s in inner[2:])]
    lines = [f"const {index_type} {inner[0][0].name} = {index_type}(thread_position.x);"]
    if len(inner) > 1:
        lines.append(f"const {index_type} {inner[1][0].name} = {index_type}(thread_position.y);")
    if len(inner) > 2:
        lines.append(f"const {index_type} outer = {index_type}(thread_position.z);")
        lines += split_index("outer", inner[2:][::-1], index_type, emitter)
    return (threads[0], threads[1], threads[2]), lines


__all__ = ["KernelBuilder", "KernelSource", "finish", "render", "to_storage"]
