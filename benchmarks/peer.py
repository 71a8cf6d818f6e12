"""What torch's own Metal backend (Inductor for mps) would dispatch for a graph, found on a machine without a Mac.

The graph is captured on the CPU, moved to fake mps tensors, lowered and turned into Inductor's wrapper program: its
calls are what is counted. Nothing is compiled or run for a Mac. Only this file uses private names of Inductor.
"""

from __future__ import annotations

import contextlib
import copy
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import torch

_KERNEL_LAUNCH = re.compile(r"^\s+\w*kernel\w*\(.*\bthreads=", re.MULTILINE)
_ATEN_CALL = re.compile(r"^\s+(?:buf\d+ = )?(extern_kernels\.\w+|torch\.ops\.[\w.]+|aten\.[\w.]+)\(", re.MULTILINE)


def count(function: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[int, Counter[str]]:
    """(generated kernels, ATen calls by name) of one call of `function` as Inductor would run it on mps."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._inductor.decomposition import select_decomp_table

    programs: list[str] = []

    def lower(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        from functorch.compile import make_boxed_func

        programs.append(wrapper_program(graph, inputs))
        return make_boxed_func(graph.forward)

    torch._dynamo.reset()
    backend = aot_autograd(fw_compiler=lower, decompositions=select_decomp_table())
    with torch.no_grad(), pretend_mac():
        torch.compile(function, backend=backend, fullgraph=True)(*args, **kwargs)
    torch._dynamo.reset()
    bodies = [program.partition("def call(")[2].partition("def get_args")[0] for program in programs]
    calls = Counter(name for body in bodies for name in _ATEN_CALL.findall(body))
    return sum(len(_KERNEL_LAUNCH.findall(body)) for body in bodies), calls


@contextlib.contextmanager
def pretend_mac() -> Iterator[None]:
    """Answers what Inductor asks the mps device about, where there is none."""
    answers = {
        "_mps_get_core_count": lambda: 40,
        "_mps_get_name": lambda: "Apple M3 Ultra",
        "_mps_is_on_macos_or_newer": lambda major, minor: True,
    }
    if torch.backends.mps.is_available():
        answers = {}
    with contextlib.ExitStack() as stack:
        for name, answer in answers.items():
            stack.enter_context(mock.patch.object(torch._C, name, answer, create=True))
        yield


def wrapper_program(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> str:
    from torch._inductor.debug import DebugContext
    from torch._inductor.decomposition import select_decomp_table
    from torch._inductor.fx_passes.post_grad import post_grad_passes
    from torch._inductor.graph import GraphLowering
    from torch._inductor.virtualized import V
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    moved = _on_mps(graph)
    fake_mode = FakeTensorMode(allow_non_fake_inputs=True)
    with fake_mode, V.set_fake_mode(fake_mode):
        fakes = [_fake_mps(value) for value in inputs]
        for holder in (moved._buffers, moved.__dict__):
            for name, value in list(holder.items()):
                if isinstance(value, torch.Tensor):
                    holder[name] = _fake_mps(value)
        traced = make_fx(moved, decomposition_table=select_decomp_table())(*fakes)
        post_grad_passes(traced, is_inference=True)
        lowering = GraphLowering(traced, example_inputs=fakes, is_inference=True)
        with V.set_graph_handler(lowering), DebugContext():
            lowering.run(*fakes)
            program, _ = lowering.codegen()
    return getattr(program, "value", program)


def _on_mps(graph: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A copy of the graph that creates its tensors on mps; the original goes on to run on the CPU."""
    moved = copy.deepcopy(graph)
    for node in moved.graph.nodes:
        node.args, node.kwargs = torch.fx.node.map_aggregate((node.args, node.kwargs), _mps_for_device)
    moved.recompile()
    return moved


def _mps_for_device(argument: Any) -> Any:
    return torch.device("mps") if isinstance(argument, torch.device) else argument


def _fake_mps(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="mps")
