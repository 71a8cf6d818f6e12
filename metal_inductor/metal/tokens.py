"""Metal text as a list of tokens that passes edit in place without moving any line."""

from __future__ import annotations

import bisect
import re

_TOKEN = re.compile(
    r"""\s+ | //[^\n]* | /\*.*?\*/ | \#(?:[^\n\\]|\\.)* | "(?:\\.|[^"\\])*" | '(?:\\.|[^'\\])*'
    | [A-Za-z_]\w* | \.?\d(?:[eEpP][+-]|[\w.])* | \[\[ | :: | -> | <<= | <=> | << | >= | <= | == | != | && | \|\|
    | \+\+ | -- | [-+*/%&|^]= | \.\.\. | .""",
    re.S | re.X,
)
_BLANK = re.compile(r"\s|//|/\*|#")
LINE_MARKER = re.compile(r'#(?:line)?\s*(\d+)\s+"((?:\\.|[^"\\])*)"')
_CLOSERS = {"(": ")", "[": "]", "{": "}", "[[": "]]"}


class MetalSyntaxError(SyntaxError):
    """Metal text that is not valid; the message's first line is "<name>:LINE: error: what is wrong"."""

    def __init__(self, file: str, line: int, message: str):
        super().__init__(f"{file}:{line}: error: {message}")
        self.filename, self.lineno = file, line


class Tokens:
    """Tokens of a text, blanks included: joining `items` gives the text back."""

    def __init__(self, text: str, name: str):
        self.items = _TOKEN.findall(text)
        self.name = name
        self.blank = [_BLANK.match(item) is not None for item in self.items]
        self.significant = [i for i, blank in enumerate(self.blank) if not blank]

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> str:
        return self.items[index] if 0 <= index < len(self.items) else ""

    def after(self, index: int) -> int:
        """Index of the next token that is not blank; len(self) at the end."""
        place = bisect.bisect_right(self.significant, index)
        return self.significant[place] if place < len(self.significant) else len(self.items)

    def before(self, index: int) -> int:
        """Index of the previous token that is not blank; -1 at the beginning."""
        place = bisect.bisect_left(self.significant, index)
        return self.significant[place - 1] if place else -1

    def closing(self, index: int) -> int:
        """Index of the bracket that closes the one at `index` (for '[[' the second ']' of the pair)."""
        opener = self.items[index]
        depth = 0
        place = bisect.bisect_left(self.significant, index)
        for i in self.significant[place:]:
            item = self.items[i]
            depth += {"(": 1, "[": 1, "{": 1, "[[": 2, ")": -1, "]": -1, "}": -1}.get(item, 0)
            if depth == 0:
                return i
        raise self.error(index, f"'{opener}' is never closed by '{_CLOSERS[opener]}'")

    def closing_angle(self, index: int, certain: bool = False) -> int | None:
        """Index of the '>' that closes the template arguments opened at `index`, None if they are none.

        certain: the place (a declaration's head) allows no comparison, so logical operators do not end the search.
        """
        depth, i = 0, index
        while i < len(self.items):
            item = self.items[i]
            if item in ("(", "[", "{", "[["):
                i = self.closing(i)
            elif item == "<":
                depth += 1
            elif item == ">":
                depth -= 1
                if depth == 0:
                    return i
            elif item in (";", "}", ")", "]") or (not certain and item in ("&&", "||", "=")):
                return None
            i = self.after(i)
        return None

    def text(self, begin: int, end: int) -> str:
        """Text of [begin, end) on one line, comments and directives left out."""
        parts = (
            " " if blank else item for item, blank in zip(self.items[begin:end], self.blank[begin:end], strict=True)
        )
        return re.sub(r"\s+", " ", "".join(parts)).strip()

    def words(self, begin: int, end: int) -> list[int]:
        """Indices of the tokens in [begin, end) that are not blank."""
        low, high = bisect.bisect_left(self.significant, begin), bisect.bisect_left(self.significant, end)
        return self.significant[low:high]

    def erase(self, begin: int, end: int) -> None:
        """Removes [begin, end) but keeps its line breaks and line markers."""
        for i in range(begin, end):
            if not LINE_MARKER.match(self.items[i]):
                self.items[i] = "\n" * self.items[i].count("\n")

    def place(self, index: int) -> tuple[str, int]:
        """File and line of the token at `index`, as the preprocessor's line markers give them."""
        file, line = self.name, 1
        for item in self.items[:index]:
            marker = LINE_MARKER.match(item) if item.startswith("#") else None
            if marker:
                line, file = int(marker.group(1)) - 1, marker.group(2)
            line += item.count("\n")
        return file, line

    def error(self, index: int, message: str) -> MetalSyntaxError:
        return MetalSyntaxError(*self.place(index), message)

    def join(self) -> str:
        return "".join(self.items)
