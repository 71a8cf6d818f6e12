"""Tensor IR: hash-consed scalar expressions, the tensor values made of them, and the nodes that the scheduler orders.

A `TensorValue` says how to compute any one element of a tensor: a scalar expression over the index symbols `i0`, `i1`,
... (one a dimension). A view is a substitution of those symbols, so it costs nothing. A value becomes memory when it is
*realized*: a `ComputeNode` that writes a `Buffer`.
"""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch

Size = Any  # int or sympy expression: torch's symbolic sizes


@functools.cache
def index_symbol(k: int) -> sympy.Symbol:
    """The symbol of dimension `k` of a value."""
    return sympy.Symbol(f"i{k}", integer=True, nonnegative=True)


@functools.cache
def reduction_symbol(k: int) -> sympy.Symbol:
    """The symbol of reduced dimension `k` of a reduction node."""
    return sympy.Symbol(f"r{k}", integer=True, nonnegative=True)


def index_symbols(n: int) -> tuple[sympy.Symbol, ...]:
    return tuple(index_symbol(k) for k in range(n))


def product(sizes: Iterable[Size]) -> sympy.Expr:
    result: sympy.Expr = sympy.Integer(1)
    for size in sizes:
        result = result * size
    return sympy.sympify(result)


def same(a: Size, b: Size) -> bool:
    """Whether two sizes are equal for every value of their symbols."""
    return a == b or sympy.expand(sympy.sympify(a) - sympy.sympify(b)) == 0


def contiguous_strides(shape: Iterable[Size]) -> tuple[sympy.Expr, ...]:
    """Row-major strides in elements."""
    shape = list(shape)
    strides: list[sympy.Expr] = []
    step: sympy.Expr = sympy.Integer(1)
    for size in reversed(shape):
        strides.append(step)
        step = step * (sympy.Integer(1) if size == 0 else size)
    return tuple(reversed(strides))


# ---------------------------------------------------------------------------------------------- expressions

_interned: weakref.WeakValueDictionary[tuple, Expr] = weakref.WeakValueDictionary()
_serial = itertools.count()


class Expr:
    """A scalar expression; equal expressions are one object. `dtype` is the logical torch dtype: half-precision
    values are computed in float32 registers and rounded when they are stored or explicitly cast."""

    __slots__ = ("dtype", "serial", "_symbols", "__weakref__")
    fields: tuple[str, ...] = ()
    dtype: torch.dtype
    serial: int

    def __reduce__(self):
        raise TypeError("expressions are interned: print them, do not pickle them")

    def children(self) -> tuple[Expr, ...]:
        return ()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(repr(getattr(self, name)) for name in self.fields)})"


def _intern(cls: type[Expr], values: tuple, dtype: torch.dtype) -> Any:
    key = (cls, dtype, *((type(v), repr(v)) if isinstance(v, (bool, int, float)) else v for v in values))
    found = _interned.get(key)
    if found is None:
        found = cls.__new__(cls)
        for name, value in zip(cls.fields, values):
            object.__setattr__(found, name, value)
        found.dtype = dtype
        found.serial = next(_serial)
        found = _interned.setdefault(key, found)
    return found


class Constant(Expr):
    """A literal; `value` is a Python bool, int or float."""

    __slots__ = ("value",)
    fields = ("value",)
    value: Any


class Index(Expr):
    """The value of an index expression (sizes and index symbols)."""

    __slots__ = ("expr",)
    fields = ("expr",)
    expr: sympy.Expr


class Load(Expr):
    """`buffer[index]`, index in elements. `indirect` pairs the data-dependent symbols of `index` with expressions."""

    __slots__ = ("buffer", "index", "indirect")
    fields = ("buffer", "index", "indirect")
    buffer: str
    index: sympy.Expr
    indirect: tuple[tuple[sympy.Symbol, Expr], ...]

    def children(self) -> tuple[Expr, ...]:
        return tuple(expr for _, expr in self.indirect)


class Op(Expr):
    """A named scalar operation on `args`; names and semantics are in `codegen/ops.py`."""

    __slots__ = ("name", "args")
    fields = ("name", "args")
    name: str
    args: tuple[Expr, ...]

    def children(self) -> tuple[Expr, ...]:
        return self.args


class Masked(Expr):
    """`body` where `mask`, else `other`; `body` is not evaluated (nothing is loaded) where the mask is false."""

    __slots__ = ("mask", "body", "other")
    fields = ("mask", "body", "other")
    mask: Expr
    body: Expr
    other: Expr

    def children(self) -> tuple[Expr, ...]:
        return (self.mask, self.body, self.other)


def constant(value: Any, dtype: torch.dtype) -> Constant:
    if dtype == torch.bool:
        value = bool(value)
    elif dtype.is_floating_point:
        value = float(value)
    else:
        value = int(value)
    return _intern(Constant, (value,), dtype)


def index_value(expr: Any, dtype: torch.dtype = torch.int64) -> Expr:
    expr = sympy.sympify(expr)
    if expr.is_Integer or expr.is_Float:
        return constant(expr, dtype)
    return _intern(Index, (expr,), dtype)


def load(buffer: str, index: Any, dtype: torch.dtype, indirect: Iterable[tuple[sympy.Symbol, Expr]] = ()) -> Load:
    index = sympy.sympify(index)
    used = tuple(pair for pair in indirect if pair[0] in index.free_symbols)
    return _intern(Load, (buffer, index, used), dtype)


def op(name: str, *args: Expr, dtype: torch.dtype) -> Op:
    return _intern(Op, (name, args), dtype)


def cast(value: Expr, dtype: torch.dtype) -> Expr:
    """`value` converted to `dtype` with C semantics; a cast to a half-precision dtype rounds."""
    if value.dtype == dtype:
        return value
    if isinstance(value, Constant) and not (isinstance(value.value, float) and not dtype.is_floating_point):
        if dtype in (torch.float32, torch.bool, torch.int64, torch.int32) or not isinstance(value.value, float):
            if dtype.is_floating_point or dtype == torch.bool or _fits(value.value, dtype):
                return constant(value.value, dtype)
    if isinstance(value, Index) and dtype in (torch.int64, torch.int32):
        return index_value(value.expr, dtype)
    return op("cast", value, dtype=dtype)


def _fits(value: int, dtype: torch.dtype) -> bool:
    info = torch.iinfo(dtype)
    return info.min <= int(value) <= info.max


def masked(mask: Expr, body: Expr, other: Expr) -> Expr:
    if isinstance(mask, Constant):
        return body if mask.value else other
    if body is other:
        return body
    return _intern(Masked, (mask, body, other), body.dtype)


def indirect_symbol(value: Expr) -> sympy.Symbol:
    """A fresh-enough symbol that stands for `value` in an index; the same value gives the same symbol."""
    return sympy.Symbol(f"ind{value.serial}", integer=True, nonnegative=True)


def walk(*roots: Expr) -> Iterator[Expr]:
    """Every distinct sub-expression, children first."""
    seen: set[Expr] = set()
    stack: list[tuple[Expr, bool]] = [(root, False) for root in reversed(roots)]
    while stack:
        node, expanded = stack.pop()
        if node in seen:
            continue
        if expanded:
            seen.add(node)
            yield node
        else:
            stack.append((node, True))
            stack.extend((child, False) for child in reversed(node.children()) if child not in seen)


def rewrite(root: Expr, leaf: Callable[[Expr], Expr | None]) -> Expr:
    """`root` with `leaf` applied bottom-up: it sees each node with rewritten children and may return a replacement."""
    done: dict[Expr, Expr] = {}
    for node in walk(root):
        children = tuple(done[child] for child in node.children())
        new = node if children == node.children() else rebuild(node, children)
        replaced = leaf(new)
        done[node] = new if replaced is None else replaced
    return done[root]


def rebuild(node: Expr, children: tuple[Expr, ...]) -> Expr:
    """`node` with other children."""
    if isinstance(node, Op):
        return op(node.name, *children, dtype=node.dtype)
    if isinstance(node, Masked):
        return masked(*children)
    if isinstance(node, Load):
        renamed = {symbol: indirect_symbol(new) for (symbol, _), new in zip(node.indirect, children)}
        index = node.index.xreplace(renamed)
        return load(node.buffer, index, node.dtype, [(renamed[s], new) for (s, _), new in zip(node.indirect, children)])
    raise TypeError(f"{type(node).__name__} has no children")


def substitute(root: Expr, mapping: Mapping[sympy.Symbol, Any], simplify: Callable[[Any], Any] = lambda e: e) -> Expr:
    """`root` with index symbols replaced by index expressions (simultaneously)."""
    table = {symbol: sympy.sympify(value) for symbol, value in mapping.items() if symbol != value}
    if not table:
        return root

    def leaf(node: Expr) -> Expr | None:
        if isinstance(node, Index):
            return index_value(simplify(node.expr.xreplace(table)), node.dtype)
        if isinstance(node, Load):
            return load(node.buffer, simplify(node.index.xreplace(table)), node.dtype, node.indirect)
        return None

    return rewrite(root, leaf)


def loads(root: Expr) -> list[Load]:
    return [node for node in walk(root) if isinstance(node, Load)]


def buffers_read(root: Expr) -> set[str]:
    return {node.buffer for node in walk(root) if isinstance(node, Load)}


def free_symbols(root: Expr) -> set[sympy.Symbol]:
    """Symbols of all indices in `root` without the indirect ones: index symbols and sizes."""
    result: set[sympy.Symbol] = set()
    for node in walk(root):
        if isinstance(node, Index):
            result |= node.expr.free_symbols
        elif isinstance(node, Load):
            result |= node.index.free_symbols - {symbol for symbol, _ in node.indirect}
    return result


# ---------------------------------------------------------------------------------------------- tensors


@dataclass(frozen=True)
class TensorValue:
    """A tensor as a recipe: `shape` (sizes), `dtype`, and `body`, an expression over `i0 ... i{rank-1}`."""

    shape: tuple[sympy.Expr, ...]
    dtype: torch.dtype
    body: Expr

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def numel(self) -> sympy.Expr:
        return product(self.shape)

    def at(self, indices: Iterable[Any], simplify: Callable[[Any], Any] = lambda e: e) -> Expr:
        """The element at `indices`, one index expression a dimension."""
        return substitute(self.body, dict(zip(index_symbols(self.rank), indices, strict=True)), simplify)


@dataclass(eq=False)
class Buffer:
    """Memory of one tensor. `kind`: input, constant (a tensor held by the graph), intermediate or output."""

    name: str
    shape: tuple[sympy.Expr, ...]
    stride: tuple[sympy.Expr, ...]
    dtype: torch.dtype
    kind: str = "intermediate"
    alias_of: str | None = None  # the same memory under another name (an ATen call that returned a view)

    def index(self, indices: Iterable[Any]) -> sympy.Expr:
        return sympy.Add(*(index * stride for index, stride in zip(indices, self.stride, strict=True)))

    def value(self) -> TensorValue:
        body = load(self.name, self.index(index_symbols(len(self.shape))), self.dtype)
        return TensorValue(self.shape, self.dtype, body)


@dataclass(frozen=True)
class StridedView:
    """A tensor over a buffer's memory that needs no kernel: what an ATen call or a template reads."""

    buffer: str
    shape: tuple[sympy.Expr, ...]
    stride: tuple[sympy.Expr, ...]
    offset: sympy.Expr
    dtype: torch.dtype


@dataclass(frozen=True)
class OpaqueValue:
    """What an ATen call or a higher-order op returned whose structure torch does not describe: a nested tuple, say.
    It is handed on at run time by `buffer`, the name it is kept under."""

    buffer: str


# ---------------------------------------------------------------------------------------------- nodes


@dataclass(eq=False)
class Node:
    """One step in program order. `name` is unique; `origin` is the FX node it came from (for messages)."""

    name: str
    origin: Any = None

    def reads(self) -> set[str]:
        raise NotImplementedError

    def writes(self) -> set[str]:
        raise NotImplementedError


@dataclass(eq=False)
class ComputeNode(Node):
    """Writes `body` for every index of `sizes` to `buffer[index]`.

    With a `reduction`, `body` runs over `sizes` x `reduction_sizes` (symbols `i*` and `r*`) and is reduced over the
    latter: sum, prod, max, min (NaN wins), argmax, argmin (first index, NaN wins), any, xor_sum. `mode` is "store", or
    "atomic_add" for accumulating scatters. `indirect` pairs the data-dependent symbols of `index` with expressions.
    A node that `mutates` writes part of memory that exists already.
    """

    buffer: str = ""
    sizes: tuple[sympy.Expr, ...] = ()
    index: sympy.Expr = sympy.Integer(0)
    body: Expr = None  # type: ignore[assignment]
    reduction: str | None = None
    reduction_sizes: tuple[sympy.Expr, ...] = ()
    mode: str = "store"
    indirect: tuple[tuple[sympy.Symbol, Expr], ...] = ()
    predicate: Expr | None = None  # a scatter writes only where this holds
    mutates: bool = False
    checks: tuple[tuple[Expr, sympy.Expr, str], ...] = ()  # (index expression, size, message): 0 <= index < size

    def roots(self) -> list[Expr]:
        extra = [expr for _, expr in self.indirect] + [check[0] for check in self.checks]
        return [self.body, *extra] + ([self.predicate] if self.predicate is not None else [])

    @functools.cached_property
    def _reads(self) -> frozenset[str]:
        found = {node.buffer for node in walk(*self.roots()) if isinstance(node, Load)}
        return frozenset(found | ({self.buffer} if self.mode != "store" else set()))

    def reads(self) -> set[str]:
        return set(self._reads)

    def writes(self) -> set[str]:
        return {self.buffer}

    @property
    def numel(self) -> sympy.Expr:
        return product(self.sizes)

    @property
    def reduction_numel(self) -> sympy.Expr:
        return product(self.reduction_sizes)


@dataclass(eq=False)
class TemplateNode(Node):
    """A kernel with a template of its own. `operands` are bodies over the template's own index symbols, or strided
    views; `epilogue` nodes (pointwise over the output's index space) are filled in by the scheduler."""

    template: str = ""
    buffer: str = ""
    sizes: tuple[sympy.Expr, ...] = ()
    operands: dict[str, Any] = field(default_factory=dict)
    parameters: dict[str, Any] = field(default_factory=dict)

    def reads(self) -> set[str]:
        found: set[str] = set()
        for operand in self.operands.values():
            found |= {operand.buffer} if isinstance(operand, StridedView) else buffers_read(operand)
        return found

    def writes(self) -> set[str]:
        return {self.buffer}


@dataclass(eq=False)
class ExternNode(Node):
    """An ATen call. `args`/`kwargs` hold `StridedView`s in the place of tensors; `outputs` are buffer names (None for
    what is not a tensor). `mutated` are buffers that the call writes; `reason` says why there is no kernel."""

    target: Any = None
    args: tuple = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    outputs: tuple[str | None, ...] = ()
    single_output: bool = True
    mutated: tuple[str, ...] = ()
    reason: str = ""
    symbol_outputs: tuple[Any, ...] = ()  # symbols bound by the call's results (data-dependent sizes)

    def views(self) -> list[StridedView | OpaqueValue]:
        found: list[StridedView | OpaqueValue] = []

        def visit(item: Any) -> None:
            if isinstance(item, (StridedView, OpaqueValue)):
                found.append(item)
            elif isinstance(item, (list, tuple)):
                for element in item:
                    visit(element)
            elif isinstance(item, dict):
                visit(list(item.values()))

        visit([self.args, self.kwargs])
        return found

    def reads(self) -> set[str]:
        return {view.buffer for view in self.views()}

    def writes(self) -> set[str]:
        return {name for name in self.outputs if name is not None} | set(self.mutated)
