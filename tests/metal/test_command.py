"""`python -m metal_inductor metal FILE`: what it prints and its exit status; and the warnings of compile_shader."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import warnings

import pytest

from metal_inductor.__main__ import main
from metal_inductor.metal import MetalWarning, compile_shader
from metal_inductor.metal.diagnostics import find_warnings

HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"
TOTAL = """
template <typename T, int N>
[[max_total_threads_per_threadgroup(256)]] kernel void total(
    device T* out, device const T* in [[buffer(1)]], constant int& n [[buffer(3)]],
    threadgroup float* extra [[threadgroup(0)]], uint t [[thread_position_in_threadgroup]]) {
  threadgroup float partial[N];
  threadgroup half3 more[N + 1];
  partial[t] = t < uint(n) ? float(in[t]) : 0;
  more[t] = half3(0);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  out[t] = T(partial[N - 1 - t] + extra[0]);
}
template [[host_name("total_half")]] kernel void total<half, 10>(
    device half*, device const half*, constant int&, threadgroup float*, uint);
"""
BAD = (
    HEAD
    + "kernel void k(device float* x) {\n  x[0] = max(x[0], 1);\n  float* p;\n  x[1] = (int(x[2]) / 65536) % 6;\n}\n"
)


def run(capsys, *arguments: object) -> tuple[int, str, str]:
    status = main(["metal", *map(str, arguments)])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


@pytest.fixture
def file(tmp_path):
    def write(text: str, name: str = "lib.metal"):
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return write


def test_list_gives_limits_and_arguments(capsys, file):
    status, out, _ = run(capsys, file(HEAD + TOTAL), "--list")
    assert status == 0
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert lines == [
        "kernel total_half",
        "threadgroup memory: 144 bytes",
        "max threads per threadgroup: 256",
        "buffer(0) device device T* out",
        "buffer(1) device device const T* in",
        "buffer(3) constant constant int& n",
        "threadgroup(0) threadgroup threadgroup float* extra",
        "[[thread_position_in_threadgroup]] uint t",
    ]


def test_json_holds_the_same(capsys, file):
    status, out, _ = run(capsys, file(HEAD + TOTAL), "--list", "--json", "--device", "cuda")
    result = json.loads(out)
    (kernel,) = result["kernels"]
    assert (status, result["diagnostics"]) == (0, [])
    assert (kernel["name"], kernel["threadgroup_bytes"], kernel["max_threads"]) == ("total_half", 144, 256)
    assert [(a["kind"], a["index"], a["address_space"]) for a in kernel["arguments"][2:4]] == [
        ("buffer", 3, "constant"),
        ("threadgroup", 0, "threadgroup"),
    ]


def test_check_prints_every_error_with_its_place(capsys, file):
    path = file(BAD)
    status, out, _ = run(capsys, path, "--check")
    assert status == 1
    assert f"{path}:4:10: error: call to 'max' is ambiguous\n      x[0] = max(x[0], 1);\n             ^\n" in out
    assert f"{path}:5:8: error: pointer type must have explicit address space qualifier\n" in out
    assert f"{path}:6:30: warning: Apple's compiler miscompiles" in out
    assert out.endswith("2 errors, 1 warning, 0 kernels\n")


def test_without_check_only_the_first_error_is_shown(capsys, file):
    status, out, _ = run(capsys, file(BAD))
    assert status == 1
    assert out.count("error:") == 1 and "warning" not in out


def test_warnings_fail_only_when_asked_to(capsys, file):
    path = file(HEAD + "kernel void k(device int* x) {\n  x[0] = (x[1] / 65536) % 6;\n}\n")
    assert run(capsys, path, "--check")[0] == 0
    assert run(capsys, path, "--check", "--werror")[0] == 1


def test_macros_and_folders(capsys, file, tmp_path):
    (tmp_path / "deep").mkdir()
    file("#define OFFSET 3\n", "deep/offset.h")
    file("#define FACTOR 2\n", "factor.h")
    text = (
        HEAD
        + '#include "factor.h"\n#include "offset.h"\nkernel void k(device int* x) { x[0] = NAME * FACTOR + OFFSET; }\n'
    )
    path = file(text)
    assert run(capsys, path, "-D", "NAME=5", "-I", tmp_path / "deep")[0] == 0
    status, out, _ = run(capsys, path, "-I", tmp_path / "deep")
    assert (status, f"{path}:5:39: error: use of undeclared identifier 'NAME'" in out) == (1, True)
    assert run(capsys, path, "-D", "NAME=5")[0] == 1


def test_standard_input(capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO(HEAD + "kernel void k(device int* x) { x[0] = y; }\n"))
    status, out, _ = run(capsys, "-", "--check")
    assert (status, out.startswith("<stdin>:3:39: error: use of undeclared identifier 'y'")) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing.metal"], "'nothing.metal' is not a file"),
        (["-", "-I", "nowhere"], "-I 'nowhere' is not a folder"),
        (["-", "-D", "3x"], "must be NAME or NAME=VALUE"),
    ],
)
def test_misuse(capsys, arguments, message):
    status, out, err = run(capsys, *arguments)
    assert (status, out) == (2, "")
    assert message in err


def test_as_a_process(file):
    command = [sys.executable, "-m", "metal_inductor", "metal", file(BAD), "--check"]
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.returncode == 1
    assert ":4:10: error:" in process.stdout and not process.stderr


WARNED = [
    ("x[0] = (x[1] / 65536) % 6;", "miscompiles"),
    ("x[0] = x[1] / 65536u % n;", "miscompiles"),
    ("int q = n // 2;\n;", "'//' begins a comment"),
    ("x[0] = (n // (n + 1));\n);", "'//' begins a comment"),
    ("threadgroup int s[4] = {0}; x[0] = s[0];", "initialiser of a threadgroup variable"),
    ("ulong q = t * n; x[q] = 1;", "computed in 32 bits"),
    ("size_t q = t * 4096 + 1; x[q] = 1;", "computed in 32 bits"),
    ("if constexpr (sizeof(int) == 4) x[0] = 1;", "'if constexpr' is C++17"),
    ("AtomicType<half>::store(x, 1);", "compare-and-exchange"),
    ("AtomicType<long>::store(x, 1);", "two 32-bit atomics"),
]
QUIET = [
    "x[0] = (x[1] / 65536) % 8;",
    "x[0] = (x[1] / 32768) % 6;",
    "x[0] = x[1] % 65536 / 6;",
    "int q = n // the number of rows",
    "x[0] = n; // 2;",
    "f(n, // 2)\n3);",
    "ulong q = ulong(t) * n;",
    "ulong q = t + 4096;",
    "uint q = t * 4096;",
    "threadgroup int s[4]; s[0] = 0;",
    "threadgroup int* s = 0;",
    "AtomicType<float>::store(x, 1);",
]


def warned(body: str, head: str = "") -> list[str]:
    parameters = "device int* x, constant int& n, uint t [[thread_position_in_grid]]"
    found = find_warnings(f"{HEAD}{head} kernel void k({parameters}) {{\n{body}\n}}\n")
    assert {diagnostic.severity for diagnostic in found} <= {"warning"}
    return [diagnostic.message for diagnostic in found]


@pytest.mark.parametrize(("body", "message"), WARNED)
def test_known_compiler_bugs_are_warned_of(body, message):
    (found,) = warned(body)
    assert message in found


@pytest.mark.parametrize("body", QUIET)
def test_no_warning_where_there_is_no_bug(body):
    assert warned(body) == []


def test_large_groups():
    loop = "for (int i = 0; i < n; ++i) s[t] += x[i]; threadgroup_barrier(mem_flags::mem_threadgroup);"
    promise = "[[max_total_threads_per_threadgroup(1024)]]"
    assert "without max_total_threads_per_threadgroup" in warned(f"threadgroup int s[1024]; {loop}")[0]
    assert warned(f"threadgroup int s[32]; {loop}") == []
    assert warned(f"threadgroup int s[1024]; {loop}", promise) == []
    assert "'isnan' is wrong on M2" in warned("x[0] = isnan(float(n));", promise)[0]
    assert warned("x[0] = isnan(float(n));") == []


def test_unknown_attribute():
    assert warned("x[0] = 1;", "[[no_such_thing]]") == ["unknown attribute 'no_such_thing' ignored"]


def test_compile_shader_warns_once_a_text():
    text = HEAD + "kernel void k(device int* x) {\n  x[0] = (x[1] / 65536) % 6;\n}\n// once"
    with pytest.warns(MetalWarning, match="<metal>:4:25: warning: Apple's compiler") as caught:
        compile_shader(text, device="cpu")
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compile_shader(text, device="cpu")
