"""Hooks for the run-time checks, put into LLVM's text form of a translated library.

The text is compiled with one address space for each of Metal's, so that an access says which memory it means. Hooks go
in twice: before optimisation for device, constant and threadgroup pointers, where each access still has its own line;
after inlining for pointers to any space, which methods of classes use, where most turn out to be thread memory. What a
pointer points into is found by following it back to the argument or threadgroup variable that it was computed from.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable

READ, WRITE, ATOMIC = 1, 2, 4
BASES = ("unknown", "buffer", "threadgroup argument", "threadgroup variable")  # Site.base, numbered as in checks.c
_SPACES_BEFORE, _SPACES_AFTER = ("1", "3", "5"), ("4",)
_SKIPPED = ("stack", "runtime", "global")

_TYPE = r"(?:<\d+ x [^>]*>|\[[^\]]*\]|\{[^}]*\}|%\"[^\"]*\"|%[\w.$-]+|ptr addrspace\(\d+\)|\w+)"
_POINTER = r"ptr addrspace\((?P<space>\d)\)(?P<attributes>(?: [a-z_]+(?:\(\d+\))?)*?(?: align (?P<pointer_align>\d+))?(?: [a-z_]+(?:\(\d+\))?)*?) (?P<pointer>%[\w.$-]+|%\"[^\"]*\")"  # noqa: E501
_LOAD = re.compile(rf"^  %\S+ = load (?P<atomic>atomic )?(?:volatile )?(?P<type>{_TYPE}), {_POINTER}")
_STORE = re.compile(rf"^  store (?P<atomic>atomic )?(?:volatile )?(?P<type>{_TYPE}) .*?, {_POINTER}")
_UPDATE = re.compile(
    rf"^  %\S+ = (?P<atomic>atomicrmw|cmpxchg) (?:weak )?(?:volatile )?(?:[a-z]+ )?{_POINTER}, (?P<type>{_TYPE}) "
)
_COPY = re.compile(r"^  (?:tail |musttail )?call void @llvm\.mem(?:cpy|move|set)[.\w]*\(")
_COPY_BYTES = re.compile(r", i64 (\d+), i1 ")
_COPY_POINTER = re.compile(_POINTER)
_ALIGN = re.compile(r", align (\d+)")
_DEBUG = re.compile(r", !dbg !(\d+)")
_HOOK = re.compile(
    r"^  (?P<result>%\S+) = (?:tail )?call (?P<type>ptr addrspace\(\d\)) @msl_check_access_\d\("
    r"(?P<pointer>ptr .*), i32 (?:noundef )?(?P<number>\d+)\)"
)
_VALUE = re.compile(r"[%@]|\b(?:getelementptr|inttoptr|addrspacecast|null|undef|poison)\b")  # how an operand begins
_BARRIER = re.compile(
    r"^(?P<head>  (?:tail )?call void @msl_check_(?:threadgroup|simdgroup)_barrier\(i32 [^,]*, i32 (?:noundef )?)0\)"
)
_MARK = re.compile(r"@msl_check_(?:buffer|threadgroup_argument|variable|fence)\(")
_DEFINITION = re.compile(r"^  (%[\w.$-]+|%\"[^\"]*\") = (.*)$")
_OPERAND = re.compile(r"%[\w.$-]+|%\"[^\"]*\"|@[\w.$-]+|@\"[^\"]*\"|\bnull\b|\bpoison\b|\bundef\b|\bzeroinitializer\b")
_VARIABLE = re.compile(r"@msl_check_variable\(.*?(@[\w.$-]+), i64 (?:noundef )?(\d+), i64 (?:noundef )?(\d+)\)")
_ARGUMENT = re.compile(r"@msl_check_(buffer|threadgroup_argument)\(.*?, i32 (?:noundef )?(\d+)\)")
_TEXT = re.compile(r'^(@[\w.$-]+) = .*? c"([^"]*)\\00"', re.M)
_BITS = {"half": 16, "bfloat": 16, "float": 32, "double": 64, "ptr": 64}


@dataclasses.dataclass(frozen=True)
class Instrumented:
    """LLVM text with hooks.

    places: (file, line) by place number. variables: the function that has a threadgroup variable, its offset and name.
    """

    text: str
    places: list[tuple[str, int]]
    variables: list[tuple[str, int, str]]


def hook_accesses(text: str) -> str:
    """Before optimisation: each access to device, constant or threadgroup memory asks its hook for the address."""
    return "\n".join(_hooked(text.split("\n"), _SPACES_BEFORE, lambda pointer: True)) + _declarations(_SPACES_BEFORE)


def number_sites(text: str, library_folder: str) -> Instrumented:
    """After inlining: hooks get the number of their row in the table of sites, which is added to the text.

    library_folder: lines of files in it are those of the standard library; the user's line that led there counts.
    """
    places = _Places(_Debug(text, library_folder))
    names = dict(_TEXT.findall(text))
    sites: list[tuple[int, ...]] = []
    variables: dict[tuple[str, int, str], None] = {}
    result: list[str] = []
    for function in _functions(text):
        if not function[0].startswith("define"):
            result += function
            continue
        origins = _Origins(function, names)
        wanted = lambda pointer: origins.of(pointer)[0] not in _SKIPPED  # noqa: B023, E731
        for line in _hooked(function, _SPACES_AFTER, wanted):
            result.append(_numbered(line, origins, places, sites))
        variables.update(dict.fromkeys(origins.variables()))
    text = "\n".join(result) + _declarations(_SPACES_AFTER) + _table(sites)
    return Instrumented(text, places.shown, list(variables))


# -------------------------------------------------------------------------------- putting in hooks


def _hooked(lines: Iterable[str], spaces: tuple[str, ...], wanted):
    count = 0
    for line in lines:
        found = _accesses(line, spaces)
        if not found:
            yield line
            continue
        debug = _DEBUG.search(line)
        place = debug.group(0) if debug else ""
        for access, size, align, match in found:
            pointer, space = match["pointer"], match["space"]
            if not wanted(pointer):
                continue
            checked = f"%msl.{spaces[0]}.{count}"
            count += 1
            descriptor = access | (align.bit_length() - 1) << 3 | size << 8
            kind = f"ptr addrspace({space})"
            call = f"call {kind} @msl_check_access_{space}({kind} {pointer}, i32 {descriptor})"
            yield f"  {checked} = {call} nomerge{place}"
            line = _with_pointer(line, match, checked)
        yield line


def _accesses(line: str, spaces: tuple[str, ...]) -> list[tuple[int, int, int, re.Match]]:
    """(kind, bytes, alignment, match of the pointer) of every access of an instruction to one of the spaces."""
    if "addrspace(" not in line or not line.startswith("  "):
        return []
    for pattern, kind in ((_LOAD, READ), (_STORE, WRITE), (_UPDATE, READ | WRITE)):
        match = pattern.match(line)
        if match:
            if match["space"] not in spaces:
                return []
            align = _ALIGN.search(line, match.end())
            kind |= ATOMIC if match["atomic"] else 0
            return [(kind, _bytes(match["type"]), int(align[1]) if align else 1, match)]
    if not _COPY.match(line):
        return []
    size = _COPY_BYTES.search(line)
    found = []
    head = line.index("(")
    for match in _COPY_POINTER.finditer(line, head):
        if match["space"] in spaces and size and int(size[1]):
            kind = WRITE if match.start() == head + 1 else READ
            found.append((kind, int(size[1]), int(match["pointer_align"] or 1), match))
    return found


def _with_pointer(line: str, match: re.Match, checked: str) -> str:
    """The instruction with the hook's answer as its pointer, at any address: the hook has judged the alignment."""
    pointer = match["pointer"]
    begin = line.index(
        pointer, match.start("pointer") if line.startswith(match.string[: match.start("pointer")]) else 0
    )
    tail = line[begin + len(pointer) :]
    if "atomic" not in match.groupdict():
        head = re.sub(r"align \d+", "align 1", line[:begin])
        return head + checked + re.sub(r"align \d+", "align 1", tail)
    if not match["atomic"]:
        tail = _ALIGN.sub(", align 1", tail, count=1)
    return line[:begin] + checked + tail


def _bytes(type_text: str) -> int:
    """Size of a first-class type; a class in memory counts as its first byte, which finds it out of bounds as well."""
    if type_text.startswith("ptr"):
        return 8
    if type_text[0] in "<[":
        count, element = type_text[1:-1].split(" x ", 1)
        return int(count) * _bytes(element)
    if re.fullmatch(r"i\d+", type_text):
        return (int(type_text[1:]) + 7) // 8
    return _BITS.get(type_text, 8) // 8


def _declarations(spaces: tuple[str, ...]) -> str:
    kinds = [(space, f"ptr addrspace({space})") for space in spaces]
    lines = [f"declare {kind} @msl_check_access_{space}({kind}, i32) nounwind nomerge" for space, kind in kinds]
    return "\n\n" + "\n".join(lines) + "\n"


# -------------------------------------------------------------------------------- numbering sites


def _functions(text: str):
    """The lines of the text in pieces: each function is one, what stands between two is another."""
    piece: list[str] = []
    for line in text.split("\n"):
        if line.startswith("define"):
            if piece:
                yield piece
            piece = []
        piece.append(line)
        if line == "}":
            yield piece
            piece = []
    if piece:
        yield piece


def _numbered(line: str, origins: _Origins, places: _Places, sites: list) -> str:
    barrier = _BARRIER.match(line)
    if barrier:
        return f"{barrier['head']}{places.of(line, whole=True)}){line[barrier.end() :]}"
    hook = _HOOK.match(line)
    if not hook:
        if " call " in line and "@msl_check_" in line and not _MARK.search(line):
            raise RuntimeError(f"a hook of the run-time checks in a form that is not known: {line.strip()}")
        return line
    pointer = hook["pointer"][_VALUE.search(hook["pointer"]).start() :]
    base, index, size = origins.of(pointer)
    if base in _SKIPPED:
        return f"  {hook['result']} = getelementptr i8, {hook['type']} {pointer}, i64 0"
    descriptor = int(hook["number"])
    access, align, length = descriptor & 7, 1 << (descriptor >> 3 & 31), descriptor >> 8
    sites.append((access, length, align, BASES.index(base), index, size, places.of(line)))
    return f"{line[: hook.start('number')]}{len(sites) - 1}{line[hook.end('number') :]}"


def _table(sites: list[tuple[int, ...]]) -> str:
    rows = ", ".join("[7 x i32] [" + ", ".join(f"i32 {value}" for value in site) + "]" for site in sites)
    count = len(sites)
    return (
        f"\n@msl_check_sites = constant [{count} x [7 x i32]] [{rows}]\n"
        "@__ehdr_start = external hidden global i8\n@_end = external hidden global i8\n"
        "@msl_check_image = constant [2 x ptr] [ptr @__ehdr_start, ptr @_end]\n"
    )


class _Origins:
    """What the pointers of one function were computed from: (base, index or offset, bytes)."""

    def __init__(self, function: list[str], names: dict[str, str]) -> None:
        self._definitions = dict(match.groups() for match in map(_DEFINITION.match, function) if match)
        self._names = names
        self._known: dict[str, tuple[str, int, int]] = {}
        self._function = re.search(r"@([\w.$]+)\(", function[0])[1]
        self._variables: dict[int, str] = {}

    def variables(self) -> list[tuple[str, int, str]]:
        """The function, offset and name of each threadgroup variable that was met."""
        return [(self._function, offset, name) for offset, name in self._variables.items()]

    def of(self, value: str) -> tuple[str, int, int]:
        if not value.startswith("%"):  # a variable at program scope, or a constant expression of one
            return "global" if "@" in value else "unknown", 0, 0
        if value not in self._known:
            self._known[value] = ("", 0, 0)  # a value that depends on itself adds nothing to its own origin
            self._known[value] = self._find(value)
        return self._known[value]

    def _find(self, value: str) -> tuple[str, int, int]:
        text = self._definitions.get(value)
        if text is None:  # a parameter: of an entry point, or of code of the standard library
            return "runtime", 0, 0
        operation = text.removeprefix("tail ").split(" ", 1)[0]
        if operation == "alloca":
            return "stack", 0, 0
        if operation == "call":
            return self._of_call(text)
        operands = _OPERAND.findall(text.split(", !", 1)[0])
        if operation == "getelementptr":
            pointer = re.search(rf", ptr(?: addrspace\(\d+\))? ({_OPERAND.pattern})", text)
            return self.of(pointer[1]) if pointer else ("unknown", 0, 0)
        if operation in ("addrspacecast", "bitcast", "freeze", "ptrtoint", "inttoptr"):
            return self.of(operands[0]) if operands else ("unknown", 0, 0)
        if operation in ("phi", "select", "add", "sub", "or", "and"):
            return self._common(operation, operands, text)
        return "unknown", 0, 0

    def _of_call(self, text: str) -> tuple[str, int, int]:
        variable = _VARIABLE.search(text)
        if variable:
            self._variables[int(variable[2])] = self._names.get(variable[1], "?")
            return BASES[3], int(variable[2]), int(variable[3])
        argument = _ARGUMENT.search(text)
        if argument:
            return BASES[1 if argument[1] == "buffer" else 2], int(argument[2]), 0
        if "@msl_check_access_" in text:
            return self.of(_OPERAND.findall(text)[1])
        return ("runtime" if "@msl_" in text else "unknown"), 0, 0

    def _common(self, operation: str, operands: list[str], text: str) -> tuple[str, int, int]:
        if operation == "phi":
            operands = re.findall(r"\[ ([^,]+), ", text)
        elif operation == "select":
            operands = operands[1:]
        origins = {self.of(operand) for operand in operands if operand[0] in "%@"}
        origins = {origin for origin in origins if origin[0]}
        if operation in ("add", "sub", "or", "and"):  # arithmetic on an address: the other operand is a distance
            origins = {origin for origin in origins if origin[0] not in ("unknown", "runtime")}
        return origins.pop() if len(origins) == 1 else ("unknown", 0, 0)


# -------------------------------------------------------------------------------- places in the text


class _Debug:
    """Line tables: from the number of a location to the user's lines that it was inlined through, innermost first."""

    _NODE = re.compile(r"^!(\d+) = (?:distinct )?!(DILocation|DIFile|DISubprogram|DILexicalBlock\w*)\((.*)\)$", re.M)
    _FIELD = re.compile(r'(\w+): (?:"((?:[^"\\]|\\.)*)"|!?(-?[\w.]+))')

    def __init__(self, text: str, library_folder: str) -> None:
        self._nodes = {
            number: {key: quoted or plain for key, quoted, plain in self._FIELD.findall(fields)}
            for number, _, fields in self._NODE.findall(text)
        }
        self._library_folder = library_folder

    def lines(self, location: str | None) -> list[tuple[str, int, int]]:
        found = []
        while location:
            node = self._nodes.get(location, {})
            file = self._file(node.get("scope"))
            if file and not file.startswith((self._library_folder, "<entry points>", "<stdin>")) and file != "-":
                found.append((file, int(node.get("line", 0)), int(node.get("column", 0))))
            location = node.get("inlinedAt")
        return found

    def _file(self, scope: str | None) -> str:
        while scope:
            node = self._nodes.get(scope, {})
            if "file" in node:
                file = self._nodes.get(node["file"], {})
                return self._full_name(file.get("filename", ""), file.get("directory", ""))
            scope = node.get("scope")
        return ""

    def _full_name(self, name: str, directory: str) -> str:
        """A header's name without the folder that clang leaves out where it is the current one."""
        full = f"{directory}/{name}"
        return full if full.startswith(self._library_folder) else name


class _Places:
    """Numbers of places in the user's text. Place 0 is unknown."""

    def __init__(self, debug: _Debug) -> None:
        self.shown: list[tuple[str, int]] = [("", 0)]
        self._debug = debug
        self._numbers: dict[tuple, int] = {}

    def of(self, line: str, whole: bool = False) -> int:
        """whole: the same line reached through different calls is a different place."""
        debug = _DEBUG.search(line)
        lines = self._debug.lines(debug[1] if debug else None)
        if not lines:
            return 0
        key = tuple(lines) if whole else lines[0][:2]
        if key not in self._numbers:
            self._numbers[key] = len(self.shown)
            self.shown.append(lines[0][:2])
        return self._numbers[key]
