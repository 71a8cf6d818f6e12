"""Neighbouring products of 8x8 matrices share an instruction of a tensor core, where nothing comes between them."""

from __future__ import annotations

import pytest
import torch

from metal_inductor.metal import clang, compile_shader
from metal_inductor.metal.frontend import translate
from metal_inductor.metal.tensor_cores import pair_products

NAME = "mma.sync.aligned.m16n8k8.row.col.f32"


def product(sums, left, right, kind="f16", unused=(90, 91)):
    registers = ", ".join(f"%r{k}" for k in (*sums, *unused))
    return f"\t{NAME}.{kind}.{kind}.f32 {{{registers}}}, {{%r{left}, %r92}}, {{%r{right}}}, {{{registers}}};\n"


COMMENTS = "\t// end inline asm\n\tmov.b32 \t%r93, 0;\n\t// begin inline asm\n"


def test_two_products_of_one_right_matrix_become_one_instruction():
    text = "before\n" + product((1, 2), 3, 4) + COMMENTS + product((5, 6), 7, 4) + "after\n"
    pair = f"\t{NAME}.f16.f16.f32 {{%r1, %r2, %r5, %r6}}, {{%r3, %r7}}, {{%r4}}, {{%r1, %r2, %r5, %r6}};\n"
    assert pair_products(text) == "before\n" + COMMENTS + pair + "after\n"


@pytest.mark.parametrize(
    "text",
    [
        product((1, 2), 3, 4) + COMMENTS + product((5, 6), 7, 8),
        product((1, 2), 3, 4) + COMMENTS + product((1, 2), 7, 4),
        product((1, 2), 3, 4) + COMMENTS + product((5, 6), 7, 4, "bf16"),
        product((1, 2), 3, 4) + "\tmov.b32 \t%r7, %r1;\n" + product((5, 6), 7, 4),
        product((1, 2), 3, 4) + "\tadd.f32 \t%r7, %r1, %r1;\n" + product((5, 6), 7, 4),
    ],
    ids=["other right matrix", "one sum", "other elements", "a copy of what is used", "a sum is read between them"],
)
def test_other_neighbours_stay_as_they_are(text):
    assert pair_products(text) == text


SOURCE = """
#include <metal_stdlib>
#pragma metal_inductor simdgroups(whole)
%s
using namespace metal;
kernel void products(device float* out, device const half* x, uint lane [[thread_index_in_simdgroup]]) {
    threadgroup uint4 memory[24];
    threadgroup half* tile = (threadgroup half*)memory;
    for (uint i = lane; i < 192; i += 32) tile[i] = x[i];
    simdgroup_barrier(mem_flags::mem_threadgroup);
    simdgroup_half8x8 a[2], b;
    simdgroup_float8x8 d[2];
    simdgroup_load(b, tile + 128, 8, ulong2(0), true);
    for (int i = 0; i < 2; ++i) simdgroup_load(a[i], tile + 64 * i, 8);
    for (int i = 0; i < 2; ++i) d[i] = make_filled_simdgroup_matrix<float, 8>(0.0f);
    for (int i = 0; i < 2; ++i) simdgroup_multiply_accumulate(d[i], a[i], b, d[i]);
    for (int i = 0; i < 2; ++i) simdgroup_store(d[i], out + 64 * i, 8);
}
"""


def test_text_for_any_layout_needs_no_exchange_of_lanes():
    bound = clang.compile_cuda(translate(SOURCE % "", target="cuda").text).decode()
    free = clang.compile_cuda(translate(SOURCE % clang.ANY_MATRIX_LAYOUT, target="cuda").text).decode()
    assert bound.count("mma.sync") == 2 and "shfl.sync" in bound
    assert free.count("mma.sync") == 1 and "shfl.sync" not in free and "movmatrix" not in free


def test_products_in_any_layout(metal_device):
    x = torch.randint(-8, 8, (3, 8, 8)).to(metal_device, torch.float16)
    out = torch.full((2, 8, 8), torch.nan, device=metal_device)
    library = compile_shader(SOURCE % clang.ANY_MATRIX_LAYOUT, metal_device)
    library.products(out, x, threads=32, group_size=32)
    assert torch.equal(out, x[:2].float() @ x[2].float().T)
