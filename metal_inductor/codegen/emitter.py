"""Scalar expressions as Metal statements: every distinct expression becomes one variable of the innermost scope that
can hold it."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch

from metal_inductor import ir
from metal_inductor.codegen import ops
from metal_inductor.codegen.printing import IndexPrinter
from metal_inductor.ir import Buffer


@dataclass
class Signature:
    """The kernel's arguments, in the order of first use: buffers, host-computed sizes, the error word."""

    buffers: dict[str, Buffer]
    names: dict[str, str] = field(default_factory=dict)
    written: set[str] = field(default_factory=set)
    sizes: dict[Any, str] = field(default_factory=dict)
    uses_errors: bool = False
    helpers: set[str] = field(default_factory=set)
    aligned: set[str] = field(default_factory=set)  # buffers that must begin at a multiple of 16 bytes
    local: dict[str, str] = field(default_factory=dict)  # buffers that lie in threadgroup memory, by variable

    def argument(self, buffer: str, write: bool = False) -> str:
        if buffer in self.local:
            return self.local[buffer]
        if write:
            self.written.add(buffer)
        return self.names.setdefault(buffer, f"b{len(self.names)}")

    def size(self, expr: sympy.Expr) -> str:
        """The C expression of a value that the host computes from the graph's sizes at every call."""
        return self.sizes.setdefault(("int", expr), f"sizes[{len(self.sizes)}]")

    def real(self, expr: sympy.Expr) -> str:
        """The same for a float32 value; its bits travel in an integer slot."""
        return self.sizes.setdefault(("float", expr), f"as_type<float>(int(sizes[{len(self.sizes)}]))")

    def parameters(self) -> list[str]:
        """Declarations in binding order."""
        lines = []
        for k, (buffer, name) in enumerate(self.names.items()):
            access = "device" if buffer in self.written else "device const"
            lines.append(f"{access} {ops.METAL_TYPES[self.buffers[buffer].dtype]}* {name} [[buffer({k})]]")
        if self.sizes:
            lines.append(f"constant long* sizes [[buffer({len(lines)})]]")
        if self.uses_errors:
            lines.append(f"device atomic_int* errors [[buffer({len(lines)})]]")
        return lines


@dataclass
class Scope:
    """A C block: its statements and the variables that it declares."""

    lines: list[str] = field(default_factory=list)
    memo: dict[Any, str] = field(default_factory=dict)


class Emitter:
    """Turns expressions into variables. `produced` answers for loads of buffers that the kernel itself computes."""

    def __init__(self, signature: Signature, ranges: dict[sympy.Symbol, Any], index_type: str) -> None:
        self.signature = signature
        self.ranges = ranges
        self.index_type = index_type
        self.scopes: list[Scope] = [Scope()]
        self.symbol_names = {symbol: symbol.name for symbol in ranges}
        self.produced: dict[str, Callable[[], str]] = {}
        self.elements: dict[ir.Load, Callable[[], str]] = {}  # loads whose values are read together with others
        self.inner_symbols: set[sympy.Symbol] = set()
        self.inner_buffers: set[str] = set()
        self._inner: dict[ir.Expr, bool] = {}
        self._serial = itertools.count()
        self._guarded = 0

    # ------------------------------------------------------------------ scopes

    def push(self) -> Scope:
        self.scopes.append(Scope())
        return self.scopes[-1]

    def pop(self) -> list[str]:
        return self.scopes.pop().lines

    def take_lines(self) -> list[str]:
        """The statements of the current scope so far; its variables stay known."""
        lines, self.scopes[-1].lines = self.scopes[-1].lines, []
        return lines

    @contextlib.contextmanager
    def only_where(self, condition: str) -> Iterator[None]:
        """What is emitted inside runs, and its variables exist, only where `condition` holds."""
        self._guarded += 1
        inner = self.push()
        yield
        self.scopes.pop()
        self._guarded -= 1
        self.line(f"if ({condition}) {{")
        for line in inner.lines:
            self.line(f"    {line}")
        self.line("}")

    def line(self, text: str) -> None:
        self.scopes[-1].lines.append(text)

    def declare(self, type_text: str, value: str, scope: Scope | None = None) -> str:
        name = f"v{next(self._serial)}"
        (scope or self.scopes[-1]).lines.append(f"const {type_text} {name} = {value};")
        return name

    def is_inner(self, expr: ir.Expr) -> bool:
        """Whether `expr` changes within the reduction loop."""
        if expr not in self._inner:
            for node in ir.walk(expr):
                if node in self._inner:
                    continue
                inner = any(self._inner[child] for child in node.children())
                if isinstance(node, ir.Load):
                    inner |= node.buffer in self.inner_buffers or bool(node.index.free_symbols & self.inner_symbols)
                elif isinstance(node, ir.Index):
                    inner |= bool(node.expr.free_symbols & self.inner_symbols)
                self._inner[node] = inner
        return self._inner[expr]

    def _home(self, expr: ir.Expr) -> Scope:
        """Loop-invariant expressions are computed before the loop, unless a mask guards them."""
        if len(self.scopes) == 1 or self._guarded or self.is_inner(expr):
            return self.scopes[-1]
        return self.scopes[0]

    # ------------------------------------------------------------------ expressions

    def value(self, root: ir.Expr) -> str:
        """The name (or literal) that holds `root`, in the register type of its dtype."""
        for scope in reversed(self.scopes):
            if root in scope.memo:
                return scope.memo[root]
        for node in self._pending(root):
            self._emit(node)
        return self._lookup(root)

    def _pending(self, root: ir.Expr) -> Iterable[ir.Expr]:
        """Sub-expressions without a variable, children first; the inside of a mask is left to the mask."""
        seen: set[ir.Expr] = set()
        stack: list[tuple[ir.Expr, bool]] = [(root, False)]
        order: list[ir.Expr] = []
        while stack:
            node, expanded = stack.pop()
            if expanded:
                order.append(node)
                continue
            if node in seen or self._known(node):
                continue
            seen.add(node)
            stack.append((node, True))
            children = (node.mask,) if isinstance(node, ir.Masked) else node.children()
            stack.extend((child, False) for child in children)
        return order

    def _known(self, node: ir.Expr) -> bool:
        return any(node in scope.memo for scope in self.scopes)

    def _lookup(self, node: ir.Expr) -> str:
        for scope in reversed(self.scopes):
            if node in scope.memo:
                return scope.memo[node]
        raise AssertionError(f"no variable for {node!r}")

    def _emit(self, node: ir.Expr) -> None:
        if self._known(node):
            return
        home = self._home(node)
        if isinstance(node, ir.Masked):
            home.memo[node] = self._emit_masked(node, home)
        elif isinstance(node, ir.Constant):
            home.memo[node] = ops.format_constant(node.value, node.dtype)
        elif isinstance(node, ir.Load) and node.buffer in self.produced:
            home.memo[node] = self.produced[node.buffer]()
        else:
            text = self._text(node)
            home.memo[node] = self.declare(ops.register_type(node.dtype), text, home)

    def _text(self, node: ir.Expr) -> str:
        if isinstance(node, ir.Index):
            return self._index_value(node)
        if isinstance(node, ir.Load):
            return self.elements[node]() if node in self.elements else self._load(node)
        assert isinstance(node, ir.Op)
        args = [self._lookup(arg) for arg in node.args]
        if node.name == "checked_index":
            self.signature.uses_errors = True
            return f"checked_index({args[0]}, {args[1]}, errors)"
        self.signature.helpers.add(node.name)
        return ops.format_op(node, args)

    def _index_value(self, node: ir.Index) -> str:
        register = ops.register_type(node.dtype)
        sizes_only = not any(symbol in self.symbol_names for symbol in node.expr.free_symbols)
        if sizes_only and node.dtype.is_floating_point and not node.expr.is_integer:
            return f"{register}({self.signature.real(node.expr)})"
        return f"{register}({self.index(node.expr)})"

    def _load(self, node: ir.Load) -> str:
        stored = self.signature.buffers[node.buffer].dtype
        text = f"{self.signature.argument(node.buffer)}[{self.index(node.index, node.indirect)}]"
        return to_register(text, stored)

    def index(self, expr: sympy.Expr, indirect: Iterable[tuple[sympy.Symbol, ir.Expr]] = ()) -> str:
        """An index expression as C text."""
        names = dict(self.symbol_names)
        for symbol, value in indirect:
            names[symbol] = f"{self.index_type}({self.value(value)})"
        return IndexPrinter(self.ranges, names, self.signature.size, self.index_type)(expr)

    def _emit_masked(self, node: ir.Masked, home: Scope) -> str:
        mask = self._lookup(node.mask)
        name = f"v{next(self._serial)}"
        other = self.value(node.other)
        self._guarded += 1
        inner = self.push()
        body = self.value(node.body)
        self.scopes.pop()
        self._guarded -= 1
        register = ops.register_type(node.dtype)
        home.lines.append(f"{register} {name} = {other};")
        home.lines.append(f"if ({mask}) {{")
        home.lines += [f"    {line}" for line in inner.lines]
        home.lines.append(f"    {name} = {body};")
        home.lines.append("}")
        return name

    # ------------------------------------------------------------------ stores

    def store(self, node: ir.ComputeNode, index: sympy.Expr, indirect: Any, value: str) -> None:
        """The statement that writes `value` where `node` wants it."""
        buffer = self.signature.buffers[node.buffer]
        target = f"{self.signature.argument(node.buffer, write=True)}"
        position = self.index(index, indirect)
        if node.mode == "atomic_add":
            kind = {torch.float32: "atomic_float", torch.int32: "atomic_int", torch.uint32: "atomic_uint"}[buffer.dtype]
            self.line(
                f"atomic_fetch_add_explicit((device {kind}*)({target} + {position}), {value}, memory_order_relaxed);"
            )
        else:
            self.line(f"{target}[{position}] = {to_storage(value, buffer.dtype)};")


def to_register(text: str, dtype: torch.dtype) -> str:
    """A stored value as its register type."""
    return f"float({text})" if dtype in (torch.float16, torch.bfloat16) else text


def to_storage(text: str, dtype: torch.dtype) -> str:
    """A register value as its storage type."""
    return text if dtype == torch.float32 else f"{ops.METAL_TYPES[dtype]}({text})"
