"""Passes that turn Metal tokens into C++ for OpenCL tokens, each for one difference between the two languages."""

from __future__ import annotations

import re

from .kernel_parser import split_at_commas
from .outline import Function, Outline, Region
from .tokens import Tokens

_SPACES = {"device", "constant", "threadgroup", "thread"}
# Identifiers that Metal leaves to the user and OpenCL reserves.
_RESERVED = {
    "global", "local", "generic", "pipe", "event_t", "queue_t", "reserve_id_t", "clk_event_t", "read_only",
    "write_only", "read_write", "image1d_t", "image2d_t", "image3d_t", "sampler_t", "addr_space_cast", "vec_step",
}  # fmt: skip
_OBJECT_SPACES = {"thread": "", "threadgroup": "threadgroup", "device": "__global", "constant": "__global"}
_COMPONENTS = ("xyzw", "rgba")
_ASSIGNMENTS = {"=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<="}
_NUMBER = re.compile(r"\.?\d")
_VECTOR_NAME = re.compile(r"(?:bool|u?char|u?short|u?int|u?long|half|float|bfloat)[234]|vec")
_OPENERS = ("(", "[", "{", "[[")
_FUNCTION_NAMES = ("__func__", "__FUNCTION__", "__PRETTY_FUNCTION__")


def rename_reserved(tokens: Tokens) -> None:
    for i in tokens.significant:
        if tokens[i] in _RESERVED:
            tokens.items[i] = "msl_name_" + tokens[i]


def rewrite_literals(tokens: Tokens) -> None:
    """1.0 is a float and 1.0bf a bfloat; the other literals agree."""
    for i in tokens.significant:
        item = tokens[i]
        if not _NUMBER.match(item) or item.startswith(("0x", "0X")):
            continue
        if item.endswith(("bf", "BF")):
            tokens.items[i] = f"bfloat({item[:-2]}f)"
        elif item[-1].isdigit() or item[-1] == ".":
            tokens.items[i] = item + "f" if re.search(r"[.eE]", item) else item


def rewrite_parameters(tokens: Tokens, outline: Outline) -> None:
    """An array parameter without an address space is the thread's.

    A constant reference to the thread's memory becomes a value, because it may bind to a temporary, which here is in no
    address space; not so where overloads of a function differ in address space.
    """
    elsewhere = {_overload_set(f) for f in outline.functions if _refers_elsewhere(tokens, f)}
    for function in outline.functions:
        close = tokens.closing(function.parameters)
        single = _overload_set(function) not in elsewhere and function.name not in ("operator", function.record)
        for begin, end in split_at_commas(tokens, tokens.after(function.parameters), close):
            places = {tokens[i]: i for i in tokens.words(begin, end)}
            if "[" in places and not _SPACES & set(places) and "=" not in places:
                tokens.items[begin] = f"thread {tokens.items[begin]}"
            elif single and {"const", "thread", "&"} <= set(places) and not {"*", "(", "["} & set(places):
                for word in ("thread", "&"):
                    tokens.items[places[word]] = ""


def _overload_set(function: Function) -> tuple[tuple[str, ...], int | None, str]:
    return function.scope, function.record_begin, function.name


def _refers_elsewhere(tokens: Tokens, function: Function) -> bool:
    """Whether a parameter is a reference to other memory than the thread's."""
    close = tokens.closing(function.parameters)
    for begin, end in split_at_commas(tokens, tokens.after(function.parameters), close):
        words = {tokens[i] for i in tokens.words(begin, end)}
        if "&" in words and words & {"device", "constant", "threadgroup"}:
            return True
    return False


def rewrite_swizzles(tokens: Tokens, outline: Outline) -> None:
    """v.zx becomes v.template msl_get<2, 0>(), or msl_set where it is assigned to.

    A name that a record of the text declares as its own member stays as it is.
    """
    members = _member_names(tokens, outline)
    for i in tokens.significant:
        if tokens[i] not in (".", "->"):
            continue
        at = tokens.after(i)
        lanes = _swizzle(tokens[at])
        if lanes is None or tokens[at] in members or tokens[tokens.after(at)] == "(":
            continue
        method = "msl_set" if _is_assigned(tokens, tokens.after(at)) else "msl_get"
        tokens.items[at] = f"template {method}<{', '.join(map(str, lanes))}>()"


def _is_assigned(tokens: Tokens, i: int) -> bool:
    """Whether an assignment begins at a token; `>>=` is two of them, because `>>` may end template arguments."""
    return tokens[i] in _ASSIGNMENTS or (tokens[i] == ">" and tokens[i + 1] == ">=")


def _swizzle(name: str) -> list[int] | None:
    for letters in _COMPONENTS:
        if 2 <= len(name) <= 4 and all(letter in letters for letter in name):
            return [letters.index(letter) for letter in name]
    return None


def _member_names(tokens: Tokens, outline: Outline) -> set[str]:
    """Swizzle-like names that are declared directly in the body of a record."""
    names = set()
    for record in outline.records:
        i = tokens.after(record.begin)
        while i < record.end:
            if tokens[i] in _OPENERS:
                i = tokens.closing(i)
            elif _swizzle(tokens[i]) and tokens[tokens.after(i)] in (";", ",", "=", "[", "("):
                names.add(tokens[i])
            i = tokens.after(i)
    return names


def rewrite_conditionals(tokens: Tokens) -> None:
    """Makes plain values of both results of `c ? a : b`: see msl::value."""
    operands = []
    for i in tokens.significant:
        if tokens[i] == "?":
            colon = _matching_colon(tokens, i)
            operands.append((tokens.after(i), tokens.before(colon)))
            operands.append((tokens.after(colon), tokens.before(_conditional_end(tokens, colon))))
    for first, last in operands:
        if first != last or not (_NUMBER.match(tokens[first]) or tokens[first] in ("true", "false", "nullptr")):
            tokens.items[first] = "msl::value(" + tokens.items[first]
            tokens.items[last] += ")"


def _matching_colon(tokens: Tokens, question: int) -> int:
    nested, i = 0, tokens.after(question)
    while i < len(tokens):
        if tokens[i] in _OPENERS:
            i = tokens.closing(i)
        elif tokens[i] == "?":
            nested += 1
        elif tokens[i] == ":":
            if nested == 0:
                return i
            nested -= 1
        elif tokens[i] in (";", ")", "]", "}"):
            break
        i = tokens.after(i)
    raise tokens.error(question, "'?' has no matching ':'")


def _conditional_end(tokens: Tokens, colon: int) -> int:
    """First token after the expression that follows ':'."""
    nested, i = 0, tokens.after(colon)
    while i < len(tokens):
        item = tokens[i]
        if item in _OPENERS:
            i = tokens.closing(i)
        elif item == "<" and _is_template_arguments(tokens, i):
            i = tokens.closing_angle(i)
        elif item == "?":
            nested += 1
        elif item in (",", ";", ")", "]", "}") or (item == ":" and nested == 0) or _closes_template(tokens, i):
            return i
        elif item == ":":
            nested -= 1
        i = tokens.after(i)
    return i


def _is_template_arguments(tokens: Tokens, angle: int) -> bool:
    close = tokens.closing_angle(angle) if tokens[tokens.before(angle)].isidentifier() else None
    return close is not None and tokens[tokens.after(close)] in ("(", "::", "{", ">", ",", ")", ";")


def _closes_template(tokens: Tokens, i: int) -> bool:
    """`>` after which no operand can follow ends template arguments."""
    return tokens[i] == ">" and tokens[tokens.after(i)] in (">", ",", ")", ";", "{", "::", "&", "*")


def rewrite_method_spaces(tokens: Tokens, outline: Outline) -> None:
    """Address spaces behind a parameter list say where *this may live.

    An unqualified method accepts all, so `thread` is dropped. Device and constant objects both are global memory: of
    two methods that differ only in these, one is kept.
    """
    owners = _owners_of_outer_definitions(tokens, outline)
    consistent = _records_with_qualified_methods(tokens, outline)
    giving = {f.record_begin for f in outline.functions if _returns_thread_memory(tokens, f)}
    seen: set[tuple[int | None, str]] = set()
    for function in outline.functions:
        trailing = _trailing_space(tokens, function.parameters, function.body)
        constructor = function.record is not None and function.name == function.record
        if trailing is None and not constructor:
            continue
        kept = ""
        if trailing is not None:
            kept = "" if constructor else _OBJECT_SPACES[tokens[trailing]]
            owner = owners.get(function.head, function.record_begin)
            if (
                tokens[trailing] == "thread"
                and not constructor
                and _needs_thread(tokens, function, owner, consistent, giving)
            ):
                kept = "thread"
            tokens.items[trailing] = ""
        signature = tokens.text(function.head, _signature_end(tokens, function)) + kept
        key = (function.record_begin, re.sub(r"\b(?:public|private|protected) ?:", "", signature))
        if key in seen:
            tokens.erase(function.head, function.end + 1)
        elif trailing is not None:
            tokens.items[trailing] = kept
        seen.add(key)
    _drop_spaces_of_declarations(tokens, [r for r in outline.records if r.begin in consistent])


def _records_with_qualified_methods(tokens: Tokens, outline: Outline) -> set[int | None]:
    """Records whose every method names an address space. There a method that changes a `thread` object stays one, so
    that it can hand out references to members; elsewhere an unqualified method may have to call it."""
    methods = [f for f in outline.functions if f.record_begin is not None and f.name != f.record]
    unqualified = {
        f.record_begin
        for f in methods
        if _trailing_space(tokens, f.parameters, f.body) is None
        and "static" not in (tokens[i] for i in tokens.words(f.head, f.name_at))
    }
    return {f.record_begin for f in methods} - unqualified


def _owners_of_outer_definitions(tokens: Tokens, outline: Outline) -> dict[int, int]:
    """Where the record begins whose method a function outside of it defines, by the function's head."""
    begins = {record.name: record.begin for record in outline.records}
    owners = {}
    for function in outline.functions:
        i = tokens.before(function.name_at)
        if function.record is not None or tokens[i] != "::":
            continue
        name = tokens.before(i)
        if tokens[name] == ">":
            name = tokens.before(_opening_angle(tokens, function.head, name))
        if tokens[name] in begins:
            owners[function.head] = begins[tokens[name]]
    return owners


def _opening_angle(tokens: Tokens, begin: int, close: int) -> int:
    """The '<' of the template arguments that end at `close`, or `begin`."""
    depth = 0
    for i in reversed(tokens.words(begin, close + 1)):
        depth += {">": 1, "<": -1}.get(tokens[i], 0)
        if depth == 0:
            return i
    return begin


def _needs_thread(
    tokens: Tokens, function: Function, owner: int | None, consistent: set[int | None], giving: set[int | None]
) -> bool:
    if _returns_thread_memory(tokens, function):
        return True
    qualifiers = {tokens[i] for i in tokens.words(tokens.closing(function.parameters), function.body)}
    return owner in consistent and (owner in giving or "const" not in qualifiers)


def _returns_thread_memory(tokens: Tokens, function: Function) -> bool:
    """A reference to a member of an object in the thread's memory exists only for such objects."""
    return any(tokens[i] == "thread" for i in tokens.words(function.head, function.name_at))


def _trailing_space(tokens: Tokens, parameters: int, body: int) -> int | None:
    i = tokens.after(tokens.closing(parameters))
    while i < body and (tokens[i] in ("const", "volatile", "noexcept") or tokens[i] in _SPACES):
        if tokens[i] in _SPACES:
            return i
        i = tokens.after(i)
    return None


def _signature_end(tokens: Tokens, function: Function) -> int:
    """End of the parameter list and the const that may follow it."""
    i = tokens.after(tokens.closing(function.parameters))
    while tokens[i] in ("const", "volatile", ""):
        i = tokens.after(i)
    return i


def _drop_spaces_of_declarations(tokens: Tokens, consistent: list[Region]) -> None:
    """`T f() const thread;` and `S() thread = default;`, but for `T f() thread;` in a record whose methods keep it."""
    for i in tokens.significant:
        if (
            tokens[i] in _SPACES
            and tokens[tokens.before(i)] in (")", "const")
            and tokens[tokens.after(i)] in (";", "=")
        ):
            before = tokens.before(i)
            opener = tokens.before(before) if tokens[before] == "const" else before
            kept = tokens[i] == "thread" and before == opener and _declares_method(tokens, i, consistent)
            if tokens[opener] == ")" and not kept:
                tokens.items[i] = ""


def _declares_method(tokens: Tokens, i: int, records: list[Region]) -> bool:
    """Whether a token ends the declaration of a method of one of the records that is no constructor."""
    record = next((r for r in reversed(records) if r.begin < i < r.end), None)
    if record is None or tokens[tokens.after(i)] != ";":
        return False
    opener = i
    while tokens[opener] not in ("(", ";", "{", "}") or (
        tokens[opener] == "(" and tokens.closing(opener) != tokens.before(i)
    ):
        opener = tokens.before(opener)
    return tokens[tokens.before(opener)] != record.name


def rewrite_unions(tokens: Tokens, outline: Outline) -> None:
    """A union of vectors is copied as bytes: the copies of vectors alone do not say how."""
    for record in outline.records:
        words = [tokens[i] for i in tokens.words(record.begin, record.end)]
        if record.kind == "union" and record.name and any(_VECTOR_NAME.fullmatch(word) for word in words):
            name = record.name
            copy = f"__builtin_memcpy(this, &other, sizeof({name}));"
            tokens.items[record.begin] += (
                f" {name}() = default; {name}(const {name} &other) {{ {copy} }}"
                f" __generic {name} &operator=(const {name} &other) {{ {copy} return *this; }}"
            )


def rewrite_constants(tokens: Tokens, outline: Outline) -> None:
    """A `constant` variable in a function is static: global memory has no other variables."""
    for function in outline.functions:
        for i in tokens.words(function.body, function.end):
            if tokens[i] != "constant":
                continue
            before = tokens.before(i)
            if tokens[before] == "constexpr":
                before = tokens.before(before)
            if tokens[before] in (";", "{", "}") and not _declares_pointer(tokens, i):
                tokens.items[i] = "static constant"


def _declares_pointer(tokens: Tokens, i: int) -> bool:
    while tokens[i] not in (";", "=", "{", "(", "["):
        if tokens[i] in ("*", "&"):
            return True
        if tokens[i] == "<":
            i = tokens.closing_angle(i, certain=True) or i
        i = tokens.after(i)
    return False


def rewrite_strings(tokens: Tokens, outline: Outline) -> None:
    """A string in a function is in Metal's constant address space; OpenCL's own is another one."""
    for function in outline.functions:
        for i in tokens.words(function.body, function.end):
            begins = tokens[i].startswith('"') and not tokens[tokens.before(i)].startswith('"')
            if (begins or tokens[i] in _FUNCTION_NAMES) and _is_value(tokens, i):
                tokens.items[i] = f"(constant char *)(ulong){tokens.items[i]}"


def _is_value(tokens: Tokens, i: int) -> bool:
    """Whether a string is not the operand of a declaration, a pragma or sizeof."""
    if tokens[tokens.before(tokens.before(i))] == "sizeof":
        return False
    while i >= 0 and tokens[i] not in (";", "{", "}"):
        if tokens[i] in ("static_assert", "_Pragma", "extern", "__attribute__"):
            return False
        i = tokens.before(i)
    return True


def rewrite_function_constants(tokens: Tokens) -> dict[str, int]:
    """`constant T name [[function_constant(n)]];` takes its value from MSL_FUNCTION_CONSTANT_n. Returns name -> n."""
    found = {}
    for i in tokens.significant:
        if tokens[i] != "[[" or tokens[tokens.after(i)] != "function_constant":
            continue
        close = tokens.closing(i)
        number = re.search(r"\(\s*(\d+)\s*\)", tokens.text(i, close))
        if number is None:
            raise tokens.error(i, "function_constant needs an index, as in [[function_constant(0)]]")
        name = tokens[tokens.before(i)]
        found[name] = int(number.group(1))
        tokens.erase(i, close + 1)
        tokens.items[i] = f" = MSL_FUNCTION_CONSTANT_{found[name]}"
    for i in tokens.significant:
        if tokens[i] == "is_function_constant_defined":
            argument = tokens.after(tokens.after(i))
            defined = f"MSL_FUNCTION_CONSTANT_DEFINED_{found.get(tokens[argument], 'unknown')}"
            tokens.erase(tokens.after(i), tokens.closing(tokens.after(i)) + 1)
            tokens.items[i] = defined
    return found


def rewrite_added_constants(tokens: Tokens) -> None:
    """`p += c` for a pointer p and an object c that stands for an integer: clang does not find the operator."""
    if "integral_constant" not in tokens.items:
        return
    for i in tokens.significant:
        if tokens[i] in ("+=", "-=") and tokens[tokens.before(i)] != "operator":
            end = _conditional_end(tokens, i)
            tokens.items[tokens.after(i)] = "msl::addend(" + tokens.items[tokens.after(i)]
            tokens.items[tokens.before(end)] += ")"


def rewrite_function_arguments(tokens: Tokens, outline: Outline) -> None:
    """A template parameter that is a pointer to a function takes its type from the argument: in OpenCL the pointer that
    is declared and the function's address differ in address space."""
    aliases = _function_pointer_aliases(tokens, outline)
    for i in tokens.significant:
        opener = tokens.after(i)
        close = (
            tokens.closing_angle(opener, certain=True) if tokens[i] == "template" and tokens[opener] == "<" else None
        )
        if close is None:
            continue
        for begin, end in split_at_commas(tokens, tokens.after(opener), close):
            name = _function_parameter(tokens, begin, end, aliases)
            if name:
                tokens.erase(begin, end)
                tokens.items[begin] = f"auto {name}"


def _function_pointer_aliases(tokens: Tokens, outline: Outline) -> set[str]:
    """Names that `using name = R (*)(...)` or `typedef R (*name)(...)` declares."""
    texts = [tokens.text(begin, end) for begin, end, _ in outline.statements]
    found = [re.search(r"\busing (\w+) ?=.*\( ?\* ?\) ?\(|^typedef .*\( ?\* ?(\w+) ?\) ?\(", text) for text in texts]
    return {match.group(1) or match.group(2) for match in found if match}


def _function_parameter(tokens: Tokens, begin: int, end: int, aliases: set[str]) -> str | None:
    """The name of a template parameter that is a pointer to a function."""
    direct = re.search(r"\( ?\* ?(\w+) ?\) ?\(", tokens.text(begin, end))
    if direct:
        return direct.group(1)
    return tokens[tokens.before(end)] if tokens[begin] in aliases and tokens.before(end) > begin else None


def erase_attributes(tokens: Tokens) -> None:
    """Attributes that only Metal knows; what they ask for has been read before."""
    for i in tokens.significant:
        if tokens[i] == "[[":
            tokens.erase(i, tokens.closing(i) + 1)
