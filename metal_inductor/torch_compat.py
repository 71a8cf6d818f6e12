"""Every use of torch's private names, in one place: torch 2.11 to 2.15 must all work."""

from __future__ import annotations

from typing import Any

import sympy
import torch


def size_expr(size: Any) -> sympy.Expr:
    """A size as a sympy expression: an int, a `torch.SymInt` or an expression already."""
    if isinstance(size, torch.SymInt):
        return sympy.sympify(size.node.expr)
    return sympy.sympify(size)


def scalar_expr(value: Any) -> Any:
    """A `SymInt`, `SymFloat` or `SymBool` as its sympy expression; anything else unchanged."""
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return value.node.expr
    return value


def elementwise_dtypes(*args: Any, kind: str) -> tuple[torch.dtype, torch.dtype]:
    """(computation dtype, result dtype) of an elementwise op, as eager promotes. `kind` is a member of
    ELEMENTWISE_TYPE_PROMOTION_KIND: DEFAULT, NO_OPMATH, INT_TO_FLOAT, ALWAYS_BOOL, COMPLEX_TO_FLOAT, BOOL_TO_LONG."""
    from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND
    from torch._prims_common import elementwise_dtypes as promote

    return promote(*args, type_promotion_kind=ELEMENTWISE_TYPE_PROMOTION_KIND[kind])


def decide(condition: sympy.Basic, fake: Any) -> bool | None:
    """The truth of a relation between symbolic sizes, guarded by torch where it is not certain; None when it depends on
    data. `fake` is any fake tensor (or tuple of them) of the graph."""
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
    from torch.utils._pytree import tree_leaves

    shape_env = next(leaf.fake_mode.shape_env for leaf in tree_leaves(fake) if isinstance(leaf, torch.Tensor))
    try:
        return bool(shape_env.evaluate_expr(condition))
    except GuardOnDataDependentSymNode:
        return None


def python_text(expr: sympy.Expr) -> str:
    """A size expression as Python source over the names of its symbols."""
    from torch.utils._sympy.printers import PythonPrinter

    return PythonPrinter().doprint(expr)


def core_decompositions() -> dict[Any, Any]:
    """torch's decompositions to its core set of ATen ops, for the inference and the backward graph."""
    from torch._decomp import core_aten_decompositions

    return dict(core_aten_decompositions())


def all_decompositions() -> dict[Any, Any]:
    """Every decomposition that torch has, also those of core ops."""
    from torch._decomp import decomposition_table

    return dict(decomposition_table)


def aot_autograd(
    gm: Any, example_inputs: Any, *, decompositions: dict, forward: Any, backward: Any, inference: Any
) -> Any:
    """The Dynamo graph through AOTAutograd: functional ATen graphs go to the three compilers, training graphs are cut
    by the min-cut partitioner, and updates of inputs stay in inference graphs as closing copies."""
    from functorch.compile import min_cut_rematerialization_partition
    from torch._dynamo.backends.common import aot_autograd as make_backend

    return make_backend(
        fw_compiler=forward,
        bw_compiler=backward,
        inference_compiler=inference,
        decompositions=decompositions,
        partition_fn=min_cut_rematerialization_partition,
        keep_inference_input_mutations=True,
    )(gm, example_inputs)


def graph_device(gm: Any, example_inputs: Any) -> torch.device:
    """The device of a graph: that of its first tensor with dimensions, else of any tensor, else the CPU."""
    found = [node.meta.get("val") for node in gm.graph.nodes] + list(example_inputs)
    tensors = [value for value in found if isinstance(value, torch.Tensor)]
    for value in sorted(tensors, key=lambda tensor: tensor.dim() == 0):
        return value.device
    return torch.device("cpu")


def raw_cuda_stream(index: int) -> int:
    """The handle of torch's current stream on a GPU, without the Python object around it, which takes long to make."""
    return torch._C._cuda_getCurrentRawStream(index)
