"""Rules for kernel functions: their head, the types and attributes of their parameters, and who may call them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from .kernel_info import DEFAULT_MAX_THREADS
from .kernel_parser import GRID_ATTRIBUTES, MAX_BUFFERS, split_at_commas
from .outline import Function, Outline
from .tokens import Tokens

# Attributes that count threads along one line; the others are positions and sizes along up to three axes.
_SCALAR_ATTRIBUTES = {
    "thread_index_in_simdgroup", "simdgroup_index_in_threadgroup", "simdgroups_per_threadgroup",
    "thread_index_in_threadgroup", "threads_per_simdgroup", "thread_execution_width",
    "dispatch_simdgroups_per_threadgroup", "quadgroup_index_in_threadgroup", "quadgroups_per_threadgroup",
    "dispatch_quadgroups_per_threadgroup", "thread_index_in_quadgroup",
}  # fmt: skip
_UNSIGNED = re.compile(r"(?:(?:uint|ushort)([234]?)|uint(?:16|32)_t|unsigned(?: int| short)?)")
_KNOWN_TYPE = re.compile(
    r"(?:bool|u?char|u?short|u?int|u?long|half|float|bfloat)[234]?|u?int(?:8|16|32|64)_t|size_t|unsigned.*|signed.*"
)
_INDEXED = re.compile(r"(buffer|threadgroup)\s*\(\s*([^)]*?)\s*\)")
_FUNCTION_ATTRIBUTES = {
    "host_name", "max_total_threads_per_threadgroup", "kernel", "visible", "stitchable", "clang", "unroll",
    "nodiscard", "maybe_unused", "deprecated", "user_annotation", "required_threads_per_threadgroup",
    "max_total_threadgroups_per_mesh_grid", "intersection", "early_fragment_tests", "patch", "gnu", "always_inline",
}  # fmt: skip
_SPACES = {"device", "constant", "threadgroup"}


def violations(tokens: Tokens, outline: Outline) -> Iterator[tuple[int, str]]:
    """(token index, message) of everything about kernels that Metal rejects."""
    kernels = [f for f in outline.functions if _is_kernel(tokens, f)]
    for kernel in kernels:
        yield from _head(tokens, kernel)
        yield from _parameters(tokens, kernel)
    yield from _calls(tokens, outline, kernels)
    yield from _function_constants(tokens)


def unknown_attributes(tokens: Tokens, outline: Outline) -> Iterator[tuple[int, str]]:
    """(token index, name) of attributes of kernels that Metal ignores with a warning."""
    for kernel in (f for f in outline.functions if _is_kernel(tokens, f)):
        for i in tokens.words(kernel.head, kernel.name_at):
            name = tokens[tokens.after(i)]
            if tokens[i] == "[[" and name not in _FUNCTION_ATTRIBUTES:
                yield i, name


def _is_kernel(tokens: Tokens, function: Function) -> bool:
    return "kernel" in (tokens[i] for i in tokens.words(function.head, function.parameters))


def _head(tokens: Tokens, kernel: Function) -> Iterator[tuple[int, str]]:
    words = [tokens[i] for i in tokens.words(kernel.head, kernel.name_at)]
    if kernel.record is not None:
        yield kernel.name_at, f"kernel function '{kernel.name}' cannot be a member of '{kernel.record}'"
    if not words or words[-1] != "void":
        yield kernel.name_at, f"kernel function '{kernel.name}' must have void return type"
    for begin, end in ((kernel.head, kernel.name_at), (tokens.closing(kernel.parameters), kernel.body)):
        for i in tokens.words(begin, end):
            if tokens[i] == "max_total_threads_per_threadgroup":
                given = tokens.text(tokens.after(tokens.after(i)), tokens.closing(tokens.after(i)))
                if given.isdigit() and not 1 <= int(given) <= DEFAULT_MAX_THREADS:
                    yield i, f"'max_total_threads_per_threadgroup' must be between 1 and {DEFAULT_MAX_THREADS}"


def _parameters(tokens: Tokens, kernel: Function) -> Iterator[tuple[int, str]]:
    widths: dict[int, int] = {}  # number of components -> where a grid attribute has it first
    taken: dict[tuple[str, int], int] = {}
    close = tokens.closing(kernel.parameters)
    for begin, end in split_at_commas(tokens, tokens.after(kernel.parameters), close):
        attributes = _attributes(tokens, begin, end)
        names = [name for _, text in attributes for name in re.findall(r"(?:^|,)\s*([A-Za-z_]\w*)", text)]
        grid = next((name for name in names if name in GRID_ATTRIBUTES), None)
        at = attributes[0][0] if attributes else begin
        words = [tokens[i] for i in tokens.words(begin, attributes[0][0] if attributes else end)]
        if grid and len(names) > 1:
            yield at, f"attributes '{names[0]}' and '{names[1]}' cannot be combined"
        elif grid:
            yield from _grid_parameter(begin, at, grid, words, widths)
        elif attributes:
            yield from _buffer_parameter(at, _resource(attributes), words, taken)


def _attributes(tokens: Tokens, begin: int, end: int) -> list[tuple[int, str]]:
    """(index, text) of each [[...]] in [begin, end)."""
    return [
        (i, tokens.text(tokens.after(i), tokens.before(tokens.closing(i))))
        for i in tokens.words(begin, end)
        if tokens[i] == "[["
    ]


def _resource(attributes: list[tuple[int, str]]) -> str:
    """Of `buffer(3), function_constant(has_bias)`, which may stand together, the first."""
    pieces = [piece.strip() for _, text in attributes for piece in re.split(r",(?![^(]*\))", text)]
    return next((piece for piece in pieces if re.match(r"(?:buffer|threadgroup)\b", piece)), pieces[0])


def _grid_parameter(begin: int, at: int, grid: str, words: list[str], widths: dict[int, int]):
    """Grid attributes are unsigned integers of 16 or 32 bits, and all along as many axes."""
    type_words = [w for w in words[:-1] if w not in ("const", "metal", "::", "volatile")]
    text = " ".join(type_words)
    match = _UNSIGNED.fullmatch(text)
    if "*" in words or "&" in words or (match is None and _KNOWN_TYPE.fullmatch(text)):
        yield begin, f"type '{text}' is not valid for attribute '{grid}'; valid are uint, ushort and their vectors"
        return
    if match is None:  # a name of the user's own for a type
        return
    width = int(match.group(1) or 1)
    if grid in _SCALAR_ATTRIBUTES:
        if width > 1:
            yield begin, f"type '{text}' is not valid for attribute '{grid}'; valid are uint and ushort"
    elif width > 3:
        yield begin, f"type '{text}' is not valid for attribute '{grid}'; a grid has at most 3 axes"
    else:
        widths.setdefault(width, at)
        if len(widths) > 1:
            yield (
                at,
                f"attribute '{grid}': expected input declarations with either all scalar types or all vector types "
                "with the same number of elements",
            )


def _buffer_parameter(at: int, text: str, words: list[str], taken: dict[tuple[str, int], int]):
    match = _INDEXED.fullmatch(text)
    if match is None:
        if re.fullmatch(r"(?:buffer|threadgroup)\b.*", text):
            yield at, f"attribute '{text}' needs an index, as in [[buffer(0)]]"
        return
    kind, given = match.groups()
    space = next((w for w in words if w in _SPACES), None)
    if space and (kind == "threadgroup") != (space == "threadgroup"):
        valid = "threadgroup" if kind == "threadgroup" else "device or constant"
        yield at, f"attribute '{kind}' is not valid for a parameter in the {space} address space; it is for {valid}"
    if not given.isdigit():
        return  # a constant expression
    index = int(given)
    if index >= MAX_BUFFERS:
        yield (
            at,
            f"'{kind}' attribute parameter is out of bounds: must be between 0 and {MAX_BUFFERS - 1} "
            f"(valid are 0 to {MAX_BUFFERS - 1})",
        )
    elif (kind, index) in taken:
        yield at, f"cannot reserve '{kind}' resource location at index {index}: two arguments have the index"
    taken.setdefault((kind, index), at)


def _calls(tokens: Tokens, outline: Outline, kernels: list[Function]) -> Iterator[tuple[int, str]]:
    """Only the host calls a kernel."""
    others = {f.name for f in outline.functions if f not in kernels}
    names = {k.name for k in kernels} - others
    for function in outline.functions:
        for i in tokens.words(function.body, function.end):
            if tokens[i] in names and tokens[tokens.before(i)] not in (".", "->") and _is_call(tokens, i):
                yield i, f"cannot call kernel function '{tokens[i]}' from another function"


def _is_call(tokens: Tokens, i: int) -> bool:
    before = tokens[tokens.before(i)]
    declares = before.isidentifier() and before not in ("return", "else", "do")  # float k(1.0f);
    after = tokens.after(i)
    if tokens[after] == "<":
        close = tokens.closing_angle(after)
        after = tokens.after(close) if close is not None else after
    return tokens[after] == "(" and not declares


def _function_constants(tokens: Tokens) -> Iterator[tuple[int, str]]:
    for i in tokens.significant:
        if tokens[i] != "function_constant" or tokens[tokens.before(i)] != "[[":
            continue
        opener = tokens.after(i)
        given = tokens.text(tokens.after(opener), tokens.closing(opener)) if tokens[opener] == "(" else ""
        if given.isdigit() and int(given) > 65535:
            yield i, "'function_constant' attribute parameter is out of bounds: must be between 0 and 65535"
        name = tokens.before(tokens.before(i))
        type_name = tokens[tokens.before(name)]
        if re.fullmatch(r"(?:half|float)[234]x[234]", type_name):
            yield i, f"type '{type_name}' is not valid for attribute 'function_constant'; valid are scalars and vectors"
