"""Runs a plan: a frozen list of dispatches and ATen calls, replayed with new pointers at every call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import sympy
import torch

from metal_inductor.codegen.kernel import KernelSource
from metal_inductor.extern import tensor_view
from metal_inductor.ir import ExternNode, OpaqueValue, StridedView
from metal_inductor.plan import Plan, arena_layout, command_buffer_cuts, storage_numel
from metal_inductor.report import GraphReport
from metal_inductor.runtime.device import Device
from metal_inductor.runtime.sizes import Sizes

if TYPE_CHECKING:
    from metal_inductor.lower import GraphLowering

# Distinct sets of sizes whose arena layout is remembered: a chat sees a few prompt lengths, not thousands.
MAX_LAYOUTS = 64

# What kernels with vector loads read at once.
WORD_BYTES = 16

# sympy counts symbols among its Booleans; only these are truth values.
TRUTHS = (sympy.logic.boolalg.BooleanAtom, sympy.logic.boolalg.BooleanFunction, sympy.core.relational.Relational)


class Executor:
    """The compiled graph as a callable: takes the graph's inputs as a list, returns its outputs as a list.

    Reentrant: each running call owns an `Instance` (arena, pointers, dispatch list) from a pool; concurrent calls,
    calls within a call and calls after a fork get instances of their own.
    """

    def __init__(
        self,
        plan: Plan,
        graph: GraphLowering,
        device: Device,
        library: Any,
        commit_every: int,
        report: GraphReport,
    ) -> None:
        self.plan = plan
        self.buffers = graph.buffers
        self.inputs = list(graph.inputs)
        self.outputs = list(graph.outputs)
        self.constants = graph.constants
        self.negated_inputs = frozenset(graph.negated_inputs)
        self.device = device
        self.library = library
        self.commit_every = commit_every
        self.report = report
        self.dispatches = [step for step in plan.steps if isinstance(step, KernelSource)]
        self.slots = self._assign_slots()
        self.aligned = frozenset().union(*(step.aligned for step in self.dispatches))
        self.written = frozenset().union(*(step.written for step in self.dispatches))
        self.static = not plan.symbols
        self.checks_indices = device.reports_errors and any(step.uses_errors for step in self.dispatches)
        made = {name for step in plan.steps if isinstance(step, ExternNode) for name in step.outputs}
        late = {name for names in plan.late.values() for name in names}
        self.fresh_outputs = [
            name for name in self.slots if self.buffers[name].kind == "output" and name not in made and name not in late
        ]
        self._idle: list[Instance] = []
        self._layouts: dict[tuple, tuple[dict[str, int], int, int]] = {}

    def _assign_slots(self) -> dict[str, int]:
        """Slot 0 is the error word; then one a buffer; sizes arrays follow."""
        names = dict.fromkeys(name for step in self.dispatches for name in step.buffers)
        return {name: k + 1 for k, name in enumerate(names)}

    def __call__(self, args: list[Any]) -> list[Any]:
        try:
            instance = self._idle.pop()  # one step for Python: a lock could be held by another thread at a fork
        except IndexError:
            instance = Instance(self)
        try:
            result = instance.run(args)
        finally:
            instance.release()
            self._idle.append(instance)
        self.report.calls += 1
        return result

    def layout(self, sizes: Sizes) -> tuple[dict[str, int], int, int]:
        """Arena offsets for the current sizes."""
        key = tuple(sorted(sizes.values.items())) if not self.static else ()
        found = self._layouts.get(key)
        if found is None:
            found = arena_layout(self.plan.arena, sizes.evaluate)
            if len(self._layouts) >= MAX_LAYOUTS:
                self._layouts.clear()
            self._layouts[key] = found
            self.report.peak_intermediate_bytes = max(self.report.peak_intermediate_bytes, found[1])
            self.report.unshared_intermediate_bytes = max(self.report.unshared_intermediate_bytes, found[2])
        return found


class Instance:
    """What one call at a time uses."""

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self.sizes = Sizes()
        self.errors = torch.zeros(1, dtype=torch.int32, device=executor.device.torch_device)
        self.arena: torch.Tensor | None = None
        self.tensors: dict[str, torch.Tensor] = {}
        self._arena_tensors: dict[str, torch.Tensor] = {}
        self._layout_key: Any = None
        self._copies: list[tuple[str, torch.Tensor, torch.Tensor]] = []  # input, and the aligned copy in its place
        self._graveyard: list[torch.Tensor] = []  # dead, but committed dispatches may still read it
        self._build_list()

    # ------------------------------------------------------------------ once

    def _build_list(self) -> None:
        executor = self.executor
        sized = [step for step in executor.dispatches if step.sizes]
        total = 1 + len(executor.slots) + len(sized)
        self.list = executor.device.new_list(total)
        self.list.bind(0, self.errors)
        self.size_array = np.zeros(max(1, sum(len(step.sizes) for step in sized)), dtype=np.int64)
        self.size_steps: list[tuple[KernelSource, int]] = []
        slot, offset = 1 + len(executor.slots), 0
        for step in executor.dispatches:
            slots = [executor.slots[name] for name in step.buffers]
            if step.sizes:
                self.list.bind_host(slot, self.size_array[offset : offset + len(step.sizes)])
                self.size_steps.append((step, offset))
                slots.append(slot)
                slot, offset = slot + 1, offset + len(step.sizes)
            if step.uses_errors:
                slots.append(0)
            threads = [int(t) if t.is_Integer else 0 for t in map(sympy.sympify, step.threads)]
            self.list.add(executor.library, step.name, slots, threads, step.group_size)
        self.dynamic_grids = [
            (k, step) for k, step in enumerate(executor.dispatches)
            if not all(sympy.sympify(t).is_Integer for t in step.threads)
        ]  # fmt: skip
        for name, tensor in executor.constants.items():
            self._bind(name, tensor)
        self.constant_tensors = dict(executor.constants)

    def _bind(self, name: str, tensor: torch.Tensor) -> None:
        if name in self.executor.aligned and tensor.data_ptr() % WORD_BYTES:
            tensor = at_word(tensor)  # a view that begins in the middle of a word
        self.tensors[name] = tensor
        slot = self.executor.slots.get(name)
        if slot is not None:
            self.list.bind(slot, tensor)

    # ------------------------------------------------------------------ every call

    def run(self, args: list[Any]) -> list[Any]:
        executor = self.executor
        self._bind_inputs(args)
        args.clear()
        self._lay_out()
        self._bind_outputs()
        if not executor.static:
            self._update_sizes()
        dispatch = 0
        for begin, end in executor.plan.segments:
            self._allocate_late(begin, end)
            step = executor.plan.steps[begin]
            if isinstance(step, ExternNode):
                self._call_extern(step)
            else:
                self._commit(dispatch, dispatch + end - begin)
                dispatch += end - begin
            self._let_die(begin, end)
        self._check_errors()
        if self._copies:
            self._copy_back()
        return [self._output(item) for item in executor.outputs]

    def _bind_inputs(self, args: Sequence[Any]) -> None:
        bind_list, slots, tensors, aligned = self.list, self.executor.slots, self.tensors, self.executor.aligned
        for item, value in zip(self.executor.inputs, args):
            if isinstance(item, str):
                if item in self.executor.negated_inputs:
                    value = value.resolve_neg()
                if item in aligned and value.data_ptr() % WORD_BYTES:
                    value = self._aligned_copy(item, value)
                tensors[item] = value
                slot = slots.get(item)
                if slot is not None:
                    bind_list.bind(slot, value)
            elif isinstance(item, sympy.Symbol):
                self.sizes.bind(item, value)
        if not self.executor.static:
            self._bind_shape_symbols()

    def _aligned_copy(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """A copy of an input that begins in the middle of a word; what the graph writes there is copied back."""
        copy = at_word(tensor)
        if name in self.executor.written:
            self._copies.append((name, tensor, copy))
        return copy

    def _copy_back(self) -> None:
        for name, tensor, copy in self._copies:
            tensor.copy_(copy)
            self.tensors[name] = tensor
        self._copies.clear()

    def _bind_shape_symbols(self) -> None:
        """Symbols that no scalar input carries are read off the inputs' shapes."""
        for name, tensor in self.tensors.items():
            buffer = self.executor.buffers.get(name)
            if buffer is None or buffer.kind != "input" or tensor is None:
                continue
            for size, actual in zip(buffer.shape + buffer.stride, (*tensor.shape, *tensor.stride())):
                if size.is_Symbol and size.name not in self.sizes.values:
                    self.sizes.bind(size, actual)

    def _lay_out(self) -> None:
        """Puts the intermediates into the arena; a no-op while the sizes are those of the last call."""
        executor = self.executor
        key = () if executor.static else tuple(sorted(self.sizes.values.items()))
        if key == self._layout_key:
            self.tensors.update(self._arena_tensors)
            return
        offsets, total, _ = executor.layout(self.sizes)
        if self.arena is None or self.arena.numel() < total:
            self.arena = torch.empty(max(total, 1), dtype=torch.uint8, device=executor.device.torch_device)
        self._arena_tensors = {}
        for name, offset in offsets.items():
            buffer = executor.buffers[name]
            count = storage_numel(buffer, self.sizes.evaluate)
            block = self.arena[offset : offset + count * buffer.dtype.itemsize].view(buffer.dtype)
            self._arena_tensors[name] = block
            self._bind(name, block)
        self._layout_key = key

    def _allocate(self, name: str) -> torch.Tensor:
        buffer = self.executor.buffers[name]
        evaluate = self.sizes.evaluate
        shape, stride = [evaluate(s) for s in buffer.shape], [evaluate(s) for s in buffer.stride]
        return torch.empty_strided(shape, stride, dtype=buffer.dtype, device=self.executor.device.torch_device)

    def _bind_outputs(self) -> None:
        for name in self.executor.fresh_outputs:
            self._bind(name, self._allocate(name))

    def _update_sizes(self) -> None:
        """Fills the kernels' sizes arrays and grids with what is known so far."""
        known = self.sizes.values
        for step, offset in self.size_steps:
            for k, (kind, expr) in enumerate(step.sizes):
                if all(symbol.name in known for symbol in sympy.sympify(expr).free_symbols):
                    self.size_array[offset + k] = self.sizes.slot(kind, expr)
        for k, step in self.dynamic_grids:
            if all(symbol.name in known for t in step.threads for symbol in sympy.sympify(t).free_symbols):
                self.list.set_threads(k, [self.sizes.evaluate(t) for t in step.threads], step.group_size)

    def _allocate_late(self, begin: int, end: int) -> None:
        for step in range(begin, end):
            for name in self.executor.plan.late.get(step, ()):
                self._bind(name, self._allocate(name))

    def _let_die(self, begin: int, end: int) -> None:
        dies = self.executor.plan.dies_after
        for step in range(begin, end) if dies else ():
            for name in dies.get(step, ()):
                self._graveyard.append(self.tensors.pop(name))

    def _commit(self, begin: int, end: int) -> None:
        for first, last in command_buffer_cuts(end - begin, self.executor.commit_every):
            self.list.commit(begin + first, begin + last)

    # ------------------------------------------------------------------ ATen calls

    def _call_extern(self, node: ExternNode) -> None:
        self.executor.device.drain()
        self._graveyard.clear()
        args = self._resolve(node.args)
        kwargs = self._resolve(node.kwargs)
        result = node.target(*args, **kwargs)
        values = [result] if node.single_output else list(result)
        for symbol, output, dimension in node.symbol_outputs:
            self.sizes.bind(symbol, values[output] if dimension is None else values[output].shape[dimension])
        for name, value in zip(node.outputs, values):
            if name is not None and isinstance(value, torch.Tensor):
                self._bind(name, self._with_planned_strides(name, value))
            elif name is not None:
                self.tensors[name] = value
        if node.symbol_outputs:
            self._update_sizes()

    def _with_planned_strides(self, name: str, value: torch.Tensor) -> torch.Tensor:
        """`value` with the strides that its readers were compiled for; a copy where the call chose others."""
        buffer = self.executor.buffers[name]
        if value.layout != torch.strided:
            return value
        if value.is_neg() or value.is_conj():  # lazy bits that a kernel would miss
            value = value.resolve_neg().resolve_conj()
        evaluate = self.sizes.evaluate
        planned = [evaluate(step) for step in buffer.stride]
        agree = all(size < 2 or mine == wanted for size, mine, wanted in zip(value.shape, value.stride(), planned))
        if agree or value.numel() == 0 or value.is_sparse:
            return value
        return torch.empty_strided(value.shape, planned, dtype=value.dtype, device=value.device).copy_(value)

    def _resolve(self, item: Any) -> Any:
        if isinstance(item, StridedView):
            return self._view(item)
        if isinstance(item, OpaqueValue):
            return self.tensors[item.buffer]
        if isinstance(item, sympy.Basic):
            value = self.sizes.evaluate(item)
            return bool(value) if isinstance(item, TRUTHS) else value
        if isinstance(item, (list, tuple)):
            return type(item)(self._resolve(element) for element in item)
        if isinstance(item, dict):
            return {key: self._resolve(value) for key, value in item.items()}
        return item

    def _view(self, view: StridedView) -> torch.Tensor:
        return tensor_view(view, self.tensors[view.buffer], self.sizes.evaluate)

    # ------------------------------------------------------------------ the end

    def _check_errors(self) -> None:
        self.executor.device.drain()
        self._graveyard.clear()
        if self.executor.checks_indices and int(self.errors):
            self.errors.zero_()
            graph = self.executor.report.name
            raise IndexError(f"index out of range: a data-dependent index is out of bounds in {graph}")

    def _output(self, item: Any) -> Any:
        if isinstance(item, StridedView):
            return self._output_tensor(item)
        if isinstance(item, sympy.Basic):
            return self.sizes.evaluate(item)
        return item

    def _output_tensor(self, view: StridedView) -> torch.Tensor:
        tensor = self.tensors[view.buffer]
        if tensor is None:
            return None
        evaluate = self.sizes.evaluate
        if (
            view.offset == 0
            and list(tensor.shape) == [evaluate(size) for size in view.shape]
            and list(tensor.stride()) == [evaluate(step) for step in view.stride]
        ):
            return tensor
        return self._view(view)

    def release(self) -> None:
        """Drops every reference to the caller's memory."""
        self.executor.device.drain()
        self._graveyard.clear()
        self._copies.clear()
        self.tensors = dict(self.constant_tensors)
        if not self.executor.static:
            self.sizes = Sizes()


def at_word(tensor: torch.Tensor) -> torch.Tensor:
    """A copy that begins at a whole word and has the strides that kernels were compiled for: `clone` packs rows."""
    last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride()))
    span = last + 1 if tensor.numel() else 0
    return tensor.detach().as_strided((span,), (1,)).clone().as_strided(tensor.shape, tensor.stride())
