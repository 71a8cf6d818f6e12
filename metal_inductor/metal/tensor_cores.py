"""Products of 8x8 matrices in PTX, two at a time: a tensor core multiplies 16 rows by 8 columns."""

from __future__ import annotations

import re

_REGISTER = r"(%r\d+)"
_PRODUCT = (
    r"mma\.sync\.aligned\.m16n8k8\.row\.col\.f32\.(\w+)\.\w+\.f32 "
    rf"\{{{_REGISTER}, {_REGISTER}, %r\d+, %r\d+\}}, \{{{_REGISTER}, %r\d+\}}, \{{{_REGISTER}\}}, [^;]*;"
)
_NEIGHBOURS = re.compile(rf"\t{_PRODUCT}\n((?:\t//[^\n]*\n|\tmov\.b32 [^;\n]*;\n)*)\t{_PRODUCT}")
_MOVE = re.compile(r"mov\.b32\s+(\{[^}]*\}|%r\d+), ([^;]*);")


def pair_products(ptx: str) -> str:
    """PTX of `compile_cuda` in which neighbouring products of two left matrices and one right matrix are one
    instruction.

    `msl/exchange_nvptx.h` leaves rows 8 to 15 of each instruction to nobody: the second product takes those of the
    first. Copies of registers may lie between the two, if they could as well come before the first.
    """
    return _NEIGHBOURS.sub(_pair, ptx)


def _pair(found: re.Match[str]) -> str:
    kind, sum0, sum1, left, right, between, other_kind, sum2, sum3, other_left, other_right = found.groups()
    apart = len({sum0, sum1, sum2, sum3}) == 4 and not any(
        target in (sum0, sum1, left, right) or source in (sum0, sum1) for target, source in _MOVE.findall(between)
    )
    if kind != other_kind or right != other_right or not apart:
        return found.group()
    sums = f"{{{sum0}, {sum1}, {sum2}, {sum3}}}"
    return (
        f"{between}\tmma.sync.aligned.m16n8k8.row.col.f32.{kind}.{kind}.f32 "
        f"{sums}, {{{left}, {other_left}}}, {{{right}}}, {sums};"
    )
