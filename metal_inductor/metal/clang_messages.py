"""What clang reports about a translated text, in Metal's words and with the places of the user's text."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence

from .tokens import MetalSyntaxError

_MESSAGE = re.compile(
    r"^(?P<file>[^\n]*?):(?P<line>\d+):(?P<column>\d+): (?P<severity>fatal error|error|note): (?P<text>.*)$", re.M
)
_SPACES = (
    ("__global_device", "device"), ("const __global", "constant"), ("__global", "constant"), ("__local", "threadgroup"),
    (" *__private", " *"), ("__private ", "thread "), ("__private", "thread"), ("__generic ", ""), ("__generic", ""),
    ("*thread'", "*'"), ("msl_atomic_", "atomic_"), ("msl_memory_order", "memory_order"), ("msl_name_", ""),
)  # fmt: skip
_ELEMENTS = {
    "unsigned char": "uchar", "unsigned short": "ushort", "unsigned int": "uint", "unsigned long": "ulong",
    "msl_u32": "uint", "_Bool": "bool",
}  # fmt: skip
_VECTOR = re.compile(r"(?:metal::)?(packed_)?vec<(\w+(?: \w+)?), (?:sizeof\.\.\.\(I\) aka )?(\d)>")
_ALIAS = re.compile(r"('(?:[^']*)') \(aka '([^']*)'\)")
_OWN_ALIAS = re.compile(r"'[^']*\bmsl_type_of_[^']*' \(aka ('[^']*')\)")
_ASSERTION = re.compile(r"static assertion failed(?: due to requirement '[^']*')?: ")
_OPTION = re.compile(r" \[-W[\w+-]+\]$")


@dataclasses.dataclass(frozen=True)
class Message:
    """One error at a place; line and column count from 1."""

    file: str
    line: int
    column: int
    text: str


def errors(report: str, headers: Sequence[str]) -> list[Message]:
    """The errors of a report. One inside `headers` is moved to where the user's text led to it.

    One that clang does not trace back there follows from another, and is kept only where it is alone.
    """
    found = list(_errors(list(_MESSAGE.finditer(report)), tuple(headers)))
    return [error for error in found if not error.file.startswith(tuple(headers))] or found


def _errors(found: list[re.Match[str]], headers: tuple[str, ...]) -> Iterator[Message]:
    for number, match in enumerate(found):
        if match["severity"] == "note":
            continue
        place = match
        if match["file"].startswith(headers):
            for note in found[number + 1 :]:
                if note["severity"] != "note":
                    break
                if note["text"].endswith("requested here") and not note["file"].startswith(headers):
                    place = note
                    break
        yield Message(place["file"], int(place["line"]), int(place["column"]), metal_words(match["text"]))


def metal_words(text: str) -> str:
    """Names that only the translation has, replaced by Metal's."""
    for internal, metal in _SPACES:
        text = text.replace(internal, metal)
    for spelled, short in _ELEMENTS.items():
        text = text.replace(spelled, short)
    text = _OWN_ALIAS.sub(r"\1", text)
    text = _VECTOR.sub(lambda m: f"{m[1] or ''}{m[2]}{m[3]}", text)
    text = _ALIAS.sub(lambda m: m[1] if m[2] == m[1].strip("'") else m[0], text)
    return _OPTION.sub("", _ASSERTION.sub("", text))


def syntax_error(report: str, headers: Sequence[str]) -> Exception:
    """MetalSyntaxError of the first error with the whole report behind it; RuntimeError where there is none."""
    found = errors(report, headers)
    if not found:
        return RuntimeError(f"the Metal compiler failed:\n{report}")
    readable = _MESSAGE.sub(lambda match: metal_words(match[0]), report)[:8000]
    return MetalSyntaxError(found[0].file, found[0].line, f"{found[0].text}\n{readable}")
