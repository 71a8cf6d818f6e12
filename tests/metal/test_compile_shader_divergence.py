"""Which lanes take part in a simdgroup operation where control flow has divided and rejoined them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import metal_inductor

HEAD = """#include <metal_stdlib>
using namespace metal;
"""
KERNEL = """
kernel void k%d(device float* out, device const uint* in, uint t [[thread_position_in_grid]],
                uint lane [[thread_index_in_simdgroup]]) {
  uint n = in[t];
  float result = 0;
  %s
  out[t] = result;
}
"""


def by_simdgroup(values: torch.Tensor, group: Callable[[int], int]) -> list[float]:
    """For each lane, the number of lanes of its simdgroup with the same `group` of their value."""
    rows = values.view(-1, 32).tolist()
    return [float(sum(group(other) == group(value) for other in row)) for row in rows for value in row]


# Text, and what it gives for lanes with the values of `in`: the lanes that are counted share a path.
CASES: dict[str, tuple[str, Callable[[torch.Tensor], list[float]]]] = {
    "two branches": (
        "if (n & 1) result = simd_sum(1.0f); else result = simd_sum(1.0f);",
        lambda v: by_simdgroup(v, lambda n: n & 1),
    ),
    "behind a branch": (
        "if (n & 1) { for (uint i = 0; i < n; ++i) result += out[t] + 1; } result = simd_sum(1.0f);",
        lambda v: [32.0] * len(v),
    ),
    "nested branches": (
        "if (n & 1) { if (n & 2) result = simd_sum(1.0f); else result = simd_sum(1.0f);"
        " result += 100 * simd_sum(1.0f); } result += 10000 * simd_sum(1.0f);",
        lambda v: [
            (a + 100 * b if n & 1 else 0) + 320000
            for n, a, b in zip(v.tolist(), by_simdgroup(v, lambda n: n & 3), by_simdgroup(v, lambda n: n & 1))
        ],
    ),
    "loops of different length": (
        "for (uint i = 0; i < n; ++i) result += 1; result = simd_sum(result);",
        lambda v: v.view(-1, 32).sum(1).float().repeat_interleave(32).tolist(),
    ),
    "an operation in a loop of different length": (
        "for (uint i = 0; i < n; ++i) result += simd_sum(1.0f);",
        lambda v: [
            float(sum(sum(other > i for other in row) for i in range(n)))
            for row in v.view(-1, 32).tolist()
            for n in row
        ],
    ),
    "a loop left by break": (
        "for (uint i = 0; i < 40; ++i) { if (i == n) break; result += 1; } result = simd_sum(result);",
        lambda v: v.view(-1, 32).sum(1).float().repeat_interleave(32).tolist(),
    ),
    "a loop with continue": (
        "for (uint i = 0; i < 4; ++i) { if ((n + i) & 1) continue; result += simd_sum(1.0f); }"
        " result += 1000 * simd_sum(1.0f);",
        lambda v: [2 * count + 32000 for count in by_simdgroup(v, lambda n: n & 1)],
    ),
    "an early return": (
        "out[t] = -1; if (n & 1) return; result = simd_sum(1.0f) + 100 * simd_max(lane & 1);",
        lambda v: [
            -1.0 if n & 1 else count + 100 * odd
            for n, count, odd in zip(
                v.tolist(),
                by_simdgroup(v, lambda n: n & 1),
                [
                    float(any(n % 2 == 0 and k & 1 for k, n in enumerate(row)))
                    for row in v.view(-1, 32).tolist()
                    for _ in row
                ],
            )
        ],
    ),
    "a switch": (
        "switch (n & 3) { case 0: result = simd_sum(1.0f); break; case 1: result = simd_sum(1.0f) * 2; break;"
        " default: result = simd_sum(1.0f) * 3; }",
        lambda v: [
            count * min(1 + (n & 3), 3) for n, count in zip(v.tolist(), by_simdgroup(v, lambda n: min(n & 3, 2)))
        ],
    ),
    "integers by one instruction": (
        "if (n & 1) result = float(simd_sum(int(n)));"
        " else result = float(simd_max(n)) + 1000 * float(simd_min(int(n)));",
        lambda v: [
            float(sum(odd)) if n & 1 else float(max(even) + 1000 * min(even))
            for row in v.view(-1, 32).tolist()
            for odd, even in [([n for n in row if n & 1], [n for n in row if not n & 1])]
            for n in row
        ],
    ),
    "prefix sums": (
        "if (n & 1) result = simd_prefix_inclusive_sum(1.0f); else result = simd_prefix_exclusive_sum(1.0f);",
        lambda v: [
            float(sum(other % 2 == n % 2 for other in row[:k]) + n % 2)
            for row in v.view(-1, 32).tolist()
            for k, n in enumerate(row)
        ],
    ),
    "votes": (
        "if (n & 1) result = popcount(uint(ulong(simd_ballot(n > 3))));"
        " else result = simd_all(n < 100) + 2 * simd_any(n > 99);",
        lambda v: [
            float(sum(other & 1 and other > 3 for other in row)) if n & 1 else 1.0
            for row in v.view(-1, 32).tolist()
            for n in row
        ],
    ),
}


@pytest.fixture(scope="module")
def library(metal_device):
    kernels = "".join(KERNEL % (number, text) for number, (text, _) in enumerate(CASES.values()))
    return metal_inductor.compile_shader(HEAD + kernels, device=metal_device)


@pytest.mark.parametrize("spread", [2, 5, 40])
@pytest.mark.parametrize("case", CASES)
def test_lanes_on_one_path_meet(library, metal_device, case, spread):
    given = torch.randint(0, spread, (256,), dtype=torch.int32)
    out = torch.zeros(256, device=metal_device)
    getattr(library, f"k{list(CASES).index(case)}")(out, given.to(metal_device), threads=256, group_size=128)
    assert out.tolist() == CASES[case][1](given)


PARTIAL = """
kernel void partial(device float* out, device const float* in, uint3 at [[thread_position_in_grid]],
                    uint3 grid [[threads_per_grid]], uint simdgroups [[simdgroups_per_threadgroup]]) {
  uint t = at.x + grid.x * (at.y + grid.y * at.z);
  float x = in[t];
  device float* row = out + 8 * t;
  row[0] = simd_sum(x); row[1] = simd_max(x); row[2] = simd_prefix_inclusive_sum(x); row[3] = quad_sum(x);
  row[4] = float(simd_sum(int(x))); row[5] = float(popcount(uint(ulong(simd_active_threads_mask()))));
  row[6] = simd_broadcast_first(x) + float(simd_is_first()); row[7] = float(simdgroups);
}
"""


@pytest.mark.parametrize(("threads", "group"), [((45,), (64,)), ((7, 5), (6, 4)), ((5, 3, 6), (4, 2, 4)), ((1,), (1,))])
def test_a_partial_simdgroup_has_the_lanes_of_its_threadgroup(metal_device, threads, group):
    library = metal_inductor.compile_shader(HEAD + PARTIAL, device=metal_device)
    count = torch.Size(threads).numel()
    given = torch.randint(0, 50, (count,)).float()
    out = torch.zeros(count, 8, device=metal_device)
    library.partial(out, given.to(metal_device), threads=threads, group_size=group)
    expected = torch.zeros(count, 8)
    for members in threadgroups(threads, group):
        for begin in range(0, len(members), 32):
            lanes = members[begin : begin + 32]
            x = given[lanes]
            for lane, t in enumerate(lanes):
                quad = x[lane // 4 * 4 : lane // 4 * 4 + 4]
                first = x[0] + (lane == 0)
                row = [x.sum(), x.max(), x[: lane + 1].sum(), quad.sum(), x.sum(), len(lanes), first]
                expected[t] = torch.tensor([*row, -(-len(members) // 32)])
    assert torch.equal(out.cpu(), expected)


def threadgroups(threads: tuple[int, ...], group: tuple[int, ...]) -> list[list[int]]:
    """The threads of each threadgroup by their number in the grid, in the order of their index."""
    x, y, z = threads + (1,) * (3 - len(threads))
    a, b, c = group + (1,) * (3 - len(group))
    found = []
    for k in range(0, z, c):
        for j in range(0, y, b):
            for i in range(0, x, a):
                found.append(
                    [
                        u + x * (v + y * w)
                        for w in range(k, min(k + c, z))
                        for v in range(j, min(j + b, y))
                        for u in range(i, min(i + a, x))
                    ]
                )
    return found
