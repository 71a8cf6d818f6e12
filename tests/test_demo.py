from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch

from metal_inductor.__main__ import main

transformers = pytest.importorskip("transformers")

from metal_inductor.demo import generate, measure, model, table  # noqa: E402
from metal_inductor.demo.progress import Progress  # noqa: E402

KEYS = {
    "text", "tokens_match_eager", "graphs", "graph_breaks", "dispatches_per_token", "aten_calls_per_token",
    "aten_calls", "command_buffers_per_token", "kernels_compiled", "compile_seconds_cold", "compile_seconds_warm",
    "tokens_per_second", "device",
}  # fmt: skip


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    """A random llama of two layers with a word-level tokenizer, as a user's own folder would be."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {word: index for index, word in enumerate(["<end>", "<unknown>", *(f"w{i}" for i in range(62))])}
    backend = Tokenizer(models.WordLevel(words, unk_token="<unknown>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    folder = tmp_path_factory.mktemp("tiny_llama")
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token="<unknown>", eos_token="<end>"
    ).save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, bos_token_id=None, eos_token_id=0, pad_token_id=0,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return str(folder)


@pytest.fixture
def no_second_process(monkeypatch):
    asked = []

    def answer(request, environment):
        asked.append(environment)
        return 0.25

    monkeypatch.setattr(measure, "_in_new_process", answer)
    return asked


def test_the_whole_demo_on_a_small_model(model_folder, no_second_process, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("METAL_INDUCTOR_CACHE_DIR", str(tmp_path))
    arguments = ["demo", "--model", model_folder, "--device", "cpu", "--prompt", "w1 w2 w3", "--max-new-tokens", "6"]
    assert main([*arguments, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert KEYS <= result.keys()
    assert result["tokens_match_eager"] is True and result["first_difference"] is None
    assert (result["graphs"], result["graph_breaks"], result["device"]) == (2, 0, "cpu")
    assert 0 < len(result["tokens"]) <= 6 and all(word.startswith("w") for word in result["text"].split())
    assert result["dispatches_per_token"] > 0 and result["command_buffers_per_token"] > 0
    assert result["kernels_compiled"] > 0
    assert result["aten_calls_per_token"] == sum(call["count"] for call in result["aten_calls"].values())
    assert all(call["reason"] for call in result["aten_calls"].values())
    assert no_second_process == [{}]  # this start was the cold one; only the warm one needs a new process
    assert result["compile_seconds_cold"] > 0 and result["compile_seconds_warm"] == 0.25


def test_text_and_table(model_folder, no_second_process, capsys):
    assert main(["demo", "--model", model_folder, "--device", "cpu", "--prompt", "w5", "--max-new-tokens", "3"]) == 0
    text = capsys.readouterr().out
    assert "tokens equal eager" in text and text.rstrip().endswith("yes")
    assert "graph breaks" in text and "dispatches per token" in text


def test_a_longer_answer_compiles_nothing_more(model_folder, no_second_process):
    language_model = model.load(model_folder, "cpu")
    compiled = measure.compile_model(language_model, measure.Request("w1 w2", "cpu", 20, model_folder))
    graphs = len(compiled.reports)
    measure.decode(language_model, compiled, measure.Request("w1 w2", "cpu", 20, model_folder), lambda text: None)
    assert len(compiled.reports) == graphs


def test_generate_of_transformers_gives_eagers_tokens(model_folder):
    language_model = model.load(model_folder, "cpu", torch.float32)
    arguments = {"max_new_tokens": 6, "do_sample": False, "cache_implementation": "static", "eos_token_id": None}
    prompt = language_model.encode("w3 w9 w27")
    expected = language_model.module.generate(prompt, disable_compile=True, **arguments)
    language_model.module.forward = torch.compile(language_model.module.forward, backend="metal_inductor")
    assert torch.equal(language_model.module.generate(prompt, **arguments), expected)


@pytest.mark.slow
def test_the_packaged_model_names_paris(tmp_path):
    command = [sys.executable, "-m", "metal_inductor", "demo", "--device", "cpu", "--json", "--max-new-tokens", "12"]
    empty_cache = {**os.environ, "METAL_INDUCTOR_CACHE_DIR": str(tmp_path)}  # so that only the warm start is run again
    answer = subprocess.run(command, capture_output=True, text=True, env=empty_cache, check=False)
    assert answer.returncode == 0, answer.stderr
    result = json.loads(answer.stdout.splitlines()[-1])
    assert "Paris" in result["text"]
    assert result["tokens_match_eager"] and result["graphs"] == 2 and result["graph_breaks"] == 0


def test_the_loop_stops_at_an_end_token_and_at_the_limit():
    class Output:
        def __init__(self, tokens):
            self.logits = torch.nn.functional.one_hot((tokens[:, -1:] + 1) % 8, 8).float()

    class Cache:
        def reset(self):
            pass

    decoder = generate.Decoder(lambda tokens, use_cache, logits_to_keep, past_key_values: Output(tokens), Cache())
    assert list(decoder.run(torch.tensor([[0, 1]]), 10, frozenset({5}))) == [2, 3, 4]
    assert list(decoder.run(torch.tensor([[0, 1]]), 2, frozenset({5}))) == [2, 3]
    assert len(decoder.seconds_per_step) == 1


@pytest.mark.parametrize(
    ("tokens", "expected", "position"), [([1, 2], [1, 2], None), ([1, 3], [1, 2], 1), ([1], [1, 2], 1), ([], [4], 0)]
)
def test_first_difference(tokens, expected, position):
    assert measure.first_difference(tokens, expected) == position


def test_cache_length_leaves_room_for_the_prompt_and_the_answer():
    assert measure.cache_length(40, 24) == 64
    assert measure.cache_length(41, 24) == 128


def test_speed_is_that_of_the_median_step():
    assert generate.tokens_per_second([]) is None
    assert generate.tokens_per_second([9.0, 0.5, 0.5]) == 2.0


def test_a_missing_model_is_told_in_one_line(capsys):
    assert main(["demo", "--device", "cpu", "--model", "/no/such/model"]) == 1
    assert capsys.readouterr().err == "metal-inductor demo: --model /no/such/model: no such file or folder\n"


def test_a_missing_device_lists_what_there_is(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert main(["demo", "--device", "mps"]) == 1
    assert "cannot run on mps here; available: cpu" in capsys.readouterr().err


def test_a_gpu_without_a_runtime_is_not_offered(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(model, "_has_runtime", lambda device: device == "cpu")
    assert model.available_devices() == ["cpu"]


@pytest.mark.parametrize("count", ["0", "-1", "many"])
def test_the_number_of_tokens_is_checked(count, capsys):
    with pytest.raises(SystemExit):
        main(["demo", "--max-new-tokens", count])
    assert "--max-new-tokens" in capsys.readouterr().err


def test_table_shows_where_the_tokens_part_and_what_was_not_measured():
    result = {
        "model": "m", "dtype": "bfloat16", "device": "cpu", "graphs": 2, "graph_breaks": 0, "kernels_compiled": 4,
        "kernels_reused": 1, "dispatches_per_token": 9, "aten_calls_per_token": 2,
        "aten_calls": {"aten.mm": {"count": 2, "reason": "many rows"}}, "command_buffers_per_token": 1,
        "compile_seconds_cold": 3.21, "compile_seconds_warm": None, "tokens_per_second": None,
        "tokens_per_second_eager": 8.0, "tokens_match_eager": False, "first_difference": 4,
    }  # fmt: skip
    text = table.render(result)
    assert "2: many rows" in text and "no, they part at token 4" in text
    assert "3.2 (empty kernel cache)" in text and "not measured, the cache is off" in text and "- (eager: 8.0)" in text


def test_progress_ticks_on_a_terminal_only(capsys):
    for shown in (True, False):
        progress = Progress(1, shown=shown)
        with progress.stage("loading the model"):
            pass
        progress.close()
        assert ("loading the model" in capsys.readouterr().err) is shown
