from __future__ import annotations

import json
from collections import Counter

import pytest
import torch

pytest.importorskip("transformers")
pytest.importorskip("expecttest")

from benchmarks import coverage, coverage_worker, dispatches, machine, metal_cpu, models  # noqa: E402
from metal_inductor.metal import compile_shader  # noqa: E402
from metal_inductor.runtime import cpu  # noqa: E402


def test_a_layer_is_the_difference_of_two_depths():
    shallow, deep = Counter({"linear": 15, "norm": 5, "head": 1}), Counter({"linear": 29, "norm": 8, "head": 1})
    assert dispatches.per_layer((shallow, deep)) == {"linear": 7, "norm": 1.5}


def test_a_layer_of_llama_costs_at_most_sixteen_dispatches_and_no_aten_call():
    shallow, deep = (dispatches.ours("llama", depth) for depth in dispatches.DEPTHS)
    kernels = dispatches.per_layer((shallow.kernels, deep.kernels))
    assert 0 < sum(kernels.values()) <= 16
    assert not dispatches.per_layer((shallow.aten_calls, deep.aten_calls))


@pytest.mark.parametrize("name", sorted(models.CONFIGS))
def test_each_model_has_a_decode_step(name):
    step = models.decode_step(name, 2)
    with torch.no_grad():
        logits = step.forward(step.token, **step.arguments).logits
    assert logits.shape == (1, 1, models.VOCABULARY)
    assert logits.dtype == torch.bfloat16


def test_an_unknown_model_is_an_error(capsys):
    with pytest.raises(SystemExit):
        dispatches.main(["--models", "lama"])
    assert "valid: llama" in capsys.readouterr().err


@pytest.mark.parametrize(
    "name", ["add", "sum", "transpose", "nn.functional.dropout", "nonzero", "empty_like", "index_put"]
)
def test_ops_of_the_database_equal_eager(name):
    result = coverage_worker.check(coverage_worker.float32_ops()[name], "metal_inductor")
    assert result["status"] == "equal", result


@pytest.mark.parametrize(
    ("expected", "actual", "found"),
    [
        (torch.tensor([1.0, float("nan")]), torch.tensor([1.0, float("nan")]), None),
        (torch.tensor([1.0]), torch.tensor([1.1]), "result 0"),
        (torch.zeros(2), torch.zeros(3), "(3,) instead of torch.float32 (2,)"),
        (torch.zeros(2), torch.zeros(2, dtype=torch.float64), "torch.float64"),
        ([torch.zeros(1), 2], [torch.zeros(1), 3], "3 instead of 2"),
        (torch.zeros(1), [torch.zeros(1)] * 2, "2 results instead of 1"),
        (float("nan"), float("nan"), None),
    ],
)
def test_difference_names_the_first_one(expected, actual, found):
    difference = coverage_worker.difference(expected, actual)
    assert difference is None if found is None else found in difference


def test_uninitialised_values_are_compared_by_shape_alone():
    assert coverage_worker.difference(torch.zeros(2), torch.ones(2), values=False) is None
    assert coverage_worker.difference(torch.zeros(2), torch.ones(3), values=False)


def test_an_op_is_ours_only_if_captured_whole_without_an_aten_call():
    ours = {"status": "equal", "graphs": 1, "graph_breaks": 0, "kernels": 1, "externs": {}}
    others = [{"status": "differs"}, {"graphs": 0}, {"graph_breaks": 1}, {"externs": {"aten.sort": "no lowering"}}]
    results = [ours, *(ours | change for change in others)]
    assert [coverage.wholly_ours(result) for result in results] == [True, False, False, False, False]
    summary = coverage.summarise(results)
    assert (summary["equal"], summary["failed"], summary["share_wholly_in_kernels"]) == (4, {"differs": 1}, 0.2)
    assert summary["aten_calls"] == {"aten.sort": 1}


def test_a_worker_that_dies_costs_one_op(monkeypatch):
    monkeypatch.setattr(coverage, "SECONDS_PER_OP", 60.0)
    worker = coverage.Worker("metal_inductor", 1)
    worker._command = [worker._command[0], "-c", "import os; os._exit(7)"]
    assert worker.check("add")["status"] == "crashes"
    answer = json.dumps({"name": "sub", "status": "equal"})
    worker._command = [worker._command[0], "-c", f"input(); print({answer!r}, flush=True)"]
    assert worker.check("sub") == json.loads(answer)
    worker.close()


def test_a_worker_that_hangs_is_ended(monkeypatch):
    monkeypatch.setattr(coverage, "SECONDS_PER_OP", 0.3)
    worker = coverage.Worker("metal_inductor", 1)
    worker._command = [worker._command[0], "-c", "import time; time.sleep(60)"]
    assert worker.check("add")["status"] == "hangs"


def test_a_figure_carries_its_machine():
    described = machine.describe()
    assert described["torch"] and described["cores"] >= 1
    json.dumps(described)


def test_kernels_of_the_cpu_benchmark_equal_eager_and_have_times():
    library = compile_shader(metal_cpu.SOURCE.read_text(), device="cpu")
    rows = metal_cpu.fiber_rows(library)
    for row in rows:
        row.check()
    rows[0].sample()
    cpu.configure(threads=0)
    result = rows[0].result()
    assert result["speedup"] > 0 and result["times_eager"] > 0
