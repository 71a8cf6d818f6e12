"""Few-row products, alone or several of one vector in one dispatch, with their fused epilogues."""

from __future__ import annotations

from typing import Any

import sympy
from torch.utils._sympy.functions import FloorDiv

from metal_inductor import ir, policy
from metal_inductor.codegen import ops
from metal_inductor.codegen.emitter import Emitter, Signature, to_register
from metal_inductor.codegen.kernel import KernelSource, finish
from metal_inductor.codegen.reduction import ReductionBuilder
from metal_inductor.codegen.template import TemplateBuilder
from metal_inductor.fused_kernel import Kernel
from metal_inductor.ir import Buffer, StridedView, TemplateNode
from metal_inductor.schedule_products import weight_layout

ROW, COLUMN = ir.index_symbols(2)
DEPTH = ir.reduction_symbol(0)


class ProductBuilder:
    """Builds the kernel of one or more parts: each a product, or products of one shape that share threads."""

    def __init__(self, kernel: Kernel, buffers: dict[str, Buffer], kept: set[str], device: str) -> None:
        parts = kernel.parts or [kernel]
        self.kernel = kernel
        self.signature = Signature(buffers)
        self.buffers = buffers
        self.device = device
        self.parts = [TemplateBuilder(part, buffers, kept, self.signature) for part in parts]
        head = self.parts[0].head
        self.rows = int(head.sizes[0])
        self.depth = head.parameters["depth"]
        self.dtype = head.operands["b"].dtype
        self.layout = weight_layout(head)
        columns = sympy.Add(*(part.head.sizes[1] for part in self.parts))
        most = max(len(part.heads) for part in self.parts)
        self.tiling = policy.product_tiling(
            self.rows, most, columns, self.depth, self.layout, self.dtype.itemsize, device,
            normed=kernel.prologue is not None,
        )  # fmt: skip
        self.words = self.layout == "words" and self.tiling.lanes > 1

    def _operands(self) -> list[StridedView]:
        heads = [head for part in self.parts for head in part.heads]
        vector = [] if self.kernel.prologue else [heads[0].operands["a"]]
        return [*vector, *(head.operands["b"] for head in heads)]

    def build(self) -> KernelSource:
        tiling = self.tiling
        row = self._row(tiling.lanes * tiling.columns_per_group * tiling.splits)
        segments, blocks = [], sympy.Integer(0)
        for part in self.parts:
            segment, blocks = self._segment(part, blocks)
            segments.append(segment)
        one = sympy.Integer(1)
        if self.words:
            self.signature.aligned |= {view.buffer for view in self._operands()}
            simdgroups = tiling.columns_per_group * tiling.splits
            threads, group = (sympy.Integer(tiling.lanes), blocks * simdgroups, one), (tiling.lanes, simdgroups, 1)
        elif tiling.lanes > 1:
            threads, group = (sympy.Integer(tiling.lanes), blocks, one), (tiling.lanes, tiling.columns_per_group, 1)
        else:
            threads, group = (blocks, one, one), (tiling.columns_per_group, 1, 1)
        index_types = {part.index_type for part in self.parts}
        return finish(
            "linear", "product.metal.j2", self.signature, threads, group, self.kernel.members(), words=self.words,
            index_type="long" if "long" in index_types else "int", tiling=tiling, rows=self.rows, parts=segments,
            row=row, most_sums=max(len(part.heads) for part in self.parts) * self.rows,
        )  # fmt: skip

    def _row(self, threads: int) -> dict[str, Any] | None:
        """How the threads of a threadgroup compute the vector into its memory, where it is computed there."""
        if self.kernel.prologue is None:
            return None
        vector = self.parts[0].head.operands["a"]
        self.signature.local[vector.buffer] = "vector"
        builder = ReductionBuilder(self.kernel.prologue, self.buffers, {vector.buffer}, self.device, self.signature)
        return {
            "walk": builder.row_in_threadgroup(threads),
            "words": int(self.depth) * vector.dtype.itemsize // 16,
            "type": ops.METAL_TYPES[vector.dtype],
        }

    def _segment(self, part: TemplateBuilder, begin: sympy.Expr) -> tuple[dict[str, Any], sympy.Expr]:
        """What the template needs of one part, whose blocks of columns are numbered from `begin`; where they end."""
        columns = sympy.sympify(part.head.sizes[1])
        part.ranges[DEPTH] = self.depth
        emitter = part.emitter({ROW: "row", COLUMN: "column", DEPTH: "k"})
        emitter.inner_symbols = {ROW, COLUMN, DEPTH}
        a = part.head.operands["a"]
        heads = [self._weight(emitter, head) for head in part.heads]
        end = begin + self._blocks(columns)
        segment = {
            "heads": heads,
            "load_vector": self._element(emitter, a, ROW, DEPTH),
            "vector": self._pointer(emitter, a, 0),
            "type": ops.METAL_TYPES[self.dtype],
            "depth": emitter.index(sympy.sympify(self.depth)),
            "words": emitter.index(FloorDiv(self.depth, 16 // self.dtype.itemsize)),
            "columns": emitter.index(columns),
            "begin": emitter.index(begin),
            "end": emitter.index(sympy.sympify(end)),
            "epilogue": part.epilogue(emitter),
            "before": emitter.take_lines(),
        }
        return segment, sympy.sympify(end)

    def _blocks(self, columns: sympy.Expr) -> sympy.Expr:
        """Columns, sets of columns, or threadgroups that a part needs."""
        width = self.tiling.columns_per_group if self.words else self.tiling.columns_per_thread
        return columns if width == 1 else sympy.sympify(FloorDiv(columns + width - 1, width))

    def _weight(self, emitter: Emitter, head: TemplateNode) -> dict[str, str]:
        view = head.operands["b"]
        return {"load_weight": self._element(emitter, view, DEPTH, COLUMN), **self._pointer(emitter, view, 1)}

    def _element(self, emitter: Emitter, view: StridedView, *symbols: sympy.Symbol) -> str:
        index = view.offset + sympy.Add(*(s * step for s, step in zip(symbols, view.stride)))
        text = f"{self.signature.argument(view.buffer)}[{emitter.index(sympy.expand(index))}]"
        return to_register(text, view.dtype)

    def _pointer(self, emitter: Emitter, view: StridedView, dimension: int) -> dict[str, str]:
        """Where the rows of `view` along `dimension` begin."""
        return {
            "buffer": self.signature.argument(view.buffer),
            "offset": emitter.index(sympy.sympify(view.offset)),
            "stride": emitter.index(sympy.sympify(view.stride[dimension])),
        }
