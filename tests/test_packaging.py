from __future__ import annotations

import importlib.metadata
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import metal_inductor
from metal_inductor import config
from metal_inductor.__main__ import main

ROOT = Path(__file__).parents[1]
DATA_FOLDERS = ("templates", "metal/include", "runtime/native")


def installed(group: str = "torch_dynamo_backends") -> bool:
    return "metal_inductor" in importlib.metadata.entry_points(group=group).names


needs_installation = pytest.mark.skipif(
    not installed(), reason="this environment runs the checkout without installing it"
)


@pytest.fixture(scope="module")
def wheel_files(tmp_path_factory):
    pytest.importorskip("build")
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    shutil.copytree(ROOT / "metal_inductor", source / "metal_inductor", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(source)]
    subprocess.run(build, check=True, capture_output=True)
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        return set(wheel.namelist())


def package_files(pattern: str) -> set[str]:
    return {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "metal_inductor").glob(pattern)
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_the_wheel_holds_every_module(wheel_files):
    assert not package_files("**/*.py") - wheel_files


@pytest.mark.parametrize("folder", DATA_FOLDERS)
def test_the_wheel_holds_templates_headers_and_runtime_sources(wheel_files, folder):
    files = package_files(f"{folder}/**/*")
    assert files and not files - wheel_files


def test_the_wheel_holds_the_licence(wheel_files):
    assert any(name.endswith("licenses/LICENSE") for name in wheel_files)


@needs_installation
def test_the_backend_is_found_by_name_without_an_import():
    entries = importlib.metadata.entry_points(group="torch_dynamo_backends")
    assert entries["metal_inductor"].value == "metal_inductor.compiler:backend"


@needs_installation
def test_version_is_that_of_the_package():
    declared = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert metal_inductor.__version__ == declared[1] == importlib.metadata.version("metal-inductor")


def test_importing_the_package_does_not_import_torch():
    code = "import metal_inductor, sys; assert 'torch' not in sys.modules; assert 'backend' in dir(metal_inductor)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_unknown_public_name_lists_the_known_ones():
    with pytest.raises(AttributeError, match="compile_shader"):
        metal_inductor.nothing_of_this_name  # noqa: B018


@pytest.mark.parametrize("name", metal_inductor.__all__)
def test_every_public_name_is_there(name):
    assert getattr(metal_inductor, name) is not None


@needs_installation
def test_pins_satisfy_the_declared_dependencies():
    from packaging.requirements import Requirement

    lines = (ROOT / "requirements" / "pins.txt").read_text().splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    pinned = {pin.name: next(iter(pin.specifier)).version for pin in pins if not pin.marker or pin.marker.evaluate()}
    needed = [Requirement(text) for text in importlib.metadata.requires("metal-inductor")]
    for requirement in needed:
        if not requirement.marker or any(
            requirement.marker.evaluate({"extra": extra}) for extra in ("", "demo", "test")
        ):
            assert requirement.name in pinned, f"{requirement.name} has no pin"
            assert requirement.specifier.contains(pinned[requirement.name])


def test_config_prints_the_table_of_the_readme(capsys):
    assert main(["config", "--markdown"]) == 0
    assert capsys.readouterr().out == config.markdown()


def test_config_prints_the_values_in_force(capsys, monkeypatch):
    monkeypatch.setenv("METAL_INDUCTOR_COMMIT_EVERY", "3")
    assert main(["config"]) == 0
    assert "commit_every = 3\n" in capsys.readouterr().out


def test_a_wrong_variable_is_told_without_a_traceback(capsys, monkeypatch):
    monkeypatch.setenv("METAL_INDUCTOR_COMMIT_EVERY", "often")
    assert main(["config"]) == 2
    assert "METAL_INDUCTOR_COMMIT_EVERY='often'" in capsys.readouterr().err


def test_cache_info_and_clear(capsys, monkeypatch, tmp_path):
    from metal_inductor import cache

    monkeypatch.setenv("METAL_INDUCTOR_CACHE_DIR", str(tmp_path))
    cache.default().get_or_build(cache.key("some kernel"), ".so", lambda: b"code")
    assert main(["cache", "info"]) == 0
    told = capsys.readouterr().out
    assert str(tmp_path) in told and "entries: 1\n" in told and "bytes: 4\n" in told
    assert main(["cache", "clear"]) == 0
    assert main(["cache", "info"]) == 0
    assert "removed 1 entries" in (told := capsys.readouterr().out) and "entries: 0\n" in told
