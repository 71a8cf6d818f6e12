"""The compiler on one screen: Dynamo graph -> ATen graph -> tensor IR -> kernels -> plan -> Metal text -> executor."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch.fx import GraphModule

from metal_inductor import config, decompositions, torch_compat
from metal_inductor.codegen import build_sources, library
from metal_inductor.dump import Stages
from metal_inductor.ir import ExternNode, StridedView
from metal_inductor.library import load_library
from metal_inductor.lower import GraphLowering
from metal_inductor.passes.in_place import mark_in_place
from metal_inductor.passes.keep_attention import keep_attention
from metal_inductor.plan import make_plan
from metal_inductor.report import GraphReport, describe_steps, publish
from metal_inductor.runtime.device import device_for
from metal_inductor.runtime.executor import Executor
from metal_inductor.schedule import schedule

_serial = itertools.count()


def backend(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """The Dynamo backend: `torch.compile(model, backend="metal_inductor", options={...})`.

    Raises ValueError for an unknown option or mode. Forward and backward graphs go through `compile_graph`.
    """
    resolved = config.resolve(options, mode)
    keep_attention(gm)
    compile_as = functools.partial(functools.partial, compile_graph, options=resolved)
    return torch_compat.aot_autograd(
        gm,
        example_inputs,
        decompositions=decompositions.table(),
        forward=compile_as(kind="forward"),
        backward=compile_as(kind="backward"),
        inference=compile_as(kind="inference"),
    )


def compile_graph(
    gm: GraphModule, example_inputs: Sequence[Any], *, kind: str, options: config.Options
) -> Callable[..., Any]:
    """One functional ATen graph as a callable that takes its inputs as a list."""
    report = GraphReport(f"graph{next(_serial)}", kind)
    stages = Stages(report, options.dump_dir)
    device = device_for(torch_compat.graph_device(gm, example_inputs))
    report.device = device.kind

    with stages.run("rewrite", lambda: gm.print_readable(print_output=False)):
        mark_in_place(gm.graph)

    with stages.run("lower", lambda: "\n".join(map(repr, graph.nodes))):
        policy_device = device.kind if options.policy_device == "auto" else options.policy_device
        graph = GraphLowering(
            gm, device=device.torch_device, fallback=options.fallback, policy_device=policy_device
        ).run()

    with stages.run("schedule", lambda: "\n".join(map(repr, kernels))):
        outputs = [item.buffer for item in graph.outputs if isinstance(item, StridedView)]
        kernels = schedule(graph.nodes, graph.buffers, outputs, options.fusion, policy_device).kernels

    with stages.run("render", lambda: library(sources)):
        steps = build_sources(kernels, graph.buffers, outputs, policy_device)
        sources = [step for step in steps if not isinstance(step, ExternNode)]

    with stages.run("plan", lambda: "\n".join(map(repr, plan.steps))):
        commit_every = options.commit_every if device.splits_runs else max(1, len(steps))
        plan = make_plan(steps, graph.buffers, graph.input_symbols(), commit_every)

    with stages.run("compile", lambda: ""):
        compiled = load_library(device, sources, report, options.dump_dir)

    describe_steps(report, plan)
    executor = Executor(plan, graph, device, compiled, commit_every, report)
    publish(report)
    return boxed(executor)


def boxed(executor: Executor) -> Callable[[list[Any]], list[Any]]:
    """`executor` as a plain function: wrappers of torch keep a function's marks, not an object's."""

    def call(args: list[Any]) -> list[Any]:
        return executor(args)

    call._boxed_call = True  # type: ignore[attr-defined]
    call.executor = executor  # type: ignore[attr-defined]
    return call


def reset() -> None:
    """Called by `torch._dynamo.reset()`: compiled graphs die with Dynamo's caches, nothing else is kept."""


backend.reset = reset  # type: ignore[attr-defined]
