"""Threadgroup variables of kernels become references into one block of memory per threadgroup."""

from __future__ import annotations

import ast
import collections
import dataclasses
import operator
import re
from collections.abc import Sequence

from . import clang
from .kernel_info import MAX_THREADGROUP_BYTES, KernelInfo
from .outline import Function
from .tokens import Tokens

BLOCK = "msl_threadgroup_memory"
_ALIGNMENT = 16
_TYPE_BYTES = {
    "bool": 1, "char": 1, "uchar": 1, "int8_t": 1, "uint8_t": 1, "short": 2, "ushort": 2, "half": 2, "bfloat": 2,
    "int16_t": 2, "uint16_t": 2, "int": 4, "uint": 4, "float": 4, "int32_t": 4, "uint32_t": 4, "unsigned": 4,
    "long": 8, "ulong": 8, "int64_t": 8, "uint64_t": 8, "size_t": 8,
    "atomic_int": 4, "atomic_uint": 4, "atomic_float": 4, "msl_atomic_int": 4,
    "msl_atomic_uint": 4, "msl_atomic_float": 4,
}  # fmt: skip
_OPERATORS = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Div: operator.floordiv, ast.Mod: operator.mod, ast.LShift: operator.lshift, ast.RShift: operator.rshift,
}  # fmt: skip


# Left in the compiled text, in the kernel's own code: all functions are inlined.
_MARK = '__asm__ volatile("/* msl_threadgroup_bytes %c0 */" :: "i"(msl::threadgroup_bytes<{types}>()))'
_MARKED = re.compile(r"\bmsl_threadgroup_bytes (\d+)")


def measured(info: KernelInfo, code: str) -> KernelInfo:
    """The kernel with the bytes that its compiled text is marked with: what only the compiler could tell."""
    marks = [int(mark) for mark in _MARKED.findall(code)]
    return dataclasses.replace(info, threadgroup_bytes=max(marks)) if marks else info


def measured_on_cpu(kernels: Sequence[KernelInfo], text: str) -> list[KernelInfo]:
    """The kernels of a Translation with their true bytes: asks the compiler where the text does not say."""
    if all(info.threadgroup_bytes < MAX_THREADGROUP_BYTES for info in kernels):
        return list(kernels)
    code = clang.assembly_cpu(text)
    functions: dict[str, str] = collections.defaultdict(str)
    for symbol, body in re.findall(r"^msl_(?:fiber|loop)_(\w+):(.*?)^\s*\.size\b", code, re.M | re.S):
        functions[symbol] += body
    return [measured(info, functions[info.symbol]) for info in kernels]


def place_variables(tokens: Tokens, kernel: Function) -> int | None:
    """Rewrites the threadgroup variables of a kernel.

    Returns their bytes, 0 where there are none, None where only the compiler can tell. Every variable has an offset of
    its own: two variables in sibling blocks do not share memory, because no barrier separates their uses.
    """
    types: list[str] = []
    declarations = list(variable_declarations(tokens, kernel))
    total: int | None = 0
    for begin, end in declarations:
        parts, sizes = [], []
        type_text, declarators = _split_declaration(tokens, begin, end)
        for name, extents, begins_as_zero in declarators:
            alias = f"msl_type_of_{name}"
            parts.append(
                f"typedef {type_text} {alias}{extents}; threadgroup {alias} &{name} = "
                f"MSL_THREADGROUP_VARIABLE({alias}, {name}, {BLOCK}, msl::threadgroup_bytes<{', '.join(types)}>())"
            )
            if begins_as_zero:
                parts.append(f"MSL_ZERO_VARIABLE({name})")
            types.append(f"{type_text}{extents}")
            sizes.append(_bytes(type_text, extents))
            if total is None or None in sizes:
                parts.append(_MARK.format(types=", ".join(types)))
        if (begin, end) == declarations[-1]:
            parts.append(
                f"static_assert(msl::threadgroup_bytes<{', '.join(types)}>() <= msl::threadgroup_limit, "
                '"more than 32768 bytes of threadgroup variables")'
            )
        tokens.erase(begin, end)
        tokens.items[begin] = "; ".join(parts)
        total = None if total is None or None in sizes else total + sum(size or 0 for size in sizes)
    if total is not None and total > MAX_THREADGROUP_BYTES:
        raise tokens.error(
            kernel.name_at,
            f"kernel '{kernel.name}' has {total} bytes of threadgroup variables; "
            f"a threadgroup has {MAX_THREADGROUP_BYTES}",
        )
    return total


def variable_declarations(tokens: Tokens, kernel: Function):
    """(begin, end) of every statement that declares threadgroup variables."""
    for i in tokens.words(kernel.body + 1, kernel.end):
        if tokens[i] != "threadgroup" or tokens[tokens.before(i)] not in ("{", "}", ";", ":", ")"):
            continue
        end, pointer = _statement_end(tokens, i)
        if not pointer:
            yield i, end


def _statement_end(tokens: Tokens, begin: int) -> tuple[int, bool]:
    """End of the declaration and whether it declares pointers or references, which are ordinary variables."""
    i, pointer = tokens.after(begin), False
    while tokens[i] != ";":
        if tokens[i] == "<":
            i = tokens.closing_angle(i, certain=True) or i
        elif tokens[i] in ("(", "[", "[[", "{"):
            i = tokens.closing(i)
        elif tokens[i] in ("*", "&"):
            pointer = True
        elif tokens[i] == "=" and not pointer and not _is_zero(tokens, tokens.after(i)):
            raise tokens.error(i, "a threadgroup variable cannot have an initialiser other than {0}")
        i = tokens.after(i)
    return i, pointer


def _is_zero(tokens: Tokens, i: int) -> bool:
    """Whether `{}` or `{0}` begins at a token."""
    return (
        tokens[i] == "{"
        and re.fullmatch(r"\{\s*(0|0?\.0*[fh]?|0\.[fh]?)?\s*", tokens.text(i, tokens.closing(i))) is not None
    )


def has_initialisers(tokens: Tokens, kernel: Function) -> bool:
    """Whether threadgroup variables of a kernel begin as zero."""
    return any(
        tokens[i] == "=" for begin, end in variable_declarations(tokens, kernel) for i in tokens.words(begin, end)
    )


def _split_declaration(tokens: Tokens, begin: int, end: int) -> tuple[str, list[tuple[str, str, bool]]]:
    """Type and (name, extents, whether it begins as zero) of each declarator of `threadgroup type a[2], b = {0};`."""
    start = tokens.after(begin)
    commas, brackets, assignments, i = [], [], [], start
    while i < end:
        if tokens[i] == "<":
            i = tokens.closing_angle(i, certain=True) or i
        elif tokens[i] in ("[", "{"):
            brackets += [i] if tokens[i] == "[" else []
            i = tokens.closing(i)
        elif tokens[i] == "=":
            assignments.append(i)
        elif tokens[i] == ",":
            commas.append(i)
        i = tokens.after(i)
    pieces = list(zip([start, *(tokens.after(c) for c in commas)], [*commas, end], strict=True))
    first_end = next((b for b in sorted(brackets + assignments) if b < pieces[0][1]), pieces[0][1])
    name_at = tokens.before(first_end)
    declarators = []
    for number, (piece_begin, piece_end) in enumerate(pieces):
        at = name_at if number == 0 else piece_begin
        zero_at = next((i for i in assignments if piece_begin <= i < piece_end), piece_end)
        declarators.append((tokens[at], tokens.text(tokens.after(at), zero_at), zero_at < piece_end))
    return tokens.text(start, name_at), declarators


def _bytes(type_text: str, extents: str) -> int | None:
    match = re.fullmatch(r"(?:metal::)?(\w+?)([234]?)", type_text)
    if not match or match.group(1) not in _TYPE_BYTES:
        return None
    count = {"": 1, "2": 2, "3": 4, "4": 4}[match.group(2)]
    for extent in re.findall(r"\[([^\]]*)\]", extents):
        value = _evaluate(extent)
        if value is None:
            return None
        count *= value
    size = _TYPE_BYTES[match.group(1)] * count
    return (size + _ALIGNMENT - 1) // _ALIGNMENT * _ALIGNMENT


def _evaluate(expression: str) -> int | None:
    """Value of an integer expression of plain numbers."""
    plain = re.sub(r"\b(0[xX][0-9a-fA-F]+|\d+)[uUlL]+\b", r"\1", expression).strip()
    try:
        return _evaluate_node(ast.parse(plain, mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError):
        return None


def _evaluate_node(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_evaluate_node(node.left), _evaluate_node(node.right))
    raise ValueError("not an integer expression of numbers")
