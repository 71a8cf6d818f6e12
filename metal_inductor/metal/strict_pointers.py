"""Every pointer and reference names its address space: where a text declares one without, in any position.

Behind the name of a built-in type a star or ampersand can only declare; behind another name it may be a product, so
only places count where a type must stand.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from .kernel_parser import split_at_commas
from .outline import Function, Outline
from .tokens import Tokens

_SPACES = {"device", "constant", "threadgroup", "thread"}
_BUILT_IN = re.compile(
    r"void|(?:packed_)?(?:bool|u?char|u?short|u?int|u?long|half|float|bfloat)[234]?|u?int(?:8|16|32|64)_t|size_t|"
    r"ptrdiff_t|unsigned|signed|(?:half|float)[234]x[234]|atomic_(?:int|uint|bool|float|ulong)"
)
_QUALIFIERS = {"const", "volatile", "static", "constexpr", "inline", "typename", "struct", "unsigned", "signed"}
_NO_TYPE = {
    "return", "auto", "case", "else", "do", "delete", "operator", "using", "typedef", "template", "typename", "goto",
    "sizeof", "throw", "break", "continue", "if", "for", "while", "switch", "public", "private", "protected", "this",
    "friend", "new", "namespace", "static_assert",
}  # fmt: skip
_CASTS = {"static_cast", "reinterpret_cast", "const_cast"}
_WORDS = {"*": "pointer type must have explicit address space qualifier",
          "&": "reference type must have explicit address space qualifier"}  # fmt: skip

_FUNCTION_POINTER = "variables that point to functions are not supported in Metal"


def violations(tokens: Tokens, outline: Outline) -> Iterator[tuple[int, str]]:
    """(token index, message) of every pointer or reference without an address space."""
    yield from _built_in(tokens)
    yield from _angle_brackets_and_casts(tokens)
    yield from _function_pointers(tokens, outline)
    for function in outline.functions:
        yield from _marks(tokens, function.head, _return_end(tokens, function))
        yield from _parameters(tokens, function)
        yield from _body(tokens, function)
    for begin, end in [*((b, e) for b, e, _ in outline.statements), *outline.members]:
        yield from _statement(tokens, begin, end)


def _built_in(tokens: Tokens) -> Iterator[tuple[int, str]]:
    for i in tokens.significant:
        if not _BUILT_IN.fullmatch(tokens[i]) or tokens[tokens.before(i)] in (".", "->"):
            continue
        mark, spaces = _behind(tokens, tokens.after(i))
        if tokens[mark] == "(" and tokens[tokens.after(mark)] in _WORDS:  # float (&a)[2]
            inner = tokens.after(mark)
            if tokens[tokens.after(tokens.closing(mark))] == "[" and not spaces and not _has_space(tokens, i):
                yield inner, _WORDS[tokens[inner]]
        elif tokens[mark] in _WORDS and not spaces and not _has_space(tokens, i):
            yield mark, _WORDS[tokens[mark]]
        elif tokens[mark] == "*":
            yield from _further_marks(tokens, mark)


def _further_marks(tokens: Tokens, mark: int) -> Iterator[tuple[int, str]]:
    """`device float **p`: what the second star points to is in an address space too.

    A reference to a pointer is the thread's without saying so, as in kernels that Apple's compiler builds.
    """
    second, spaces = _behind(tokens, tokens.after(mark))
    if tokens[second] == "*" and not spaces:
        yield second, _WORDS[tokens[second]]


def _behind(tokens: Tokens, i: int) -> tuple[int, bool]:
    """First token from `i` on that is no qualifier, and whether an address space was among them."""
    spaces = False
    while tokens[i] in _SPACES or tokens[i] in ("const", "volatile", "int", "long", "char", "short"):
        spaces |= tokens[i] in _SPACES
        i = tokens.after(i)
    return i, spaces


def _has_space(tokens: Tokens, i: int) -> bool:
    """Whether an address space stands in front of the type whose name is at `i`."""
    i = tokens.before(i)
    while tokens[i] in _QUALIFIERS or tokens[i] in _SPACES or tokens[i] in ("::", "metal", "long", "]]", "]"):
        if tokens[i] in _SPACES:
            return True
        if tokens[i] == "]":  # an attribute
            while i > 0 and tokens[i] != "[[":
                i = tokens.before(i)
        i = tokens.before(i)
    return False


def _angle_brackets_and_casts(tokens: Tokens) -> Iterator[tuple[int, str]]:
    """`(T *)x`, `static_cast<T *>(x)` and `array<T *, 2>` of types that are not built in."""
    for i in tokens.significant:
        if tokens[i] not in _WORDS or tokens[tokens.after(i)] not in (")", ">", ","):
            continue
        name = tokens.before(i)
        name = tokens.before(name) if tokens[name] == "const" else name
        if not tokens[name].isidentifier() or tokens[name] in _NO_TYPE | _SPACES or _BUILT_IN.fullmatch(tokens[name]):
            continue
        opener = tokens.before(name)
        while tokens[opener] in ("const", "volatile", "typename"):
            opener = tokens.before(opener)
        closer = tokens[tokens.after(i)]
        in_cast = tokens[opener] == "<" and closer == ">" and tokens[tokens.before(opener)] in _CASTS
        after = tokens[tokens.after(tokens.after(i))]
        c_style = tokens[opener] == "(" and closer == ")" and (after.isidentifier() or after in ("(", "&", "*"))
        if in_cast or (c_style and not tokens[tokens.before(opener)].isidentifier()):
            yield i, _WORDS[tokens[i]]


def _function_pointers(tokens: Tokens, outline: Outline) -> Iterator[tuple[int, str]]:
    """Variables and members that point to functions.

    Parameters, template parameters and aliases may: kernels that Apple's compiler builds pass functions on to inlined
    functions in this way.
    """
    parameters = _places_of_parameters(tokens, outline)
    for i in tokens.significant:
        star = tokens.after(i)
        if tokens[i] != "(" or tokens[star] != "*" or not _ends_type(tokens, tokens.before(i)) or i in parameters:
            continue
        close = tokens.closing(i)
        name = tokens.after(star)
        if tokens[tokens.after(close)] == "(" and tokens[name] != "this" and close in (name, tokens.after(name)):
            if not {"using", "typedef", "template"} & _statement_words(tokens, i):
                yield star, _FUNCTION_POINTER
    yield from _addresses_of_functions(tokens, outline)


def _places_of_parameters(tokens: Tokens, outline: Outline) -> set[int]:
    """Indices inside the parameter lists of all functions but kernels."""
    return {
        i
        for f in outline.functions
        if not _is_kernel(tokens, f)
        for i in range(f.parameters, tokens.closing(f.parameters))
    }


def _statement_words(tokens: Tokens, i: int) -> set[str]:
    """Words from the beginning of the statement up to `i`."""
    words = set()
    while i >= 0 and tokens[i] not in (";", "{", "}"):
        words.add(tokens[i])
        i = tokens.before(i)
    return words


def _addresses_of_functions(tokens: Tokens, outline: Outline) -> Iterator[tuple[int, str]]:
    """`auto p = f;` and `auto p = &f;`"""
    names = {f.name for f in outline.functions if f.record is None}
    for function in outline.functions:
        for i in tokens.words(function.body, function.end):
            if tokens[i] != "=" or tokens[tokens.before(tokens.before(i))] not in ("auto", "const"):
                continue
            first = tokens.after(i)
            named = tokens.after(first) if tokens[first] == "&" else first
            if tokens[named] in names and tokens[tokens.after(named)] == ";":
                local = tokens[named] in {tokens[j] for j in tokens.words(function.parameters, i - 1)}
                if not local:
                    yield first, _FUNCTION_POINTER


def _ends_type(tokens: Tokens, i: int) -> bool:
    item = tokens[i]
    return item == ">" or (item.isidentifier() and item not in _NO_TYPE)


def _is_kernel(tokens: Tokens, function: Function) -> bool:
    return "kernel" in (tokens[i] for i in tokens.words(function.head, function.parameters))


def _return_end(tokens: Tokens, function: Function) -> int:
    """Where the return type of a function ends: at its name or the word operator."""
    for i in tokens.words(function.head, function.name_at):
        if tokens[i] == "operator":
            return i
    return function.name_at


def _parameters(tokens: Tokens, function: Function) -> Iterator[tuple[int, str]]:
    close = tokens.closing(function.parameters)
    for begin, end in split_at_commas(tokens, tokens.after(function.parameters), close):
        yield from _marks(tokens, begin, end)


def _marks(tokens: Tokens, begin: int, end: int) -> Iterator[tuple[int, str]]:
    """The first star or ampersand of a declaration in [begin, end) that names no address space."""
    i = begin
    if tokens[i] == "template":
        i = tokens.after(tokens.closing_angle(tokens.after(i), certain=True) or i)
    while i < end:
        item = tokens[i]
        if item in _SPACES or item in ("(", "&&", "...", "=", "auto"):
            return
        if item == "<":
            i = tokens.closing_angle(i, certain=True) or i
        elif item in ("[[", "["):
            i = tokens.closing(i)
        elif item in _WORDS:
            later = {tokens[j] for j in tokens.words(i, end)}
            if not later & _SPACES:
                yield i, _WORDS[item]
            return
        i = tokens.after(i)


def _statement(tokens: Tokens, begin: int, end: int) -> Iterator[tuple[int, str]]:
    """Declarations of namespaces and records: variables, members, functions without a body, and aliases."""
    words = tokens.words(begin, end)
    if tokens[begin] == "template" and tokens[tokens.after(begin)] != "<":
        return  # an explicit instantiation repeats what has been checked
    first = begin
    if tokens[begin] == "template":
        first = tokens.after(tokens.closing_angle(tokens.after(begin), certain=True) or begin)
    if tokens[first] == "using":
        equals = next((i for i in words if tokens[i] == "="), None)
        yield from _marks(tokens, tokens.after(equals), end) if equals is not None else ()
    elif tokens[first] not in ("static_assert", "friend", "struct", "class", "union", "enum"):
        opener = next((i for i in words if tokens[i] in ("(", "{") and i > first), end)
        yield from _marks(tokens, first, opener)
        if opener < end and tokens[opener] == "(" and "=" not in (tokens[i] for i in tokens.words(begin, opener)):
            for piece in split_at_commas(tokens, tokens.after(opener), tokens.closing(opener)):
                if not _BUILT_IN.fullmatch(tokens[piece[0]]):
                    yield from _marks(tokens, *piece)


def _body(tokens: Tokens, function: Function) -> Iterator[tuple[int, str]]:
    """`T *p = ...` where a statement begins. A product as a statement would have no effect."""
    for i in tokens.words(function.body, function.end):
        before = tokens.before(i)
        begins = tokens[before] in (";", "{", "}") or (
            tokens[before] == "(" and tokens[tokens.before(before)] in ("for", "if", "while", "switch")
        )
        mark = _bare_mark(tokens, i) if begins else None
        if mark is None and begins and tokens[i] in ("typedef", "using"):
            end = next(j for j in tokens.words(i, function.end) if tokens[j] == ";")
            yield from _statement(tokens, i, end) if tokens[i] == "using" else _marks(tokens, i, end)
        elif mark is not None:
            yield mark, _WORDS[tokens[mark]]
        elif begins and tokens[i] not in _NO_TYPE:
            yield from _later_declarators(tokens, i, function.end)


def _bare_mark(tokens: Tokens, i: int) -> int | None:
    """Index of the star in `T *p = ...`, `T *p;`, `T *p{`; None for anything else."""
    while tokens[i] in _QUALIFIERS:
        i = tokens.after(i)
    if not tokens[i].isidentifier() or tokens[i] in _NO_TYPE | _SPACES:
        return None
    i = tokens.after(i)
    while tokens[i] == "::":
        i = tokens.after(tokens.after(i))
    if tokens[i] == "<":
        close = tokens.closing_angle(i)
        if close is None:
            return None
        i = tokens.after(close)
    if tokens[i] == "const":
        i = tokens.after(i)
    name = tokens.after(i)
    if tokens[i] not in _WORDS or not tokens[name].isidentifier():
        return None
    ends = ("=", ";", ",", "{") if tokens[i] == "*" else ("=", "{")  # a reference is bound where it is declared
    return i if tokens[tokens.after(name)] in ends else None


def _later_declarators(tokens: Tokens, i: int, limit: int) -> Iterator[tuple[int, str]]:
    """`float a = 1, *p = &a;`"""
    start = i
    while tokens[i] in _QUALIFIERS:
        i = tokens.after(i)
    if not _BUILT_IN.fullmatch(tokens[i]) or not tokens[tokens.after(i)].isidentifier():
        return
    while i < limit and tokens[i] != ";":
        if tokens[i] in ("(", "[", "{", "[["):
            i = tokens.closing(i)
        elif tokens[i] == "," and tokens[tokens.after(i)] in _WORDS:
            yield tokens.after(i), _WORDS[tokens[tokens.after(i)]]
        elif tokens[i] in _SPACES and i > start:
            return
        i = tokens.after(i)
