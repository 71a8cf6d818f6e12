"""Decode attention with its fused epilogue; what kernels with a template of their own have in common."""

from __future__ import annotations

from typing import Any

import sympy
import torch

from metal_inductor import ir, policy
from metal_inductor.codegen import ops
from metal_inductor.codegen.emitter import Emitter, Signature, to_storage
from metal_inductor.codegen.kernel import KernelSource, finish, needs_long, place_member, store_member
from metal_inductor.ir import Buffer, TemplateNode
from metal_inductor.schedule import Kernel


class TemplateBuilder:
    """Builds a kernel around its template: the heads' own stores where somebody reads them, then the epilogue."""

    def __init__(self, kernel: Kernel, buffers: dict[str, Buffer], kept: set[str], signature: Signature) -> None:
        self.kernel = kernel
        self.heads = [head for head in kernel.heads() if isinstance(head, TemplateNode)]
        self.head = self.heads[0]
        self.buffers = buffers
        self.kept = kept
        self.signature = signature
        used = [buffers[name] for name in kernel.reads() | kernel.writes()]
        self.index_type = "long" if needs_long(kernel.row_sizes, used) else "int"
        self.ranges: dict[sympy.Symbol, Any] = kernel.ranges()

    def emitter(self, names: dict[sympy.Symbol, str]) -> Emitter:
        emitter = Emitter(self.signature, self.ranges, self.index_type)
        emitter.symbol_names = names
        emitter.inner_buffers = {node.buffer for node in self.kernel.members()}
        return emitter

    def epilogue(self, emitter: Emitter) -> list[str]:
        """Stores of one output element, whose float values are the variables `result0`, ... of the heads."""
        emitter.push()
        for number, head in enumerate(self.heads):
            emitter.produced[head.buffer] = lambda number=number: f"result{number}"
            if head.buffer in self.kept:
                out = self.buffers[head.buffer]
                position = emitter.index(out.index(ir.index_symbols(len(out.shape))))
                target = self.signature.argument(head.buffer, write=True)
                emitter.line(f"{target}[{position}] = {to_storage(f'result{number}', out.dtype)};")
        members = [place_member(p, self.kernel.ranges(), p.node.buffer in self.kept) for p in self.kernel.nodes]
        for member in members:
            if not member.node.mutates:
                emitter.produced[member.node.buffer] = lambda m=member: emitter.value(m.body)
        for member in members:
            if member.kept:
                store_member(emitter, member)
        return emitter.pop()


class AttentionBuilder(TemplateBuilder):
    """Attention of few query rows."""

    def __init__(self, kernel: Kernel, buffers: dict[str, Buffer], kept: set[str], device: str) -> None:
        super().__init__(kernel, buffers, kept, Signature(buffers))
        self.device = device

    def build(self) -> KernelSource:
        head, row, dim = ir.index_symbols(3)
        key = ir.reduction_symbol(0)
        parameters = self.head.parameters
        self.ranges[key] = parameters["keys"]
        self.ranges[dim] = max(parameters["dim"], parameters["value_dim"])
        emitter = self.emitter({head: "head", row: "row", dim: "d", key: "key"})
        emitter.inner_symbols = {dim, key}
        operands = self.head.operands
        query = self._operand(emitter, operands["query"], {})
        keys = self._operand(emitter, operands["key"], {row: key})
        values = self._operand(emitter, operands["value"], {row: key})
        mask = self._operand(emitter, operands["mask"], {dim: key}) if "mask" in operands else None
        epilogue = self.epilogue(emitter)
        tiling = policy.attention_tiling(parameters["dim"], parameters["keys"], self.device)
        total = sympy.sympify(parameters["heads"]) * parameters["length"]
        one = sympy.Integer(1)
        if tiling.lanes == 1:
            threads, group = (total, one, one), (tiling.rows_per_group, 1, 1)
        else:
            threads = (sympy.Integer(tiling.lanes), sympy.Integer(tiling.splits), total)
            group = (tiling.lanes, tiling.splits, 1)
        return finish(
            "attention_decode", "attention_decode.metal.j2", self.signature, threads, group, self.kernel.members(),
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
