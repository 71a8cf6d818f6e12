"""What kernels with a template of their own have in common: their heads, and the epilogues fused to them."""

from __future__ import annotations

from typing import Any

import sympy

from metal_inductor import ir
from metal_inductor.codegen.emitter import Emitter, Signature, to_storage
from metal_inductor.codegen.kernel import needs_long, place_member, store_member
from metal_inductor.fused_kernel import Kernel
from metal_inductor.ir import Buffer, TemplateNode


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
