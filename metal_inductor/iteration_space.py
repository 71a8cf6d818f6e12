"""How a node runs inside a kernel: its index symbols in terms of the kernel's rows and, where it reduces, of `r`."""

from __future__ import annotations

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
