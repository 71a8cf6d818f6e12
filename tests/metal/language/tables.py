"""Tables of Metal expressions: each row is one assertion about a value and its type, a table is one library.

A row's kernel runs once for every element of its inputs, so that nothing is folded by the compiler. On a CPU it runs as
fibers, as one that may wait for other threads does: a loop over threads takes the compiler three times as long.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Mapping

import numpy as np
import pytest
import torch

from metal_inductor.metal import compile_shader

HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"
DTYPES = {
    "bool": np.dtype(np.bool_), "char": np.dtype(np.int8), "uchar": np.dtype(np.uint8), "short": np.dtype(np.int16),
    "ushort": np.dtype(np.uint16), "int": np.dtype(np.int32), "uint": np.dtype(np.uint32), "long": np.dtype(np.int64),
    "ulong": np.dtype(np.uint64), "half": np.dtype(np.float16), "float": np.dtype(np.float32),
}  # fmt: skip
_TYPE = re.compile(r"(packed_)?([a-z]+?)([234]?)")
_SIGNED = {2: np.int16, 4: np.int32, 8: np.int64}


@dataclasses.dataclass(frozen=True)
class Type:
    """A Metal scalar, vector or packed vector type."""

    name: str
    scalar: str
    components: int
    stored: int

    @staticmethod
    def named(name: str) -> Type:
        packed, scalar, count = _TYPE.fullmatch(name).groups()
        components = int(count or 1)
        return Type(name, scalar, components, 4 if components == 3 and not packed else components)

    def to_device(self, values: np.ndarray, device: str) -> torch.Tensor:
        """values: (n,) for a scalar, (n, components) for a vector. bfloat: float values, rounded."""
        values = np.asarray(values)
        if self.components > 1:
            padded = np.zeros((len(values), self.stored), values.dtype)
            padded[:, : self.components] = values
            values = padded
        if self.scalar == "bfloat":
            return torch.tensor(values, dtype=torch.float32).to(torch.bfloat16).to(device)
        values = np.ascontiguousarray(values, DTYPES[self.scalar])
        return torch.from_numpy(_torch_view(values).copy()).to(device)

    def from_device(self, result: torch.Tensor, count: int) -> np.ndarray:
        if self.scalar == "bfloat":
            values = result.float().cpu().numpy()
        else:
            values = result.cpu().numpy().view(DTYPES[self.scalar])
        values = values.reshape(count, self.stored)[:, : self.components]
        return values[:, 0] if self.components == 1 else values

    def empty(self, count: int, device: str) -> torch.Tensor:
        """Room for `count` values, filled with a pattern that no test expects."""
        size = 2 if self.scalar == "bfloat" else DTYPES[self.scalar].itemsize
        room = torch.full((count * self.stored * size,), 0x5B, dtype=torch.uint8)
        dtype = (
            torch.bfloat16
            if self.scalar == "bfloat"
            else torch.from_numpy(_torch_view(np.empty(0, DTYPES[self.scalar]))).dtype
        )
        return room.view(dtype).to(device)


def _torch_view(values: np.ndarray) -> np.ndarray:
    """Unsigned integers as signed ones of their size: torch has few operations for the former."""
    return values.view(_SIGNED[values.itemsize]) if values.dtype.kind == "u" and values.itemsize > 1 else values


@dataclasses.dataclass(frozen=True)
class Row:
    """`result expression` over `inputs`, {name: (type, values)}, preceded by the statements `before`."""

    result: str
    expression: str
    inputs: Mapping[str, tuple[str, np.ndarray]]
    expected: np.ndarray
    ulp: float
    before: str
    label: str


class Table:
    """Rows that are compiled together.

    program: text before the kernels. group: threads in a threadgroup. loops: on a CPU, test the vectorised loops.
    """

    def __init__(self, program: str = "", group: int = 64, loops: bool = False) -> None:
        self.program, self.group, self.rows = program, group, []
        self.head = "" if loops else "if (false) simdgroup_barrier(mem_flags::mem_none); "
        self._library = functools.cache(self._compiled)

    def row(self, result: str, expression: str, expected, ulp: float = 0, before: str = "", label: str = "", **inputs):
        """Adds an assertion.

        expected: an array, or a function of the inputs' arrays. ulp: units in the last place of the result that it may
        differ by; 0 asks for equal values, and for equal signs of zero.
        Inputs: name=(Metal type, values).
        """
        arrays = {name: (metal, np.asarray(values)) for name, (metal, values) in inputs.items()}
        if callable(expected):
            with np.errstate(all="ignore"):
                expected = expected(*(values for _, values in arrays.values()))
        self.rows.append(Row(result, expression, arrays, np.asarray(expected), ulp, before, label or expression))

    def value(self, result: str, expression: str, expected, before: str = "", **inputs) -> None:
        """A row whose kernel runs once: `expected` is one value."""
        self.row(result, expression, np.asarray([expected]), before=before, **inputs)

    def _compiled(self, device: str) -> object:
        """The library, or what is wrong with its text: every row fails with that."""
        try:
            return compile_shader(self.source(), device=device)
        except SyntaxError as error:
            return error

    def source(self) -> str:
        return HEAD + self.program + "".join(_kernel(number, row, self.head) for number, row in enumerate(self.rows))

    def check(self, device: str, number: int) -> None:
        row, result, library = self.rows[number], Type.named(self.rows[number].result), self._library(device)
        if isinstance(library, SyntaxError):
            raise library
        count = len(row.expected)
        out = result.empty(count, device)
        arguments = [Type.named(metal).to_device(values, device) for metal, values in row.inputs.values()]
        getattr(library, f"k{number}")(out, *arguments, threads=count, group_size=self.group)
        assert_values(result.from_device(out, count), row.expected, row.ulp, row)

    def test(self) -> Callable:
        """A decorator: parametrises a test over the rows; it calls check(metal_device, number)."""
        return pytest.mark.parametrize(
            "number", range(len(self.rows)), ids=[f"{row.result} {row.label}"[:70] for row in self.rows]
        )


def _kernel(number: int, row: Row, head: str) -> str:
    parameters = [f"device {row.result}* o"] + [f"device const {t}* {name}_" for name, (t, _) in row.inputs.items()]
    parameters.append("uint i [[thread_position_in_grid]]")
    if re.search(r"\blane\b", row.before + row.expression):
        parameters.append("ushort lane [[thread_index_in_simdgroup]]")
    reads = "".join(f"{t} {name} = {name}_[i]; " for name, (t, _) in row.inputs.items())
    return (
        f"kernel void k{number}({', '.join(parameters)}) {{ {head}{reads}{row.before}\n auto r = {row.expression};\n"
        f' static_assert(is_same_v<remove_cvref_t<decltype(r)>, {row.result}>, "type"); o[i] = r; }}\n'
    )


def assert_values(actual: np.ndarray, expected: np.ndarray, ulp: float, row: Row) -> None:
    assert actual.shape == expected.shape, (actual.shape, expected.shape)
    scalar = Type.named(row.result).scalar
    if scalar not in ("half", "float", "bfloat"):
        np.testing.assert_array_equal(actual, expected.astype(DTYPES[scalar]))
        return
    rounded = round_to(scalar, expected)
    if ulp == 0:
        np.testing.assert_array_equal(actual, rounded)
        number = ~np.isnan(rounded)
        np.testing.assert_array_equal(np.signbit(actual)[number], np.signbit(rounded)[number])
        return
    finite = np.isfinite(rounded) & np.isfinite(actual)
    unit = unit_in_last_place(scalar, expected[finite])
    # next to the largest number, infinity is one unit away
    np.testing.assert_array_equal(actual[~finite], rounded[~finite])
    error = np.abs(actual[finite].astype(np.float64) - expected[finite].astype(np.float64)) / unit
    worst = error.argmax() if len(error) else None
    assert worst is None or error[worst] <= ulp + 1e-6, (
        f"{error[worst]:.2f} ulp, allowed {ulp}: got {actual[finite].ravel()[worst]!r}, "
        f"exact {expected[finite].ravel()[worst]!r}"
    )


def round_to(scalar: str, values: np.ndarray) -> np.ndarray:
    """Values as that type holds them; bfloat as float."""
    with np.errstate(over="ignore"):
        if scalar != "bfloat":
            return values.astype(DTYPES[scalar])
        return torch.from_numpy(values.astype(np.float32)).to(torch.bfloat16).float().numpy()


def unit_in_last_place(scalar: str, values: np.ndarray) -> np.ndarray:
    digits, least = {"half": (11, -24), "float": (24, -149), "bfloat": (8, -133)}[scalar]
    exponent = np.frexp(values.astype(np.float64))[1]
    return np.ldexp(1.0, np.maximum(exponent - digits, least))
