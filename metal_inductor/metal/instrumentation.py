"""Hooks for the run-time checks, put into LLVM's text form of a translated library.

The text is compiled with one address space for each of Metal's, so that an access says which memory it means. Hooks go
in before optimisation, where each access still has its own line. Methods of classes take pointers to any memory; after
inlining, what such a pointer points into is found by following it back to the argument or variable that it was computed
from, and the hooks of thread memory, which are most, go out again, for the optimiser to do the rest of its work.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping

READ, WRITE, ATOMIC = 1, 2, 4
BASES = ("unknown", "buffer", "threadgroup argument", "threadgroup variable")  # Site.base, numbered as in checks.c
_SPACES = ("1", "3", "4", "5")  # constant, threadgroup, any, device; thread memory has none
Origin = tuple[str, int, int]  # one of BASES or _SKIPPED, index or offset, bytes of a variable
_SKIPPED = ("stack", "runtime", "global")  # needs no hook
_UNKNOWN: Origin = ("unknown", 0, 0)
_NOTHING = ("null", "poison", "undef", "zeroinitializer")
_ARITHMETIC = ("add", "sub", "or", "and")

_NAME = r"(?:%[\w.$-]+|%\"[^\"]*\")"
_TYPE = rf"(?:<\d+ x [^>]*>|\[[^\]]*\]|\{{[^}}]*\}}|ptr addrspace\(\d+\)|\w+|{_NAME})"
_ATTRIBUTES = r"(?: [a-z_]+(?:\(\d+\))?)*?"
_POINTER = (
    rf"ptr addrspace\((?P<space>\d)\){_ATTRIBUTES}(?: align (?P<pointer_align>\d+))?{_ATTRIBUTES} (?P<pointer>{_NAME})"
)
_LOAD = re.compile(rf"^  %\S+ = load (?P<atomic>atomic )?(?:volatile )?(?P<type>{_TYPE}), {_POINTER}")
_STORE = re.compile(rf"^  store (?P<atomic>atomic )?(?:volatile )?(?P<type>{_TYPE}) .*?, {_POINTER}")
_UPDATE = re.compile(
    rf"^  %\S+ = (?P<atomic>atomicrmw|cmpxchg) (?:weak )?(?:volatile )?(?:[a-z]+ )?{_POINTER}, (?P<type>{_TYPE}) "
)
_ACCESS = re.compile(r"^  (?:%\S+ = )?(?:load|store|atomicrmw|cmpxchg) .*ptr addrspace\([1345]\) %[^,]+, align ")
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
_DEFINITION = re.compile(rf"^  ({_NAME}) = (.*)$")
_OPERAND = re.compile(_NAME + r"|@[\w.$-]+|@\"[^\"]*\"|\bnull\b|\bpoison\b|\bundef\b|\bzeroinitializer\b")
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
    """Before optimisation: each access that may mean device, constant or threadgroup memory asks for its address."""
    kinds = [(space, f"ptr addrspace({space})") for space in _SPACES]
    lines = [f"declare {kind} @msl_check_access_{space}({kind}, i32) nounwind nomerge" for space, kind in kinds]
    return "\n".join([*_hooked(text.split("\n")), *lines]) + "\n"


def drop_private_hooks(text: str, library_folder: str) -> str:
    """After inlining: what points to thread memory, to constants or to the runtime's own memory loses its hook."""
    debug = _Debug(text, library_folder)
    result: list[str] = []
    for function in _functions(text):
        origins = _Origins(function, debug)
        result += [_without_private_hook(line, origins) for line in function]
    return "\n".join(result)


def number_sites(text: str, library_folder: str) -> Instrumented:
    """After inlining: hooks get the number of their row in the table of sites, which is added to the text.

    library_folder: lines of files in it are those of the standard library; the user's line that led there counts.
    """
    debug = _Debug(text, library_folder)
    places = _Places(debug)
    names = dict(_TEXT.findall(text))
    sites: list[tuple[int, ...]] = []
    variables: dict[tuple[str, int, str], None] = {}
    result: list[str] = []
    for function in _functions(text):
        origins = _Origins(function, debug, names)
        result += [_numbered(line, origins, places, sites) for line in function]
        variables.update(dict.fromkeys(origins.variables()))
    return Instrumented("\n".join(result) + _table(sites), places.shown, list(variables))


# -------------------------------------------------------------------------------- putting in hooks


def _hooked(lines: Iterable[str]) -> Iterator[str]:
    count = 0
    for line in lines:
        debug = _DEBUG.search(line)
        checked = []
        for access, size, align, match in _accesses(line):
            result, kind = f"%msl.{count}", f"ptr addrspace({match['space']})"
            count += 1
            descriptor = access | (align.bit_length() - 1) << 3 | size << 8
            call = f"call {kind} @msl_check_access_{match['space']}({kind} {match['pointer']}, i32 {descriptor})"
            yield f"  {result} = {call} nomerge{debug[0] if debug else ''}"
            checked.append((match.span("pointer"), result))
        yield _with_pointers(line, checked) if checked else line


def _accesses(line: str) -> list[tuple[int, int, int, re.Match]]:
    """(kind, bytes, alignment, match of the pointer) of every access of an instruction to a space with hooks."""
    if "addrspace(" not in line or not line.startswith("  "):
        return []
    for pattern, kind in ((_LOAD, READ), (_STORE, WRITE), (_UPDATE, READ | WRITE)):
        match = pattern.match(line)
        if match:
            if match["space"] not in _SPACES:
                return []
            align = _ALIGN.search(line, match.end())
            kind |= ATOMIC if match["atomic"] else 0
            return [(kind, _bytes(match["type"]), int(align[1]) if align else 1, match)]
    if _ACCESS.match(line):
        raise RuntimeError(f"an access in a form that the run-time checks do not know: {line.strip()}")
    if not _COPY.match(line):
        return []
    size = _COPY_BYTES.search(line)
    found = []
    head = line.index("(")
    for match in _COPY_POINTER.finditer(line, head):
        if match["space"] in _SPACES and size and int(size[1]):
            kind = WRITE if match.start() == head + 1 else READ
            found.append((kind, int(size[1]), int(match["pointer_align"] or 1), match))
    return found


def _with_pointers(line: str, checked: list[tuple[tuple[int, int], str]]) -> str:
    """The instruction with the hooks' answers as its pointers, at any address: they have judged the alignment."""
    for (begin, end), result in reversed(checked):
        line = line[:begin] + result + line[end:]
    return line if " atomic" in line or " cmpxchg " in line else re.sub(r"\balign \d+", "align 1", line)


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
    base, index, size = origins.of_hook(hook)
    if base in _SKIPPED:
        return _without_private_hook(line, origins)
    descriptor = int(hook["number"])
    access, align, length = descriptor & 7, 1 << (descriptor >> 3 & 31), descriptor >> 8
    sites.append((access, length, align, BASES.index(base), index, size, places.of(line)))
    return f"{line[: hook.start('number')]}{len(sites) - 1}{line[hook.end('number') :]}"


def _without_private_hook(line: str, origins: _Origins) -> str:
    hook = _HOOK.match(line)
    if not hook or origins.of_hook(hook)[0] not in _SKIPPED:
        return line
    return f"  {hook['result']} = getelementptr i8, {hook['type']} {_operand(hook['pointer'])}, i64 0"


def _operand(argument: str) -> str:
    """The value in a call's argument, behind its type and attributes."""
    return argument[_VALUE.search(argument).start() :]


def _table(sites: list[tuple[int, ...]]) -> str:
    rows = ", ".join("[7 x i32] [" + ", ".join(f"i32 {value}" for value in site) + "]" for site in sites)
    count = len(sites)
    return (
        f"\n@msl_check_sites = constant [{count} x [7 x i32]] [{rows}]\n"
        "@__ehdr_start = external hidden global i8\n@_end = external hidden global i8\n"
        "@msl_check_image = constant [2 x ptr] [ptr @__ehdr_start, ptr @_end]\n"
    )


class _Origins:
    """What the pointers of one function were computed from."""

    def __init__(self, function: list[str], debug: _Debug, names: Mapping[str, str] | None = None) -> None:
        self._definitions = dict(match.groups() for match in map(_DEFINITION.match, function) if match)
        self._names = names or {}
        self._parameters = "unknown" if debug.is_users(function[0]) else "runtime"
        definition = re.match(r"define .*?@([\w.$]+)\(", function[0])
        self._function = definition[1] if definition else ""
        self._variables: dict[int, str] = {}

    def variables(self) -> list[tuple[str, int, str]]:
        """The function, offset and name of each threadgroup variable that was met."""
        return [(self._function, offset, name) for offset, name in self._variables.items()]

    def of_hook(self, hook: re.Match) -> Origin:
        """The one origin of the hook's pointer; "unknown" where it may have several, unless all need no hook."""
        origins = self._leaves(_operand(hook["pointer"]), set())
        if len(origins) == 1 or (origins and all(origin[0] in _SKIPPED for origin in origins)):
            return origins.pop()
        return _UNKNOWN

    def _leaves(self, value: str, seen: set[str]) -> set[Origin]:
        """Origins of a value, without those that it has through the values in `seen`."""
        if not value.startswith("%"):  # a variable at program scope, or a constant expression of one
            return {("global", 0, 0)} if "@" in value else set() if value in _NOTHING else {_UNKNOWN}
        if value in seen:
            return set()
        seen.add(value)
        text = self._definitions.get(value)
        if text is None:
            return {(self._parameters, 0, 0)}
        operation = text.removeprefix("tail ").split(" ", 1)[0]
        if operation == "alloca":
            return {("stack", 0, 0)}
        if operation == "call":
            return self._of_call(text, seen)
        sources = _sources(operation, text)
        found = set().union(*(self._leaves(source, seen) for source in sources)) if sources else {_UNKNOWN}
        if operation in _ARITHMETIC:  # on an address: the other operand is a distance
            found = {origin for origin in found if origin[0] not in ("unknown", "runtime")} or {_UNKNOWN}
        return found

    def _of_call(self, text: str, seen: set[str]) -> set[Origin]:
        variable = _VARIABLE.search(text)
        if variable:
            self._variables[int(variable[2])] = self._names.get(variable[1], "?")
            return {("threadgroup variable", int(variable[2]), int(variable[3]))}
        argument = _ARGUMENT.search(text)
        if argument:
            return {("buffer" if argument[1] == "buffer" else "threadgroup argument", int(argument[2]), 0)}
        hook = _HOOK.match(f"  %msl = {text}")
        if hook:
            return self._leaves(_operand(hook["pointer"]), seen)
        return {("runtime", 0, 0)} if "@msl_" in text else {_UNKNOWN}


def _sources(operation: str, text: str) -> list[str]:
    """The operands that a pointer, or its address as a number, may come from."""
    if operation == "phi":
        return re.findall(r"\[ ([^,]+), ", text)
    operands = _OPERAND.findall(text.split(", !", 1)[0])
    if operation == "select":
        return operands[1:]
    if operation == "getelementptr":
        pointer = re.search(rf", ptr(?: addrspace\(\d+\))? ({_OPERAND.pattern})", text)
        return [pointer[1]] if pointer else []
    return operands if operation in _ARITHMETIC + ("addrspacecast", "bitcast", "freeze", "ptrtoint", "inttoptr") else []


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
            if self._is_users(file):
                found.append((file, int(node.get("line", 0)), int(node.get("column", 0))))
            location = node.get("inlinedAt")
        return found

    def is_users(self, definition: str) -> bool:
        """Whether a function, of which this is the first line, stands in the user's text."""
        subprogram = re.search(r" !dbg !(\d+)", definition)
        return bool(subprogram) and self._is_users(self._file(subprogram[1]))

    def _is_users(self, file: str) -> bool:
        return bool(file) and file != "-" and not file.startswith((self._library_folder, "<entry points>", "<stdin>"))

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
