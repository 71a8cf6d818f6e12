"""Runs ops of torch's op database one by one in a process of its own, so that a crash or a hang costs one op only.

Reads an op's name from each line of stdin, answers with one JSON object a line on the original stdout.
"""

from __future__ import annotations

import copy
import json
import os
import sys
import time
import warnings
from typing import Any

import torch
from torch._dynamo.utils import counters
from torch.utils._pytree import tree_flatten, tree_map

SEED = 0
TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}  # other summation orders are right too; a wrong kernel is off by far more


def full_name(op: Any) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


def float32_ops() -> dict[str, Any]:
    """Name -> op, for every op of the database that takes float32 on a CPU."""
    from torch.testing._internal import common_methods_invocations as database

    # Its wrapper around random ops saves and restores the generator, which Dynamo cannot trace; `run` seeds instead.
    database.wrapper_set_seed = lambda op, *args, **kwargs: op(*args, **kwargs)
    return {full_name(op): op for op in database.op_db if torch.float32 in op.supported_dtypes("cpu")}


def check(op: Any, backend: str) -> dict[str, Any]:
    """Compare the first float32 sample through `torch.compile` with eager."""
    torch.manual_seed(SEED)
    sample = next(iter(op.sample_inputs("cpu", torch.float32)))
    arguments = (sample.input, tuple(sample.args), dict(sample.kwargs))
    call = call_of(op.op)
    try:
        expected, again = run(call, arguments), run(call, arguments)
    except Exception as error:
        return {"status": "eager raises", "detail": _first_line(error)}
    from metal_inductor import report

    torch._dynamo.reset()
    counters["graph_break"].clear()
    with report.collect() as graphs:
        try:
            actual = run(torch.compile(call, backend=backend), arguments)
        except Exception as error:
            return {"status": "raises", "detail": _first_line(error), **_summary(graphs)}
    # what eager itself does not repeat under one seed is uninitialised memory: only its shape can be compared
    comparable = difference(expected, again) is None and "empty" not in op.name
    detail = difference(expected, actual, values=comparable)
    return {"status": "differs" if detail else "equal", "detail": detail or "", **_summary(graphs)}


def call_of(function: Any) -> Any:
    def call(first: Any, args: tuple, kwargs: dict) -> Any:
        return function(first, *args, **kwargs)

    return call


def run(call: Any, arguments: tuple) -> Any:
    """The results together with the arguments, which the op may have changed: both must equal eager's."""
    fresh = tree_map(lambda value: value.clone() if isinstance(value, torch.Tensor) else copy.copy(value), arguments)
    torch.manual_seed(SEED)
    return call(*fresh), fresh


def difference(expected: Any, actual: Any, values: bool = True) -> str | None:
    """The first difference in words, or None. Without `values`, only types, shapes and dtypes count."""
    mine, theirs = tree_flatten(actual)[0], tree_flatten(expected)[0]
    if len(mine) != len(theirs):
        return f"{len(mine)} results instead of {len(theirs)}"
    for index, (got, want) in enumerate(zip(mine, theirs, strict=True)):
        if not isinstance(want, torch.Tensor):
            if values and got != want and not (got != got and want != want):
                return f"result {index}: {got!r} instead of {want!r}"
            continue
        if got.shape != want.shape or got.dtype != want.dtype or got.layout != want.layout:
            return f"result {index}: {got.dtype} {tuple(got.shape)} instead of {want.dtype} {tuple(want.shape)}"
        if values:
            try:
                torch.testing.assert_close(got, want, equal_nan=True, **TOLERANCE)
            except AssertionError as error:
                return f"result {index}: {' '.join(str(error).split())[:160]}"
    return None


def _summary(graphs: list[Any]) -> dict[str, Any]:
    externs = {extern.name: extern.reason for graph in graphs for extern in graph.externs}
    return {
        "graphs": len(graphs),
        "graph_breaks": counters["graph_break"].total(),
        "kernels": sum(graph.dispatches for graph in graphs),
        "externs": externs,
    }


def _first_line(error: BaseException) -> str:
    error = getattr(error, "inner_exception", error)  # Dynamo wraps what a backend raises
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:240]


def main(backend: str) -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what an op prints must not mix with the answers
    warnings.filterwarnings("ignore")
    ops = float32_ops()
    for line in sys.stdin:
        name = line.strip()
        start = time.perf_counter()
        try:
            result = check(ops[name], backend)
        except Exception as error:
            result = {"status": "raises", "detail": _first_line(error)}
        answers.write(json.dumps({"name": name, **result, "seconds": round(time.perf_counter() - start, 3)}) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
