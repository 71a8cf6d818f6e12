"""ATen graph -> tensor IR: walks the FX graph, asks `lowerings/` for each op, and realizes values into buffers."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import sympy
import torch
from torch.fx import GraphModule
from torch.fx import Node as FxNode

from metal_inductor import ir, policy
from metal_inductor.extern import ExternLowering
from metal_inductor.indexing import reshape_map, simplify
from metal_inductor.ir import Buffer, ComputeNode, OpaqueValue, StridedView, TensorValue
from metal_inductor.lowerings.registry import METAL_DTYPES, Unsupported, find_lowering
from metal_inductor.torch_compat import scalar_expr, size_expr


class GraphLowering:
    """Lowers one functional ATen graph. After `run()`: `nodes` in program order, `buffers` by name, `outputs`."""

    def __init__(
        self, gm: GraphModule, *, device: torch.device, fallback: str = "warn", policy_device: str = "cpu"
    ) -> None:
        self.gm = gm
        self.device = device
        self.policy_device = policy_device
        self.fallback = fallback
        self.buffers: dict[str, Buffer] = {}
        self.nodes: list[ir.Node] = []
        self.env: dict[FxNode, Any] = {}
        self.inputs: list[str | sympy.Expr | None] = []
        self.constants: dict[str, torch.Tensor] = {}
        self.negated_inputs: set[str] = set()  # torch's lazy negation: a kernel would miss it
        self.outputs: list[Any] = []
        self.node: FxNode = None  # type: ignore[assignment]
        self._pending: dict[FxNode, int] = {}
        self._written: dict[tuple, StridedView] = {}  # expressions that several ops wanted in memory, by shape and body
        self._serial = 0
        self.externs = ExternLowering(self)

    # ------------------------------------------------------------------ what a lowering asks for

    @property
    def meta(self) -> Any:
        """The fake result of the op being lowered: a tensor or a tuple."""
        return self.node.meta["val"]

    def result_shape(self, output: int | None = None) -> tuple[sympy.Expr, ...]:
        value = self.meta if output is None else self.meta[output]
        return tuple(size_expr(size) for size in value.shape)

    def result_dtype(self, output: int | None = None) -> torch.dtype:
        return (self.meta if output is None else self.meta[output]).dtype

    def simplify(self, expr: Any, value_shape: Sequence[Any] = ()) -> sympy.Expr:
        return simplify(expr, dict(zip(ir.index_symbols(len(value_shape)), value_shape)))

    def input_symbols(self) -> set[sympy.Symbol]:
        """The size symbols that the graph's inputs bind: every other one comes from an ATen call's result."""
        found = {s for item in self.inputs if isinstance(item, sympy.Basic) for s in item.free_symbols}
        for name in self.inputs:
            if isinstance(name, str):
                buffer = self.buffers[name]
                found |= {size for size in (*buffer.shape, *buffer.stride) if size.is_Symbol}
        return found

    # ------------------------------------------------------------------ views: substitutions

    def view_as(self, value: TensorValue, shape: Sequence[Any], index: Callable[..., Sequence[Any]]) -> TensorValue:
        """A view of `shape`: `index(*target indices)` gives the index of `value` for each element."""
        shape = whole_sizes(shape)
        ranges = dict(zip(ir.index_symbols(len(shape)), shape))
        source = index(*ir.index_symbols(len(shape)))
        return TensorValue(shape, value.dtype, value.at(source, lambda e: simplify(e, ranges)))

    def reshape(self, value: TensorValue, shape: Sequence[Any]) -> TensorValue:
        """Row-major reshape to `shape` (equal number of elements)."""
        shape = whole_sizes(shape)
        if shape == value.shape:
            return value
        if any(size == 0 for size in shape):
            return TensorValue(shape, value.dtype, value.at([0] * value.rank))
        source = reshape_map(value.shape, shape)
        ranges = dict(zip(ir.index_symbols(len(shape)), shape))
        return TensorValue(shape, value.dtype, value.at(source, lambda e: simplify(e, ranges)))

    def broadcast_to(self, value: TensorValue, shape: Sequence[Any]) -> TensorValue:
        shape = tuple(sympy.sympify(size) for size in shape)
        if shape == value.shape:
            return value
        lead = len(shape) - value.rank

        def index(*target: sympy.Symbol) -> list[Any]:
            return [
                sympy.Integer(0) if size == 1 and shape[lead + k] != 1 else target[lead + k]
                for k, size in enumerate(value.shape)
            ]

        return self.view_as(value, shape, index)

    def full(self, shape: Sequence[Any], value: Any, dtype: torch.dtype) -> TensorValue:
        """A tensor of one number; `value` is a Python number or a sympy expression."""
        body = ir.index_value(value, dtype) if isinstance(value, sympy.Expr) else ir.constant(value, dtype)
        return TensorValue(tuple(sympy.sympify(s) for s in shape), dtype, body)

    # ------------------------------------------------------------------ memory

    def new_name(self, prefix: str) -> str:
        self._serial += 1
        return f"{prefix}{self._serial - 1}"

    def new_buffer(
        self, shape: Sequence[Any], dtype: torch.dtype, stride: Sequence[Any] | None = None, kind: str = "intermediate"
    ) -> Buffer:
        shape = tuple(sympy.sympify(size) for size in shape)
        stride = ir.contiguous_strides(shape) if stride is None else tuple(sympy.sympify(s) for s in stride)
        buffer = Buffer(self.new_name("buf"), shape, stride, dtype, kind)
        self.buffers[buffer.name] = buffer
        return buffer

    def realize(self, value: TensorValue, stride: Sequence[Any] | None = None, force: bool = False) -> TensorValue:
        """`value` in memory: a no-op for a value that is one whole buffer already, unless `force` or another layout is
        asked for."""
        if not force:
            owner = self.whole_buffer(value)
            if owner is not None and (stride is None or tuple(stride) == owner.stride):
                return value
        buffer = self.new_buffer(value.shape, value.dtype, stride)
        indices = ir.index_symbols(value.rank)
        self.add(
            ComputeNode(self.new_name("op"), self.node, buffer.name, value.shape, buffer.index(indices), value.body)
        )
        return buffer.value()

    def whole_buffer(self, value: TensorValue) -> Buffer | None:
        """The buffer that `value` is, element for element, or None."""
        if isinstance(value.body, ir.Load) and not value.body.indirect:
            buffer = self.buffers[value.body.buffer]
            if buffer.shape == value.shape and buffer.dtype == value.dtype and buffer.value().body is value.body:
                return buffer
        return None

    def strided_view(self, value: TensorValue) -> StridedView | None:
        """`value` as strides over one buffer's memory, or None when it is computed or not affine."""
        body = value.body
        if not isinstance(body, ir.Load) or body.indirect or self.buffers[body.buffer].dtype != value.dtype:
            return None
        strides, offset = [], sympy.expand(body.index)
        for symbol in ir.index_symbols(value.rank):
            step = offset.coeff(symbol) if offset.is_Add or offset.is_Mul or offset.is_Symbol else sympy.Integer(0)
            offset = sympy.expand(offset - step * symbol)
            if step.free_symbols & set(ir.index_symbols(value.rank)) or (step.is_negative is True):
                return None
            strides.append(step)
        if any(symbol in offset.free_symbols for symbol in ir.index_symbols(value.rank)) or not offset.is_nonnegative:
            return None
        buffer = self.buffers[body.buffer]
        for k, size in enumerate(value.shape):
            if size == 1:
                strides[k] = buffer.stride[k] if buffer.shape == value.shape else product_after(value.shape, k)
        return StridedView(body.buffer, value.shape, tuple(strides), offset, value.dtype)

    def in_memory(self, value: TensorValue) -> StridedView:
        """`value` as strides over memory, written there first when it has to be."""
        view = self.strided_view(value) or self._written.get((value.shape, value.body))
        if view is None:
            view = self.strided_view(self.realize(value, force=True))
            assert view is not None
            self._written[value.shape, value.body] = view
        return view

    def add(self, node: ir.Node) -> None:
        self.nodes.append(node)
        if isinstance(node, ir.ExternNode) or (isinstance(node, ComputeNode) and node.mutates):
            self._written.clear()  # what was computed before may have read what has changed

    # ------------------------------------------------------------------ reductions, scatters, templates

    def reduce(
        self, kind: str, value: TensorValue, dims: Iterable[int], keepdim: bool, dtype: torch.dtype | None = None
    ) -> TensorValue:
        """`value` reduced over `dims`: kind is sum, prod, max, min, argmax, argmin, any or xor_sum. The result (float32
        accumulation for floats) is stored as `dtype`."""
        dims = sorted(dim % max(value.rank, 1) for dim in dims) if value.rank else []
        kept = [dim for dim in range(value.rank) if dim not in dims]
        sizes = tuple(value.shape[dim] for dim in kept)
        indices: list[Any] = [None] * value.rank
        for k, dim in enumerate(kept):
            indices[dim] = ir.index_symbol(k)
        for k, dim in enumerate(dims):
            indices[dim] = ir.reduction_symbol(k)
        dtype = dtype or value.dtype
        buffer = self.new_buffer(sizes, dtype)
        self.add(
            ComputeNode(
                self.new_name("op"), self.node, buffer.name, sizes, buffer.index(ir.index_symbols(len(sizes))),
                value.at(indices), kind, tuple(value.shape[dim] for dim in dims) or (sympy.Integer(1),),
            )
        )  # fmt: skip
        result = buffer.value()
        if keepdim:
            shape = [sympy.Integer(1) if dim in dims else size for dim, size in enumerate(value.shape)]
            return self.view_as(result, shape, lambda *target: [target[dim] for dim in kept])
        return result

    def writable(self, value: TensorValue, *sources: TensorValue) -> tuple[Buffer, list[TensorValue]]:
        """The buffer that an op may update, and `sources` (what it is about to write there) safe to read meanwhile.
        It is the buffer of `value` itself where the in-place pass has shown that nobody reads the old contents later,
        else a fresh copy."""
        owner = self.whole_buffer(value)
        if owner is None or not self.node.meta.get("metal_inplace"):
            owner = self.whole_buffer(self.realize(value, force=True))
            assert owner is not None
            return owner, list(sources)
        self.realize_readers(owner.name)
        reading = [owner.name in ir.buffers_read(source.body) for source in sources]
        return owner, [self.realize(s, force=True) if reads else s for s, reads in zip(sources, reading)]

    def scatter(
        self,
        buffer: Buffer,
        sizes: Sequence[Any],
        indices: Sequence[Any],
        body: ir.Expr,
        indirect: Iterable[tuple[sympy.Symbol, ir.Expr]] = (),
        *,
        mode: str = "store",
        predicate: ir.Expr | None = None,
        checks: Iterable[tuple[ir.Expr, Any, str]] = (),
    ) -> TensorValue:
        """Writes `body` (over `sizes`) to `buffer[indices]`; `mode` is "store" or "atomic_add". Returns the buffer's
        value after the write."""
        self.add(
            ComputeNode(
                self.new_name("op"), self.node, buffer.name, tuple(sizes), buffer.index(indices), body,
                mode=mode, indirect=tuple(indirect), predicate=predicate, mutates=True, checks=tuple(checks),
            )
        )  # fmt: skip
        return buffer.value()

    def template(
        self,
        name: str,
        shape: Sequence[Any],
        dtype: torch.dtype,
        operands: dict[str, Any],
        parameters: dict[str, Any],
        stride: Sequence[Any] | None = None,
    ) -> TensorValue:
        """A kernel with a template of its own, writing a buffer of `shape`, contiguous if without a `stride`."""
        buffer = self.new_buffer(shape, dtype, stride)
        self.add(ir.TemplateNode(self.new_name("op"), self.node, name, buffer.name, buffer.shape, operands, parameters))
        return buffer.value()

    def realize_readers(self, buffer: str) -> None:
        """Before `buffer` is overwritten: every value that is still needed and reads it lazily is written to memory."""
        for node, value in list(self.env.items()):
            if self._pending.get(node, 0) > 0:
                self.env[node] = self._realize_if_reads(value, buffer, node)

    def _realize_if_reads(self, value: Any, buffer: str, node: FxNode) -> Any:
        if isinstance(value, TensorValue) and buffer in ir.buffers_read(value.body):
            whole = self.whole_buffer(value)
            if whole is not None and whole.name == buffer and self._only_mutation_reads(node):
                return value
            return self.realize(value, force=True)
        if isinstance(value, (list, tuple)):
            return type(value)(self._realize_if_reads(item, buffer, node) for item in value)
        return value

    def _only_mutation_reads(self, node: FxNode) -> bool:
        """Whether what is left of `node`'s users are the op being lowered and the closing copy back into it."""
        return all(
            user is self.node or (user.target is torch.ops.aten.copy_.default and user.args[0] is node)
            for user in node.users
            if user not in self.env
        )

    # ------------------------------------------------------------------ the walk

    def run(self) -> GraphLowering:
        for node in self.gm.graph.nodes:
            self._pending[node] = len(node.users)
        for node in self.gm.graph.nodes:
            self.node = node
            self.env[node] = getattr(self, f"_lower_{node.op}")(node)
            for argument in node.all_input_nodes:
                self._pending[argument] -= 1
        return self

    def _lower_placeholder(self, node: FxNode) -> Any:
        fake = node.meta.get("val")
        if not isinstance(fake, torch.Tensor):
            expr = scalar_expr(fake)
            self.inputs.append(sympy.sympify(expr) if isinstance(expr, (int, float, sympy.Basic)) else None)
            return expr
        name = f"arg{len(self.inputs)}"
        self.inputs.append(name)
        if fake.is_neg():
            self.negated_inputs.add(name)
        return self._tensor_input(name, fake, "input")

    def _tensor_input(self, name: str, fake: torch.Tensor, kind: str) -> TensorValue:
        shape = tuple(size_expr(size) for size in fake.shape)
        stride = tuple(size_expr(step) for step in fake.stride()) if fake.layout == torch.strided else shape
        buffer = Buffer(name, shape, stride, fake.dtype, kind)
        self.buffers[name] = buffer
        return buffer.value()

    def _lower_get_attr(self, node: FxNode) -> Any:
        tensor = operator.attrgetter(node.target)(self.gm)
        if not isinstance(tensor, torch.Tensor):
            return tensor
        name = f"const{len(self.constants)}"
        self.constants[name] = tensor
        return self._tensor_input(name, tensor, "constant")

    def _lower_call_function(self, node: FxNode) -> Any:
        if node.target is operator.getitem:
            whole = self.env[node.args[0]]
            if isinstance(whole, OpaqueValue):
                return self.externs.call(node, "part of an ATen call's result")
            return whole[node.args[1]]
        fake = node.meta.get("val")
        if isinstance(fake, (torch.SymInt, torch.SymFloat, torch.SymBool)) and not self._has_tensor_input(node):
            return scalar_expr(fake)
        if isinstance(fake, (int, float, bool)) and not self._has_tensor_input(node):
            return fake
        lowering = find_lowering(node.target)
        if lowering is None:
            return self.externs.call(node, f"no lowering for {node.target}")
        mark = (len(self.nodes), dict(self.buffers), dict(self.env))
        try:
            self._refuse_dtypes(node)
            args, kwargs = self._arguments(node)
            result = lowering(self, *args, **kwargs)
        except Unsupported as reason:
            del self.nodes[mark[0] :]
            self._written.clear()
            self.buffers, self.env = mark[1], mark[2]
            return self.externs.call(node, str(reason))
        return self._settle(node, result)

    def _has_tensor_input(self, node: FxNode) -> bool:
        return any(isinstance(argument.meta.get("val"), torch.Tensor) for argument in node.all_input_nodes)

    def _refuse_dtypes(self, node: FxNode) -> None:
        from torch.utils._pytree import tree_leaves

        for value in [argument.meta.get("val") for argument in node.all_input_nodes] + [node.meta.get("val")]:
            for leaf in tree_leaves(value):
                if not isinstance(leaf, torch.Tensor):
                    continue
                if leaf.dtype not in METAL_DTYPES:
                    raise Unsupported(f"dtype {str(leaf.dtype).removeprefix('torch.')} has no Metal type")
                if leaf.device.type != self.device.type:
                    raise Unsupported(f"a tensor on {leaf.device.type} in a graph on {self.device.type}")
                if leaf.layout != torch.strided:
                    raise Unsupported(f"layout {leaf.layout}")

    def _arguments(self, node: FxNode) -> tuple[tuple, dict]:
        args = torch.fx.node.map_arg(node.args, lambda n: self.env[n])
        kwargs = torch.fx.node.map_arg(node.kwargs, lambda n: self.env[n])
        return args, kwargs

    def _settle(self, node: FxNode, result: Any) -> Any:
        """Writes a shared or long expression to memory."""
        if isinstance(result, (tuple, list)):
            return type(result)(
                self._settle_one(node, item, k) if isinstance(item, TensorValue) else item
                for k, item in enumerate(result)
            )
        return self._settle_one(node, result, None) if isinstance(result, TensorValue) else result

    def _settle_one(self, node: FxNode, value: TensorValue, output: int | None) -> TensorValue:
        fake = node.meta["val"] if output is None else node.meta["val"][output]
        if fake is not None and fake.dtype != value.dtype:  # statistics kept in float32 where torch rounds them
            value = TensorValue(value.shape, fake.dtype, ir.cast(value.body, fake.dtype))
        operations = loads = 0
        for expr in ir.walk(value.body):
            operations += isinstance(expr, (ir.Op, ir.Masked))
            loads += isinstance(expr, ir.Load)
        shared = len(node.users) > 1 and output is None
        if policy.becomes_memory(operations, loads, shared):
            return self.realize(value, dense_stride(fake, value.shape))
        return value

    # ------------------------------------------------------------------ outputs

    def _lower_output(self, node: FxNode) -> None:
        claimed: dict[str, FxNode | None] = {}
        shared = self._shared_results([item for item in node.args[0] if isinstance(item, FxNode)], claimed)
        for argument in node.args[0]:
            if not isinstance(argument, FxNode):
                self.outputs.append(argument)
                continue
            value = self.env[argument]
            self.node = argument  # where the kernel that writes it comes from
            if not isinstance(value, TensorValue):
                self.outputs.append(value)
                continue
            buffer = shared.get(alias_root(argument))
            if buffer is not None and buffer.dtype == value.dtype:
                self.outputs.append(fake_view(buffer.name, argument.meta["val"]))
            else:
                self.outputs.append(self._output_view(argument, value, claimed))

    def _shared_results(self, nodes: list[FxNode], claimed: dict[str, FxNode | None]) -> dict[FxNode, Buffer]:
        """Results of which the caller gets several views: each is written once, so that they share memory."""
        roots: dict[FxNode, set[FxNode]] = {}
        for item in nodes:
            roots.setdefault(alias_root(item), set()).add(item)
        shared = {}
        for root, views in roots.items():
            value = self.env[root]
            if len(views) < 2 or root.op != "call_function" or not isinstance(value, TensorValue):
                continue
            stride = dense_stride(root.meta["val"], value.shape)
            if stride is None or root.meta["val"].storage_offset() != 0:
                continue
            self.node = root
            buffer = self.whole_buffer(value)
            if buffer is None or buffer.stride != stride or buffer.kind != "intermediate" or buffer.name in claimed:
                buffer = self.whole_buffer(self.realize(value, stride, force=True))
                assert buffer is not None
            self._give_out(buffer)
            claimed[buffer.name] = root
            shared[root] = buffer
        return shared

    def _output_view(self, node: FxNode, value: TensorValue, claimed: dict[str, FxNode | None]) -> StridedView:
        """The strides over memory that the caller gets: never memory that eager would not share."""
        fake = node.meta["val"]
        if fake.dtype != value.dtype:
            raise AssertionError(f"{node}: lowered to {value.dtype}, torch says {fake.dtype}")
        root = alias_root(node)
        view = self.strided_view(value)
        if view is not None:
            buffer = self.buffers[view.buffer]
            shared_input = buffer.kind in ("input", "constant")
            owner = claimed.setdefault(view.buffer, None if shared_input else root)
            own = root.op in ("placeholder", "get_attr") if shared_input else owner is root
            whole = shared_input or ir.same(buffer.value().numel, value.numel)
            if own and whole and self.strides_agree(view, fake):
                if not shared_input:
                    self._give_out(buffer)
                return view
        # Exactly eager's strides, dense or not: the backward graph and the caller were compiled for them. Where
        # elements overlap in memory, eager's output is a view too, and what is written there twice is the same value.
        stride = tuple(size_expr(step) for step in fake.stride())
        written = self.whole_buffer(self.realize(value, stride, force=True))
        assert written is not None
        self._give_out(written)
        claimed[written.name] = root
        return StridedView(written.name, written.shape, written.stride, sympy.Integer(0), written.dtype)

    def _give_out(self, buffer: Buffer) -> None:
        """The caller keeps `buffer`: neither it nor the memory that it is a view of may lie in the arena."""
        while buffer.kind == "intermediate":
            buffer.kind = "output"
            if buffer.alias_of is not None:
                buffer = self.buffers[buffer.alias_of]

    def strides_agree(self, view: StridedView, fake: torch.Tensor) -> bool:
        if any(size == 0 for size in view.shape):
            return True
        return all(
            size == 1 or ir.same(mine, size_expr(theirs))
            for size, mine, theirs in zip(view.shape, view.stride, fake.stride())
        )


def whole_sizes(shape: Sequence[Any]) -> tuple[sympy.Expr, ...]:
    """`shape` as expressions. Unsupported for a symbolic size with a fraction in it, such as channels / groups: torch's
    index arithmetic drops terms of such sizes as if they were whole multiples."""
    sizes = tuple(sympy.sympify(size) for size in shape)
    for size in sizes:
        if not size.is_Integer and size.as_numer_denom()[1] != 1:
            raise Unsupported(f"a symbolic size with a fraction: {size}")
    return sizes


def fake_view(buffer: str, fake: torch.Tensor) -> StridedView:
    """The strides over `buffer` that torch's own metadata of a view gives."""
    shape, stride = (tuple(size_expr(size) for size in sizes) for sizes in (fake.shape, fake.stride()))
    return StridedView(buffer, shape, stride, size_expr(fake.storage_offset()), fake.dtype)


def product_after(shape: Sequence[Any], k: int) -> sympy.Expr:
    return ir.product(shape[k + 1 :])


def alias_root(node: FxNode) -> FxNode:
    """The node whose memory `node` is a view of in eager (itself, unless it is a view op)."""
    while node.op == "call_function":
        source = node.args[0] if node.target is operator.getitem else node  # one of the views of a split
        if not isinstance(source, FxNode) or not isinstance(source.target, torch._ops.OpOverload):
            return node
        if not is_view(source.target) or not isinstance(source.args[0], FxNode):
            return node
        node = source.args[0]
    return node


def is_view(target: torch._ops.OpOverload) -> bool:
    returns = target._schema.returns
    return bool(returns) and returns[0].alias_info is not None and not returns[0].alias_info.is_write


def dense_stride(fake: torch.Tensor, shape: Sequence[Any]) -> tuple[sympy.Expr, ...] | None:
    """Eager's strides where they are a permutation of dense ones, else None (row-major)."""
    if fake.layout != torch.strided or fake.dim() != len(shape) or any(size == 0 for size in shape):
        return None
    stride = tuple(size_expr(step) for step in fake.stride())
    pending = [(step, size) for step, size in zip(stride, shape) if size != 1]
    expected: sympy.Expr = sympy.Integer(1)
    while pending:
        match = next((pair for pair in pending if sympy.expand(pair[0] - expected) == 0), None)
        if match is None:
            return None
        pending.remove(match)
        expected = expected * match[1]
    return stride
