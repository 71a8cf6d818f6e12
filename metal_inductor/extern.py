"""ATen calls as plan steps: what has no kernel of ours runs as torch's own op, recorded with its reason."""

from __future__ import annotations

import logging
import operator
from typing import TYPE_CHECKING, Any

import sympy
import torch
from torch.fx import Node as FxNode

from metal_inductor.ir import Buffer, ExternNode, OpaqueValue, StridedView, TensorValue
from metal_inductor.torch_compat import scalar_expr, size_expr

if TYPE_CHECKING:
    from metal_inductor.lower import GraphLowering

# Matrix products with many rows, convolutions and the gradient of attention, which is made of such products, are the
# vendor's by design; the strict option lets them through.
VENDOR_OPS = frozenset(
    {
        "aten.mm", "aten.bmm", "aten.addmm", "aten.baddbmm", "aten.convolution", "aten.convolution_backward",
        "metal_inductor.attention_backward",
    }
)  # fmt: skip


log = logging.getLogger(__name__)
_warned: set[str] = set()


def warn_once(name: str, reason: str) -> None:
    """Says once a process that an op runs as an ATen call; those of the vendor are by design."""
    if name not in VENDOR_OPS and name not in _warned:
        _warned.add(name)
        log.warning("%s runs as an ATen call: %s", name, reason)


class FallbackError(RuntimeError):
    """An op would run as an ATen call although `options={"fallback": "error"}` forbids it."""


def op_name(target: Any) -> str:
    """`aten.mm` for torch.ops.aten.mm.default, `aten.add.Scalar` for overloads that have a name of their own."""
    if isinstance(target, torch._ops.OpOverload):
        return str(target).removesuffix(".default")
    return getattr(target, "__name__", str(target))


def source_line(node: FxNode) -> str:
    """The model's own code line that `node` came from, as `file:line: text`, or an empty string."""
    lines = [line.strip() for line in (node.meta.get("stack_trace") or "").strip().splitlines()]
    for k in range(len(lines) - 1, -1, -1):
        if lines[k].startswith("File "):
            where = lines[k].split('"')
            number = lines[k].split("line ")[1].split(",")[0] if "line " in lines[k] else "?"
            text = lines[k + 1] if k + 1 < len(lines) else ""
            return f"{where[1] if len(where) > 1 else '?'}:{number}: {text}"
    return ""


class ExternLowering:
    """Turns an FX node into an `ExternNode`."""

    def __init__(self, graph: GraphLowering) -> None:
        self.graph = graph

    def call(self, node: FxNode, reason: str) -> Any:
        """Appends the ATen call of `node` and returns the values of its results."""
        name = op_name(node.target)
        if self.graph.fallback == "error" and name not in VENDOR_OPS:
            where = source_line(node)
            raise FallbackError(f"{name} would run as an ATen call: {reason}" + (f"\n  at {where}" if where else ""))
        warn_once(name, reason)
        args = torch.fx.node.map_aggregate(node.args, self._argument)
        kwargs = torch.fx.node.map_aggregate(node.kwargs, self._argument)
        mutated = self._mutated_buffers(node, args, kwargs)
        extern = ExternNode(self.graph.new_name("op"), node, node.target, args, kwargs, reason=reason, mutated=mutated)
        for name in mutated:
            self.graph.realize_readers(name)
        fake = node.meta.get("val")
        if fake is None and node.users:
            return self._opaque(extern)
        many = isinstance(fake, (tuple, list))
        buffers = [self._output(item, extern) for item in (fake if many else [fake])]
        extern.outputs = tuple(item.name if isinstance(item, Buffer) else None for item in buffers)
        extern.single_output = not many
        extern.symbol_outputs = self._bound_symbols(fake if many else [fake])
        self.graph.add(extern)
        values = [item.value() if isinstance(item, Buffer) else item for item in buffers]
        return values if many else values[0]

    def _opaque(self, extern: ExternNode) -> OpaqueValue:
        """A call whose result torch does not describe: kept as it is, taken apart by later calls."""
        buffer = self.graph.new_buffer((), torch.uint8)
        extern.outputs = (buffer.name,)
        self.graph.add(extern)
        return OpaqueValue(buffer.name)

    def _argument(self, item: Any) -> Any:
        if not isinstance(item, FxNode):
            return scalar_expr(item)
        value = self.graph.env[item]
        if isinstance(value, TensorValue):
            return self._tensor_argument(item, value)
        if isinstance(value, (list, tuple)):
            return type(value)(self.graph.in_memory(v) if isinstance(v, TensorValue) else v for v in value)
        return value

    def _tensor_argument(self, node: FxNode, value: TensorValue) -> StridedView:
        """`value` in memory with the strides that torch propagated, so that the results' strides hold."""
        from metal_inductor.lower import dense_stride

        fake = node.meta["val"]
        view = self.graph.strided_view(value)
        if view is not None and self.graph.strides_agree(view, fake):
            return view
        if fake.layout != torch.strided:
            return StridedView(value.body.buffer, value.shape, value.shape, sympy.Integer(0), value.dtype)
        return self.graph.in_memory(self.graph.realize(value, dense_stride(fake, value.shape), force=True))

    def _output(self, fake: Any, extern: ExternNode) -> Any:
        if not isinstance(fake, torch.Tensor):
            return scalar_expr(fake)
        shape = tuple(size_expr(size) for size in fake.shape)
        stride = tuple(size_expr(step) for step in fake.stride()) if fake.layout == torch.strided else shape
        buffer = self.graph.new_buffer(shape, fake.dtype, stride)
        views = extern.views()
        returns = getattr(getattr(extern.target, "_schema", None), "returns", [])
        taken_apart = extern.target is operator.getitem
        if views and (taken_apart or any(value.alias_info is not None for value in returns)):
            buffer.alias_of = views[0].buffer
        return buffer

    def _mutated_buffers(self, node: FxNode, args: Any, kwargs: Any) -> tuple[str, ...]:
        schema = getattr(node.target, "_schema", None)
        if schema is None:
            return ()
        found = []
        for k, argument in enumerate(schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                value = args[k] if k < len(args) else kwargs.get(argument.name)
                items = value if isinstance(value, (list, tuple)) else [value]
                found += [item.buffer for item in items if isinstance(item, StridedView)]
        return tuple(found)

    def _bound_symbols(self, fakes: list[Any]) -> tuple[tuple[sympy.Symbol, int, int | None], ...]:
        """(symbol, output, dimension or None for the output itself) for each data-dependent size a call defines."""
        known = self.graph.input_symbols()
        bound: dict[sympy.Symbol, tuple[sympy.Symbol, int, int | None]] = {}
        for k, fake in enumerate(fakes):
            sizes = fake.shape if isinstance(fake, torch.Tensor) else [fake]
            for dim, size in enumerate(sizes):
                expr = scalar_expr(size)
                if isinstance(expr, sympy.Symbol) and expr not in known:
                    bound.setdefault(expr, (expr, k, dim if isinstance(fake, torch.Tensor) else None))
        return tuple(bound.values())


def tensor_view(view: StridedView, tensor: torch.Tensor, evaluate: Any) -> torch.Tensor:
    """The torch tensor of `view` over the memory of its buffer's `tensor`; `evaluate` turns sizes into ints."""
    if tensor is None or tensor.layout != torch.strided:
        return tensor
    offset = tensor.storage_offset() + evaluate(view.offset)
    shape, stride = [evaluate(size) for size in view.shape], [evaluate(step) for step in view.stride]
    return tensor.as_strided(shape, stride, offset)
