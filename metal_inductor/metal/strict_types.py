"""Rules that need types, checked on clang's syntax tree: recursion, device memory taken for constant, half from bfloat.

The tree costs half a compilation, so it is asked for only where a text has what such a rule could reject: see
`suspicious`. clang prints a location once and leaves out what has not changed since, hence the running file and line.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator

from .outline import Outline
from .tokens import Tokens

MARKER = "msl_user_text"  # a namespace in front of the user's text, by which it is found in the tree
FILE = "user.metal"

_NODE = re.compile(r"(?P<indent>[ |`-]*)(?P<kind>[A-Z]\w+) (?P<id>0x[0-9a-f]+)(?P<rest>.*)")
_PLACE = r"(?:<[^<>]*>(?::\d+:\d+)?|line:\d+:\d+|col:\d+|[^<>,]*?:\d+:\d+)"
_RANGE = re.compile(
    r"(?: parent 0x\w+)?(?: prev (?P<prev>0x\w+))?"
    rf" <(?P<begin>{_PLACE})(?:, (?P<end>{_PLACE}))?>(?: (?P<at>{_PLACE})(?= ))?"
)
_FUNCTION_KINDS = {"FunctionDecl", "CXXMethodDecl", "CXXConstructorDecl", "CXXConversionDecl"}
_CALLEE = re.compile(r"(?:\b(?:Function|CXXMethod) |(?:->|\.)[\w ()+*/<>=!&|^%~-]+ )(0x[0-9a-f]+)")
_TYPE = re.compile(r"'([^']*)'")
_SPOT = re.compile(r"(?:line|(.*)):(\d+):(\d+)|col:(\d+)")
_OBJECT_USES = {"MemberExpr", "CXXConstructExpr", "CXXOperatorCallExpr", "CXXTemporaryObjectExpr"}
_NAME = re.compile(r"(?:used |referenced |implicit |constexpr )*(\S+) '")
_SPACE = re.compile(r"__(global_device|global|local|private|generic)\b")
_METAL_SPACES = {"global_device": "device", "global": "constant", "local": "threadgroup", "private": "thread"}


@dataclasses.dataclass(frozen=True, slots=True)
class _Node:
    """One line of the tree. last: no sibling follows it; place: line and column, (0, 0) outside the user's text."""

    depth: int
    last: bool
    kind: str
    id: str
    previous: str | None
    place: tuple[int, int]
    rest: str

    @property
    def type(self) -> str:
        found = _TYPE.search(self.rest)
        return found.group(1) if found else ""


def suspicious(tokens: Tokens, outline: Outline, is_user: Callable[[int], bool]) -> bool:
    """Whether the text calls in circles, points to constant memory outside a kernel's head, or has half and bfloat.

    is_user: whether the token at an index is the user's, and not of a header known to be good.
    """
    return (
        _circular(tokens, outline, is_user)
        or _points_to_constant(tokens, outline, is_user)
        or _mixes_small_floats(tokens, is_user)
    )


def _circular(tokens: Tokens, outline: Outline, is_user: Callable[[int], bool]) -> bool:
    """Whether names of functions reach themselves, overloads taken for one."""
    names = {f.name for f in outline.functions if is_user(f.name_at)}
    calls: dict[str, set[str]] = {name: set() for name in names}
    for function in outline.functions:
        if function.name in names:
            for i in tokens.words(function.parameters, function.end):
                if tokens[i] in names and tokens[tokens.after(i)] in ("(", "<", ")", ","):
                    calls[function.name].add(tokens[i])
                elif tokens[i] == "this" and function.name == "operator" and tokens[tokens.after(i)] == ")":
                    calls["operator"].add("operator")
    for name in names:
        reached: set[str] = set()
        frontier = set(calls[name])
        while frontier:
            reached |= frontier
            frontier = {callee for caller in frontier for callee in calls[caller]} - reached
        if name in reached:
            return True
    return False


def _points_to_constant(tokens: Tokens, outline: Outline, is_user: Callable[[int], bool]) -> bool:
    heads: set[int] = set()
    constants: set[str] = set()
    for function in outline.functions:
        if "kernel" in (tokens[i] for i in tokens.words(function.head, function.parameters)):
            inside = tokens.words(function.parameters, tokens.closing(function.parameters))
            heads.update(inside)
            constants |= {tokens[_declared(tokens, i)] for i in inside if tokens[i] == "constant"}
    for begin, end, _ in outline.statements:
        if tokens[begin] == "template" and tokens[tokens.after(begin)] != "<":
            heads.update(tokens.words(begin, end))
    for i in tokens.significant:
        if tokens[i] == "constant" and i not in heads and tokens[_mark(tokens, i)] in ("*", "&") and is_user(i):
            return True
        if tokens[i] == "device" and _casts_constant(tokens, i, constants):
            return True
    return False


def _mark(tokens: Tokens, i: int) -> int:
    """First token behind a type that begins at `i`."""
    i = tokens.after(i)
    while tokens[i].isidentifier() or tokens[i] in ("::", "<"):
        i = tokens.closing_angle(i) or len(tokens) if tokens[i] == "<" else i
        i = tokens.after(i)
    return i


def _declared(tokens: Tokens, i: int) -> int:
    """The name behind the type that begins at `i`."""
    i = _mark(tokens, i)
    while i < len(tokens) and not tokens[i].isidentifier():
        i = tokens.after(i)
    return i


def _casts_constant(tokens: Tokens, i: int, constants: set[str]) -> bool:
    """`(device float *)table` with a name of constant memory close behind."""
    before = tokens.before(i)
    before = tokens.before(before) if tokens[before] == "const" else before
    if tokens[before] not in ("(", "<"):
        return False
    i = _mark(tokens, i)
    return any(tokens[j] in constants for j in tokens.words(i, i + 16))


def _mixes_small_floats(tokens: Tokens, is_user: Callable[[int], bool]) -> bool:
    found = {}
    for i in tokens.significant:
        family = re.fullmatch(r"(half|bfloat)[234]?", tokens[i])
        if family and family.group(1) not in found and is_user(i):
            found[family.group(1)] = i
    return len(found) == 2


def violations(tree: str) -> list[tuple[int, int, str]]:
    """(line, column, message) for everything in the user's part of a syntax tree that Metal rejects, in its order."""
    nodes = list(_nodes(tree))
    calls = _Calls()
    found = set()
    ancestors: list[_Node] = []
    for number, node in enumerate(nodes):
        while ancestors and node.depth <= ancestors[-1].depth:
            ancestors.pop()
        calls.visit(node, ancestors)
        message = _address_space(nodes, number, ancestors) or _small_float(nodes, number)
        if message:
            place = next((n.place for n in (node, *reversed(ancestors)) if n.place[0]), (0, 0))
            found.add((*place, message))
        ancestors.append(node)
    return sorted(violation for violation in {*found, *calls.recursive()} if violation[0] > 0)


def _nodes(tree: str) -> Iterator[_Node]:
    """Nodes behind the marker, with locations written out."""
    begin = tree.find(f" {MARKER}\n")
    file, line = "", 0
    for text in tree[begin + 1 :].splitlines()[1:]:
        node = _NODE.match(text)
        if not node:
            continue
        where = _RANGE.match(node["rest"])
        places = []
        for piece in (where["begin"], where["end"], where["at"]) if where else ():
            parsed = _SPOT.fullmatch(piece or "")
            if parsed is None:
                continue
            if parsed[4] is None:
                file, line = parsed[1] or file, int(parsed[2])
            places.append((file, line, int(parsed[4] or parsed[3])))
        users = [(number, column) for name, number, column in places if name == FILE]
        best = users[-1] if users and where["at"] else users[0] if users else (0, 0)
        rest = node["rest"][where.end() :] if where else node["rest"]
        indent, previous = node["indent"], where["prev"] if where else None
        yield _Node(len(indent), indent.endswith("`-"), node["kind"], node["id"], previous, best, rest)


class _Calls:
    """Which function calls which, by the ids of their first declarations."""

    def __init__(self) -> None:
        self._first: dict[str, str] = {}
        self._names: dict[str, tuple[tuple[int, int], str]] = {}
        self._callees: dict[str, set[str]] = {}
        self._tail_call = False

    def visit(self, node: _Node, ancestors: list[_Node]) -> None:
        if node.kind in _FUNCTION_KINDS:
            canonical = self._first.get(node.previous or "", node.previous) or node.id
            self._first[node.id] = canonical
            name = _NAME.search(node.rest)
            if node.place[0] and name:
                self._names[canonical] = (node.place, name.group(1))
        elif node.kind in ("CallExpr", "CXXMemberCallExpr"):
            self._tail_call = _ends_function(node, ancestors)
        elif node.kind in ("DeclRefExpr", "MemberExpr") and (found := _CALLEE.findall(node.rest)):
            function = next((n for n in reversed(ancestors) if n.kind in _FUNCTION_KINDS), None)
            if function is not None:
                caller = self._first[function.id]
                callees = {self._first.get(callee, callee) for callee in found}
                self._callees.setdefault(caller, set()).update(callees - {caller} if self._tail_call else callees)
            self._tail_call = False

    def recursive(self) -> Iterator[tuple[int, int, str]]:
        """Functions that reach themselves.

        Kernels may recurse since Metal 2.4, but only as deep as the pipeline's maxCallStackDepth, which is 1 unless the
        host asks for more, and torch does not. A void function that ends by calling itself is a loop.
        """
        for function, (place, name) in self._names.items():
            reached: set[str] = set()
            frontier = self._called(function)
            while frontier:
                reached |= frontier
                frontier = {callee for caller in frontier for callee in self._called(caller)} - reached
            if function in reached:
                yield (*place, f"'{name}' calls itself; recursion is not supported in Metal")

    def _called(self, function: str) -> set[str]:
        return {self._first.get(callee, callee) for callee in self._callees.get(function, ())}


def _ends_function(call: _Node, ancestors: list[_Node]) -> bool:
    """Whether a statement is a call after which its function has nothing left to do."""
    if call.type != "void" or not call.last:
        return False
    for place, node in enumerate(reversed(ancestors)):
        outer = ancestors[-place - 2] if place + 2 <= len(ancestors) else node
        if node.kind not in ("CompoundStmt", "IfStmt"):
            return False
        if outer.kind in _FUNCTION_KINDS:
            return True
        if not node.last:
            return False
    return False


def _address_space(nodes: list[_Node], number: int, ancestors: list[_Node]) -> str | None:
    """clang's global memory holds Metal's device and constant memory: what it takes for one of them is checked here.

    Objects of a class are excepted: of two methods or constructors for device and constant objects, one is kept.
    """
    node = nodes[number]
    if "Conversion>" not in node.rest and "<BitCast>" not in node.rest and "<NoOp>" not in node.rest:
        return None
    following = nodes[number + 1] if number + 1 < len(nodes) else node
    source, target = _pointee_space(following.type), _pointee_space(node.type)
    if {source, target} != {"device", "constant"}:
        return None
    user = ancestors[-1].kind if ancestors else ""
    if user == "MemberExpr" or (user in _OBJECT_USES and "*" not in node.type):
        return None
    given, wanted = _metal(following.type), _metal(node.type)
    return f"cannot convert '{given}' to '{wanted}', which is in a different address space"


def _small_float(nodes: list[_Node], number: int) -> str | None:
    """bfloat becomes float implicitly, and float half; Metal does not go both steps."""
    node = nodes[number]
    if "<FloatingCast>" not in node.rest or not re.fullmatch(r"(?:__\w+ |const )*half", node.type):
        return None
    following = nodes[number + 1 : number + 6]
    if following and following[0].rest.endswith("<UserDefinedConversion>"):
        if any("bfloat" in later.rest for later in following[1:]):
            return "cannot implicitly convert 'bfloat' to 'half'"
    return None


def _pointee_space(type_text: str) -> str | None:
    """Address space of what a pointer points to, or of an object."""
    pointer = re.fullmatch(r"(.*)\*(?: ?(?:const|volatile|__private))*", type_text)
    found = _SPACE.findall((pointer.group(1) if pointer else type_text).split("*")[-1])
    return _METAL_SPACES.get(found[-1]) if found else None


def _metal(type_text: str) -> str:
    """A type in Metal's words."""
    text = type_text.replace("const __global ", "constant ").replace("__global_device", "device")
    return re.sub(r" ?__(?:private|generic)", "", text)
