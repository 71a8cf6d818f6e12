"""Kernels with a template of their own: few-row products and decode attention, with their fused epilogues."""

from __future__ import annotations

from typing import Any

import sympy
import torch
from torch.utils._sympy.functions import FloorDiv

from metal_inductor import ir, policy
from metal_inductor.codegen import ops
from metal_inductor.codegen.emitter import Emitter, Signature, to_register, to_storage
from metal_inductor.codegen.kernel import KernelSource, finish, needs_long, place_member, store_member
from metal_inductor.ir import Buffer, StridedView, TemplateNode
from metal_inductor.schedule import Kernel


class TemplateBuilder:
    """Builds a template's kernel: the head's own store where somebody reads it, then the epilogue's."""

    def __init__(self, kernel: Kernel, buffers: dict[str, Buffer], kept: set[str], device: str) -> None:
        assert isinstance(kernel.head, TemplateNode)
        self.kernel = kernel
        self.head = kernel.head
        self.buffers = buffers
        self.kept = kept
        self.device = device
        self.signature = Signature(buffers)
        used = [buffers[name] for name in kernel.reads() | kernel.writes()]
        self.index_type = "long" if needs_long(kernel.row_sizes, used) else "int"
        self.ranges: dict[sympy.Symbol, Any] = kernel.ranges()

    def build(self) -> KernelSource:
        return {"linear": self._linear, "attention_decode": self._attention}[self.head.template]()

    def _emitter(self, names: dict[sympy.Symbol, str]) -> Emitter:
        emitter = Emitter(self.signature, self.ranges, self.index_type)
        emitter.symbol_names = names
        emitter.inner_buffers = {self.head.buffer, *(placed.node.buffer for placed in self.kernel.nodes)}
        return emitter

    def _epilogue(self, emitter: Emitter) -> list[str]:
        """Stores of one output element, whose float value is the variable `result`."""
        emitter.push()
        emitter.produced[self.head.buffer] = lambda: "result"
        out = self.buffers[self.head.buffer]
        if self.head.buffer in self.kept:
            position = emitter.index(out.index(ir.index_symbols(len(out.shape))))
            target = self.signature.argument(self.head.buffer, write=True)
            emitter.line(f"{target}[{position}] = {to_storage('result', out.dtype)};")
        members = [place_member(p, self.kernel.ranges(), p.node.buffer in self.kept) for p in self.kernel.nodes]
        for member in members:
            if not member.node.mutates:
                emitter.produced[member.node.buffer] = lambda m=member: emitter.value(m.body)
        for member in members:
            if member.kept:
                store_member(emitter, member)
        return emitter.pop()

    def _nodes(self) -> list[ir.Node]:
        return [self.head, *(placed.node for placed in self.kernel.nodes)]

    # ------------------------------------------------------------------ few-row products

    def _linear(self) -> KernelSource:
        row, column = ir.index_symbols(2)
        depth = ir.reduction_symbol(0)
        a, b = self.head.operands["a"], self.head.operands["b"]
        rows, columns = self.kernel.row_sizes
        self.ranges[depth] = self.head.parameters["depth"]
        emitter = self._emitter({row: "row", column: "column", depth: "k"})
        emitter.inner_symbols = {row, column, depth}
        load_a, load_b = self._load(emitter, a, row, depth), self._load(emitter, b, depth, column)
        tiling = policy.linear_tiling(int(rows), columns, self.head.parameters["depth"], b.stride[0] == 1, self.device)
        epilogue = self._epilogue(emitter)
        groups = sympy.sympify(columns) if tiling.columns_per_thread == 1 else _ceil_div(columns, tiling)
        one = sympy.Integer(1)
        if tiling.lanes == 1:
            threads, group = (groups, one, one), (tiling.columns_per_group, 1, 1)
        else:
            threads, group = (sympy.Integer(tiling.lanes), groups, one), (tiling.lanes, tiling.columns_per_group, 1)
        return finish(
            "linear", "linear.metal.j2", self.signature, threads, group, self._nodes(), index_type=self.index_type,
            tiling=tiling, rows=int(rows), columns=emitter.index(sympy.sympify(columns)),
            depth=emitter.index(sympy.sympify(self.head.parameters["depth"])), load_a=load_a, load_b=load_b,
            before=emitter.take_lines(), epilogue=epilogue,
        )  # fmt: skip

    def _load(self, emitter: Emitter, view: StridedView, *symbols: sympy.Symbol) -> str:
        index = view.offset + sympy.Add(*(s * step for s, step in zip(symbols, view.stride)))
        text = f"{self.signature.argument(view.buffer)}[{emitter.index(sympy.expand(index))}]"
        return to_register(text, view.dtype)

    # ------------------------------------------------------------------ attention

    def _attention(self) -> KernelSource:
        head, row, dim = ir.index_symbols(3)
        key = ir.reduction_symbol(0)
        parameters = self.head.parameters
        self.ranges[key] = parameters["keys"]
        self.ranges[dim] = max(parameters["dim"], parameters["value_dim"])
        emitter = self._emitter({head: "head", row: "row", dim: "d", key: "key"})
        emitter.inner_symbols = {dim, key}
        operands = self.head.operands
        query = self._operand(emitter, operands["query"], {})
        keys = self._operand(emitter, operands["key"], {row: key})
        values = self._operand(emitter, operands["value"], {row: key})
        mask = self._operand(emitter, operands["mask"], {dim: key}) if "mask" in operands else None
        epilogue = self._epilogue(emitter)
        tiling = policy.attention_tiling(parameters["dim"], parameters["keys"], self.device)
        total = sympy.sympify(parameters["heads"]) * parameters["length"]
        one = sympy.Integer(1)
        if tiling.lanes == 1:
            threads, group = (total, one, one), (tiling.rows_per_group, 1, 1)
        else:
            threads = (sympy.Integer(tiling.lanes), sympy.Integer(tiling.splits), total)
            group = (tiling.lanes, tiling.splits, 1)
        return finish(
            "attention_decode", "attention_decode.metal.j2", self.signature, threads, group, self._nodes(),
            index_type=self.index_type, tiling=tiling, length=parameters["length"], dim=parameters["dim"],
            value_dim=parameters["value_dim"], keys=emitter.index(sympy.sympify(parameters["keys"])),
            scale=ops.format_constant(parameters["scale"], torch.float32), causal=parameters["causal"],
            mask_is_bool=parameters["mask_dtype"] is not None and not parameters["mask_dtype"].is_floating_point,
            query=query, key=keys, value=values, mask=mask, before=emitter.take_lines(), epilogue=epilogue,
        )  # fmt: skip

    def _operand(self, emitter: Emitter, body: ir.Expr, renamed: dict[sympy.Symbol, sympy.Symbol]) -> dict[str, Any]:
        """Statements that load one element, and the variable that holds it."""
        emitter.push()
        value = emitter.value(ir.substitute(body, renamed))
        return {"lines": emitter.pop(), "value": value}


def _ceil_div(size: Any, tiling: policy.LinearTiling) -> sympy.Expr:
    return sympy.sympify(FloorDiv(sympy.sympify(size) + tiling.columns_per_thread - 1, tiling.columns_per_thread))
