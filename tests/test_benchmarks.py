from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections import Counter

import pytest
import torch

pytest.importorskip("transformers")
pytest.importorskip("expecttest")

from benchmarks import (  # noqa: E402
    coverage,
    coverage_worker,
    decode,
    dispatches,
    full_size,
    kernel_rows,
    kernels,
    layer_shapes,
    machine,
    metal_cpu,
    models,
    plot,
    step_profile,
    timing,
)
from metal_inductor import cache  # noqa: E402
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


def test_the_command_behind_a_figure_names_no_folder_of_its_machine(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["kernels", "--output", "/some/where/kernels.json"])
    assert machine.provenance()["command"].endswith("--output kernels.json")


def test_the_median_time_of_a_call_is_that_of_its_own_way():
    ways = {"short": [lambda: time.sleep(0.001)], "long": [lambda: time.sleep(0.004)] * 2}
    times = timing.medians(ways, "cpu", rounds=3, guess_us=1000, shortest_us=2000)
    assert times["short"] >= 1000 and times["long"] >= 4000


def test_layer_shapes_are_ninety_six_and_ordered():
    shapes = layer_shapes.shapes()
    assert len(shapes) == 96 and shapes == sorted(set(shapes))
    assert sum(outputs >= kernel_rows.LARGE_OUTPUTS for outputs, _ in shapes) == 12
    assert {(2048, 2048), (1, 2048), (8192, 28672), (248320, 5120)} <= set(shapes)


def test_rows_have_names_of_their_own_and_are_found_by_them():
    names = [row.name for rows in kernel_rows.FAMILIES.values() for row in rows]
    assert len(set(names)) == len(names)
    assert [row.name for row in kernel_rows.by_name(names[::-7])] == names[::-7]


SMALL_ROWS = [
    kernel_rows.linear(96, 64),
    kernel_rows.softmax(300),
    kernel_rows.argmax(300),
    kernel_rows.decode_attention(4, 2, 32, 40),
    kernel_rows.prefill_attention(4, 2, 32, 40, causal=True),
    kernel_rows.rms_norm(3, 64),
    kernel_rows.layer_norm(3, 64),
    kernel_rows.group_norm(4, 2, 8, 3, 5),
]


@pytest.mark.parametrize("row", SMALL_ROWS, ids=lambda row: row.name)
def test_all_ways_of_a_row_compute_what_float64_does(row, monkeypatch):
    monkeypatch.setattr(kernel_rows, "EXACT_ROWS", 40)
    inputs = row.inputs("cpu")
    exact = row.exactly(*inputs)
    assert exact.dtype == torch.float64
    assert sum(value.nbytes for value in inputs) <= row.moved_bytes < 3 * sum(value.nbytes for value in inputs)
    for way in (row.function, *row.torch_ways.values()):
        torch.testing.assert_close(way(*inputs).double(), exact, rtol=0.03, atol=0.03)


def test_a_sum_that_leaves_out_an_element_is_wrong():
    row = kernel_rows.linear(96, 256)
    sets, _ = kernels.input_sets(row, "cpu")
    assert kernels.accuracy(row, row.function, sets[:2])["correct"]
    figures = kernels.accuracy(row, lambda x, weight, bias: row.function(x[:, :-1], weight[:, :-1], bias), sets[:2])
    assert not figures["correct"] and figures["error"] > 1.5 * figures["torch_error"]


def test_an_argmax_beside_the_largest_is_wrong():
    row = kernel_rows.argmax(300)
    sets = [row.inputs("cpu")]
    assert kernels.accuracy(row, row.function, sets)["correct"]
    assert not kernels.accuracy(row, lambda x: row.function(x) + 1, sets)["correct"]


def test_inputs_rotate_past_the_cache(monkeypatch):
    monkeypatch.setattr(timing, "OTHER_CACHE_BYTES", 10_000)
    sets, past = kernels.input_sets(kernel_rows.softmax(300), "cpu")  # 1200 bytes each
    assert len(sets) == 25 and past
    assert len({inputs[0].data_ptr() for inputs in sets}) == 25
    monkeypatch.setattr(kernels, "MOST_SETS", 4)
    sets, past = kernels.input_sets(kernel_rows.softmax(300), "cpu")
    assert len(sets) == 4 and not past


def test_a_row_is_measured_beside_the_fastest_of_torchs_ways(monkeypatch):
    monkeypatch.setattr(timing, "OTHER_CACHE_BYTES", 4096)
    result = kernels.attempt(kernel_rows.decode_attention(4, 2, 32, 40), "cpu", rounds=1, ceiling=10.0)
    assert result["correct"] and result["kernels"] == 1 and not result["aten_calls"]
    assert set(result["torch_ways_us"]) == {"SDPA enable_gqa", "SDPA heads folded"}
    assert result["torch_us"] == min(result["torch_ways_us"].values()) == result["torch_ways_us"][result["torch_way"]]
    assert result["ratio"] == pytest.approx(result["torch_us"] / result["us"], rel=0.01)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"ratio": 0.97}, False),
        ({"correct": False}, False),
        ({"aten_calls": {"aten.addmm": 1}}, False),
        ({"least_share": 0.95}, False),
        ({"least_share": 0.9}, True),
        ({"least_ratio": None}, None),
        ({"least_ratio": None, "correct": False}, False),
    ],
)
def test_a_goal_is_reached_by_a_right_kernel_of_our_own(changes, expected):
    result = {"ratio": 0.99, "least_ratio": 0.98, "least_share": None, "share_of_ceiling": 0.92}
    assert kernels.reached(result | {"correct": True, "aten_calls": {}} | changes) is expected


def _judged(outputs: int, mine: float, theirs: float) -> dict:
    row = kernel_rows.linear(outputs, 1024)
    result = kernels.judged(row, mine, "F.linear", {"F.linear": theirs}, ceiling=4000.0)
    result |= {"error": 0.1, "torch_error": 0.1, "correct": True, "aten_calls": {}}
    return result | {"ok": kernels.reached(result)}


def test_the_summary_counts_what_misses_its_goal():
    rows = [_judged(1024, 1.0, 4.0), _judged(2048, 2.0, 1.0), _judged(65536, 36.0, 36.0)]
    rows.append({"family": "linear", "name": "linear 9 x 9", "failed": "ValueError: no", "ok": False})
    summary = kernels.summarise(rows)
    assert summary["rows"] == 4 and summary["rows_ok"] == 1
    assert summary["linear_geometric_mean"] == pytest.approx(2 ** (1 / 3), rel=1e-3)
    assert summary["linear_more_than_2_percent_slower"] == 1
    assert summary["least_share_of_large_outputs"] == pytest.approx(0.934, abs=0.01)
    assert summary["wrong"] == ["linear 9 x 9"]
    lines = [kernels.line(row) for row in rows]
    assert "yes" in lines[0] and "NO" in lines[1] and ">= 0.95 share" in lines[2] and "no" in lines[3]


def test_a_row_that_fails_costs_no_other(monkeypatch):
    def function(x):
        raise ValueError("out of luck")

    row = dataclasses.replace(kernel_rows.softmax(300), function=function)
    result = kernels.attempt(row, "cpu", rounds=1, ceiling=1.0)
    assert result["ok"] is False and "out of luck" in result["failed"]
    monkeypatch.setattr(kernel_rows, "FAMILIES", {"softmax": [row]})
    kernels.compile_rows([row.name], "cpu")


def test_the_kernel_benchmark_writes_its_figures_and_their_plot(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(kernel_rows, "FAMILIES", {"linear": SMALL_ROWS[:1], "softmax": SMALL_ROWS[1:2]})
    monkeypatch.setattr(kernel_rows, "CEILING_SHAPES", {"cpu": (300, 64)})
    monkeypatch.setattr(timing, "OTHER_CACHE_BYTES", 4096)
    output = tmp_path / "kernels.json"
    command = ["--device", "cpu", "--families", "linear,softmax", "--rounds", "2", "--all", "--output", str(output)]
    assert kernels.main(command) == 0
    record = json.loads(output.read_text())
    assert [row["name"] for row in record["rows"]] == [row.name for row in SMALL_ROWS[:2]]
    assert record["machine"]["torch"] and record["date"] and record["read_ceiling_GB_per_s"] > 0
    printed = capsys.readouterr().out
    assert "read ceiling" in printed and "softmax f32 1 x 300" in printed
    pytest.importorskip("matplotlib")
    assert plot.main([str(output), "--out", str(tmp_path / "again.png")]) == 0
    assert (tmp_path / "again.png").read_bytes() == output.with_suffix(".png").read_bytes()


def test_an_unknown_family_is_an_error(capsys):
    with pytest.raises(SystemExit):
        kernels.main(["--families", "linears"])
    assert "valid: linear" in capsys.readouterr().err


@pytest.mark.slow
def test_other_processes_fill_the_kernel_cache_for_this_one(monkeypatch, tmp_path):
    monkeypatch.setenv("METAL_INDUCTOR_CACHE_DIR", str(tmp_path))
    rows = kernel_rows.by_name(["rms_norm 1 x 2048", "linear 1 x 2048"])
    kernels.fill_cache(rows, "cpu", jobs=2)
    before = cache.counters.compiled
    for row in rows:
        with torch.no_grad():
            kernels.compiled(row.function)(*row.inputs("cpu"))
    assert cache.counters.compiled == before


def test_decoding_is_measured_beside_eager(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(kernel_rows, "CEILING_SHAPES", {"cpu": (300, 64)})
    output = tmp_path / "decode.json"
    command = ["--device", "cpu", "--models", "tiny", "--modes", "eager,inductor-cudagraphs,metal_inductor"]
    command += ["--context", "16", "--steps", "4", "--rounds", "2", "--output", str(output)]
    assert decode.main(command) == 0
    record = json.loads(output.read_text())
    eager, graphs, ours = record["models"][0]["modes"]
    assert graphs == {"mode": "inductor-cudagraphs", "left_out": "CUDA graphs need an NVIDIA GPU"}
    assert eager["agrees"] and ours["agrees"] and len(ours["rounds"]) == 2
    assert ours["graphs"] == 1 and ours["dispatches"] > 5 and not ours["aten_calls"]
    assert record["models"][0]["peer"] == "eager" and record["models"][0]["goal"] is None
    printed = capsys.readouterr().out
    assert "metal_inductor is" in printed and "does not see" in printed
    pytest.importorskip("matplotlib")
    assert output.with_suffix(".png").stat().st_size > 1000


def test_a_mode_that_fails_is_a_figure_less(monkeypatch):
    def failing(*args, **kwargs):
        raise RuntimeError("no compiler here")

    monkeypatch.setitem(decode.MODES, "inductor", lambda forward: failing)
    decoder = full_size.build("tiny", "cpu", context=4, steps=40)
    result = decode.attempt(decoder, "inductor", decode.Reference([1], torch.zeros(1, 512), 0.0), 1, 1)
    assert result == {"mode": "inductor", "failed": "RuntimeError: no compiler here"}
    assert "no compiler here" in "".join(decode.table(_model("tiny", [result])))


def _model(name: str, modes: list[dict]) -> dict:
    return {"model": name, "weight_bytes": 2_470_000_000, "modes": modes, **decode.compared(name, modes)}


@torch.no_grad()
def test_logits_further_from_float32_than_eagers_do_not_agree():
    decoder = full_size.build("tiny", "cpu", context=8, steps=40)
    right = decode.reference(decoder)
    assert right.error(right.logits) == 0 < right.eager_error < 0.02
    assert right.error(right.logits + 0.1 * right.logits.abs().max()) > decode.ERROR_LIMIT * right.eager_error


def test_a_head_that_is_the_embedding_is_read_once_and_another_embedding_never():
    tied = full_size.build("tiny", "cpu", context=4, steps=4).model
    whole = sum(parameter.nbytes for parameter in tied.parameters())
    assert full_size.weight_bytes(tied) == whole
    head = torch.nn.Parameter(tied.get_output_embeddings().weight.clone())
    tied.get_output_embeddings().weight = head
    assert full_size.weight_bytes(tied) == whole


def test_the_goal_is_for_inductor_with_cuda_graphs():
    def ran(**speeds: float) -> list[dict]:
        return [{"mode": mode.replace("_cudagraphs", "-cudagraphs"), "tokens_per_s": v} for mode, v in speeds.items()]

    ours = {"metal_inductor": 170.0}
    assert decode.compared("llama1b", ran(eager=10.0, inductor=50.0, inductor_cudagraphs=100.0, **ours)) == {
        "peer": "inductor-cudagraphs", "ratio": 1.7, "goal": 1.7, "ok": True,
    }  # fmt: skip
    assert decode.compared("qwen3_06b", ran(inductor_cudagraphs=100.0, **ours))["ok"] is False
    assert decode.compared("llama1b", ran(inductor=100.0, **ours))["ok"] is None
    assert decode.compared("llama1b", ran(**ours))["ratio"] is None


def test_an_unknown_mode_is_an_error(capsys):
    with pytest.raises(SystemExit):
        decode.main(["--modes", "inductor-graphs"])
    assert "valid: eager" in capsys.readouterr().err


Span = step_profile.Span


def test_a_timeline_is_split_where_nothing_ran_for_long():
    spans = [Span("a", 0, 5), Span("b", 1, 90), Span("c", 95, 96), Span("d", 146, 150)]
    assert [[span.name for span in part] for part in step_profile.split(spans, 50)] == [["a", "b", "c"], ["d"]]


def test_a_step_is_divided_into_kernels_by_kind_and_gaps():
    timeline = [
        Span("msl_k0", 10, 14),
        Span("msl_k3", 15, 18),
        Span("Memcpy DtoD", 17, 20),
        Span("msl_k0", 26, 28),
    ]
    parts = step_profile.breakdown(timeline, ["reduction", "matrix product", "reduction"])
    assert parts["kinds"] == {
        "reduction": {"kernels": 2, "us": 6},
        "matrix product": {"kernels": 1, "us": 3},
        "copy": {"kernels": 1, "us": 3},
    }
    assert (parts["kernels_us"], parts["gaps_us"], parts["span_us"]) == (11, 7, 18)
    assert set(step_profile.breakdown(timeline, ["reduction"])["kinds"]) == {"ours", "copy"}


def test_the_mean_of_steps_counts_a_kind_that_one_step_lacks():
    steps = [step_profile.breakdown([Span(name, 0, 4)], []) for name in ("Memset", "gemvx::kernel")]
    mean = step_profile.average(steps)
    assert mean["kinds"] == {name: {"kernels": 0.5, "us": 2.0} for name in ("copy", "matrix product")}
    assert (mean["span_us"], mean["gaps_us"]) == (4, 0)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("triton_red_fused_add_mean_mul_3", "reduction"),
        ("triton_per_fused__softmax_7", "reduction"),
        ("triton_poi_fused_cat_mul_2", "pointwise"),
        ("nvjet_tst_64x8_64x16_4x1_v_bz_TNT", "matrix product"),
        ("void gemvNSP_kernel<__nv_bfloat16>", "matrix product"),
        ("void cublasLt::splitKreduce_kernel<32, 16>", "matrix product"),
        ("fmha_cutlassF_bf16_aligned_64x64_rf_sm80", "attention"),
        ("void pytorch_flash::flash_fwd_splitkv_kernel", "attention"),
        ("void at::native::vectorized_elementwise_kernel<4, FillFunctor<long>>", "copy"),
        ("void at::native::reduce_kernel<512, 1, ArgMaxOps>", "reduction"),
        ("Memcpy DtoD (Device -> Device)", "copy"),
        ("something else", "other"),
    ],
)
def test_kernels_of_others_have_a_kind_by_their_name(name, kind):
    assert step_profile.kind(name) == kind


def test_our_kernels_have_the_same_kinds_as_those_of_others():
    kinds = {template: step_profile.kind_of_ours(template) for template in ("linear", "attention_split", "pointwise")}
    assert kinds == {"linear": "matrix product", "attention_split": "attention", "pointwise": "pointwise"}


def test_the_parts_of_a_step_are_printed_and_drawn(tmp_path):
    step = step_profile.average([step_profile.breakdown([Span("msl_k0", 0, 40), Span("msl_k1", 43, 50)], ["a", "b"])])
    mode = {"tokens_per_s": 1000.0, "share_of_ceiling": 0.5, "host_us": 90.0, "error": 0.01, "agrees": True}
    peer = {"mode": "inductor-cudagraphs", **mode, "step": step}
    model = _model("llama1b", [peer, {"mode": "metal_inductor", **mode, "step": step | {"gaps_us": 9.0}}])
    lines = decode.table(model)
    assert "goal 1.7: NO" in lines[0]
    assert [line.split()[-1] for line in lines if line.startswith("  gaps")] == ["9"]
    assert any(line.split() == ["a", "40", "in", "1", "40", "in", "1"] for line in lines)
    pytest.importorskip("matplotlib")
    record = {"benchmark": "decode", "models": [model], "context": 2048, "device": "cpu", **machine.provenance()}
    plot.draw(record, tmp_path / "decode.png")
    assert (tmp_path / "decode.png").stat().st_size > 1000
