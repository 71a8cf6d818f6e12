"""Kernels taken out of PTX text with arguments passed by value: which loads change, and which must not."""

from __future__ import annotations

import re

import pytest

from metal_inductor.metal import clang
from metal_inductor.metal.frontend import translate
from metal_inductor.runtime.ptx import PassedByValue, PtxLibrary, block_bytes

SOURCE = """
#include <metal_stdlib>
using namespace metal;
struct record { int count; float4 weights; float list[8]; };

kernel void direct(device float* out, constant int& n, constant record& r, uint i [[thread_position_in_grid]]) {
  out[i] = n + r.weights.y + r.list[i & 7];
}
kernel void chosen(device float* out, constant float* a, constant float* b, uint i [[thread_position_in_grid]]) {
  constant float* from = i & 1 ? a : b;
  out[i] = from[i];
}
kernel void walked(device float* out, constant float* a, constant int& n, uint i [[thread_position_in_grid]]) {
  float sum = 0;
  for (int k = 0; k < n; k++) sum += a[k * k + i];
  out[i] = sum;
}
kernel void kept(device float* out, constant float* a, constant float* b, uint i [[thread_position_in_grid]]) {
  constant float* both[2] = {a, b};
  out[i] = both[i & 1][i] + out[i + 1];
}
kernel void asked(device float* out, constant float* a, uint i [[thread_position_in_grid]]) {
  out[i] = a ? a[i] : 1.0f;
}
kernel void writes(device float* out, device int* other, uint i [[thread_position_in_grid]]) {
  out[i] += 1;
  atomic_fetch_add_explicit((device atomic_int*)other, 1, memory_order_relaxed);
}
kernel void memory(device float* out, uint i [[thread_position_in_threadgroup]]) {
  threadgroup float space[sizeof(record) * 2];
  space[i] = out[i];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  out[i] = space[i ^ 1];
}
"""
NAMES = ("direct", "chosen", "walked", "kept", "asked", "writes", "memory")


@pytest.fixture(scope="module")
def library() -> PtxLibrary:
    return PtxLibrary.parse(clang.compile_cuda(translate(SOURCE, target="cuda").text).decode())


def text(library: PtxLibrary, name: str, by_value: dict[int, int], **options: int) -> str:
    return library.kernel(f"msl_k{NAMES.index(name)}", by_value, **options)


def loads(code: str) -> list[str]:
    """The space of every load that is neither a parameter's own address nor a size of the grid."""
    own = re.sub(r"ld\.param\.b\d+ *\t%\w+, \[msl_k\d+_param_\d+(?:\+\d+)?\];", "", code)
    return sorted(re.findall(r"\bld\.(global|param|local|shared|v4|b32|b64)", own))


def test_a_kernel_alone_has_one_entry_and_all_that_it_names(library):
    code = text(library, "memory", {})
    assert code.count(".entry") == 1 and ".extern .shared" in code and code.startswith("//")
    assert re.search(r"^\.version 7\.8$", code, re.M)


def test_without_values_the_text_is_the_compilers(library):
    for name in NAMES:
        assert library.entries[f"msl_k{NAMES.index(name)}"][1] in text(library, name, {})


def test_numbers_and_structures_are_read_from_parameters(library):
    code = text(library, "direct", {1: 16, 2: 64})
    assert ".param .align 16 .b8 msl_k0_param_1[16]" in code and ".param .align 16 .b8 msl_k0_param_2[64]" in code
    assert "ld.global" not in code and "cvta" not in code
    assert loads(code) == ["param"] * 3


def test_an_address_that_is_an_argument_stays_global(library):
    code = text(library, "direct", {1: 16})
    assert loads(code) == ["global", "global", "param"]


def test_a_choice_among_values_is_still_a_parameter(library):
    assert loads(text(library, "chosen", {1: 64, 2: 64})) == ["param"]


def test_a_choice_between_a_value_and_memory_is_generic(library):
    code = text(library, "chosen", {1: 64})
    assert loads(code) == ["b32"] and code.count("cvta.param.u64") == 1


def test_pointers_that_walk_in_loops_are_followed(library):
    code = text(library, "walked", {1: 4096, 2: 16})
    assert "ld.global" not in code and "cvta" not in code


def test_addresses_kept_in_memory_make_every_load_generic(library):
    code = text(library, "kept", {1: 64, 2: 64})
    assert "ld.global" not in code
    if "st.local" in code:
        assert code.count("cvta.param.u64") == 2


def test_an_address_that_is_compared_is_generic(library):
    code = text(library, "asked", {1: 64})
    assert "setp.eq.b64" not in code or "cvta.param.u64" in code


@pytest.mark.parametrize("number", [0, 1])
def test_a_value_that_is_written_is_refused(library, number):
    with pytest.raises(PassedByValue) as caught:
        text(library, "writes", {number: 16})
    assert caught.value.parameter == number


def test_large_parameters_need_a_later_version(library):
    assert ".version 7.8" in text(library, "walked", {1: 2048, 2: 16})
    assert ".version 8.1" in text(library, "walked", {1: 4096, 2: 16})


def test_a_limit_of_threads_is_in_the_text(library):
    assert ".maxntid 1024, 1, 1\n{" in text(library, "direct", {}, max_threads=1024)
    assert ".maxntid" not in text(library, "direct", {})


def test_blocks_have_few_sizes():
    assert [block_bytes(size) for size in (1, 8, 16, 17, 40, 4096)] == [16, 16, 16, 32, 64, 4096]


def test_threadgroup_memory_is_measured(library):
    infos = translate(SOURCE, target="cuda").kernels
    measured = {info.name: library.measured(info).threadgroup_bytes for info in infos}
    assert measured == {name: 64 * 2 * 4 if name == "memory" else 0 for name in NAMES}
