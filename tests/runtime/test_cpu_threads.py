"""How the CPU runtime runs the threads of a grid: positions, simdgroups, barriers, threadgroup memory."""

from __future__ import annotations

import numpy as np
import pytest

from metal_inductor.runtime import cpu

GRIDS = [(1, 1), (1000, 256), (70000, 256), ((17, 33, 5), (8, 4, 2)), ((3, 5000), (3, 7)), ((300, 2), (1024, 1))]
THREAD = np.dtype([(name, np.uint32, 3) for name in (
    "grid_position", "group_position", "position_in_group", "group_size", "dispatch_group_size", "groups", "grid",
)] + [(name, np.uint32) for name in ("lane", "simdgroup", "simdgroups", "index_in_group")])  # fmt: skip


def expected_threads(grid: tuple[int, int, int], group: tuple[int, int, int]) -> np.ndarray:
    threads = np.zeros(int(np.prod(grid)), THREAD)
    position = np.stack(np.unravel_index(np.arange(len(threads)), grid[::-1]), 1)[:, ::-1]
    size = np.minimum(group, np.array(grid) - position // group * group)
    within = position % group
    index = within[:, 0] + size[:, 0] * (within[:, 1] + size[:, 1] * within[:, 2])
    threads["grid_position"], threads["group_position"] = position, position // group
    threads["position_in_group"], threads["group_size"] = within, size
    threads["dispatch_group_size"], threads["grid"] = group, grid
    threads["groups"] = -(-np.array(grid) // group)
    threads["lane"], threads["simdgroup"], threads["index_in_group"] = index % 32, index // 32, index
    threads["simdgroups"] = -(-size.prod(1) // 32)
    return threads


@pytest.mark.parametrize("name", ["affine", "affine_fibers"])
@pytest.mark.parametrize(("grid", "group"), GRIDS)
def test_every_thread_of_the_grid_runs_once(launch, name, grid, group):
    count = int(np.prod(grid))
    given, out = np.arange(count + 1, dtype=np.float32), np.zeros(count + 1, np.float32)
    launch(name, given, out, threads=grid, group=group)
    np.testing.assert_array_equal(out[:-1], given[:-1] * 2 + 1)
    assert out[-1] == 0


@pytest.mark.parametrize(
    ("grid", "group"), [((17, 33, 5), (8, 4, 2)), ((100, 1, 1), (64, 1, 1)), ((5, 3, 2), (9, 9, 9))]
)
def test_a_thread_knows_where_it_is_also_at_the_edge(launch, grid, group):
    threads = np.zeros(int(np.prod(grid)), THREAD)
    launch("describe", threads, threads=grid, group=group)
    np.testing.assert_array_equal(threads, expected_threads(grid, group))


def test_geometry_is_right_when_dispatches_of_several_shapes_alternate(launch):
    for grid, group in [
        ((64, 2, 1), (32, 2, 1)),
        ((64, 2, 1), (16, 2, 1)),
        ((50, 2, 1), (32, 2, 1)),
        ((64, 2, 1), (32, 2, 1)),
    ]:
        threads = np.zeros(int(np.prod(grid)), THREAD)
        launch("describe", threads, threads=grid, group=group)
        np.testing.assert_array_equal(threads, expected_threads(grid, group))


@pytest.mark.parametrize("seed", [0, 5])
def test_a_loop_is_told_its_row_and_the_size_of_its_threadgroups(launch, seed):
    cpu.configure(schedule=seed)
    grid, group = (37, 10, 3), (8, 4, 2)
    threads = np.zeros(int(np.prod(grid)), THREAD)
    launch("describe_rows", threads, threads=grid, group=group)
    expected = expected_threads(grid, group)
    for name in ("group_size", "dispatch_group_size", "groups", "grid", "simdgroups"):
        np.testing.assert_array_equal(threads[name], expected[name], name)
    for name in ("grid_position", "group_position", "position_in_group"):
        np.testing.assert_array_equal(threads[name][:, 1:], expected[name][:, 1:], name)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_divergent_lanes_exchange_only_with_those_on_the_same_path(launch, seed):
    cpu.configure(schedule=seed)
    out = np.zeros(128, np.uint64)
    launch("divergent", out, threads=128, group=64)
    np.testing.assert_array_equal(out, np.tile([1600, 16], 64))


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_lanes_meet_again_after_loops_of_different_length(launch, seed):
    cpu.configure(schedule=seed)
    out = np.zeros(64, np.uint64)
    launch("ragged_loop", out, threads=64, group=64)
    expected = [sum(32 - i for i in range(lane + 1)) + 3200000 for lane in range(32)]
    np.testing.assert_array_equal(out, expected * 2)


@pytest.mark.parametrize("seed", [0, 3])
def test_arms_of_a_branch_may_exchange_different_numbers_of_times(launch, seed):
    cpu.configure(schedule=seed)
    out = np.zeros(32, np.uint64)
    launch("three_ways", out, threads=32, group=32)
    lanes = np.arange(32)
    first, second = lanes[lanes % 3 == 0], lanes[lanes % 3 == 1]
    arm = np.select([lanes % 3 == 0, lanes % 3 == 1], [first.sum(), second.sum() + 1000 * len(second)], 0)
    np.testing.assert_array_equal(out, arm + 3200000)


def test_lanes_that_returned_or_do_not_exist_take_no_part(launch):
    out = np.zeros(64, np.uint64)
    launch("early_return", out, threads=42, group=64)
    np.testing.assert_array_equal(out, [20] * 20 + [0] * 12 + [10] * 10 + [0] * 22)


@pytest.mark.parametrize("seed", [0, 4])
def test_a_wide_exchange_carries_three_words_of_each_lane_and_one_lane_works_for_all(launch, seed):
    cpu.configure(schedule=seed)
    out = np.zeros(80, np.uint64)
    launch("wide", out, threads=80, group=80)
    rows = np.arange(80 * 3).reshape(80, 3)
    sums = np.repeat([rows[:32].sum(), rows[32:64].sum(), rows[64:].sum()], [32, 32, 16])
    np.testing.assert_array_equal(out, sums + np.arange(80) % 32)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("group", [1, 32, 100, 1024])
def test_barriers_order_threadgroup_memory(launch, group, seed):
    cpu.configure(schedule=seed)
    given, out = np.arange(5000, dtype=np.float32), np.zeros(5000, np.float32)
    launch("reverse", given, out, threads=5000, group=group)
    full = 5000 // group * group
    np.testing.assert_array_equal(out[:full].reshape(-1, group), given[:full].reshape(-1, group)[:, ::-1])
    np.testing.assert_array_equal(out[full:], given[full:][::-1])


def test_threadgroup_arguments_have_the_length_given(launch):
    given, out = np.arange(100, dtype=np.float32), np.zeros(100, np.float32)
    launch("reverse_argument", given, out, threads=100, group=50, threadgroup_lengths={0: 1, 1: 200})
    np.testing.assert_array_equal(out.reshape(2, 50), given.reshape(2, 50)[:, ::-1])


def test_threadgroup_memory_is_poisoned_before_each_threadgroup(launch):
    out = np.zeros(100, np.uint32)
    given, scratch = np.zeros(1024, np.float32), np.zeros(1024, np.float32)
    launch("reverse", given, scratch, threads=1024, group=1024)
    launch("unwritten", out, threads=100, group=10)
    assert (out == 0xFFFFFFFF).all()


def test_a_shuffled_schedule_shows_a_missing_barrier_and_repeats_itself(launch):
    def outcome(seed: int) -> np.ndarray:
        cpu.configure(schedule=seed)
        out = np.zeros(256, np.uint32)
        launch("race", out, threads=256, group=128)
        return out

    assert (outcome(0) == 7).all()
    seeds = range(1, 9)
    outcomes = [outcome(seed) for seed in seeds]
    assert any((out != 7).any() for out in outcomes)
    for seed, out in zip(seeds, outcomes, strict=True):
        np.testing.assert_array_equal(outcome(seed), out)
