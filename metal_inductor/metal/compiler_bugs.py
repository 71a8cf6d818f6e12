"""What Apple's compiler accepts and gets wrong, or accepts and lets fail later, as far as a text shows it.

Each rule names one known bug; a rule that could only guess is left out. Torch's own headers, which work around them,
are not looked at.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from . import strict_kernels
from .kernel_parser import split_at_commas
from .outline import Function, Outline
from .tokens import Tokens

Finding = tuple[int, str, str]  # token index, message, hint

_POWER = re.compile(r"(0[xX][0-9a-fA-F]+|\d+)[uUlL]*")
_ROUNDS = {"for", "while"}
_SMALL = {"half", "bfloat", "short", "ushort", "char", "uchar", "bool", "int8_t", "uint8_t", "int16_t", "uint16_t"}
_WIDE = {"long", "ulong", "size_t", "int64_t", "uint64_t", "ptrdiff_t"}
_OPERAND = r"-?\(*\w[\w.]*\)*"
_COMMENT_OPERAND = re.compile(rf"\s*{_OPERAND}(?:\s*[-+*/%&|<>]+\s*{_OPERAND})*\s*[)\]]*\s*;?\s*")
LARGE_GROUP = 512  # threads; metal::isnan was seen to fail in groups of a thousand


def findings(tokens: Tokens, outline: Outline, is_user: Callable[[int], bool]) -> list[Finding]:
    """Warnings about the user's text, in its order."""
    rules = (_quotient_and_remainder, _unbounded_group, _is_nan, _small_atomics, _wide_index, _initialised, _unknown)
    found = [finding for rule in rules for finding in rule(tokens, outline) if is_user(finding[0])]
    return sorted(found)


def swallowed_divisions(source: str) -> Iterator[tuple[int, int, str, str]]:
    """(line, column, message, hint) for `a = b // 2;`, where the Python operator begins a comment."""
    for number, text in enumerate(source.splitlines(), 1):
        code, slashes, comment = text.partition("//")
        if not slashes or not re.search(r"[\w)\]]\s*$", code) or code.lstrip().startswith(("#", "*", "/*")):
            continue
        unfinished = code.count("(") > code.count(")") or re.search(r"=|\breturn\b", code)
        finishes = comment.rstrip().endswith(";") or comment.count(")") > comment.count("(")
        if unfinished and finishes and _COMMENT_OPERAND.fullmatch(comment):
            message = "'//' begins a comment, so what looks like its right operand is not computed"
            hint = "write '/' for integers; c10::metal::floor_divide rounds towards minus infinity"
            yield number, len(code) + 1, message, hint


def _quotient_and_remainder(tokens: Tokens, outline: Outline) -> Iterator[Finding]:
    """`(x / 65536) % n` (pytorch PR 175481)."""
    for i in tokens.significant:
        if tokens[i] != "%":
            continue
        operand = tokens.before(i)
        while tokens[operand] == ")":
            operand = tokens.before(operand)
        if _number(tokens[operand]) != 65536 or tokens[tokens.before(operand)] != "/":
            continue
        divisor = _number(tokens[tokens.after(i)].strip())
        if divisor is None or divisor & (divisor - 1):
            yield (
                i,
                "Apple's compiler miscompiles (x / 65536) % n where n is no power of two",
                "make the quotient volatile, as c10::metal::safe_mod does, before the remainder is taken",
            )


def _number(text: str) -> int | None:
    match = _POWER.fullmatch(text)
    return int(match.group(1), 0) if match and not re.fullmatch(r"0\d+", match.group(1)) else None


def _kernels(tokens: Tokens, outline: Outline) -> Iterator[tuple[Function, int | None]]:
    """Kernels and the threads that they promise at most."""
    for function in outline.functions:
        head = tokens.text(function.head, function.parameters)
        if re.search(r"\bkernel\b", head):
            tail = tokens.text(tokens.closing(function.parameters), function.body)
            promised = re.search(r"max_total_threads_per_threadgroup\s*\(\s*(\d+)?", head + tail)
            given = promised.group(1) if promised else None
            yield function, int(given) if given else (-1 if promised else None)


def _unbounded_group(tokens: Tokens, outline: Outline) -> Iterator[Finding]:
    """pytorch PR 150247: unrolling takes registers until a group of 1024 threads no longer fits the pipeline."""
    for function, promised in _kernels(tokens, outline):
        words = [tokens[i] for i in tokens.words(function.body, function.end)]
        sizes = [_extent(tokens, i) for i in tokens.words(function.body, function.end) if tokens[i] == "threadgroup"]
        large = any(size is not None and size >= LARGE_GROUP for size in sizes)
        if promised is None and large and _ROUNDS & set(words) and "threadgroup_barrier" in words:
            yield (
                function.name_at,
                f"kernel '{function.name}' reduces over a large threadgroup without max_total_threads_per_threadgroup: "
                "Apple's compiler may use so many registers that the group cannot be launched",
                "say how many threads it is launched with: [[max_total_threads_per_threadgroup(1024)]]",
            )


def _extent(tokens: Tokens, i: int) -> int | None:
    """Elements of the array that `threadgroup T name[extent]` declares at `i`."""
    while tokens[i] not in (";", "[", "=", "*", "&", "(", ""):
        if tokens[i] == "<":
            i = tokens.closing_angle(i, certain=True) or i
        i = tokens.after(i)
    return _number(tokens[tokens.after(i)]) if tokens[i] == "[" else None


def _is_nan(tokens: Tokens, outline: Outline) -> Iterator[Finding]:
    """Wrong on M2 in the large threadgroups of a sort."""
    for function, promised in _kernels(tokens, outline):
        if promised is None or promised < LARGE_GROUP:
            continue
        for i in tokens.words(function.body, function.end):
            if tokens[i] == "isnan" and tokens[tokens.after(i)] == "(":
                yield i, f"'isnan' is wrong on M2 in threadgroups of {promised} threads", "compare: x != x"


def _small_atomics(tokens: Tokens, outline: Outline) -> Iterator[Finding]:
    for i in tokens.significant:
        opener = tokens.after(i)
        if tokens[i] != "AtomicType" or tokens[opener] != "<":
            continue
        name = tokens[tokens.after(opener)]
        if name in _SMALL:
            yield (
                i,
                f"atomics of '{name}' are a loop of compare-and-exchange on the 32 bits around it: slow where many "
                "threads meet, and they need the buffer aligned to 4 bytes",
                "accumulate in float or int and convert afterwards",
            )
        elif name in _WIDE:
            yield i, f"additions to '{name}' are two 32-bit atomics: a reader may see one without the other", "use uint"


def _wide_index(tokens: Tokens, outline: Outline) -> Iterator[Finding]:
    """`ulong i = position * stride;` is computed in 32 bits before it is widened."""
    for function, _ in _kernels(tokens, outline):
        narrow, positions = _narrow_parameters(tokens, function)
        for i in tokens.words(function.body, function.end):
            equals = tokens.after(tokens.after(i))
            if tokens[i] in _WIDE and tokens[equals] == "=" and _overflows(tokens, equals, narrow, positions):
                yield (
                    i,
                    f"the product is computed in 32 bits and overflows before it becomes '{tokens[i]}'",
                    f"convert a factor first: {tokens[i]}({tokens[tokens.after(equals)]}) * ...",
                )


def _narrow_parameters(tokens: Tokens, function: Function) -> tuple[set[str], set[str]]:
    """Names of 32-bit integer parameters, and of those that are positions in a grid."""
    narrow, positions = set(), set()
    for begin, end in split_at_commas(tokens, tokens.after(function.parameters), tokens.closing(function.parameters)):
        words = [tokens[i] for i in tokens.words(begin, end)]
        name_at = words.index("[[") - 1 if "[[" in words else len(words) - 1
        if name_at < 1 or "*" in words or not {"uint", "int", "uint32_t", "int32_t", "unsigned"} & set(words):
            continue
        narrow.add(words[name_at])
        if "thread_position_in_grid" in words or "threadgroup_position_in_grid" in words:
            positions.add(words[name_at])
    return narrow, positions


def _overflows(tokens: Tokens, equals: int, narrow: set[str], positions: set[str]) -> bool:
    """Whether an initialiser multiplies a grid position and has 32-bit operands only."""
    words, i = [], tokens.after(equals)
    while tokens[i] not in (";", ""):
        words.append(tokens[i])
        i = tokens.after(i)
    operands = [word for word in words if word not in ("+", "-", "*", "(", ")")]
    plain = all(word in narrow or re.fullmatch(r"\d+[uU]?", word) for word in operands)
    beside = {word for k, word in enumerate(words) if "*" in words[max(k - 1, 0) : k + 2]}
    return plain and bool(positions & beside)


def _initialised(tokens: Tokens, outline: Outline) -> Iterator[Finding]:
    """`threadgroup float s[32] = {0};` compiles, but no thread is said to write the value."""
    for function, _ in _kernels(tokens, outline):
        for i in tokens.words(function.body, function.end):
            if tokens[i] != "threadgroup" or tokens[tokens.before(i)] not in ("{", "}", ";"):
                continue
            j = tokens.after(i)
            while tokens[j] not in (";", "=", "*", "&", "("):
                j = tokens.closing(j) if tokens[j] == "[" else j
                j = tokens.after(j)
            if tokens[j] == "=":
                yield (
                    j,
                    "the initialiser of a threadgroup variable is not in Metal's specification",
                    "store the value in code and pass a threadgroup_barrier before it is read",
                )


def _unknown(tokens: Tokens, outline: Outline) -> Iterator[Finding]:
    for i, name in strict_kernels.unknown_attributes(tokens, outline):
        yield i, f"unknown attribute '{name}' ignored", "valid are host_name and max_total_threads_per_threadgroup"
    for i in tokens.significant:
        if tokens[i] == "if" and tokens[tokens.after(i)] == "constexpr":
            yield (
                i,
                "'if constexpr' is C++17: an extension of Apple's compiler before Metal 4",
                "overload, or use 'if' where both branches compile",
            )
            return  # one is enough: a text that uses it does so often
