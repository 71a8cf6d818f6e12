"""Which elements of a row reduction's buffers lie side by side in memory: read and written 16 bytes at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch

from metal_inductor import ir
from metal_inductor.indexing import is_multiple
from metal_inductor.ir import Buffer

WORD = 16  # bytes
WORD_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@dataclass
class Words:
    """The `count` words that a thread reads from, or writes to, one buffer in a step; `name` is the array of their
    elements, `pointer` where they begin, `phases` those that use them."""

    name: str
    type: str
    pointer: str
    count: int
    phases: set[int] = field(default_factory=set)


def unconditional_loads(roots: Iterable[ir.Expr]) -> Iterator[ir.Load]:
    """Loads from where the index alone says, which happen whatever the masks say."""
    seen: set[ir.Expr] = set()
    pending = list(roots)
    while pending:
        node = pending.pop()
        if node in seen:
            continue
        seen.add(node)
        if isinstance(node, ir.Load) and not node.indirect:
            yield node
        pending += (node.mask, node.other) if isinstance(node, ir.Masked) else node.children()


def step_along(index: sympy.Expr, symbol: sympy.Symbol) -> sympy.Expr | None:
    """By how much `index` grows with `symbol`, or None where it is not linear in it."""
    index = sympy.expand(index)
    step = index.coeff(symbol)
    return None if symbol in (index - step * symbol).free_symbols or step.has(symbol) else step


def starts_words(index: sympy.Expr, inner: sympy.Symbol, vector: int) -> bool:
    """Whether `vector` neighbouring values of `inner`, from a multiple of it on, are elements side by side that begin
    at a multiple of `vector`."""
    if step_along(index, inner) != 1:
        return False
    return is_multiple(index - inner, vector)


def fits_words(buffer: Buffer, index: sympy.Expr, inner: sympy.Symbol, vector: int) -> bool:
    """Whether a step of `vector` elements of `buffer` is one or more whole words."""
    whole = buffer.dtype in WORD_DTYPES and vector * buffer.dtype.itemsize % WORD == 0
    return whole and starts_words(index, inner, vector)


def word_vector(loads: Sequence[ir.Load], buffers: dict[str, Buffer], reduced: Sequence[tuple[Any, Any]]) -> int:
    """How many neighbouring elements a thread takes in a step so that most of `loads` are whole words of which none is
    wasted; 0 where that cannot be. `reduced` are the dimensions (symbol, size) of the reduction. What all rows share,
    such as a weight, lies in a cache and has no say beside what each row reads."""
    inner, size = reduced[-1]
    along = [load for load in loads if step_along(load.index, inner) == 1]
    own = {symbol for symbol, _ in reduced}
    along = [load for load in along if load.index.free_symbols - own] or along
    floating = [load for load in along if buffers[load.buffer].dtype in WORD_DTYPES]
    for vector in (8, 4):
        if len(reduced) > 1 and not (sympy.sympify(size) / vector).is_Integer:
            continue
        fitting = [load for load in floating if fits_words(buffers[load.buffer], load.index, inner, vector)]
        exact = any(buffers[load.buffer].dtype.itemsize * vector == WORD for load in fitting)
        if exact and 2 * len(fitting) >= len(along):
            return vector
    return 0


def runs_along_rows(loads: Sequence[ir.Load], row: sympy.Symbol | None, inner: sympy.Symbol) -> bool:
    """Whether neighbours in memory are neighbouring rows rather than neighbouring elements of a row."""
    if row is None:
        return False
    both = [load for load in loads if {row, inner} & load.index.free_symbols]
    by_row = sum(step_along(load.index, row) == 1 and step_along(load.index, inner) != 0 for load in both)
    by_element = sum(step_along(load.index, inner) == 1 and step_along(load.index, row) != 0 for load in both)
    return by_row > by_element
