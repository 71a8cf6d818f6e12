"""How a node runs inside a kernel: its index symbols in terms of the kernel's rows and, where it reduces, of `r`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import sympy
from torch.utils._sympy.functions import FloorDiv, ModularIndexing

from metal_inductor import ir
from metal_inductor.fused_kernel import Kernel, Placed
from metal_inductor.indexing import reshape_map, simplify
from metal_inductor.ir import ComputeNode, TemplateNode

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


# ---------------------------------------------------------------------------------------------- loops in another order


def fits(node: ComputeNode, kernel: Kernel) -> Iterator[Fit]:
    """The ways in which `node` may run inside `kernel`: each side's loops as they are; then, where just one side
    reduces, the other's in the order in which the reduction walks a buffer that both touch."""
    straight = fit_iteration_space(node, kernel)
    if straight is not None:
        yield straight
    if kernel.head is not None or bool(node.reduction) == bool(kernel.reduction_sizes):
        return
    for order in dict.fromkeys(_loop_orders(node, kernel)):
        fit = _fit_reordered_kernel(node, kernel, order) if node.reduction else _fit_reordered(node, kernel, order)
        if fit is not None:
            yield fit


def _fit_reordered(node: ComputeNode, kernel: Kernel, order: tuple[int, ...]) -> Fit | None:
    """`node` with its k-th loop over what was its dimension `order[k]`."""
    fit = fit_iteration_space(replace(node, sizes=tuple(node.sizes[dim] for dim in order)), kernel)
    if fit is None:
        return None
    placed, *rest = fit
    symbols = ir.index_symbols(len(order))
    mapping = {symbols[dim]: placed.mapping.get(symbols[k], symbols[k]) for k, dim in enumerate(order)}
    return Placed(node, mapping, placed.level), *rest  # type: ignore[return-value]


def _fit_reordered_kernel(node: ComputeNode, kernel: Kernel, order: tuple[int, ...]) -> Fit | None:
    """The same for the loops of a pointwise `kernel`."""
    symbols = ir.index_symbols(len(order))
    sizes = tuple(kernel.row_sizes[dim] for dim in order)
    mapping = {symbols[dim]: symbols[k] for k, dim in enumerate(order)}
    members = _remap(kernel.nodes, mapping, dict(zip(symbols, sizes)))
    return fit_iteration_space(node, Kernel(nodes=members, row_sizes=sizes))


def _loop_orders(node: ComputeNode, kernel: Kernel) -> Iterator[tuple[int, ...]]:
    """Orders of the pointwise side's loops that follow the reduction's, one for each buffer that both touch; buffers
    that the kernel computes come first."""
    shape = Kernel(row_sizes=node.sizes, reduction_sizes=node.reduction_sizes) if node.reduction else kernel
    sizes = kernel.row_sizes if node.reduction else node.sizes
    symbols = ir.index_symbols(len(sizes))
    for name in sorted(node.reads() & (kernel.writes() | kernel.reads()), key=lambda name: name not in kernel.writes()):
        mine, theirs = _index_in_node(node, name), _index_in_kernel(kernel, name)
        followed, moved = (mine, theirs) if node.reduction else (theirs, mine)
        walk, steps = _steps(followed, list(shape.ranges())), _steps(moved, symbols)
        if walk is None or steps is None:
            continue
        order = _order_along(steps, list(zip(walk, shape.ranges().values())))
        if order is not None and order != tuple(range(len(sizes))):
            yield order


def _index_in_node(node: ComputeNode, name: str) -> sympy.Expr:
    return next(load.index for root in node.roots() for load in ir.loads(root) if load.buffer == name)


def _index_in_kernel(kernel: Kernel, name: str) -> sympy.Expr:
    """Where `kernel`, in its own index symbols, writes or first reads buffer `name`."""
    placed = next((p for p in kernel.nodes if p.node.buffer == name), None)
    if placed is not None:
        return sympy.sympify(placed.node.index).xreplace(placed.mapping)
    placed = next(p for p in kernel.nodes if name in p.node.reads())
    return sympy.sympify(_index_in_node(placed.node, name)).xreplace(placed.mapping)


def _steps(index: sympy.Expr, symbols: Sequence[sympy.Symbol]) -> list[sympy.Expr] | None:
    """By how much a linear `index` grows with each of `symbols`; None for one that is not linear in them."""
    index = sympy.expand(index)
    steps = [index.coeff(symbol) for symbol in symbols]
    rest = sympy.expand(index - sympy.Add(*(step * symbol for step, symbol in zip(steps, symbols))))
    mixed = rest.free_symbols.union(*(step.free_symbols for step in steps)) & set(symbols)
    return None if mixed else steps


# Stands for every size that is not known when loops are put in order; the order is only a proposal.
TYPICAL_SIZE = 1009


def _order_along(steps: Sequence[Any], walk: Sequence[tuple[Any, Any]]) -> tuple[int, ...] | None:
    """The dimensions with `steps` through a buffer in the order of the loops `walk` (step and size of each), in which
    each dimension is one of these loops or a part of one, and those that do not move come last; None where one fits no
    loop."""

    def number(size: Any) -> int:
        size = sympy.sympify(size)
        return int(size.xreplace({symbol: sympy.Integer(TYPICAL_SIZE) for symbol in size.free_symbols}))

    spans = [(number(step), number(step) * number(size)) for step, size in walk]
    places = []
    for dim, step in enumerate(map(number, steps)):
        place = next((k for k, (low, high) in enumerate(spans) if low <= step < high), None)
        if step and place is None:
            return None
        places.append((place if step else len(spans), -step, dim))
    return tuple(dim for _, _, dim in sorted(places))


# ---------------------------------------------------------------------------------------------- loops as they are


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
