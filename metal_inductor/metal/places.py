"""Where the tokens of a text stand: in which file, line and column, and whether the user wrote them."""

from __future__ import annotations

import bisect
import pathlib
import re
from collections.abc import Callable, Sequence

from .tokens import LINE_MARKER, Tokens


def user_tokens(tokens: Tokens, foreign: Sequence[str]) -> Callable[[int], bool]:
    """Whether the token at an index comes from no file below one of the `foreign` directories."""
    indices, theirs = [-1], [True]
    for index, item in enumerate(tokens.items):
        marker = LINE_MARKER.match(item) if item.startswith("#") else None
        if marker:
            indices.append(index)
            theirs.append(not marker.group(2).startswith(tuple(foreign)))
    return lambda index: theirs[bisect.bisect_right(indices, index) - 1]


def flat_text(tokens: Tokens) -> str:
    """The text without line markers, so that a compiler counts the lines of the text itself."""
    return "".join("" if item.startswith("#") and LINE_MARKER.match(item) else item for item in tokens.items)


def index_at(tokens: Tokens, line: int, column: int) -> int:
    """Index of the token at a place of `flat_text`."""
    at_line, at_column = 1, 1
    for index, item in enumerate(tokens.items):
        if item.startswith("#") and LINE_MARKER.match(item):
            continue
        newlines = item.count("\n")
        end_column = len(item) - item.rfind("\n") if newlines else at_column + len(item)
        if (line, column) < (at_line + newlines, end_column) and not tokens.blank[index]:
            return index
        at_line, at_column = at_line + newlines, end_column
    return len(tokens) - 1


class Places:
    """File, line and column of every token as the user's files have them. To be made before passes edit the text."""

    def __init__(self, tokens: Tokens, source: str) -> None:
        self._name = tokens.name
        self._lines: dict[str, list[str]] = {tokens.name: source.splitlines()}
        self._items = list(tokens.items)
        self._spots: list[tuple[str, int]] = []
        self._before: list[int] = []  # how many equal tokens stand before it on its line
        self._walk()

    def _walk(self) -> None:
        file, line = self._name, 1
        counts: dict[str, int] = {}
        for item in self._items:
            marker = LINE_MARKER.match(item) if item.startswith("#") else None
            if marker:
                line, file = int(marker.group(1)) - 1, marker.group(2)
            self._spots.append((file, line))
            self._before.append(counts.get(item, 0))
            counts[item] = counts.get(item, 0) + 1
            if "\n" in item:
                line += item.count("\n")
                counts = {}

    def spot(self, index: int) -> tuple[str, int, int]:
        """File, line and column (from 1) of a token; where a macro hides it, the first column that is not blank."""
        file, line = self._spots[index]
        item, nth = self._items[index], self._before[index]
        text = self.line(file, line)
        edge = r"\b" if re.match(r"\w", item) else ""
        found = list(re.finditer(f"{edge}{re.escape(item)}{edge}", text))
        column = found[nth].start() + 1 if nth < len(found) else first_column(text)
        return file, line, column

    def line(self, file: str, line: int) -> str:
        """Text of a line, empty where there is none."""
        if file not in self._lines:
            try:
                self._lines[file] = pathlib.Path(file).read_text(errors="replace").splitlines()
            except OSError:
                self._lines[file] = []
        lines = self._lines[file]
        return lines[line - 1] if 1 <= line <= len(lines) else ""


def first_column(text: str) -> int:
    return len(text) - len(text.lstrip()) + 1
