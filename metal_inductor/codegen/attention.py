"""Attention of few query rows: one kernel that walks the keys, or one for splits of them and one that combines."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import sympy
import torch

from metal_inductor import ir, policy
from metal_inductor.codegen import ops
from metal_inductor.codegen.emitter import Emitter, Signature
from metal_inductor.codegen.kernel import KernelSource, finish
from metal_inductor.codegen.template import TemplateBuilder
from metal_inductor.fused_kernel import Kernel
from metal_inductor.ir import Buffer

HEAD, ROW, DIM = ir.index_symbols(3)
KEY = ir.reduction_symbol(0)
ONE = sympy.Integer(1)
LOG2_E = math.log2(math.e)
MAX_WORDS = 32  # of a key or value: one a lane
MAX_HEADS = 4096  # of which it is found out, one by one, who shares keys


@dataclass(frozen=True)
class Rows:
    """Keys or values whose elements are contiguous: row `key` begins at `base + key * step` in elements of `buffer`;
    `base` is an expression of the head, `bases` its value for each."""

    buffer: str
    base: sympy.Expr
    step: sympy.Expr
    bases: tuple[int, ...]


class AttentionBuilder(TemplateBuilder):
    """softmax(Q K^T * scale + mask) V with the operands' own producers and the epilogue fused."""

    def __init__(self, kernel: Kernel, buffers: dict[str, Buffer], kept: set[str], device: str) -> None:
        super().__init__(kernel, buffers, kept, Signature(buffers))
        self.device = device
        self.parameters = self.head.parameters
        self.ranges[KEY] = self.parameters["keys"]
        self.ranges[DIM] = max(self.parameters["dim"], self.parameters["value_dim"])

    def build(self) -> list[KernelSource]:
        keys, values = self._rows("key", "dim"), self._rows("value", "value_dim")
        if self.device != "cpu" and keys is not None and values is not None:
            return self._by_words(keys, values)
        return [self._by_elements()]

    # ------------------------------------------------------------------ element by element

    def _by_elements(self) -> KernelSource:
        emitter = self._emitter({DIM, KEY})
        operands = self.head.operands
        query = self._operand(emitter, operands["query"], {})
        keys = self._operand(emitter, operands["key"], {ROW: KEY})
        values = self._operand(emitter, operands["value"], {ROW: KEY})
        mask = self._mask(emitter)
        epilogue = self.epilogue(emitter)
        tiling = policy.attention_tiling(self.parameters["dim"], self.parameters["keys"], self.device)
        total = sympy.sympify(self.parameters["heads"]) * self.parameters["length"]
        if tiling.lanes == 1:
            threads, group = (total, ONE, ONE), (tiling.rows_per_group, 1, 1)
        else:
            threads = (sympy.Integer(tiling.lanes), sympy.Integer(tiling.splits), total)
            group = (tiling.lanes, tiling.splits, 1)
        return finish(
            "attention_decode", "attention_decode.metal.j2", self.signature, threads, group, self.kernel.members(),
            **self._context(emitter), tiling=tiling, query=query, key=keys, value=values, mask=mask,
            before=emitter.take_lines(), epilogue=epilogue,
        )  # fmt: skip

    # ------------------------------------------------------------------ sixteen bytes at a time

    def _by_words(self, keys: Rows, values: Rows) -> list[KernelSource]:
        """Heads that share keys share a threadgroup, which reads each key and value once."""
        heads, length = int(self.parameters["heads"]), self.parameters["length"]
        group = shared_heads(keys.bases, values.bases)
        itemsize = self.buffers[keys.buffer].dtype.itemsize
        words = max(self.parameters["dim"], self.parameters["value_dim"]) * itemsize // 16
        tiling = policy.attention_split(
            group * length, heads // group, self.parameters["keys"], words, itemsize, self.device
        )
        tiles = -(-group * length // tiling.queries)
        shape = {"group": group, "tiles": tiles, "rows": heads * length, **exchanges(tiling, 16 // itemsize)}
        threads = (
            sympy.Integer(32),
            sympy.Integer(tiling.simdgroups * tiles * (heads // group)),
            sympy.Integer(tiling.splits),
        )
        threadgroup = (32, tiling.simdgroups, 1)
        emitter = self._emitter({HEAD, ROW, DIM, KEY})
        context = {
            **self._context(emitter), **shape, "tiling": tiling,
            "scale": ops.format_constant(self.parameters["scale"] * LOG2_E, torch.float32),
            "type": ops.METAL_TYPES[self.buffers[keys.buffer].dtype],
            "query": self._operand(emitter, self.head.operands["query"], {}),
            "keys_view": self._pointer(emitter, keys), "values_view": self._pointer(emitter, values),
            "mask": self._mask(emitter),
        }  # fmt: skip
        self.signature.aligned |= {keys.buffer, values.buffer}
        if tiling.splits == 1:
            epilogue = self.epilogue(emitter)
            return [
                finish(
                    "attention_decode", "attention_split.metal.j2", self.signature, threads, threadgroup,
                    self.kernel.members(), **context, scratch=None, before=emitter.take_lines(), epilogue=epilogue,
                )
            ]  # fmt: skip
        scratch = self._scratch(tiling.splits, heads * length)
        partial = finish(
            "attention_decode", "attention_split.metal.j2", self.signature, threads, threadgroup, [self.head],
            **context, scratch=self.signature.argument(scratch, write=True), before=emitter.take_lines(), epilogue=[],
        )  # fmt: skip
        return [partial, self._combine(scratch, tiling.splits, heads * length)]

    def _scratch(self, splits: int, rows: int) -> str:
        """Memory for what the splits have found: for each split and row its output, not yet divided; then for each row
        and split its peak and its total."""
        shape = (sympy.Integer(splits * rows * (self.parameters["value_dim"] + 2)),)
        name = f"{self.head.buffer}_splits"
        self.buffers[name] = Buffer(name, shape, ir.contiguous_strides(shape), torch.float32)
        return name

    def _combine(self, scratch: str, splits: int, rows: int) -> KernelSource:
        self.signature = Signature(self.buffers)
        emitter = self._emitter({HEAD, ROW, DIM})
        found = self.signature.argument(scratch)
        epilogue = self.epilogue(emitter)
        simdgroups = policy.combining_simdgroups(splits)
        self.signature.aligned.add(scratch)
        threads = (sympy.Integer(32), sympy.Integer(simdgroups), sympy.Integer(rows))
        return finish(
            "attention_combine", "attention_combine.metal.j2", self.signature, threads, (32, simdgroups, 1),
            [placed.node for placed in self.kernel.nodes] or [self.head], **self._context(emitter), scratch=found,
            splits=splits, rows=rows, simdgroups=simdgroups, before=emitter.take_lines(), epilogue=epilogue,
        )  # fmt: skip

    def _rows(self, operand: str, dim: str) -> Rows | None:
        """An operand whose rows can be read in whole words, or None."""
        body, size, heads = self.head.operands[operand], self.parameters[dim], self.parameters["heads"]
        if not isinstance(body, ir.Load) or body.indirect or not sympy.sympify(heads).is_Integer or heads > MAX_HEADS:
            return None
        index = sympy.expand(body.index)
        along, step = index.coeff(DIM), index.coeff(ROW)
        base = sympy.expand(index - along * DIM - step * ROW)
        word = 16 // self.buffers[body.buffer].dtype.itemsize
        whole = size % word == 0 and size <= MAX_WORDS * word and step.is_Integer and step % word == 0
        if along != 1 or not whole or base.free_symbols - {HEAD}:
            return None
        bases = tuple(int(base.xreplace({HEAD: sympy.Integer(head)})) for head in range(int(heads)))
        return None if any(start % word for start in bases) else Rows(body.buffer, base, step, bases)

    def _pointer(self, emitter: Emitter, rows: Rows) -> dict[str, str]:
        names = emitter.symbol_names
        emitter.symbol_names = {HEAD: "first_head"}
        base = emitter.index(rows.base)
        emitter.symbol_names = names
        word = 16 // self.buffers[rows.buffer].dtype.itemsize
        return {"buffer": self.signature.argument(rows.buffer), "base": base, "step": str(rows.step // word)}

    # ------------------------------------------------------------------ both

    def _emitter(self, inner: set[sympy.Symbol]) -> Emitter:
        emitter = self.emitter({HEAD: "head", ROW: "row", DIM: "d", KEY: "key"})
        emitter.inner_symbols = inner
        return emitter

    def _context(self, emitter: Emitter) -> dict[str, Any]:
        mask = self.parameters["mask_dtype"]
        return {
            "index_type": self.index_type,
            "length": self.parameters["length"],
            "dim": self.parameters["dim"],
            "value_dim": self.parameters["value_dim"],
            "keys": emitter.index(sympy.sympify(self.parameters["keys"])),
            "scale": ops.format_constant(self.parameters["scale"], torch.float32),
            "log2_e": ops.format_constant(LOG2_E, torch.float32),
            "causal": self.parameters["causal"],
            "mask_is_bool": mask is not None and not mask.is_floating_point,
        }

    def _mask(self, emitter: Emitter) -> dict[str, Any] | None:
        mask = self.head.operands.get("mask")
        return None if mask is None else self._operand(emitter, mask, {DIM: KEY})

    def _operand(self, emitter: Emitter, body: ir.Expr, renamed: dict[sympy.Symbol, sympy.Symbol]) -> dict[str, Any]:
        """Statements that load one element, and the variable that holds it."""
        emitter.push()
        value = emitter.value(ir.substitute(body, renamed))
        return {"lines": emitter.pop(), "value": value}


def exchanges(tiling: policy.AttentionSplit, word: int) -> dict[str, Any]:
    """How the lanes of a simdgroup add up: the bits of a lane's number that tell the words of a key (`lane_masks`) and
    the slots (`slot_masks`) apart; how many of its queries x `word` sums each lane is left with, and the bits in which
    lanes differ that are left with the same."""
    lane_masks = [1 << bit for bit in reversed(range((tiling.lanes - 1).bit_length()))]
    slot_masks = [1 << bit for bit in reversed(range(len(lane_masks), 5))]
    held, repeated = tiling.queries * word, 0
    for mask in slot_masks:
        held, repeated = (held // 2, repeated) if held > 1 else (held, repeated | mask)
    return {"word": word, "lane_masks": lane_masks, "slot_masks": slot_masks, "held": held, "repeated": repeated}


def shared_heads(*bases: tuple[int, ...]) -> int:
    """How many neighbouring heads read the same keys and values, given where those of each head begin."""
    together = list(zip(*bases))
    return max(
        size
        for size in range(1, len(together) + 1)
        if len(together) % size == 0 and all(together[k] == together[k // size * size] for k in range(len(together)))
    )
