"""After autograd: updates of a caller's tensor (a KV cache) that may write just the new elements where they lie.

Functionalization turns `cache[:, :, position] = value` into an out-of-place `index_put` and a `copy_` back at the end
of the graph. Where every reader of the old contents comes before the update, it can write in place: the node gets
`meta["metal_inplace"]`, and the closing copy finds nothing left to do.
"""

from __future__ import annotations

import torch
from torch.fx import Graph, Node

from metal_inductor.lower import is_view

aten = torch.ops.aten
UPDATES = frozenset(
    {
        aten.index_put.default, aten.index_copy.default, aten.index_fill.int_Scalar, aten.index_add.default,
        aten.slice_scatter.default, aten.select_scatter.default, aten.scatter.src, aten.scatter.value,
        aten.scatter_add.default,
    }
)  # fmt: skip


def mark_in_place(graph: Graph) -> int:
    """Marks the updates of `graph` that are safe in place; returns how many."""
    order = {node: k for k, node in enumerate(graph.nodes)}
    count = 0
    for copy in [node for node in graph.nodes if node.target is aten.copy_.default]:
        base, value = copy.args[:2]
        if isinstance(base, Node) and base.op == "placeholder" and isinstance(value, Node):
            count += _mark_chain(base, value, copy, order)
    return count


def _mark_chain(base: Node, value: Node, copy: Node, order: dict[Node, int]) -> int:
    """Marks base -> update -> update -> ... -> copy_ when each link may overwrite its predecessor."""
    chain: list[Node] = []
    node = value
    while node.op == "call_function" and node.target in UPDATES and isinstance(node.args[0], Node):
        chain.append(node)
        node = node.args[0]
    if node is not base or not chain:
        return 0
    links = [base, *reversed(chain)]
    for old, update in zip(links, links[1:]):
        if any(order[reader] > order[update] and reader is not copy for reader in _readers(old)):
            return 0
        if not _same_layout(old, update):
            return 0
    for update in chain:
        update.meta["metal_inplace"] = True
    return len(chain)


def _readers(node: Node) -> list[Node]:
    """Users of `node` and of its views."""
    found: list[Node] = []
    pending = [node]
    while pending:
        for user in pending.pop().users:
            found.append(user)
            if isinstance(user.target, torch._ops.OpOverload) and is_view(user.target):
                pending.append(user)
    return found


def _same_layout(a: Node, b: Node) -> bool:
    left, right = a.meta["val"], b.meta["val"]
    return left.shape == right.shape and left.dtype == right.dtype
