"""Compiled results beside float64: the error may be 1.5 times eager's, and no ATen call may run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from hypothesis import HealthCheck, settings
from torch.utils._pytree import tree_map

from metal_inductor import compiler, report

MOST = 1.5  # times eager's error
MANY = settings(deadline=None, suppress_health_check=list(HealthCheck))
FEW = settings(MANY, derandomize=True, database=None)


def double(args: Any) -> Any:
    """`args` with every floating-point tensor in float64."""
    return tree_map(lambda x: x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x, args)


def compile_for(policy: str, function: Callable, dynamic: bool = False) -> Callable:
    """`function` compiled whole into the kernels of the device `policy`."""
    options = {"policy_device": policy}
    return torch.compile(function, backend=compiler.backend, fullgraph=True, dynamic=dynamic, options=options)


def run(compiled: Callable, *args: Any) -> tuple[Any, list[str]]:
    """The results, and the kinds of the kernels that gave them."""
    with report.collect() as graphs, torch.no_grad():
        results = compiled(*args)
    assert [extern.name for graph in graphs for extern in graph.externs] == []
    return results, [kernel.kind for graph in graphs for kernel in graph.kernels]


def compare(
    actual: Sequence[torch.Tensor], eager: Sequence[torch.Tensor], truth: Sequence[torch.Tensor], ulps: float = 1
) -> None:
    """NaN and infinities where `truth` has them; elsewhere the largest error of each result at most MOST times eager's
    plus `ulps` units in the last place of its largest element, or of 1 where all are smaller: eager may be exact by
    luck, and a sum of terms near 1 that cancel is no nearer to zero than that."""
    for mine, theirs, exact in zip(actual, eager, truth, strict=True):
        assert mine.dtype == theirs.dtype and mine.shape == theirs.shape == exact.shape
        if not exact.numel():
            continue
        finite = exact.isfinite()
        torch.testing.assert_close(mine[~finite].double(), exact[~finite], equal_nan=True)
        if not finite.any():
            continue
        unit = torch.finfo(theirs.dtype).eps * max(float(exact[finite].abs().max()), 1.0)
        allowed = MOST * error(theirs, exact, finite) + ulps * unit
        found = error(mine, exact, finite)
        assert found <= allowed, f"{tuple(theirs.shape)} {theirs.dtype}: error {found}, allowed {allowed}"


def error(result: torch.Tensor, truth: torch.Tensor, where: torch.Tensor) -> float:
    """The largest difference `where` it counts; NaN or infinite where `result` is and `truth` is not."""
    differences = (result.double() - truth)[where].abs()
    return float(torch.inf if differences.isnan().any() else differences.max())
