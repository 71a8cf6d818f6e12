"""Attention of many query rows: tiles of queries and keys on 8x8 matrices of a simdgroup."""

from __future__ import annotations

from typing import Any

import sympy
import torch
from torch.utils._sympy.functions import FloorDiv

from metal_inductor import ir, policy
from metal_inductor.codegen import ops
from metal_inductor.codegen.attention import DIM, KEY, LOG2_E, ONE, ROW, AttentionBuilder
from metal_inductor.codegen.emitter import Emitter
from metal_inductor.codegen.kernel import KernelSource, finish
from metal_inductor.indexing import is_multiple

RESULT_STRIDE = 40  # floats between the rows in which a simdgroup hands out 32 columns of its results


class TiledAttentionBuilder(AttentionBuilder):
    """softmax(Q K^T * scale + mask) V over [heads, length, dim], [heads, keys, dim] and [heads, keys, value_dim] in
    float32, float16 or bfloat16, with the operands' own producers and the epilogue fused. The numbers of heads, rows
    and keys may be symbolic, the dimensions not."""

    def build(self) -> list[KernelSource]:
        parameters, self.dtype = self.parameters, self.buffers[self.head.buffer].dtype
        tiling = policy.attention_tiles(parameters["dim"], parameters["value_dim"], self.dtype.itemsize, self.device)
        tiles = sympy.sympify(FloorDiv(parameters["length"] + tiling.rows - 1, tiling.rows))
        width = 32 * tiling.simdgroups
        emitter = self._emitter({ROW, DIM, KEY})
        context = {**self._context(emitter), **self._tiles(emitter, tiling), "mask": self._mask(emitter)}
        context |= {name: emitter.index(sympy.sympify(parameters[name])) for name in ("heads", "length")}
        context |= {"tiles": emitter.index(tiles), "factor": self._factor(context)}
        epilogue = self.epilogue(emitter)
        return [
            finish(
                "attention_tiled", "attention_tiled.metal.j2", self.signature,
                (sympy.expand(width * tiles * parameters["heads"]), ONE, ONE), (width, 1, 1), self.kernel.members(),
                **context, exp2=policy.attention_exponential(self.dtype.itemsize, self.device),
                before=emitter.take_lines(), epilogue=epilogue,
            )
        ]  # fmt: skip

    def _tiles(self, emitter: Emitter, tiling: policy.AttentionTiles) -> dict[str, Any]:
        """The operands, and the threadgroup memory that their tiles take."""
        dim, value_dim, itemsize = self.parameters["dim"], self.parameters["value_dim"], self.dtype.itemsize
        key_stride, value_stride = policy.tile_stride(dim), policy.tile_stride(value_dim)
        tile_bytes = tiling.keys * (key_stride + value_stride) * itemsize
        return {
            "tiling": tiling,
            "type": ops.METAL_TYPES[self.dtype],
            "word": 16 // itemsize,
            "key_stride": key_stride,
            "value_stride": value_stride,
            "memory_words": -(-max(tile_bytes, tiling.simdgroups * 8 * RESULT_STRIDE * 4, 64 * 4) // 16),
            "query": self._rows_of(emitter, "query", ROW, dim),
            "keys_operand": self._rows_of(emitter, "key", KEY, dim),
            "values_operand": self._rows_of(emitter, "value", KEY, value_dim),
        }

    def _factor(self, context: dict[str, Any]) -> str | None:
        """The factor of scores. Their exponentials are powers of two: one factor serves both, in the sum with the peak,
        which rounds least. None where a float mask is added, whose smallest number has no room for a factor, and where
        the largest score is not the one of the largest product: then there are two factors."""
        scale = self.parameters["scale"]
        added = context["mask"] is not None and not context["mask_is_bool"]
        return None if added or scale <= 0 else ops.format_constant(scale * LOG2_E, torch.float32)

    def _rows_of(self, emitter: Emitter, name: str, along: sympy.Symbol, size: int) -> dict[str, Any]:
        """How rows of an operand come into threadgroup memory: in words of 16 bytes, or element by element."""
        body = self.head.operands[name]
        pointer = self._words(emitter, body, size)
        if pointer is not None:
            return {"pointer": {"text": f"{name}_words", **pointer}, "lines": [], "value": ""}
        return {"pointer": None, **self._operand(emitter, body, {ROW: along})}

    def _words(self, emitter: Emitter, body: ir.Expr, size: int) -> dict[str, str] | None:
        """An operand whose every row is contiguous and begins at a whole word, or None."""
        word = 16 // self.dtype.itemsize
        if not isinstance(body, ir.Load) or body.indirect or self.buffers[body.buffer].dtype != self.dtype:
            return None
        index = sympy.expand(body.index)
        step = index.coeff(ROW)
        base = sympy.expand(index - DIM - step * ROW)
        varying = {ROW, DIM}
        if index.coeff(DIM) != 1 or (step.free_symbols | base.free_symbols) & varying:
            return None
        if size % word or not is_multiple(step, word) or not is_multiple(base, word):
            return None
        self.signature.aligned.add(body.buffer)
        return {
            "buffer": self.signature.argument(body.buffer),
            "base": emitter.index(base),
            "step": emitter.index(sympy.expand(step / word)),
        }
