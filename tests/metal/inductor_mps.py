"""Runs what Inductor generates for mps on the CPU: its Metal kernels by `compile_shader`, its ATen calls by ATen.

The wrapper program that Inductor writes for a Mac is executed as it is, but that "mps" reads "cpu" and that
`torch.mps.compile_shader` is ours.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch

from benchmarks import peer
from metal_inductor.metal import compile_shader

_MPS = re.compile(r"""(['"])mps(?::\d+)?\1""")
_CONSTANT = re.compile(r"^\w+ = None  # [0-9a-f]+$", re.MULTILINE)


@dataclass
class Generated:
    """What was generated for the calls of one function, and what of it ran."""

    programs: list[str] = field(default_factory=list)
    compiled: list[str] = field(default_factory=list)  # kernels, one name for each that a program refers to
    launches: Counter[str] = field(default_factory=Counter)  # by kernel

    def compile_shader(self, source: str) -> Any:
        """Stands in for torch.mps.compile_shader."""
        return _Library(compile_shader(source, device="cpu"), f"program {len(self.programs)}, ", self)


class _Library:
    """A library whose kernels note that they are compiled and launched."""

    def __init__(self, library: Any, prefix: str, generated: Generated) -> None:
        self._library, self._prefix, self._generated = library, prefix, generated

    def __getattr__(self, name: str) -> Callable[..., None]:
        kernel, full_name = getattr(self._library, name), self._prefix + name
        self._generated.compiled.append(full_name)

        def launch(*args: Any, **options: Any) -> None:
            kernel(*args, **options)
            self._generated.launches[full_name] += 1

        return launch


def compiled(function: Callable[..., Any], **options: Any) -> tuple[Callable[..., Any], Generated]:
    """The function compiled by Inductor for mps and run on the CPU, and a record that its calls fill.

    options: of torch.compile. One call with each new shape generates; forward only.
    """
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd
    from torch._inductor.decomposition import select_decomp_table

    generated = Generated()

    def lower(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        program = peer.wrapper_program(graph, inputs)
        generated.programs.append(program)
        call = _executable(program, generated)
        return make_boxed_func(lambda *args: call(list(args)))

    backend = aot_autograd(fw_compiler=lower, decompositions=select_decomp_table())
    optimised = torch.compile(function, backend=backend, fullgraph=True, **options)

    def run(*args: Any, **kwargs: Any) -> Any:
        with torch.no_grad(), peer.pretend_mac(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return optimised(*args, **kwargs)

    return run, generated


def _executable(program: str, generated: Generated) -> Callable[[list[Any]], Any]:
    """`call` of a wrapper program; it takes a list of inputs, which it empties, and returns the outputs."""
    import torch._inductor.config

    assert not _CONSTANT.search(program), "the program needs constants, whose values are not at hand"
    namespace: dict[str, Any] = {"__name__": "wrapper_program"}
    patch = mock.patch.object(torch.mps, "compile_shader", generated.compile_shader)
    with patch, torch._inductor.config.patch(compile_threads=1):
        exec(compile(_MPS.sub("'cpu'", program), "<wrapper program>", "exec"), namespace)
    return namespace["call"]
