"""What Metal allows is not reported: each way of ordering accesses, and accesses that need no order."""

from __future__ import annotations

import pytest
import torch

import metal_inductor
from metal_inductor.runtime.checks import MetalCheckError, MetalCheckWarning
from metal_inductor.runtime.cpu import configure

pytestmark = [
    pytest.mark.filterwarnings(f"error::{MetalCheckWarning.__module__}.{MetalCheckWarning.__name__}"),
    pytest.mark.filterwarnings("ignore:.*the initialiser of a threadgroup variable"),
]

SOURCE = """
#include <metal_stdlib>
using namespace metal;

constant float table[4] = {1, 10, 100, 1000};

kernel void tables_and_stacks(device float* out, uint i [[thread_position_in_grid]]) {
  float mine[8];
  for (uint k = 0; k < 8; k++) mine[k] = table[(k + i) % 4];
  thread const float* chosen = i % 2 ? mine : mine + 4;
  out[i] = chosen[i % 4];
}

kernel void mirrored(device float* out, device float* spare, uint i [[thread_position_in_threadgroup]],
                     uint t [[thread_position_in_grid]], uint threads [[threads_per_threadgroup]]) {
  threadgroup float tile[256];
  tile[i] = i;
  spare[t] = i;
  threadgroup_barrier(mem_flags::mem_threadgroup | mem_flags::mem_device);
  out[t] = tile[threads - 1 - i] + spare[t - i + threads - 1 - i];
}

kernel void within_simdgroups(device float* out, uint i [[thread_position_in_threadgroup]],
                              uint lane [[thread_index_in_simdgroup]], uint first [[simdgroup_index_in_threadgroup]]) {
  threadgroup float tile[8][32];
  for (uint round = 0; round < 3; round++) {
    tile[first][lane] = lane + round;
    simdgroup_barrier(mem_flags::mem_threadgroup);
    out[i] = tile[first][31 - lane];
    simdgroup_barrier(mem_flags::mem_threadgroup);
  }
}

kernel void counted(device atomic_uint* total, device float* out, uint t [[thread_position_in_grid]],
                    uint i [[thread_position_in_threadgroup]]) {
  threadgroup atomic_uint here;
  if (i == 0) atomic_store_explicit(&here, 0u, memory_order_relaxed);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const uint place = atomic_fetch_add_explicit(&here, 1u, memory_order_relaxed);
  atomic_fetch_max_explicit(total, place, memory_order_relaxed);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  out[t] = atomic_load_explicit(&here, memory_order_relaxed);
}

// The threadgroup that comes last adds up what all have stored.
kernel void last_one_sums(device float* partial, device atomic_uint* arrived, device float* out,
                          uint group [[threadgroup_position_in_grid]], uint groups [[threadgroups_per_grid]],
                          uint i [[thread_position_in_threadgroup]]) {
  threadgroup uint before;
  if (i == 0) {
    partial[group] = group;
    FENCE
    before = atomic_fetch_add_explicit(arrived, 1u, memory_order_relaxed);
    FENCE
  }
  threadgroup_barrier(mem_flags::mem_threadgroup | mem_flags::mem_device);
  if (before == groups - 1 && i == 0) {
    float sum = 0;
    for (uint other = 0; other < groups; other++) sum += partial[other];
    out[0] = sum;
  }
}

kernel void bytes_of_a_word(device uchar* out, device half* halves, uint t [[thread_position_in_grid]]) {
  out[t] = t;
  halves[t] = t;
  out[t] += 1;
}

struct Item { half weight; float2 place; uchar kind; };
kernel void structures(device Item* items, uint t [[thread_position_in_grid]],
                       uint i [[thread_position_in_threadgroup]]) {
  threadgroup Item shared[64];
  Item item = {half(t), float2(t, 1), 3};
  shared[i].weight = item.weight; shared[i].place = item.place; shared[i].kind = item.kind;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  items[t] = shared[63 - i];
}

kernel void chosen_memory(device float* a, device float* b, uint t [[thread_position_in_grid]],
                          uint i [[thread_position_in_threadgroup]]) {
  threadgroup float one[64], two[64];
  device float* target = t & 1 ? a : b;
  threadgroup float* tile = t & 2 ? one : two;
  tile[i] = t;
  target[t] = tile[i];
}

kernel void one_outside(device float* out, uint3 at [[thread_position_in_grid]], uint3 grid [[threads_per_grid]]) {
  const bool last = at.x == grid.x - 1 && at.y == grid.y - 1 && at.z == grid.z - 1;
  out[(last ? 1000000u : 0u) + at.x + grid.x * (at.y + grid.y * at.z)] = 1;
}

kernel void swapped(device float* a, device float* b, constant uint& rounds, uint i [[thread_position_in_grid]]) {
  device float* from = a;
  device float* to = b;
  for (uint k = 0; k < rounds; k++) {
    to[i] = from[i] + 1;
    device float* other = from;
    from = to;
    to = other;
  }
}

kernel void zeroed(device float* out, uint i [[thread_position_in_threadgroup]]) {
  threadgroup float sums[64] = {0};
  threadgroup_barrier(mem_flags::mem_threadgroup);
  out[i] = sums[63 - i];
}
""".replace("FENCE", "atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst, thread_scope_device);")


@pytest.fixture(scope="module")
def library():
    return metal_inductor.compile_shader(SOURCE, device="cpu")


@pytest.fixture(params=[0, 3])
def schedule(request):
    configure(schedule=request.param)
    yield request.param
    configure(schedule=0)


def test_constants_and_thread_memory(library):
    out = torch.zeros(8)
    library.tables_and_stacks(out, threads=8, checks=True)
    assert out.tolist() == [[1, 10, 100, 1000][(i % 4 + i) % 4] for i in range(8)]


def test_barriers_with_the_right_flags(library, schedule):
    out, spare = torch.zeros(96 * 3 - 7), torch.zeros(96 * 3)
    library.mirrored(out, spare, threads=len(out), group_size=96, checks=True)
    sizes = (96, 96, 89)
    assert out.tolist() == [2.0 * (size - 1 - i) for size in sizes for i in range(size)]


def test_simdgroup_barriers(library, schedule):
    out = torch.zeros(100)
    with pytest.raises(MetalCheckError):  # the last simdgroup has four lanes, which read what nobody wrote
        library.within_simdgroups(out, threads=100, group_size=100, checks=True)
    library.within_simdgroups(out[:96], threads=96, group_size=96, checks=True)
    assert out[:96].tolist() == [33.0 - i for i in range(32)] * 3


def test_atomics(library, schedule):
    out, total = torch.zeros(128), torch.zeros(1, dtype=torch.int32)
    library.counted(total, out, threads=128, group_size=64, checks=True)
    assert (out == 64).all() and total.item() == 63


def test_fences_between_threadgroups(library, schedule):
    partial, arrived, out = torch.zeros(9), torch.zeros(1, dtype=torch.int32), torch.zeros(1)
    library.last_one_sums(partial, arrived, out, threads=9 * 32, group_size=32, checks=True)
    assert out.item() == 36
    unfenced = metal_inductor.compile_shader(SOURCE.replace("atomic_thread_fence(", "(void)("), device="cpu")
    arrived.zero_()
    with pytest.raises(MetalCheckError, match="race on argument 'partial'"):
        unfenced.last_one_sums(partial, arrived, out, threads=9 * 32, group_size=32, checks=True)


def test_neighbouring_bytes(library):
    out, halves = torch.zeros(70, dtype=torch.uint8), torch.zeros(70, dtype=torch.float16)
    library.bytes_of_a_word(out, halves, threads=70, group_size=32, checks=True)
    assert out.tolist() == list(range(1, 71)) and halves.tolist() == list(range(70))


def test_structures_with_gaps(library):
    items = torch.zeros(128 * 24, dtype=torch.uint8)
    library.structures(items, threads=128, group_size=64, checks=True)
    weights = items.view(torch.float16).view(128, 12)[:, 0]
    assert weights.tolist() == [*range(63, -1, -1), *range(127, 63, -1)]


def test_pointers_chosen_at_run_time(library):
    a, b = torch.zeros(64), torch.zeros(64)
    library.chosen_memory(a, b, threads=64, group_size=64, checks=True)
    assert torch.equal(a + b, torch.arange(64.0)) and not a[::2].any() and not b[1::2].any()
    with pytest.raises(MetalCheckError) as caught:
        library.chosen_memory(a, b[:32].clone(), threads=64, group_size=64, checks=True)
    assert {report.kind for report in caught.value.reports} == {"bounds"}


def test_variables_that_begin_as_zero(library, schedule):
    out = torch.ones(64)
    library.zeroed(out, threads=64, group_size=64, checks=True)
    assert not out.any()


def test_one_storage_behind_two_arguments(library):
    """Threads that reach the same memory through different arguments race as well."""
    memory = torch.zeros(192)
    library.mirrored(memory[:64], memory[96:], threads=64, group_size=64, checks=True)
    with pytest.raises(MetalCheckError, match="race on argument"):
        library.mirrored(memory[:64], memory[32:], threads=64, group_size=64, checks="races")


@pytest.mark.parametrize("grid", [(7, 5, 3), (64, 2, 2), (33, 1, 1)])
def test_grids_of_every_shape(library, grid):
    """Threads are named by position, also in the smaller threadgroups at the edges."""
    out, group = torch.zeros(grid[0] * grid[1] * grid[2]), (4, 2, 2)
    with pytest.raises(MetalCheckError) as caught:
        library.one_outside(out, threads=grid, group_size=group, checks=True)
    (report,) = caught.value.reports
    assert report.thread.threadgroup == tuple((size - 1) // width for size, width in zip(grid, group))
    assert report.thread.position == tuple((size - 1) % width for size, width in zip(grid, group))
    assert out.sum() == len(out) - 1


def test_pointers_that_change_places(library):
    """In a loop each of the two may point to either buffer, whose ends differ."""
    a, b = torch.zeros(64), torch.zeros(32)
    library.swapped(a, b, 4, threads=32, group_size=32, checks=True)
    assert a[:32].tolist() == [4.0] * 32 and b.tolist() == [3.0] * 32
    with pytest.raises(MetalCheckError) as caught:
        library.swapped(a, b, 1, threads=64, group_size=64, checks=True)
    (report,) = caught.value.reports
    assert report.kind == "bounds" and report.address == "argument 'b' + 128 bytes (b[32])"
