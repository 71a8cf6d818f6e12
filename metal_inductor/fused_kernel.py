"""The scheduler's unit: the nodes that run as one dispatch, and where each of them stands in its iteration space."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import sympy

from metal_inductor import ir
from metal_inductor.ir import Buffer, ComputeNode, ExternNode, Node, TemplateNode

# Metal binds at most 31 buffers; sizes and the error word take two.
MAX_BUFFERS = 28


@dataclass(frozen=True)
class Refusal:
    """Why two things are not fused: a rule's name and a text with `{}` for each of `values`, which is put together only
    when somebody reads it."""

    rule: str
    text: str
    values: tuple[Any, ...] = ()

    @property
    def reason(self) -> str:
        return self.text.format(*self.values)


@dataclass(frozen=True)
class Declined:
    """The nodes named `first` and `second` do not share a kernel, because of `refusal`."""

    first: str
    second: str
    refusal: Refusal


@dataclass(frozen=True)
class Space:
    """An iteration space, for messages."""

    rows: tuple[Any, ...]
    reduced: tuple[Any, ...]

    def __str__(self) -> str:
        rows, reduced = (f"[{', '.join(map(str, sizes))}]" for sizes in (self.rows, self.reduced))
        return f"{rows} reduced over {reduced}" if self.reduced else rows


def too_many_buffers(*sides: Kernel | Node) -> Refusal | None:
    """The refusal of a kernel that would bind more buffers than Metal can."""
    count = len(set().union(*(side.reads() | side.writes() for side in sides)))
    return (
        Refusal("buffers", "together {} buffers of at most {}", (count, MAX_BUFFERS)) if count > MAX_BUFFERS else None
    )


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
    def last(self) -> Node:
        """The node that was placed last."""
        return self.nodes[-1].node if self.nodes else self.heads()[-1]

    @property
    def is_extern(self) -> bool:
        return isinstance(self.head, ExternNode)

    def ranges(self) -> dict[sympy.Symbol, Any]:
        table = dict(zip(ir.index_symbols(len(self.row_sizes)), self.row_sizes))
        table.update({ir.reduction_symbol(k): size for k, size in enumerate(self.reduction_sizes)})
        return table


def memory_of(buffers: dict[str, Buffer], name: str) -> str:
    """The buffer that owns the memory of `name`."""
    while buffers[name].alias_of is not None:
        name = buffers[name].alias_of  # type: ignore[assignment]
    return name


def memories(buffers: dict[str, Buffer], names: Iterable[str]) -> set[str]:
    """The owners of the memory of `names`."""
    return {memory_of(buffers, name) for name in names}
