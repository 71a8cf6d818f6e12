"""Lanes that leave out an exchange in one iteration meet the others in the next: who takes part is who is there."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from metal_inductor.metal import compile_shader
from metal_inductor.metal.frontend import translate

ROUNDS = 5
LANES = np.arange(32)

HEAD = """#include <metal_stdlib>
using namespace metal;
inline float sum_of_some(uint t, int i) { if ((t + i) % 3 == 0) return 0; return simd_sum(1.0f); }
"""
LOOPS = {
    "continue": "for (int i = 0; i < rounds; i++) { if ((t + i) & 1) continue; r += simd_sum(1.0f); }",
    "branch": "for (int i = 0; i < rounds; ++i) if ((t + i) & 1) r += 0; else r += simd_sum(1.0f);",
    "no_increment": "for (int i = 0; i < rounds;) { if (((t + i++) & 1) == 0) { r += simd_sum(1.0f); } }",
    "while_loop": "int i = 0; while (i < rounds) { if (((t + i) & 1) == 0) r += simd_sum(1.0f); i++; }",
    "do_loop": "int i = 0; do { if (((t + i) & 1) == 0) r += simd_sum(1.0f); i++; } while (i < rounds);",
    "choice": "for (int i = 0; i < rounds; i++) r += ((t + i) & 1) ? 0.0f : simd_sum(1.0f);",
    "conjunction": "for (int i = 0; i < rounds; i++) (void)(((t + i) & 1) == 0 && (r += simd_sum(1.0f)) > 0);",
    "switch": "for (int i = 0; i < rounds; i++) switch ((t + i) & 1) { case 0: r += simd_sum(1.0f); break; default:; }",
}


def halves(lane: int) -> float:
    return 16.0 * sum((lane + i) % 2 == 0 for i in range(ROUNDS))


def ones_by_round(takes_part) -> list[float]:
    """What each lane adds up when those of a round that take part count each other."""
    return [sum(takes_part(LANES, i).sum() for i in range(ROUNDS) if takes_part(LANES, i)[lane]) for lane in LANES]


OTHERS = {
    "function": ("for (int i = 0; i < rounds; i++) r += sum_of_some(t, i);",
                 lambda: ones_by_round(lambda t, i: (t + i) % 3 != 0)),
    "last": ("for (int i = 0; i < rounds; i++) { r += simd_sum(1.0f); if (t == uint(i)) break; }",
             lambda: ones_by_round(lambda t, i: t >= i)),
    "inner": ("for (int i = 0; i < rounds; i++) for (uint j = 0; j < (t & 3); j++) r += simd_sum(1.0f);",
              lambda: [ROUNDS * sum((LANES % 4 > j).sum() for j in range(lane % 4)) for lane in LANES]),
    "lane": ("for (int i = 0; i < rounds; i++) if (t % 5 == uint(i)) r += simd_broadcast_first(float(t)) + 1;",
             lambda: [lane % 5 + 1 for lane in LANES]),
}  # fmt: skip


@pytest.fixture
def library(metal_device):
    bodies = LOOPS | {name: body for name, (body, _) in OTHERS.items()}
    kernels = [
        f"kernel void {name}_loop(device float* out, constant int& rounds, uint t [[thread_position_in_grid]])"
        f" {{ float r = 0; {body} out[t] = r; }}"
        for name, body in bodies.items()
    ]
    return compile_shader(HEAD + "\n".join(kernels), device=metal_device)


def run(library, name):
    out = torch.full((32,), -1.0, device=library.device)
    getattr(library, f"{name}_loop")(out, ROUNDS, threads=32)
    return out.cpu().numpy()


@pytest.mark.parametrize("name", LOOPS)
def test_every_other_lane_takes_part(library, name):
    np.testing.assert_array_equal(run(library, name), [halves(lane) for lane in LANES])


@pytest.mark.parametrize("name", OTHERS)
def test_those_take_part_who_are_there(library, name):
    np.testing.assert_array_equal(run(library, name), OTHERS[name][1]())


def test_loops_that_leave_nothing_out_stay_as_they_are():
    text = translate(
        "#include <metal_stdlib>\nusing namespace metal;\n"
        "kernel void k(device float* x, constant int& n, uint t [[thread_position_in_grid]]) {"
        " for (int i = 0; i < n; i++) { if (i & 1) continue; x[t] += i; } x[t] = simd_sum(x[t]);"
        " for (int i = 0; i < n; i++) { x[t] = simd_max(x[t]); if (t) x[t] += 1; } }"
    ).text
    assert "wait_for_simdgroup" not in text
