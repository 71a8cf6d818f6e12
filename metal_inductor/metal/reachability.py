"""Which functions of a Metal text can reach a barrier or an operation across a simdgroup."""

from __future__ import annotations

from .outline import Outline
from .tokens import Tokens

_PREFIXES = ("simd_", "quad_", "simdgroup_")
_BARRIERS = {"threadgroup_barrier", "simdgroup_barrier"}
# Names with these prefixes that do not communicate.
_TYPES = ("simd_vote", "simdgroup_matrix", "simdgroup_float8x8", "simdgroup_half8x8", "simdgroup_bfloat8x8")


def synchronising_functions(tokens: Tokens, outline: Outline) -> tuple[set[str], bool]:
    """Names of the user's functions that can synchronise, by the identifiers in their bodies, and whether an operator,
    a constructor or a destructor is among them.

    Calls are followed by name alone. That can only find too many functions, and a kernel wrongly thought to synchronise
    is slow, not wrong. Operators and constructors are not called by a name: if one synchronises, every kernel may.
    """
    uses = [
        (f, {tokens[i] for i in tokens.words(f.parameters, f.end) if tokens[i].isidentifier()})
        for f in outline.functions
    ]
    found: set[str] = set()
    anonymous = False
    while True:
        before = len(found), anonymous
        for function, names in uses:
            if any(_synchronises(name) for name in names) or names & found:
                found.add(function.name)
                anonymous |= function.name in ("operator", "~", function.record)
        if before == (len(found), anonymous):
            return found, anonymous


def _synchronises(name: str) -> bool:
    return name in _BARRIERS or (name.startswith(_PREFIXES) and name not in _TYPES)
