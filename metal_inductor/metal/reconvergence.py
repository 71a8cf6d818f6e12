"""Where the lanes of a simdgroup wait for each other at the end of a loop's iteration, on the CPU.

Lanes there run one after the other, each until its next exchange. A lane that leaves out an exchange in one iteration
would meet, at the same place of the text, lanes of an earlier one. On a GPU the lanes of an iteration come together at
its end; so where an iteration may leave out an exchange, its end is made one.
"""

from __future__ import annotations

from collections.abc import Callable

from .outline import Function, Outline
from .tokens import Tokens

_MEET = "msl::wait_for_simdgroup()"
_PREFIXES = ("simd_", "quad_", "simdgroup_multiply")
_LOOPS = ("for", "while", "do")
_CHOICES = ("?", "&&", "||")

Edits = list[tuple[int, Callable[[str], str]]]  # a token's index, and its new text from the one it has by then


def meetings_in_loops(tokens: Tokens, outline: Outline, synchronising: set[str]) -> Edits:
    """What gives every loop that needs one its place: found in the user's tokens, made when they are rewritten.

    synchronising: user's functions that may exchange.
    """
    edits: Edits = []
    for function in outline.functions:
        for i in tokens.words(function.body, function.end):
            if tokens[i] in _LOOPS and not _closes_do(tokens, i, function):
                edits += _meeting_in_loop(tokens, i, synchronising)
    return edits


def make(tokens: Tokens, edits: Edits) -> None:
    for i, edit in edits:
        tokens.items[i] = edit(tokens.items[i])


def _meeting_in_loop(tokens: Tokens, loop: int, synchronising: set[str]) -> Edits:
    if tokens[loop] == "do":
        end = _statement_end(tokens, tokens.after(loop))
        condition = tokens.after(tokens.after(end))  # of the while behind the body
        begin = tokens.after(loop)
    else:
        condition = tokens.after(loop)
        begin = tokens.after(tokens.closing(condition))
        end = _statement_end(tokens, begin)
    if tokens[condition] != "(" or not _may_leave_out(tokens, begin, end, synchronising):
        return []
    if tokens[loop] == "for":
        return _meeting_before_increment(tokens, condition)
    if tokens[loop] == "do":
        return [(condition, lambda text: text.replace("(", f"({_MEET}, ", 1))]
    # the end of an iteration must lie behind the body, where the place of its condition does not
    return [
        (loop, lambda text: "for"),
        (condition, lambda text: text.replace("(", "(; ", 1)),
        (tokens.closing(condition), lambda text: f"{text[:-1]}; {_MEET})"),
    ]


def _meeting_before_increment(tokens: Tokens, parenthesis: int) -> Edits:
    close, semicolons, i = tokens.closing(parenthesis), [], tokens.after(parenthesis)
    while i < close:
        if tokens[i] in ("(", "[", "{"):
            i = tokens.closing(i)
        elif tokens[i] == ";":
            semicolons.append(i)
        i = tokens.after(i)
    if len(semicolons) != 2:
        return []
    comma = "" if tokens.after(semicolons[1]) == close else ", "
    return [(semicolons[1], lambda text: f"{text} {_MEET}{comma}")]


def _may_leave_out(tokens: Tokens, begin: int, end: int, synchronising: set[str]) -> bool:
    """Whether some lane may come to the end of the body [begin, end] without an exchange that is in it."""
    words = tokens.words(begin, end + 1)
    calls = [i for i in words if tokens[i] in synchronising and tokens[tokens.after(i)] in ("(", "<")]
    exchanges = [i for i in words if tokens[i].startswith(_PREFIXES) and tokens[i] != "simd_vote"]
    if calls or (exchanges and any(tokens[i] == "continue" for i in words)):
        return True
    return any(_is_conditional(tokens, begin, i) for i in exchanges)


def _is_conditional(tokens: Tokens, begin: int, exchange: int) -> bool:
    """Whether the exchange lies in a nested statement of the body that begins at `begin`, or behind a choice."""
    for i in tokens.words(begin, exchange):
        word = tokens[i]
        if word in ("if", "for", "while", "switch"):
            inside = tokens.closing(tokens.after(i))
            if inside < exchange <= _statement_end(tokens, tokens.after(inside)):
                return True
        elif word in ("else", "do"):
            if exchange <= _statement_end(tokens, tokens.after(i)):
                return True
        elif word.startswith(_CHOICES) and ";" not in (tokens[k] for k in tokens.words(i, exchange)):
            return True
    return False


def _statement_end(tokens: Tokens, begin: int) -> int:
    """Index of the last token of the statement that begins at `begin`."""
    word = tokens[begin]
    if word == "{":
        return tokens.closing(begin)
    if word in ("if", "for", "while", "switch"):
        end = _statement_end(tokens, tokens.after(tokens.closing(tokens.after(begin))))
        while word == "if" and tokens[tokens.after(end)] == "else":
            end = _statement_end(tokens, tokens.after(tokens.after(end)))
        return end
    if word == "do":
        begin = _statement_end(tokens, tokens.after(begin))
    i = begin
    while i < len(tokens) and tokens[i] != ";":
        i = tokens.after(tokens.closing(i) if tokens[i] in ("(", "[", "{", "[[") else i)
    return i


def _closes_do(tokens: Tokens, i: int, function: Function) -> bool:
    """Whether `while` at `i` ends a do statement."""
    if tokens[i] != "while" or tokens[tokens.after(tokens.closing(tokens.after(i)))] != ";":
        return False
    bodies = (tokens.after(k) for k in tokens.words(function.body, i) if tokens[k] == "do")
    return any(tokens.after(_statement_end(tokens, body)) == i for body in bodies)
