"""The shape of a Metal text: which functions, records and namespaces it defines, and where."""

from __future__ import annotations

import dataclasses

from .tokens import Tokens

_STATEMENT_WORDS = {"if", "for", "while", "switch", "return", "do", "else", "sizeof", "alignas", "decltype", "noexcept"}


@dataclasses.dataclass(frozen=True)
class Function:
    """A function definition by token indices: `parameters` is the opening parenthesis, `body` the opening brace."""

    name: str
    scope: tuple[str, ...]
    head: int
    name_at: int
    parameters: int
    body: int
    end: int
    record: str | None
    record_begin: int | None

    @property
    def qualified_name(self) -> str:
        return "::".join((*self.scope, self.name))


@dataclasses.dataclass(frozen=True)
class Region:
    """The braces of a record; kind is 'struct', 'class' or 'union'."""

    kind: str
    name: str
    begin: int
    end: int


@dataclasses.dataclass
class Outline:
    functions: list[Function]
    records: list[Region]
    statements: list[tuple[int, int, tuple[str, ...]]]  # namespace-scope statements that end with ';'
    templates: set[str]
    members: list[tuple[int, int]] = dataclasses.field(default_factory=list)  # the same in the bodies of records


def parse_outline(tokens: Tokens) -> Outline:
    """Walks the namespace and record scopes of a text; function bodies are left closed."""
    outline = Outline([], [], [], set())
    _walk(tokens, outline, 0, len(tokens), (), None)
    return outline


def _walk(
    tokens: Tokens, outline: Outline, begin: int, end: int, scope: tuple[str, ...], record: Region | None
) -> None:
    i = tokens.after(begin - 1)
    head = i
    while i < end:
        item = tokens[i]
        if item == ";":
            if i > head:
                if record is None:
                    outline.statements.append((head, i, scope))
                else:
                    outline.members.append((head, i))
            head = tokens.after(i)
        elif item in ("(", "[", "[["):
            i = tokens.closing(i)
        elif item == "{":
            i, head = _enter(tokens, outline, head, i, scope, record)
            continue
        elif item == ":" and record is not None and tokens[tokens.before(i)] in ("public", "private", "protected"):
            head = tokens.after(i)
        i = tokens.after(i)


def _enter(tokens, outline, head: int, brace: int, scope, record) -> tuple[int, int]:
    """Handles one '{'; returns where to go on and the head of the statement that goes on there."""
    close = tokens.closing(brace)
    after = tokens.after(close)
    words = [tokens[i] for i in tokens.words(head, brace)]
    body_start = tokens.after(brace)
    if "namespace" in words or words[:1] == ["extern"]:
        names = tuple(w for w in words if w.isidentifier() and w not in ("namespace", "inline"))
        inner = scope + (names if "namespace" in words else ())
        _walk(tokens, outline, body_start, close, inner, None)
        return after, after
    function = _function(tokens, head, brace, scope, record)
    if function is not None:
        outline.functions.append(function)
        if words[0] == "template":
            outline.templates.add(function.name)
        after = tokens.after(function.end)
        return after, after
    kind = next((w for w in _top_words(tokens, head, brace) if w in ("struct", "class", "union", "enum")), None)
    if kind in ("struct", "class", "union"):
        name = _record_name(tokens, head, brace)
        outline.records.append(Region(kind, name, brace, close))
        if words[0] == "template":
            outline.templates.add(name)
        _walk(tokens, outline, body_start, close, scope, outline.records[-1])
    return after, head


def _top_words(tokens: Tokens, begin: int, end: int) -> list[str]:
    """Words outside template arguments and brackets."""
    words, i = [], begin
    while i < end:
        if tokens[i] == "<":
            i = tokens.closing_angle(i, certain=True) or i
        elif tokens[i] in ("(", "[", "[["):
            i = tokens.closing(i)
        else:
            words.append(tokens[i])
        i = tokens.after(i)
    return words


def _record_name(tokens: Tokens, head: int, brace: int) -> str:
    words = _top_words(tokens, head, brace)
    start = next(k for k, w in enumerate(words) if w in ("struct", "class", "union"))
    return next((w for w in words[start + 1 :] if w.isidentifier() and w not in ("final", "alignas")), "")


def _function(tokens: Tokens, head: int, brace: int, scope, record) -> Function | None:
    """The function whose body opens at `brace`, None where the brace opens something else."""
    i = head
    while i < brace:
        item = tokens[i]
        if item == "<" and tokens[tokens.before(i)] != "operator":
            i = tokens.closing_angle(i, certain=True) or i
        elif item == "=" and tokens[tokens.before(i)] != "operator":
            return None
        elif item in ("[", "[["):
            i = tokens.closing(i)
        elif item == "(":
            name_at = tokens.before(i)
            name = tokens[name_at]
            if name in ("__attribute__", "alignas", "decltype", "declspec"):
                i = tokens.closing(i)
            else:
                return _named_function(tokens, head, i, brace, scope, record)
        i = tokens.after(i)
    return None


def _named_function(tokens: Tokens, head, parameters, brace, scope, record) -> Function | None:
    name_at = tokens.before(parameters)
    name = tokens[name_at]
    words = [tokens[i] for i in tokens.words(head, parameters)]
    if "operator" in words:
        name = "operator"
        if words[-1] == "operator":  # operator()(...)
            parameters = tokens.after(tokens.closing(parameters))
    if not (name.isidentifier() or name in (">", "~")) or name in _STATEMENT_WORDS:
        return None
    if name == ">":  # specialisation f<int>(...)
        name = _specialised_name(tokens, head, name_at) or ""
    body = _body(tokens, tokens.closing(parameters), brace)
    record_name, record_begin = (record.name, record.begin) if record else (None, None)
    end = tokens.closing(body)
    return Function(name, scope, head, name_at, parameters, body, end, record_name, record_begin)


def _body(tokens: Tokens, parameters_end: int, brace: int) -> int:
    """The brace that opens the body: member initialisers may come before it and have braces of their own."""
    i = tokens.after(parameters_end)
    while i < brace and tokens[i] != ":":
        i = tokens.closing(i) if tokens[i] in ("(", "[[") else i
        i = tokens.after(i)
    if i >= brace:
        return brace
    while tokens[i] in (":", ","):
        while tokens[i] not in ("(", "{"):
            i = tokens.after(i)
        i = tokens.after(tokens.closing(i))
    return i


def _specialised_name(tokens: Tokens, head: int, angle: int) -> str | None:
    """Name in front of the template arguments that end at `angle`."""
    depth = 0
    for i in reversed(tokens.words(head, angle + 1)):
        depth += {">": 1, "<": -1}.get(tokens[i], 0)
        if depth == 0:
            return tokens[tokens.before(i)]
    return None
