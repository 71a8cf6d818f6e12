from __future__ import annotations

import pathlib

import pytest

from metal_inductor import config

ROOT = pathlib.Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    for option in config.TABLE:
        monkeypatch.delenv(option.variable, raising=False)


def test_defaults_are_those_of_the_table():
    options = config.resolve()
    assert options.mode == "default"
    assert {option.name: getattr(options, option.name) for option in config.TABLE} == {
        option.name: option.default for option in config.TABLE
    }


def test_a_call_wins_over_the_environment_which_wins_over_the_default(monkeypatch):
    monkeypatch.setenv("METAL_INDUCTOR_COMMIT_EVERY", "5")
    assert config.resolve().commit_every == 5
    assert config.resolve({"commit_every": 7}).commit_every == 7


@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"])
def test_every_mode_of_torch_is_accepted(mode):
    assert config.resolve(mode=mode).mode == mode


@pytest.mark.parametrize(
    ("options", "mode", "named"),
    [
        ({"falback": "error"}, None, ["'falback'", "Did you mean 'fallback'?", "commit_every"]),
        ({"zzz": 1}, None, ["'zzz'", "Valid options", "fallback"]),
        (None, "reduce_overhead", ["Did you mean 'reduce-overhead'?", "max-autotune"]),
        ({"fallback": "ignore"}, None, ["fallback='ignore'", "'warn' or 'error'"]),
        ({"commit_every": 0}, None, ["commit_every=0", "at least 1"]),
        ({"commit_every": True}, None, ["commit_every=True", "integer"]),
        ({"fusion": 1}, None, ["fusion=1", "true or false"]),
        ({"dump_dir": 3}, None, ["dump_dir=3", "text"]),
        ({"cache_dir": "kernels"}, None, ["'cache_dir'", "whole process", "METAL_INDUCTOR_CACHE_DIR"]),
    ],
)
def test_what_is_wrong_and_what_is_valid_are_named(options, mode, named):
    with pytest.raises(ValueError) as error:
        config.resolve(options, mode)
    assert all(text in str(error.value) for text in named)
    assert "zzz" not in (options or {}) or "Did you mean" not in str(error.value)


@pytest.mark.parametrize(("text", "value"), [("0", False), ("off", False), ("", False), ("1", True), ("True", True)])
def test_booleans_of_the_environment(monkeypatch, text, value):
    monkeypatch.setenv("METAL_INDUCTOR_CACHE", text)
    assert config.resolve().cache is value


@pytest.mark.parametrize(
    ("name", "text"), [("COMMIT_EVERY", "many"), ("COMMIT_EVERY", "0"), ("FUSION", "maybe"), ("FALLBACK", "no")]
)
def test_a_wrong_variable_is_named_with_its_text(monkeypatch, name, text):
    monkeypatch.setenv(f"METAL_INDUCTOR_{name}", text)
    with pytest.raises(ValueError, match=f"METAL_INDUCTOR_{name}='{text}'"):
        config.resolve()


def test_a_path_object_is_text():
    assert config.resolve({"dump_dir": pathlib.Path("stages")}).dump_dir == "stages"


def test_options_and_table_have_the_same_names():
    names = {option.name for option in config.TABLE} | {"mode"}
    assert names == set(config.Options.__dataclass_fields__)


def test_readme_has_the_generated_tables():
    assert config.markdown() in (ROOT / "README.md").read_text(encoding="utf-8")
