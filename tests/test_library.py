"""A kernel that the Metal compiler refuses is reported with all that a bug report needs."""

import re
from pathlib import Path

import pytest
import torch

from metal_inductor import library
from metal_inductor.codegen import kernel as kernel_module
from metal_inductor.metal import clang
from metal_inductor.metal.frontend import translate


def test_a_kernel_that_does_not_compile_names_kernel_code_line_message_and_file(monkeypatch, tmp_path):
    original = library.library

    def broken(sources):
        for source in sources:
            source.text = source.text.replace("{\n", "{\n    undeclared_name();\n", 1)
        return original(sources)

    monkeypatch.setattr(library, "library", broken)
    compiled = torch.compile(lambda x: x.sin() + 1, backend="metal_inductor", options={"dump_dir": str(tmp_path)})
    with pytest.raises(Exception, match="does not compile") as caught:
        compiled(torch.randn(7))
    message = str(caught.value)
    assert "undeclared_name" in message
    assert re.search(r"kernel: pointwise_[0-9a-f]{16}", message)
    assert "test_library.py" in message and "x.sin() + 1" in message
    path = re.search(r"text: (\S+\.metal)", message)
    assert path and "undeclared_name" in Path(path.group(1)).read_text()


def test_equal_kernels_are_in_the_library_once():
    sources = [
        kernel_module.KernelSource("k", "kernel void k() {}", "pointwise", (), (), (), False, (1, 1, 1), (1, 1, 1))
    ] * 3
    assert library.library(sources).count("kernel void k()") == 1


def test_the_compiler_may_count_on_indices_that_do_not_overflow():
    """A loop over an index that may wrap is not vectorised."""
    header = kernel_module.render("header.metal.j2", functions="", words=False)
    assert clang.NO_OVERFLOW in header.splitlines()
    body = "kernel void k(device int* o, constant int& n) { if (n + 1 < n) o[0] = 7777777; }"
    texts = [translate(f"{start}\n{body}").text for start in ("#include <metal_stdlib>", header)]
    assert ["7777777" in clang.assembly_cpu(text) for text in texts] == [True, False]
