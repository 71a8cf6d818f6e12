"""What clang's OpenCL mode accepts and Metal does not."""

from __future__ import annotations

from .kernel_parser import split_at_commas
from .outline import Function, Outline
from .threadgroup_memory import variable_declarations
from .tokens import Tokens

_FORBIDDEN = {
    "double": "'double' is not supported in Metal",
    "goto": "'goto' is not supported in Metal",
    "new": "'new' is not supported in Metal",
    "delete": "'delete' is not supported in Metal",
    "throw": "exceptions are not supported in Metal",
    "try": "exceptions are not supported in Metal",
    "catch": "exceptions are not supported in Metal",
    "virtual": "virtual functions are not supported in Metal",
    "dynamic_cast": "'dynamic_cast' is not supported in Metal",
    "typeid": "'typeid' is not supported in Metal",
    "thread_local": "'thread_local' is not supported in Metal",
    "asm": "'asm' is not supported in Metal",
}
_SPACES = {"device", "constant", "threadgroup", "thread"}
_NOT_A_VARIABLE = {
    "using", "typedef", "struct", "class", "union", "enum", "namespace", "static_assert", "extern", "friend",
    "operator", "kernel", "vertex", "fragment",
}  # fmt: skip
_DECLARATION_WORDS = {"const", "constexpr", "volatile", "static", "inline", "unsigned", "signed", "struct", "typename"}
_OPENERS = ("(", "[", "{", "[[")


def check(tokens: Tokens, outline: Outline) -> None:
    """Raises MetalSyntaxError for the first construct of each kind that Metal rejects."""
    _check_words(tokens)
    _check_program_scope(tokens, outline)
    _check_recursion(tokens, outline)
    for function in outline.functions:
        _check_parameters(tokens, function)
        _check_body(tokens, function)


def _check_words(tokens: Tokens) -> None:
    for i in tokens.significant:
        message = _FORBIDDEN.get(tokens[i])
        if message and not (tokens[i] == "delete" and tokens[tokens.before(i)] == "="):
            raise tokens.error(i, message)


def _check_program_scope(tokens: Tokens, outline: Outline) -> None:
    """Variables outside functions are in the constant address space."""
    for begin, end, _ in outline.statements:
        head = begin
        if tokens[begin] == "template":
            opener = tokens.after(begin)
            if tokens[opener] != "<":
                continue
            head = tokens.after(tokens.closing_angle(opener, certain=True) or begin)
        if _declares_variable(tokens, head, end) and "constant" not in tokens.items[head:end]:
            raise tokens.error(head, "a program scope variable must reside in the constant address space")


def _declares_variable(tokens: Tokens, begin: int, end: int) -> bool:
    """Whether a namespace-scope statement is `type name`, with an initialiser or without, and no function."""
    names, i = 0, begin
    while i < end:
        item = tokens[i]
        if item in _NOT_A_VARIABLE:
            return False
        if item == "<":
            i = tokens.closing_angle(i, certain=True) or i
        elif item == "[[":
            i = tokens.closing(i)
        elif item in ("=", "{", "["):
            break
        elif item == "(":
            return False
        elif item.isidentifier() and item not in _DECLARATION_WORDS:
            names += 1
        i = tokens.after(i)
    return names >= 2


def _check_recursion(tokens: Tokens, outline: Outline) -> None:
    """Follows calls between plain functions that are defined once: overloads and templates may well call each other."""
    definitions: dict[str, list[Function]] = {}
    for function in outline.functions:
        definitions.setdefault(function.name, []).append(function)
    single = {name: found[0] for name, found in definitions.items() if _is_plain(tokens, found, outline)}
    calls = {name: _called(tokens, function, single) for name, function in single.items()}
    for name, function in single.items():
        reached, frontier = set(), set(calls[name])
        while frontier:
            reached |= frontier
            frontier = {callee for caller in frontier for callee in calls[caller]} - reached
        if name in reached:
            raise tokens.error(function.name_at, f"'{name}' calls itself; recursion is not supported in Metal")


def _is_plain(tokens: Tokens, definitions: list[Function], outline: Outline) -> bool:
    function = definitions[0]
    head = {tokens[i] for i in tokens.words(function.head, function.parameters)}
    return (
        len(definitions) == 1
        and function.record is None
        and function.name not in outline.templates
        and "kernel" not in head  # which nothing can call
    )


def _called(tokens: Tokens, function: Function, single: dict[str, Function]) -> set[str]:
    return {
        tokens[i]
        for i in tokens.words(function.body, function.end)
        if tokens[i] in single and tokens[tokens.after(i)] == "(" and tokens[tokens.before(i)] not in ("::", ".", "->")
    }


def _check_parameters(tokens: Tokens, function: Function) -> None:
    """Pointers and references say which memory they point to."""
    close = tokens.closing(function.parameters)
    for begin, end in split_at_commas(tokens, tokens.after(function.parameters), close):
        if _points_nowhere(tokens, begin, end):
            raise tokens.error(
                begin,
                f"'{tokens.text(begin, end)}': a pointer or reference needs an address space: device, constant, "
                "threadgroup or thread",
            )


def _points_nowhere(tokens: Tokens, begin: int, end: int) -> bool:
    points, i = False, begin
    while i < end:
        item = tokens[i]
        if item in _SPACES or item in ("(", "&&", "..."):
            return False
        if item == "<":
            i = tokens.closing_angle(i, certain=True) or i
        elif item == "=":
            break
        elif item in ("*", "&"):
            points = True
        i = tokens.after(i)
    return points


def _check_body(tokens: Tokens, function: Function) -> None:
    head = {tokens[i] for i in tokens.words(function.head, function.parameters)}
    for i in tokens.words(function.body, function.end):
        if tokens[i] == "static" and "constant" not in (tokens[j] for j in _following(tokens, i, 3)):
            raise tokens.error(i, "static local variables are not supported in Metal")
        if tokens[tokens.before(i)] in (";", "{", "}") and _is_bare_pointer(tokens, i):
            raise tokens.error(
                i, "a pointer or reference needs an address space: device, constant, threadgroup or thread"
            )
    if "kernel" not in head:
        for begin, _ in variable_declarations(tokens, function):
            raise tokens.error(begin, "a threadgroup variable can only be declared in a kernel")


def _following(tokens: Tokens, i: int, count: int):
    for _ in range(count):
        i = tokens.after(i)
        yield i


def _is_bare_pointer(tokens: Tokens, i: int) -> bool:
    """`float *p = ...` at the beginning of a statement. A product as a statement would have no effect."""
    while tokens[i] in _DECLARATION_WORDS:
        i = tokens.after(i)
    if (
        not tokens[i].isidentifier()
        or tokens[i] in ("return", "auto", "case", "else", "do", "delete")
        or tokens[i] in _SPACES
    ):
        return False
    i = tokens.after(i)
    while tokens[i] == "::":
        i = tokens.after(tokens.after(i))
    if tokens[i] == "<":
        close = tokens.closing_angle(i)
        if close is None:
            return False
        i = tokens.after(close)
    if tokens[i] == "const":
        i = tokens.after(i)
    if tokens[i] not in ("*", "&"):
        return False
    name = tokens.after(i)
    return tokens[name].isidentifier() and tokens[tokens.after(name)] in ("=", ";")
