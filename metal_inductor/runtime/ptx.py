"""PTX text of a Metal library: its kernels one by one, with arguments passed by value in place of addresses.

clang compiles every buffer of a kernel as an address in global memory. An argument that a call passes by value lies in
the kernel's parameters instead, which other instructions read. Which loads those are follows from the text: an address
starts where the parameter is read and goes through arithmetic into loads, all in registers, because every function is
inlined. Where the text says so for certain, a load becomes one of parameter space, as good as an immediate operand.
Where an address may be either (chosen between two buffers, or kept in memory), it is made generic, and so is every
access through it: generic addresses reach global and parameter memory alike.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence

from metal_inductor.metal import threadgroup_memory
from metal_inductor.metal.kernel_info import KernelInfo

_ENTRY = re.compile(r"^\.visible \.entry (\w+)\(\n(.*?)\n\)[^\n]*\n\{\n(.*?)^\}\n", re.M | re.S)
_INSTRUCTION = re.compile(
    r"^(?P<before>\s*(?:@!?%\w+\s+)?)(?P<op>[a-z][\w.]*)\s+(?P<operands>[^;{]*(?:\{[^}]*\}[^;{]*)*);"
)
_REGISTER = re.compile(r"%[a-z]+\d+\b")
_ADDRESS = re.compile(r"\[(%[a-z]+\d+)([+-]\d+|\+-\d+)?\]")
_BLOCK_ALIGNMENT = 16
_LARGE_PARAMETERS = (4096, "8.1")  # bytes from which on the text must be of this PTX version
_MEMORY = ("ld", "ldu", "st", "atom", "red")


class PassedByValue(ValueError):
    """The kernel writes to an argument that was to be passed by value. `parameter`: its number."""

    def __init__(self, parameter: int) -> None:
        super().__init__(f"parameter {parameter} is written")
        self.parameter = parameter


@dataclasses.dataclass(frozen=True)
class PtxLibrary:
    """A PTX module taken apart. `head`: version, target and variables; `entries`: (parameters, body) by symbol."""

    head: str
    entries: Mapping[str, tuple[tuple[str, ...], str]]

    @classmethod
    def parse(cls, text: str) -> PtxLibrary:
        entries = {
            match[1]: (tuple(line.strip().rstrip(",") for line in match[2].splitlines()), match[3])
            for match in _ENTRY.finditer(text)
        }
        return cls(_ENTRY.sub("", text), entries)

    def measured(self, info: KernelInfo) -> KernelInfo:
        """The kernel with the bytes of threadgroup memory that its text is marked with, where it is."""
        return threadgroup_memory.measured(info, self.entries[info.symbol][1])

    def kernel(self, symbol: str, by_value: Mapping[int, int], max_threads: int | None = None) -> str:
        """A module with this kernel alone.

        by_value: bytes of each parameter that is passed by value, by its number.
        max_threads: threads that a block must be able to have. Raises PassedByValue if the kernel writes to one.
        """
        parameters, body = self.entries[symbol]
        declared = list(parameters)
        for number, size in by_value.items():
            declared[number] = f".param .align {_BLOCK_ALIGNMENT} .b8 {symbol}_param_{number}[{size}]"
        if by_value:
            body = _Rewrite(body, {f"{symbol}_param_{number}": number for number in by_value}).text()
        limit = f".maxntid {max_threads}, 1, 1\n" if max_threads else ""
        return (
            f"{self._head(sum(by_value.values()))}\n.visible .entry {symbol}(\n\t"
            + ",\n\t".join(declared)
            + f"\n)\n{limit}{{\n{body}}}\n"
        )

    def _head(self, inline_bytes: int) -> str:
        limit, version = _LARGE_PARAMETERS
        margin = 1024  # addresses, sizes and alignment
        if inline_bytes + margin <= limit:
            return self.head
        return re.sub(r"^\.version [\d.]+", f".version {version}", self.head, count=1, flags=re.M)


def block_bytes(size: int) -> int:
    """Bytes of a parameter for `size` bytes. Few sizes, because a kernel is compiled anew for each."""
    return max(_BLOCK_ALIGNMENT, 1 << (size - 1).bit_length())


@dataclasses.dataclass
class _Line:
    """An instruction: what it does, the registers that it sets and those that it reads."""

    op: str
    sets: tuple[str, ...]
    reads: tuple[str, ...]
    operands: str

    @property
    def name(self) -> str:
        return self.op.partition(".")[0]

    @property
    def address(self) -> str | None:
        """The register through which a memory access goes."""
        found = _ADDRESS.search(self.operands) if self.name in _MEMORY and ".param" not in self.op else None
        return found[1] if found else None

    @property
    def stored(self) -> tuple[str, ...]:
        """Registers that an access writes to memory."""
        if self.name not in _MEMORY or self.name in ("ld", "ldu"):
            return ()
        return tuple(register for register in self.reads if register != self.address)


def _parse_line(line: str) -> _Line | None:
    match = _INSTRUCTION.match(line)
    if match is None:
        return None
    op, operands = match["op"], match["operands"]
    if op.startswith(("st.", "red.", "br", "bar", "ret", "fence", "membar")):
        return _Line(op, (), tuple(_REGISTER.findall(operands)), operands)
    target, _, rest = operands.partition("}" if operands.startswith("{") else ",")
    return _Line(op, tuple(_REGISTER.findall(target)), tuple(_REGISTER.findall(rest)), operands)


class _Rewrite:
    """One kernel's body with some parameters by value. `parameters`: their numbers by name."""

    def __init__(self, body: str, parameters: Mapping[str, int]) -> None:
        self._lines = body.splitlines(keepends=True)
        self._parsed = [_parse_line(line) for line in self._lines]
        self._parameters = parameters
        self._sources: dict[str, frozenset[str]] = {}  # register -> parameters that its address may belong to
        self._follow_addresses()
        self._escapes = any(self._of(parsed.stored) for parsed in self._instructions())
        self._generic = self._joined(frozenset().union(*map(self._uncertain, self._instructions())))

    def text(self) -> str:
        return "".join(
            line if parsed is None else self._rewritten(line, parsed)
            for line, parsed in zip(self._lines, self._parsed, strict=True)
        )

    def _instructions(self) -> Iterator[_Line]:
        return (parsed for parsed in self._parsed if parsed is not None)

    def _base(self, parsed: _Line) -> str | None:
        """The parameter whose address this instruction reads."""
        if parsed.name != "ld" or ".param" not in parsed.op:
            return None
        name = parsed.operands.partition("[")[2].rstrip("]")
        return name if name in self._parameters else None

    def _of(self, registers: Sequence[str]) -> frozenset[str]:
        return frozenset().union(*(self._sources.get(register, frozenset()) for register in registers))

    def _follow_addresses(self) -> None:
        changed = True
        while changed:
            changed = False
            for parsed in self._instructions():
                found = self._given(parsed)
                for register in parsed.sets:
                    if not found <= self._of((register,)):
                        self._sources[register] = self._of((register,)) | found
                        changed = True

    def _given(self, parsed: _Line) -> frozenset[str]:
        """The parameters that what the instruction computes may be an address in."""
        base = self._base(parsed)
        if base is not None:
            return frozenset((base,))
        return frozenset() if parsed.name in (*_MEMORY, "setp") else self._of(parsed.reads)

    def _uncertain(self, parsed: _Line) -> frozenset[str]:
        """Parameters whose addresses mix with others here, or go where the text does not show them."""
        if parsed.name in _MEMORY:
            stored, address = self._of(parsed.stored), self._of((parsed.address,) if parsed.address else ())
            loaded_over = self._of(parsed.sets) if self._base(parsed) is None else frozenset()
            plain = parsed.op.startswith("ld.global.") or parsed.name not in ("ld", "ldu")
            return stored | loaded_over | (frozenset() if plain else address)
        if parsed.name == "setp":  # an address in parameter space may be zero
            return self._of(parsed.reads)
        return frozenset() if self._stays_in_place(parsed) else self._of((*parsed.sets, *parsed.reads))

    def _stays_in_place(self, parsed: _Line) -> bool:
        """A copy, a choice among parameters or a sum with an offset: still an address in parameter space."""
        carrying = [bool(self._of((register,))) for register in parsed.reads]
        if parsed.name == "mov":
            return carrying == [True]
        if parsed.name == "selp":
            return carrying == [True, True, False]
        if parsed.name in ("add", "mad"):
            return carrying.count(True) == 1 and (parsed.name == "add" or carrying[-1])
        return False

    def _joined(self, generic: frozenset[str]) -> frozenset[str]:
        """With the parameters that share a register with one of these."""
        while True:
            wider = generic.union(*(sources for sources in self._sources.values() if sources & generic))
            if wider == generic:
                return generic
            generic = wider

    def _rewritten(self, line: str, parsed: _Line) -> str:
        base = self._base(parsed)
        if base is not None:
            register = parsed.sets[0]
            convert = f"\tcvta.param.u64 \t{register}, {register};\n" if base in self._generic else ""
            return f"\tmov.b64 \t{register}, {base};\n{convert}"
        if parsed.address is not None:
            return self._access(line, parsed, self._of((parsed.address,)))
        if parsed.name == "cvta" and self._of(parsed.reads):  # generic already
            return line.replace(parsed.op, "mov.b64", 1)
        return line

    def _access(self, line: str, parsed: _Line, sources: frozenset[str]) -> str:
        if sources & self._generic or (self._escapes and ".global" in parsed.op):
            return line.replace(parsed.op, re.sub(r"\.global|\.nc", "", parsed.op), 1)
        if not sources:
            return line
        if parsed.name not in ("ld", "ldu"):
            raise PassedByValue(self._parameters[min(sources)])
        return line.replace(parsed.op, parsed.op.replace(".nc", "").replace(".global", ".param"), 1)
