"""What clang's OpenCL mode accepts and Metal does not, as far as a text shows it without types.

Rules on pointers are in `strict_pointers`, on kernels in `strict_kernels`; what needs types is in `strict_types`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from . import strict_kernels, strict_pointers
from .kernel_parser import split_at_commas
from .outline import Function, Outline
from .threadgroup_memory import variable_declarations
from .tokens import Tokens

Violation = tuple[int, str]  # token index, message

_FORBIDDEN = {
    "double": "'double' is not supported in Metal",
    "goto": "'goto' statements are not supported in Metal",
    "new": "'new' is not supported in Metal",
    "delete": "'delete' is not supported in Metal",
    "throw": "exceptions are not supported in Metal",
    "try": "exceptions are not supported in Metal",
    "catch": "exceptions are not supported in Metal",
    "virtual": "virtual functions are not supported in Metal",
    "dynamic_cast": "'dynamic_cast' is not supported in Metal",
    "typeid": "'typeid' is not supported in Metal",
    "thread_local": "'thread_local' is not supported in Metal",
    "register": "the 'register' storage class is not supported in Metal",
    "asm": "'asm' is not supported in Metal",
    "__asm__": "'asm' is not supported in Metal",
    "wchar_t": "'wchar_t' is not a type of Metal",
    "char16_t": "'char16_t' is not a type of Metal",
    "char32_t": "'char32_t' is not a type of Metal",
    "_Float16": "'_Float16' is not a type of Metal; it is called 'half'",
    "__fp16": "'__fp16' is not a type of Metal; it is called 'half'",
    "__bf16": "'__bf16' is not a type of Metal; it is called 'bfloat'",
    "__int128": "'__int128' is not a type of Metal",
    "co_await": "coroutines are not supported in Metal",
    "co_return": "coroutines are not supported in Metal",
    "co_yield": "coroutines are not supported in Metal",
}
_LONG_DOUBLE = re.compile(r"(?:\d[\d']*\.?[\d']*|\.\d+)(?:[eE][+-]?\d+)?[lL]")
_SPACES = {"device", "constant", "threadgroup", "thread"}
_NOT_A_VARIABLE = {
    "using", "typedef", "struct", "class", "union", "enum", "namespace", "static_assert", "friend",
    "operator", "kernel", "vertex", "fragment",
}  # fmt: skip
_DECLARATION_WORDS = {
    "const", "constexpr", "volatile", "static", "inline", "unsigned", "signed", "struct", "typename", "extern",
}  # fmt: skip
# What may stand before the '[' of a subscript; anywhere else it opens a lambda expression.
_BEFORE_SUBSCRIPT = set(")]}>\"'*&")
_NO_OPERAND = {"return", "case", "else", "do", "throw"}
_SMALL_ATOMICS = {"half", "bfloat", "short", "ushort", "char", "uchar", "int8_t", "uint8_t", "int16_t", "uint16_t"}
_ASSIGNMENTS = {"=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>=", "++", "--"}


def check(tokens: Tokens, outline: Outline) -> None:
    """Raises MetalSyntaxError for the first construct that Metal rejects."""
    found = violations(tokens, outline)
    if found:
        raise tokens.error(*found[0])


def violations(tokens: Tokens, outline: Outline) -> list[Violation]:
    """Everything that Metal rejects, in the order of the text, one message for each place."""
    rules = (_words, _literals, _lambdas, _program_scope, _static_members, _standard_library, _atomics, _swizzles)
    found = [violation for rule in rules for violation in rule(tokens, outline)]
    for function in outline.functions:
        found += _function(tokens, function)
    found += strict_pointers.violations(tokens, outline)
    found += strict_kernels.violations(tokens, outline)
    first: dict[int, str] = {}
    for index, message in sorted(found, key=lambda violation: violation[0]):
        first.setdefault(index, message)
    return list(first.items())


def _words(tokens: Tokens, outline: Outline) -> Iterator[Violation]:
    for i in tokens.significant:
        message = _FORBIDDEN.get(tokens[i])
        if message and not (tokens[i] == "delete" and tokens[tokens.before(i)] == "="):
            yield i, message
        if tokens[i] == "long" and tokens[tokens.after(i)] == "long":
            yield i, "'long long' is not a type of Metal; 'long' has 64 bits"


def _literals(tokens: Tokens, outline: Outline) -> Iterator[Violation]:
    for i in tokens.significant:
        item = tokens[i]
        if item[-1] in "lL" and ("." in item or "e" in item.lower()) and _LONG_DOUBLE.fullmatch(item):
            yield i, "'long double' is not supported in Metal"


def _lambdas(tokens: Tokens, outline: Outline) -> Iterator[Violation]:
    """Lambda expressions come with Metal 4; before, the specification (1.5.4) excludes them."""
    for i in tokens.significant:
        before = tokens[tokens.before(i)]
        subscript = before[-1:] in _BEFORE_SUBSCRIPT or (before.isidentifier() and before not in _NO_OPERAND)
        if tokens[i] == "[" and not subscript:
            yield i, "lambda expressions are not supported in Metal"


def _program_scope(tokens: Tokens, outline: Outline) -> Iterator[Violation]:
    """Variables outside functions are in the constant address space."""
    for begin, end, _ in outline.statements:
        head = begin
        if tokens[begin] == "template":
            opener = tokens.after(begin)
            if tokens[opener] != "<":
                continue
            head = tokens.after(tokens.closing_angle(opener, certain=True) or begin)
        if _declares_variable(tokens, head, end) and "constant" not in tokens.items[head:end]:
            yield head, "program scope variable must reside in constant address space"


def _static_members(tokens: Tokens, outline: Outline) -> Iterator[Violation]:
    for begin, end in outline.members:
        words = [tokens[i] for i in tokens.words(begin, end)]
        if "static" in words and "constant" not in words and _declares_variable(tokens, begin, end):
            yield begin, "static data member must reside in constant address space"


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


def _standard_library(tokens: Tokens, outline: Outline) -> Iterator[Violation]:
    """`using namespace std;` is harmless to clang, which knows the name."""
    for begin, end, scope in outline.statements:
        if [tokens[i] for i in tokens.words(begin, end)] == ["using", "namespace", "std"] and "std" not in scope:
            yield begin, "expected namespace name: Metal has no 'std'; its library is in namespace 'metal'"


def _atomics(tokens: Tokens, outline: Outline) -> Iterator[Violation]:
    """Atomics of 32 and 64 bits only, and only the relaxed order: a fence orders other memory."""
    for i in tokens.significant:
        after = tokens.after(i)
        if tokens[i] == "atomic" and tokens[after] == "<" and tokens[tokens.after(after)] in _SMALL_ATOMICS:
            name = tokens[tokens.after(after)]
            yield i, f"'atomic<{name}>' is not supported in Metal; valid are int, uint, bool, ulong and float"
        elif re.fullmatch(r"atomic_(?!thread_fence)\w+", tokens[i]) and tokens[after] == "(":
            for j in tokens.words(after, tokens.closing(after)):
                if tokens[j].startswith("memory_order_") and tokens[j] != "memory_order_relaxed":
                    yield (
                        j,
                        f"'{tokens[j]}' is not supported by '{tokens[i]}'; atomic operations are memory_order_relaxed",
                    )


def _swizzles(tokens: Tokens, outline: Outline) -> Iterator[Violation]:
    for i in tokens.significant:
        if tokens[i] != "." or tokens[tokens.after(tokens.after(i))] not in _ASSIGNMENTS:
            continue
        name = tokens[tokens.after(i)]
        if re.fullmatch("[xyzw]{2,4}|[rgba]{2,4}", name) and len(set(name)) < len(name):
            yield i, f"vector is not assignable: '{name}' contains duplicate components"


def _function(tokens: Tokens, function: Function) -> Iterator[Violation]:
    head = {tokens[i] for i in tokens.words(function.head, function.parameters)}
    if function.name == "main" and function.record is None:
        yield function.name_at, "'main' cannot be the name of a function in Metal"
    close = tokens.closing(function.parameters)
    if tokens[tokens.before(close)] == "...":
        last = tokens.before(tokens.before(close))
        if last == function.parameters or tokens[last] == ",":
            yield tokens.before(close), "variadic functions are not supported in Metal"
    for i in tokens.words(function.body, function.end):
        following = [tokens[j] for j in tokens.words(i + 1, min(i + 12, function.end))][:3]
        if tokens[i] == "static" and "constant" not in following:
            yield i, "static local variables are not supported in Metal; only a 'constant' variable may be static"
        if tokens[i] == "extern":
            yield i, "'extern' variables are not supported in Metal"
        if tokens[i] == "constant":
            yield from _constant_variable(tokens, function, i)
    if "kernel" not in head:
        for begin, _ in variable_declarations(tokens, function):
            yield begin, "a variable in the threadgroup address space can only be declared in a kernel"


def _constant_variable(tokens: Tokens, function: Function, i: int) -> Iterator[Violation]:
    """A variable in constant memory has its value before any kernel runs."""
    parameters = _parameter_names(tokens, function)
    equals = None
    for j in tokens.words(i, function.end):
        if tokens[j] in ("*", "&", "(", ";") and equals is None or tokens[j] == ";":
            return
        if equals is not None and tokens[j] in parameters and tokens[tokens.before(j)] not in (".", "->", "::"):
            yield i, f"initializer of a variable in constant address space is not a constant: it reads '{tokens[j]}'"
            return
        equals = j if tokens[j] == "=" and equals is None else equals


def _parameter_names(tokens: Tokens, function: Function) -> set[str]:
    names = set()
    for begin, end in split_at_commas(tokens, tokens.after(function.parameters), tokens.closing(function.parameters)):
        declarator = list(itertools.takewhile(lambda i: tokens[i] not in ("[[", "[", "="), tokens.words(begin, end)))
        names |= {tokens[i] for i in declarator[-1:] if tokens[i].isidentifier()}
    return names
