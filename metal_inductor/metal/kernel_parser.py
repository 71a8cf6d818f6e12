"""Kernel declarations: their attributes, parameters and explicit instantiations."""

from __future__ import annotations

import dataclasses
import re

from .kernel_info import Argument
from .outline import Function, Outline
from .tokens import Tokens

GRID_ATTRIBUTES = {
    "thread_position_in_grid",
    "threadgroup_position_in_grid",
    "thread_position_in_threadgroup",
    "threads_per_threadgroup",
    "dispatch_threads_per_threadgroup",
    "threadgroups_per_grid",
    "threads_per_grid",
    "thread_index_in_simdgroup",
    "simdgroup_index_in_threadgroup",
    "simdgroups_per_threadgroup",
    "thread_index_in_threadgroup",
    "threads_per_simdgroup",
    "thread_execution_width",
    "dispatch_simdgroups_per_threadgroup",
    "quadgroup_index_in_threadgroup",
    "quadgroups_per_threadgroup",
    "thread_index_in_quadgroup",
}
MAX_BUFFERS = 31
_QUALIFIED_NAME = r"(?:::\s*)?\w+(?:\s*::\s*\w+)*"
_SPACES = ("device", "constant", "threadgroup")
_SCALAR_BYTES = {
    "bool": 1, "char": 1, "uchar": 1, "int8_t": 1, "uint8_t": 1, "short": 2, "ushort": 2, "half": 2, "bfloat": 2,
    "int16_t": 2, "uint16_t": 2, "int": 4, "uint": 4, "float": 4, "int32_t": 4, "uint32_t": 4, "unsigned": 4,
    "long": 8, "ulong": 8, "int64_t": 8, "uint64_t": 8, "size_t": 8,
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Kernel:
    """A kernel function and, for a template, the host names under which it is instantiated."""

    function: Function
    arguments: tuple[Argument, ...]
    max_threads: int | None
    host_name: str | None


@dataclasses.dataclass(frozen=True)
class Instantiation:
    """`template [[host_name("name")]] ... expression`: the function with its template arguments, as `scope` sees it.

    parameters: the text between its parentheses where the template arguments follow from them, else None.
    """

    name: str
    expression: str
    parameters: str | None
    function: str
    scope: tuple[str, ...]
    begin: int


def find_kernels(tokens: Tokens, outline: Outline) -> list[Kernel]:
    """The kernel functions of a text, their heads turned into plain static functions."""
    return [_parse_kernel(tokens, f) for f in outline.functions if _kernel_word(tokens, f) is not None]


def erase_forward_declarations(tokens: Tokens, outline: Outline) -> None:
    """Entry points come last, so a kernel's definition is all they need."""
    for begin, end, _ in outline.statements:
        words = [tokens[i] for i in tokens.words(begin, end)]
        template = words[0] == "template" and words[1:2] == ["<"]
        if "kernel" in words and "(" in words and (template or words[0] != "template"):
            tokens.erase(begin, end + 1)


def find_instantiations(tokens: Tokens, outline: Outline) -> list[Instantiation]:
    """Explicit instantiations with a host name; they are erased from the text."""
    found = []
    for begin, end, scope in outline.statements:
        first = tokens.after(begin)
        if tokens[begin] != "template" or tokens[first] == "<":
            continue
        text = tokens.text(begin, end)
        name = re.search(r'host_name\s*\(\s*((?:"[^"]*"\s*)+)\)', text)
        if name is None:
            continue
        expression = _instantiated_expression(tokens, begin, end, text)
        function = re.match(_QUALIFIED_NAME, expression).group(0)
        host_name = "".join(re.findall(r'"([^"]*)"', name.group(1)))
        parameters = None if "<" in expression else _parameter_types(expression, text)
        found.append(Instantiation(host_name, expression, parameters, function.split("::")[-1].strip(), scope, begin))
        tokens.erase(begin, end + 1)
    return found


def _parameter_types(expression: str, text: str) -> str | None:
    """The parameters that `void f(parameters)` declares, without their attributes."""
    match = re.search(rf"\bvoid\s+{re.escape(expression)}\s*\((.*)\)\s*$", re.sub(r"\[\[.*?\]\]", "", text))
    return match.group(1).strip() if match else None


def _instantiated_expression(tokens: Tokens, begin: int, end: int, text: str) -> str:
    """`f<int>` of either form: void f<int>(parameters) or decltype(f<int>) f<int>."""
    match = re.search(r"\bdecltype\s*\(", text)
    if match:
        depth, at = 1, match.end()
        while depth:
            depth += {"(": 1, ")": -1}.get(text[at], 0)
            at += 1
        return text[match.end() : at - 1].strip()
    match = re.search(rf"\bvoid\s+({_QUALIFIED_NAME})\s*(<)?", text)
    if not match:
        raise tokens.error(begin, "explicit instantiation names no kernel; expected 'void name<arguments>(parameters)'")
    if not match.group(2):
        return match.group(1)
    depth, at = 1, match.end()
    while depth and at < len(text):
        depth += {"<": 1, ">": -1}.get(text[at], 0)
        at += 1
    return re.sub(r"\s+", " ", text[match.start(1) : at])


def _kernel_word(tokens: Tokens, function: Function) -> int | None:
    """Index of the token that makes a function a kernel."""
    for i in tokens.words(function.head, function.parameters):
        if tokens[i] == "kernel":
            return i
    return None


def _parse_kernel(tokens: Tokens, function: Function) -> Kernel:
    host_name, max_threads = _head_attributes(tokens, function)
    parameters_end = tokens.closing(function.parameters)
    max_threads = max_threads or _trailing_attributes(tokens, parameters_end, function.body)
    arguments = _parse_parameters(tokens, function, parameters_end)
    return Kernel(function, arguments, max_threads, host_name)


def _head_attributes(tokens: Tokens, function: Function) -> tuple[str | None, int | None]:
    """Reads and erases [[...]] and `kernel`; the function becomes static."""
    host_name, max_threads = None, None
    i = function.head
    static_at = None
    while i < function.name_at:
        if tokens[i] == "[[":
            close = tokens.closing(i)
            text = tokens.text(i, close)
            name = re.search(r'host_name\s*\(\s*"([^"]*)"', text)
            host_name = name.group(1) if name else host_name
            max_threads = _max_threads(text) or max_threads
            tokens.erase(i, close + 1)
            i = close
        elif tokens[i] == "kernel":
            tokens.items[i] = ""
        elif tokens[i] == "void":
            static_at = i
        i = tokens.after(i)
    if static_at is None:
        raise tokens.error(function.head, f"kernel '{function.name}' must return void")
    tokens.items[static_at] = "static void"
    return host_name, max_threads


def _trailing_attributes(tokens: Tokens, begin: int, end: int) -> int | None:
    max_threads = None
    for i in tokens.words(begin, end):
        if tokens[i] == "[[":
            close = tokens.closing(i)
            max_threads = _max_threads(tokens.text(i, close)) or max_threads
            tokens.erase(i, close + 1)
    return max_threads


def _max_threads(text: str) -> int | None:
    match = re.search(r"max_total_threads_per_threadgroup\s*\(\s*(\d+)\s*\)", text)
    return int(match.group(1)) if match else None


def _parse_parameters(tokens: Tokens, function: Function, close: int) -> tuple[Argument, ...]:
    arguments: list[Argument] = []
    for begin, end in split_at_commas(tokens, tokens.after(function.parameters), close):
        if tokens.text(begin, end) in ("", "void"):
            continue
        arguments.append(_parse_parameter(tokens, begin, end, arguments))
    _check_indices(tokens, function, arguments)
    return tuple(arguments)


def split_at_commas(tokens: Tokens, begin: int, end: int) -> list[tuple[int, int]]:
    """Ranges between the commas of [begin, end) that are in no bracket and no template argument list."""
    ranges, i, start = [], begin, begin
    while i < end:
        if tokens[i] == "<":
            i = tokens.closing_angle(i, certain=True) or i
        elif tokens[i] in ("(", "[", "[[", "{"):
            i = tokens.closing(i)
        elif tokens[i] == ",":
            ranges.append((start, i))
            start = tokens.after(i)
        i = tokens.after(i)
    ranges.append((start, end))
    return ranges


def _parse_parameter(tokens: Tokens, begin: int, end: int, earlier: list[Argument]) -> Argument:
    attributes = []
    for i in tokens.words(begin, end):
        if tokens[i] == "[[":
            stop = tokens.closing(i)
            attributes.append(tokens.text(i + 1, stop).rstrip("] "))
            tokens.erase(i, stop + 1)
    words = [tokens[i] for i in tokens.words(begin, end) if tokens[i]]
    declarator = words[: words.index("[")] if "[" in words else words
    name = next((w for w in reversed(declarator) if w.isidentifier()), "")
    text = tokens.text(begin, end)
    type_text = re.sub(rf"\s*\b{re.escape(name)}\s*(\[.*)?$", r"\1", text)
    space = next((w for w in words if w in _SPACES), None)
    attribute = ", ".join(attributes)
    builtin = next((word for word in re.findall(r"\w+", attribute) if word in GRID_ATTRIBUTES), None)
    if builtin:
        return Argument(name, "builtin", None, None, type_text, None, builtin)
    indexed = re.search(r"\b(buffer|threadgroup|texture|sampler)\s*\(\s*(\d+)\s*\)", attribute)
    kind = indexed.group(1) if indexed else ("threadgroup" if space == "threadgroup" else "buffer")
    if kind in ("texture", "sampler") or (attribute and not indexed):
        raise tokens.error(
            begin,
            f"kernel parameter '{name}' has the attribute '{attribute}', which is not supported; "
            f"valid are buffer(n), threadgroup(n) and grid attributes such as thread_position_in_grid",
        )
    if space is None or not any(mark in words for mark in ("*", "&", "[")):
        raise tokens.error(
            begin,
            f"kernel parameter '{name}' must be a pointer or reference to device, constant or "
            "threadgroup memory, or have a grid attribute",
        )
    taken = [a.index for a in earlier if a.kind == kind]
    index = int(indexed.group(2)) if indexed else next(n for n in range(len(taken) + 1) if n not in taken)
    return Argument(name, kind, index, space, type_text, _by_value_bytes(words) if "&" in words else None)


def _by_value_bytes(words: list[str]) -> int | None:
    for word in words:
        match = re.fullmatch(r"(packed_)?([a-z]+|u?int\d+_t|size_t)([234]?)", word)
        if match and match.group(2) in _SCALAR_BYTES:
            count = int(match.group(3) or 1)
            return _SCALAR_BYTES[match.group(2)] * (4 if count == 3 and not match.group(1) else count)
    return None


def _check_indices(tokens: Tokens, function: Function, arguments: list[Argument]) -> None:
    seen: dict[tuple[str, int], str] = {}
    for argument in arguments:
        if argument.index is None:
            continue
        key = (argument.kind, argument.index)
        if key in seen:
            raise tokens.error(
                function.name_at,
                f"kernel '{function.name}': '{seen[key]}' and '{argument.name}' both have "
                f"the index {argument.kind}({argument.index})",
            )
        if argument.index >= MAX_BUFFERS:
            raise tokens.error(
                function.name_at,
                f"kernel '{function.name}': {argument.kind}({argument.index}) of "
                f"'{argument.name}' is out of range; valid are 0 to {MAX_BUFFERS - 1}",
            )
        seen[key] = argument.name
