"""Kernels that reduce rows: one dispatch, or for rows shared by the whole GPU one for each walk over them."""

from __future__ import annotations

import functools
from typing import Any

import sympy
import torch

from metal_inductor import ir, policy
from metal_inductor.codegen import ops
from metal_inductor.codegen.emitter import Signature
from metal_inductor.codegen.kernel import KernelBuilder, KernelSource, Member, finish, split_index, store_member
from metal_inductor.codegen.row_words import Words, fits_words, runs_along_rows, unconditional_loads, word_vector
from metal_inductor.ir import Buffer

ONE = sympy.Integer(1)
NO_PLACE = "0x7fffffffffffffffL"
WITH_PLACE = ("argmax", "argmin")
REGISTER_DTYPES = {name: dtype for dtype, name in ops.METAL_TYPES.items()}


class ReductionBuilder(KernelBuilder):
    """Builds the kernels of a reduction with its producers and consumers. Each *phase* is one walk over the row."""

    def build(self) -> list[KernelSource]:
        self._find_dimensions()
        self._assign_phases({})
        tiling = self._tiling()
        if tiling.lanes > 1 and (tiling.splits > 1 or not tiling.steps):
            self.pairs = softmax_pairs(self.members)
            self._assign_phases(self.pairs)
        return self._one_dispatch(tiling) if tiling.splits == 1 else self._dispatches(tiling)

    def row_in_threadgroup(self, lanes: int) -> dict[str, Any]:
        """`walk` of `reduction_body.metal.j2` for the kernel's only row, computed by every thread of a threadgroup of
        `lanes`, whose number is the variable `thread_index`."""
        self._find_dimensions()
        self._assign_phases({})
        tiling = policy.row_in_threadgroup(lanes, self.count, self.vector, self._words_read())
        self._begin(tiling, self.signature)
        return self._walk(tiling, range(self.last_phase + 1))

    # ------------------------------------------------------------------ what is walked

    def _find_dimensions(self) -> None:
        """Dimensions of the rows and of the reduction, merged, and how memory runs along them."""
        self.rows = self._merge(ir.index_symbols(len(self.kernel.row_sizes)), self.kernel.row_sizes)
        symbols = [ir.reduction_symbol(k) for k in range(len(self.kernel.reduction_sizes))]
        self.reduced = self._merge(symbols, self.kernel.reduction_sizes)
        if not self.reduced:
            self.reduced = [(ir.reduction_symbol(0), ONE)]
            self.ranges[self.reduced[0][0]] = ONE
        self.row_count = ir.product(size for _, size in self.rows)
        self.count = ir.product(size for _, size in self.reduced)
        self.pairs: dict[str, Member] = {}
        written = {member.node.buffer for member in self.members}
        bodies = [m.body for m in self.members if m.level == "full" and m.predicate is None and not m.checks]
        self.loads = [load for load in unconditional_loads(bodies) if load.buffer not in written]
        inner = self.reduced[-1][0]
        self.columns = runs_along_rows(self.loads, self.rows[-1][0] if self.rows else None, inner)
        self.vector = 0 if self.columns else word_vector(self.loads, self.buffers, self.reduced)

    def _assign_phases(self, pairs: dict[str, Member]) -> None:
        """The walk in which each member runs: what needs a reduction's result runs after its walk,
        except that a sum of `pairs` shares the walk of its maximum."""
        ready: dict[str, int] = {}
        for number, member in enumerate(self.members):
            member.accumulator = f"acc{number}"
            peak = pairs.get(member.node.buffer)
            needed = [ready[name] for name in member.node.reads() if name in ready]
            if peak is not None:
                needed = [ready[name] for name in member.node.reads() if name in ready and name != peak.node.buffer]
            member.phase = max(needed, default=0) if peak is None else max([*needed, peak.phase])
            ready[member.node.buffer] = member.phase + (1 if member.node.reduction else 0)
        self.last_phase = max(ready.values())

    def _words_read(self) -> int:
        """16-byte words that a thread reads in a step, each buffer once."""
        if not self.vector:
            return 0
        inner = self.reduced[-1][0]
        fitting = {load for load in self.loads if fits_words(self.buffers[load.buffer], load.index, inner, self.vector)}
        return sum(self.buffers[load.buffer].dtype.itemsize * self.vector // 16 for load in fitting)

    def _tiling(self) -> policy.ReductionTiling:
        states = [self._state(member) for member in self.members if member.node.reduction]
        sizes = [REGISTER_DTYPES[r["type"]].itemsize + (8 if r["second"] else 0) for r in states]
        if self.columns:
            return policy.column_tiling(self.row_count, self.count, sum(sizes), self.device)
        return policy.reduction_tiling(self.row_count, self.count, self.device, self.vector, self._words_read())

    # ------------------------------------------------------------------ dispatches

    def _one_dispatch(self, tiling: policy.ReductionTiling) -> list[KernelSource]:
        self._begin(tiling, self.signature)
        walk = self._walk(tiling, range(self.last_phase + 1))
        return [self._finish(walk, [member.node for member in self.members])]

    def _dispatches(self, tiling: policy.ReductionTiling) -> list[KernelSource]:
        """One for each walk: parts of a row leave what they have found in memory, and the next walk begins with it."""
        self.parts = tiling.splits
        sources = []
        for phase in range(self.last_phase + 1):
            here = [m for m in self.members if m.phase == phase and (m.level == "full" or phase == self.last_phase)]
            if phase == self.last_phase and not any(
                m.level == "full" and not m.node.reduction and m.kept for m in here
            ):
                ending = policy.gathering_tiling(tiling, self.row_count)
            else:
                ending = tiling
            self._begin(ending, Signature(self.buffers))
            walk = self._walk(ending, [phase], self.parts)
            sources.append(self._finish(walk, [member.node for member in here or self.members]))
        return sources

    def _begin(self, tiling: policy.ReductionTiling, signature: Signature) -> None:
        """A fresh kernel text over the members."""
        self.signature = signature
        self.words: dict[ir.Load, Words] = {}
        self.reading: int = 0
        self.row_guard = "" if tiling.lanes == 1 else "thread_index == 0"  # the one thread that writes a row's values
        if tiling.splits > 1:
            self.row_guard += " && split == 0"
        self.emitter = self._emitter()
        self.emitter.symbol_names = {symbol: symbol.name for symbol, _ in self.rows + self.reduced}
        self.emitter.inner_symbols = {symbol for symbol, _ in self.reduced}
        self.emitter.inner_buffers = {m.node.buffer for m in self.members if m.level == "full" and not m.node.reduction}
        self.by_words = tiling.lanes > 1 and self.vector > 0
        for load in self.loads if self.by_words else ():
            if fits_words(self.buffers[load.buffer], load.index, self.reduced[-1][0], self.vector):
                self.emitter.elements[load] = functools.partial(self._element, load)

    def _finish(self, walk: dict[str, Any], nodes: list[ir.Node]) -> KernelSource:
        threads, group = reduction_geometry(walk["tiling"], self.row_count)
        return finish("reduction", "reduction.metal.j2", self.signature, threads, group, nodes, walk=walk)

    # ------------------------------------------------------------------ one walk's text

    def _walk(self, tiling: policy.ReductionTiling, phases: Any, parts: int = 1) -> dict[str, Any]:
        """The variables of `reduction_body.metal.j2` for `phases`; rows are cut into `parts`, where more than one."""
        emitter, first = self.emitter, min(phases)
        split = parts > 1
        gathered = [m for m in self.members if m.node.reduction and m.phase < first] if split else []
        states = self._states(gathered, split, write=False)
        self._publish(gathered)
        texts = [self._phase(number, alone=split) for number in phases]
        if first == self.last_phase or not split:
            texts.append(self._ending())
        scattered = self._states([m for m in self.members if m.node.reduction and m.phase == first], split, write=True)
        early = self._place_words(tiling, texts)
        return {
            "tiling": tiling,
            "index_type": self.index_type,
            "prologue": split_index("row", self.rows, self.index_type, emitter),
            "reduction_size": emitter.index(self.count),
            "row_count": emitter.index(self.row_count),
            "parts": parts,
            "phases": texts,
            "gathered": states,
            "scattered": scattered if split else [],
            "early": early,
            **self._steps(tiling),
        }

    def _steps(self, tiling: policy.ReductionTiling) -> dict[str, Any]:
        """Which elements a thread takes in a step, and how their indices follow from the first."""
        chunk = tiling.steps * tiling.lanes * tiling.vector
        common = {"chunk": chunk, "whole": chunk > 0 and ir.same(self.count, chunk * tiling.splits)}
        if not self.by_words:
            place = split_index("r", self.reduced, self.index_type, self.emitter)
            return {
                **common, "unrolled": False, "stride": tiling.lanes, "tail": False, "first_place": [], "place": place,
            }  # fmt: skip
        inner = self.reduced[-1][0].name
        return {
            **common,
            "unrolled": tiling.steps > 0,
            "stride": 1,
            "tail": not (sympy.sympify(self.count) / self.vector).is_Integer,
            "first_place": split_index("base", self._first_reduced(), self.index_type, self.emitter),
            "place": [f"const {self.index_type} {inner} = {inner}_first + e;"],
        }

    def _first_reduced(self) -> list[tuple[sympy.Symbol, Any]]:
        inner, size = self.reduced[-1]
        return [*self.reduced[:-1], (sympy.Symbol(f"{inner.name}_first"), size)]

    def _phase(self, number: int, alone: bool) -> dict[str, Any]:
        """Statements of one walk. Where walks are dispatches, a row's values are left to the last."""
        emitter = self.emitter
        self.reading = number
        here = [m for m in self.members if m.phase == number]
        reductions = [m for m in here if m.node.reduction]
        emitter.push()
        states = [self._accumulate(m) for m in reductions if m.node.buffer not in self.pairs]
        written = [self._store(m) for m in here if m.level == "full" and not m.node.reduction and m.kept]
        loop = emitter.pop()
        rows = [m for m in self.members if m.level == "row" and m.kept and not m.node.reduction]
        for member in rows:
            if member.phase == number if not alone else number == self.last_phase:
                store_member(emitter, member, self.row_guard)
        before = emitter.take_lines()
        self._publish(reductions)
        return {
            "number": number, "before": before, "loop": loop, "reductions": states,
            "written": [words for words in written if words is not None],
        }  # fmt: skip

    def _ending(self) -> dict[str, Any]:
        """What follows the last walk: the reductions' own results."""
        for member in self.members:
            if member.node.reduction and member.kept:
                self._store_result(member)
        return {"number": -1, "before": self.emitter.take_lines(), "loop": [], "reductions": [], "written": []}

    def _place_words(self, tiling: policy.ReductionTiling, phases: list[dict[str, Any]]) -> list[Words]:
        """Tells each phase what it reads; returns what is read before all of them, for as long as registers last."""
        words = sorted(self.words.values(), key=lambda w: -len(w.phases))
        early, used = [], 0
        for item in words:
            used += tiling.steps * item.count * 4
            if tiling.steps and (len(item.phases) > 1 or used <= policy.EARLY_REGISTERS):
                early.append(item)
        for phase in phases:
            phase["read"] = [item for item in words if phase["number"] in item.phases]
            phase["late"] = [item for item in phase["read"] if item not in early]
        return early

    # ------------------------------------------------------------------ elements in words

    def _first_index(self, index: sympy.Expr) -> str:
        """The text of `index` at the first element of a step."""
        inner = self.reduced[-1][0]
        names = self.emitter.symbol_names
        self.emitter.symbol_names = {**names, inner: f"{inner.name}_first"}
        text = self.emitter.index(index)
        self.emitter.symbol_names = names
        return text

    def _element(self, load: ir.Load) -> str:
        words = self.words.get(load)
        if words is None:
            words = self._words_of(f"x{len(self.words)}", load.buffer, load.index, write=False)
            self.words[load] = words
        words.phases.add(self.reading)
        return f"{words.name}[e]"

    def _words_of(self, name: str, buffer: str, index: sympy.Expr, write: bool) -> Words:
        self.signature.aligned.add(buffer)
        dtype = self.buffers[buffer].dtype
        pointer = f"{self.signature.argument(buffer, write=write)} + {self._first_index(index)}"
        return Words(name, ops.METAL_TYPES[dtype], pointer, dtype.itemsize * self.vector // 16)

    def _store(self, member: Member) -> Words | None:
        """Writes one value an element: at once, or into the array of the words that the step writes at its end."""
        node = member.node
        plain = node.mode == "store" and not member.indirect and member.predicate is None and not member.checks
        if (
            not self.by_words
            or not plain
            or node.buffer in self.signature.local
            or not fits_words(self.buffers[node.buffer], member.index, self.reduced[-1][0], self.vector)
        ):
            store_member(self.emitter, member)
            return None
        value = self.emitter.value(member.body)
        words = self._words_of(f"y_{member.accumulator}", node.buffer, member.index, write=True)
        self.emitter.line(f"{words.name}[e] = {value};")
        return words

    # ------------------------------------------------------------------ accumulators

    def _state(self, member: Member) -> dict[str, Any]:
        """What a reduction keeps while it walks; `second` is what belongs to its value."""
        kind = member.node.reduction
        source = ops.register_type(member.body.dtype)
        extremum = kind in (*WITH_PLACE, "max", "min")
        kept = source if extremum else ops.register_type(self.buffers[member.node.buffer].dtype)
        state = {
            "name": member.accumulator, "kind": kind, "type": kept, "identity": reduction_identity(kind, kept),
            "second": None,
        }  # fmt: skip
        if kind in WITH_PLACE:
            state["second"] = {"name": f"{member.accumulator}_index", "type": "long", "identity": NO_PLACE}
        total = next((name for name, peak in self.pairs.items() if peak is member), None)
        if total is not None:
            summed = next(m for m in self.members if m.node.buffer == total)
            state["kind"] = "softmax"
            state["second"] = {"name": summed.accumulator, "type": "float", "identity": "0.0f"}
        return state

    def _states(self, members: list[Member], split: bool, write: bool) -> list[dict[str, Any]]:
        """States of `members` with the memory in which parts of a row leave them."""
        states = []
        for member in members if split else ():
            if member.node.buffer in self.pairs:
                continue
            state = self._state(member)
            for item, role in ((state, "parts"), (state["second"], "second")):
                if item is not None:
                    item["memory"] = self._memory(f"{member.node.buffer}_{role}", item["type"], write)
            states.append(state)
        return states

    def _memory(self, name: str, type_text: str, write: bool) -> str:
        if name not in self.buffers:
            shape = (sympy.sympify(self.row_count), sympy.Integer(self.parts))
            self.buffers[name] = Buffer(name, shape, ir.contiguous_strides(shape), REGISTER_DTYPES[type_text])
        return self.signature.argument(name, write=write)

    def _accumulate(self, member: Member) -> dict[str, Any]:
        return {**self._state(member), "value": self.emitter.value(member.body)}

    def _publish(self, reductions: list[Member]) -> None:
        """From here on, loads of the reductions' buffers are their accumulators."""
        for member in reductions:
            self.emitter.produced[member.node.buffer] = functools.partial(self._result, member)

    def _result(self, member: Member) -> str:
        dtype = self.buffers[member.node.buffer].dtype
        suffix = "_index" if member.node.reduction in WITH_PLACE else ""
        return f"{ops.register_type(dtype)}({member.accumulator}{suffix})"

    def _store_result(self, member: Member) -> None:
        value = self._result(member)
        if self.row_guard:
            self.emitter.line(f"if ({self.row_guard})")
        self.emitter.store(member.node, member.index, member.indirect, value)


def softmax_pairs(members: list[Member]) -> dict[str, Member]:
    """Sums of exp(x - max(x)) by buffer, each with the member that computes the maximum: both fit in one walk."""
    peaks = {m.node.buffer: m for m in members if m.node.reduction == "max" and m.body.dtype == torch.float32}
    pairs: dict[str, Member] = {}
    for member in members:
        power = member.body
        if member.node.reduction != "sum" or not isinstance(power, ir.Op) or power.name != "exp":
            continue
        shifted = power.args[0]
        if not isinstance(shifted, ir.Op) or shifted.name != "sub" or not isinstance(shifted.args[1], ir.Load):
            continue
        peak = peaks.get(shifted.args[1].buffer)
        if peak is not None and peak.body is shifted.args[0] and peak not in pairs.values():
            pairs[member.node.buffer] = peak
    return pairs


def reduction_identity(kind: str, type_text: str) -> str:
    """The value that leaves a reduction of `kind` unchanged, as a literal of Metal type `type_text`."""
    if kind in ("sum", "xor_sum", "any"):
        return f"{type_text}(0)"
    if kind == "prod":
        return f"{type_text}(1)"
    lowest = kind in ("max", "argmax")
    if type_text == "float":
        return "-INFINITY" if lowest else "INFINITY"
    if type_text == "bool":
        return "false" if lowest else "true"
    return f"numeric_limits<{type_text}>::{'lowest' if lowest else 'max'}()"


def reduction_geometry(tiling: policy.ReductionTiling, rows: Any) -> tuple[tuple, tuple]:
    """Grid and threadgroup of a reduction."""
    if tiling.lanes == 1:
        return (rows, ONE, ONE), (tiling.rows_per_group, 1, 1)
    lanes, splits = sympy.Integer(tiling.lanes), sympy.Integer(tiling.splits)
    if tiling.columns:
        return (rows, lanes, splits), (tiling.rows_per_group, tiling.lanes, 1)
    return (lanes, rows, splits), (tiling.lanes, tiling.rows_per_group, 1)
