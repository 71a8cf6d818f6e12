"""What the functions of a Metal text can reach, by the names in their bodies: synchronisation, and memory of their own.

Calls are followed by name alone, so too many functions may be found. Where the answers are used this costs only speed.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from .kernel_parser import split_at_commas
from .outline import Function, Outline
from .tokens import Tokens

_PREFIXES = ("simd_", "quad_", "simdgroup_")
_BARRIERS = {"threadgroup_barrier", "simdgroup_barrier"}
_MATRIX = re.compile(r"simdgroup_(?:matrix|(?:float|half|bfloat)8x8)")
_MEMORY_WORDS = {"volatile", "union", "threadgroup"}
_BEFORE_OPERAND = {"(", ",", "=", "return", "{", ";", "?", ":", "+", "-", "*", "/", "%", "<", ">", "&&", "||", "!"}


def synchronising_functions(tokens: Tokens, outline: Outline) -> tuple[set[str], bool]:
    """Names of the user's functions that can synchronise, and whether an operator or constructor is among them.

    Operators and constructors are not called by a name: if one synchronises, every kernel may.
    """
    types = _matrix_types(tokens, outline)
    return _reaching(tokens, outline, lambda function, names: bool(names & types) or any(map(_synchronises, names)))


def functions_with_memory(tokens: Tokens, outline: Outline) -> tuple[set[str], bool]:
    """As above for functions that may keep an array, index a vector or take an address.

    Every other local variable ends up in registers, so that neighbouring threads of a kernel can be computed together.
    """
    constants = _program_scope_arrays(tokens, outline)
    return _reaching(tokens, outline, lambda function, names: _has_memory(tokens, function, names, constants))


def _reaching(tokens: Tokens, outline: Outline, starts: Callable[[Function, set[str]], bool]) -> tuple[set[str], bool]:
    names_of = [
        (f, {tokens[i] for i in tokens.words(f.parameters, f.end) if tokens[i].isidentifier()})
        for f in outline.functions
    ]
    found = {function.name for function, names in names_of if starts(function, names)}
    while more := {f.name for f, names in names_of if f.name not in found and names & found}:
        found |= more
    return found, any(f.name in ("operator", "~", f.record) for f in outline.functions if f.name in found)


def _synchronises(name: str) -> bool:
    return name in _BARRIERS or (name.startswith(_PREFIXES) and name != "simd_vote")


def _matrix_types(tokens: Tokens, outline: Outline) -> set[str]:
    """Names that stand for simdgroup matrices or contain some: their operators communicate too."""

    def mentions(begin: int, end: int) -> bool:
        return any(_MATRIX.fullmatch(tokens[i]) for i in tokens.words(begin, end))

    names = {record.name for record in outline.records if mentions(record.begin, record.end)}
    for begin, end, _ in outline.statements:
        words = [tokens[i] for i in tokens.words(begin, end)]
        if "using" in words and mentions(begin, end):
            names.add(words[words.index("using") + 1])
        elif words[0] == "typedef" and mentions(begin, end):
            names.add(words[-1])
    return names


def _has_memory(tokens: Tokens, function: Function, names: set[str], constants: set[str]) -> bool:
    if names & _MEMORY_WORDS or any(name.startswith("atomic_") for name in names):
        return True
    pointers = _pointer_parameters(tokens, function) | constants
    for i in tokens.words(function.body, function.end):
        before = tokens[tokens.before(i)]
        if tokens[i] == "[" and before not in pointers and before != "]":
            return True
        if tokens[i] == "&" and before in _BEFORE_OPERAND:
            return True
        if tokens[i] == "*" and before == "thread":
            return True
    return False


def _pointer_parameters(tokens: Tokens, function: Function) -> set[str]:
    """Names of the parameters that point to device or constant memory."""
    names = set()
    for begin, end in split_at_commas(tokens, tokens.after(function.parameters), tokens.closing(function.parameters)):
        words = [tokens[i] for i in tokens.words(begin, end) if tokens[i]]
        if "*" in words and ("device" in words or "constant" in words):
            names.add(words[-1])
    return names


def _program_scope_arrays(tokens: Tokens, outline: Outline) -> set[str]:
    """Names of arrays in the constant address space."""
    names = set()
    for begin, end, _ in outline.statements:
        words = tokens.words(begin, end)
        if any(tokens[i] == "constant" for i in words):
            names |= {tokens[tokens.before(i)] for i in words if tokens[i] == "["}
    return names
