"""Everything there is to say about a Metal text: errors as Metal's compiler would give them, and warnings."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import warnings
from collections.abc import Iterator, Sequence

from . import clang, clang_messages, compiler_bugs, frontend, places, strictness
from .outline import parse_outline
from .tokens import MetalSyntaxError, Tokens


class MetalWarning(UserWarning):
    """A Metal text that compiles here and that Apple's compiler or GPUs are known to get wrong."""


@dataclasses.dataclass(frozen=True)
class Diagnostic:
    """One finding. severity: 'error' or 'warning'; line and column count from 1; source_line is what stands there."""

    severity: str
    file: str
    line: int
    column: int
    message: str
    hint: str | None = None
    source_line: str = ""

    def __str__(self) -> str:
        """FILE:LINE:COLUMN: severity: message, then the line with a caret under the column, then the hint."""
        lines = [f"{self.file}:{self.line}:{self.column}: {self.severity}: {self.message}"]
        if self.source_line.strip():
            shown = self.source_line.expandtabs(1)
            lines += [f"    {shown.rstrip()}", f"    {' ' * (self.column - 1)}^"]
        if self.hint:
            lines.append(f"    hint: {self.hint}")
        return "\n".join(lines)


def with_definitions(source: str, defines: Sequence[str], name: str) -> str:
    """The text behind macros NAME or NAME=VALUE, its lines numbered as without them."""
    if not defines:
        return source
    lines = [f"#define {macro.partition('=')[0]} {macro.partition('=')[2] or 1}\n" for macro in defines]
    quoted = name.replace("\\", "\\\\").replace('"', '\\"')
    return f'{"".join(lines)}#line 1 "{quoted}"\n{source}'


def diagnose(
    source: str,
    *,
    include_dirs: Sequence[str | pathlib.Path] = (),
    name: str = "<metal>",
    target: str = "cpu",
    defines: Sequence[str] = (),
) -> list[Diagnostic]:
    """All errors and warnings of a Metal text by file and line; empty for a clean one.

    include_dirs: where `#include` looks besides torch's own headers. name: the file's name in the result. target: 'cpu'
    or 'cuda', whose compiler is asked. defines: macros, each NAME or NAME=VALUE. Raises nothing, whatever the text.
    """
    try:
        tokens = frontend.tokenise(with_definitions(source, defines, name), include_dirs, name)
        view = places.Places(tokens, source)
    except MetalSyntaxError as error:
        return [_from_exception(error, places.Places(Tokens("", name), source))]
    found = [*_warnings(source, tokens, view), *_errors(tokens, view, target)]  # the latter rewrites the tokens
    first: dict[tuple[str, int, str], Diagnostic] = {}
    for diagnostic in found:
        first.setdefault((diagnostic.file, diagnostic.line, diagnostic.message), diagnostic)
    return sorted(first.values(), key=lambda d: (d.file != name, d.file, d.line, d.column))


def find_warnings(
    source: str, *, include_dirs: Sequence[str | pathlib.Path] = (), name: str = "<metal>"
) -> list[Diagnostic]:
    """The warnings alone, without asking the compiler. Raises MetalSyntaxError where the text cannot be read."""
    tokens = frontend.tokenise(source, include_dirs, name)
    return _warnings(source, tokens, places.Places(tokens, source))


def _errors(tokens: Tokens, view: places.Places, target: str) -> Iterator[Diagnostic]:
    reported: set[tuple[str, int]] = set()
    try:
        outline = parse_outline(tokens)
        for index, message in strictness.violations(tokens, outline):
            reported.add(view.spot(index)[:2])
            yield _at(view, index, message)
        draft = frontend.rewritten(tokens, outline, target)
    except MetalSyntaxError as error:
        if (error.filename, error.lineno) not in reported:
            yield _from_exception(error, view)
        return
    compiler = [d for d in _compiler_errors(draft, view, target) if (d.file, d.line) not in reported]
    yield from compiler
    if not compiler:
        for index, message in draft.type_violations():
            if view.spot(index)[:2] not in reported:
                yield _at(view, index, message)


def _compiler_errors(draft: frontend.Draft, view: places.Places, target: str) -> Iterator[Diagnostic]:
    report = clang.report_errors(draft.text_for_analysis(), target)
    for error in clang_messages.errors(report, (str(clang.INCLUDE_DIRECTORY),)):
        if error.file == frontend.strict_types.FILE:
            yield _at(view, places.index_at(draft.tokens, error.line, error.column), error.text)
        else:
            yield Diagnostic("error", error.file, error.line, error.column, error.text)


def _warnings(source: str, tokens: Tokens, view: places.Places) -> list[Diagnostic]:
    try:
        outline = parse_outline(tokens)
    except MetalSyntaxError:
        return []
    foreign = (*clang.torch_include_directories(), str(clang.INCLUDE_DIRECTORY))
    is_user = places.user_tokens(tokens, foreign)
    found = [
        dataclasses.replace(_at(view, index, message), severity="warning", hint=hint)
        for index, message, hint in compiler_bugs.findings(tokens, outline, is_user)
    ]
    for line, column, message, hint in compiler_bugs.swallowed_divisions(source):
        found.append(Diagnostic("warning", tokens.name, line, column, message, hint, view.line(tokens.name, line)))
    return found


def _at(view: places.Places, index: int, message: str) -> Diagnostic:
    file, line, column = view.spot(index)
    return Diagnostic("error", file, line, column, message, None, view.line(file, line))


def _from_exception(error: MetalSyntaxError, view: places.Places) -> Diagnostic:
    text = view.line(error.filename, error.lineno)
    message = str(error.msg).partition(": error: ")[2].splitlines()[0]
    return Diagnostic("error", error.filename, error.lineno, places.first_column(text), message, None, text)


_warned: set[str] = set()


def warn_once(source: str) -> None:
    """Emits the warnings of a text as MetalWarning, the first time in this process that the text is seen.

    They lie in the kernel cache, so that a compiled text is not read again.
    """
    from metal_inductor import cache
    from metal_inductor.runtime.cpu import compiler_identity

    if source in _warned:
        return
    _warned.add(source)
    key = cache.key("metal warnings", source, compiler_identity())
    path = cache.default().get_or_build(
        key, ".json", lambda: json.dumps([dataclasses.asdict(d) for d in find_warnings(source)]).encode()
    )
    for fields in json.loads(path.read_bytes()):
        warnings.warn(str(Diagnostic(**fields)), MetalWarning, stacklevel=3)
