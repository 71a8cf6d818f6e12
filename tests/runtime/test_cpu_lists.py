"""Dispatch lists and command buffers: order, concurrency, errors, fork and exit."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest

from metal_inductor.runtime import cpu


def steps(count: int, start: int = 0) -> int:
    for _ in range(count):
        start = (start * 3 + 1) % 2**64
    return start


def test_dispatches_run_in_order_over_many_command_buffers(launch):
    cell = np.zeros(1, np.uint64)
    dispatches = launch.listed("step", cell, threads=1, group=1, repeat=100)
    for _ in range(50):
        for begin in range(0, 100, 16):
            dispatches.commit(begin, min(begin + 16, 100))
    cpu.drain()
    assert cell[0] == steps(5000)


def test_only_the_committed_range_runs(launch):
    cell = np.zeros(1, np.uint64)
    dispatches = launch.listed("step", cell, threads=1, group=1, repeat=10)
    dispatches.commit(3, 5)
    dispatches.commit(7, 7)
    cpu.drain()
    assert cell[0] == steps(2) and len(dispatches) == 10


def test_geometry_is_taken_at_the_commit(launch):
    given, out = np.ones(100, np.float32), np.zeros(100, np.float32)
    rounds, count = np.array([20_000_000], np.uint64), np.zeros(1, np.uint64)
    dispatches = launch.listed("affine", given, out, threads=10, group=10)
    launch.listed("busy", rounds, count, threads=1, group=1).commit()  # holds the worker while the sizes change
    dispatches.commit()
    dispatches.set_threads(0, (60, 1, 1), (10, 1, 1))
    cpu.drain()
    assert (out != 0).sum() == 10
    dispatches.commit()
    cpu.drain()
    assert (out != 0).sum() == 60


def test_a_grid_without_threads_does_nothing(launch):
    given, out = np.ones(8, np.float32), np.zeros(8, np.float32)
    for name in ("affine", "affine_fibers"):
        for threads in ((0, 1, 1), (4, 0, 1), (4, 1, 0)):
            launch(name, given, out, threads=threads, group=4)
    assert not out.any()


def test_a_list_dropped_after_its_commit_lives_until_it_has_run(launch):
    cell = np.zeros(1, np.uint64)
    for _ in range(200):
        launch.listed("step", cell, threads=1, group=1, repeat=5).commit()
    gc.collect()
    cpu.drain()
    assert cell[0] == steps(1000)


def test_threads_commit_their_own_lists_at_the_same_time(launch):
    def work(cell: np.ndarray) -> None:
        for _ in range(100):
            launch.listed("step", cell, threads=1, group=1, repeat=7).commit()
            cpu.drain()

    cells = [np.zeros(1, np.uint64) for _ in range(6)]
    workers = [threading.Thread(target=work, args=(cell,)) for cell in cells]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [int(cell[0]) for cell in cells] == [steps(700)] * 6


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_any_number_of_cores_gives_the_same_result(launch, threads):
    cpu.configure(threads=threads)
    given = np.random.default_rng(0).random(300_000, np.float32)
    out, reversed_out = np.zeros_like(given), np.zeros_like(given)
    for _ in range(5):
        launch("affine", given, out, threads=len(given), group=256)
        launch("reverse", given, reversed_out, threads=len(given), group=250)
    np.testing.assert_array_equal(out, given * 2 + 1)
    np.testing.assert_array_equal(reversed_out.reshape(-1, 250), given.reshape(-1, 250)[:, ::-1])


def test_python_runs_while_the_worker_does(launch):
    rounds, count = np.array([200_000_000], np.uint64), np.zeros(1, np.uint64)
    dispatches = launch.listed("busy", rounds, count, threads=1, group=1)
    start = time.perf_counter()
    dispatches.commit()
    committed = time.perf_counter() - start
    drained = threading.Thread(target=cpu.drain)
    drained.start()
    ticks = 0
    while drained.is_alive():
        ticks += 1
        time.sleep(0.001)
    assert count[0] == 1 and ticks > 5
    assert committed < (time.perf_counter() - start) / 2


class TestDeadlock:
    def test_it_is_an_error_that_names_the_kernel(self, launch):
        launch.listed("deadlock", threads=64, group=64).commit()
        with pytest.raises(cpu.MetalRuntimeError, match=r"'deadlock'.*\(0, 0, 0\).*59 of 64 threads.*other 5"):
            cpu.drain()
        cpu.drain()

    def test_the_rest_of_its_command_buffer_is_lost_and_the_next_one_runs(self, launch, kernels):
        cell = np.zeros(1, np.uint64)
        failing = launch.listed("deadlock", threads=640, group=64)
        failing_then_step = cpu.CpuDispatchList(1)
        failing_then_step.pointers[0] = cell.ctypes.data
        failing_then_step.add(kernels, "deadlock", [], (640, 1, 1), (64, 1, 1))
        failing_then_step.add(kernels, "step", [0], (1, 1, 1), (1, 1, 1))
        failing_then_step.commit()
        failing.commit()
        launch.listed("step", cell, threads=1, group=1).commit()
        with pytest.raises(cpu.MetalRuntimeError):
            cpu.drain()
        assert cell[0] == steps(1)

    def test_stacks_are_not_lost(self, launch):
        for _ in range(50):
            launch.listed("deadlock", threads=1024, group=1024).commit()
            with pytest.raises(cpu.MetalRuntimeError):
                cpu.drain()
        given, out = np.arange(1024, dtype=np.float32), np.zeros(1024, np.float32)
        launch("reverse", given, out, threads=1024, group=1024)
        np.testing.assert_array_equal(out, given[::-1])

    def test_a_synchronous_run_reports_its_own_error_only(self, launch, kernels):
        launch.listed("deadlock", threads=64, group=64).commit()
        out = np.zeros(32, np.uint64)
        cpu.run(kernels, "early_return", [out.ctypes.data], (32, 1, 1), (32, 1, 1))
        assert out[0] == 20
        with pytest.raises(cpu.MetalRuntimeError):
            cpu.run(kernels, "deadlock", [], (64, 1, 1), (64, 1, 1))
        with pytest.raises(cpu.MetalRuntimeError):
            cpu.drain()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"threads": (1, 1)}, "3 axes"),
        ({"threads": (-1, 1, 1)}, "each axis of threads"),
        ({"threads": (2**32, 1, 1)}, "each axis of threads"),
        ({"threads": (2**31, 2**31, 2)}, "product"),
        ({"group_size": (0, 1, 1)}, "at least 1"),
        ({"group_size": (2048, 1, 1)}, "at most 1024"),
        ({"slots": [0, 2]}, "slot 2"),
        ({"slots": [0]}, r"'b1', buffer\(1\), is not bound"),
        ({"slots": [0, -1]}, r"'b1', buffer\(1\), is not bound"),
        ({"slots": [0, 1] + [-1] * 30}, "32 buffers"),
        ({"kernel_name": "reverse_argument"}, r"threadgroup\(0\) needs a length"),
        ({"kernel_name": "reverse_argument", "threadgroup_lengths": {0: 16, 1: 32768}}, "32784 bytes"),
        ({"kernel_name": "busy", "group_size": (65, 1, 1)}, "at most 64"),
    ],
)
def test_a_bad_dispatch_is_refused_with_what_is_valid(kernels, change, message):
    given = {"kernel_name": "affine", "slots": [0, 1], "threads": (1, 1, 1), "group_size": (1, 1, 1)} | change
    with pytest.raises(ValueError, match=message):
        cpu.CpuDispatchList(2).add(kernels, **given)


def test_an_unknown_kernel_is_refused_with_the_known_ones(kernels):
    with pytest.raises(KeyError, match="no kernel 'affin'.*affine"):
        cpu.CpuDispatchList(2).add(kernels, "affin", [], (1, 1, 1), (1, 1, 1))


def test_a_bad_commit_is_refused(launch):
    dispatches = launch.listed("step", np.zeros(1, np.uint64), threads=1, group=1)
    for begin, end in ((0, 2), (-1, 1), (1, 0)):
        with pytest.raises(ValueError, match="the list has dispatches"):
            dispatches.commit(begin, end)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_has_a_worker_of_its_own(launch):
    rounds, count = np.array([50_000_000], np.uint64), np.zeros(1, np.uint64)
    given, out = np.arange(100_000, dtype=np.float32), np.zeros(100_000, np.float32)
    launch("affine", given, out, threads=len(given), group=256)
    out[:] = 0
    launch.listed("busy", rounds, count, threads=1, group=1).commit()
    child = os.fork()
    if child == 0:
        try:
            cpu.drain()  # the parent's work is not ours
            launch("reverse", given, out, threads=len(given), group=500)
            same = np.array_equal(out.reshape(-1, 500), given.reshape(-1, 500)[:, ::-1])
            os._exit(0 if same and count[0] == 0 else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    cpu.drain()
    assert count[0] == 1 and not out.any()


def run_python(text: str, **environment: str) -> subprocess.CompletedProcess[str]:
    folder = os.path.dirname(__file__)
    prelude = f"import sys; sys.path.insert(0, {folder!r})\nimport numpy as np\nfrom conftest import *\n"
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", prelude + "launch = Launcher(load_kernels())\n" + textwrap.dedent(text)],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_a_program_that_ends_without_drain_ends_quietly():
    done = run_python("""
        rounds, count = np.array([50_000_000], np.uint64), np.zeros(1, np.uint64)
        launch.listed("busy", rounds, count, threads=1, group=1, repeat=3).commit()
        launch.listed("deadlock", threads=64, group=64).commit()
    """)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_schedule_comes_from_the_environment(launch):
    def outcome(seed: int) -> list[int]:
        cpu.configure(schedule=seed)
        launch("race", out, threads=256, group=128)
        return out.tolist()

    out = np.zeros(256, np.uint32)
    seed = next(seed for seed in range(1, 20) if outcome(seed) != [7] * 256)
    done = run_python(
        "out = np.zeros(256, np.uint32); launch('race', out, threads=256, group=128); print(out.tolist())",
        METAL_INDUCTOR_CPU_SCHEDULE=str(seed),
    )
    assert done.stdout == f"{outcome(seed)}\n", done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")
@pytest.mark.parametrize("threads", [1, 3])
def test_the_number_of_threads_comes_from_the_environment(threads):
    done = run_python(
        """
        import os
        given, out = np.zeros(1 << 20, np.float32), np.zeros(1 << 20, np.float32)
        before = len(os.listdir("/proc/self/task"))
        launch("affine_fibers", given, out, threads=len(given), group=256)
        print(len(os.listdir("/proc/self/task")) - before)
        """,
        METAL_INDUCTOR_CPU_THREADS=str(threads),
    )
    assert done.stdout == f"{threads}\n", done.stderr


def test_a_bad_environment_variable_is_named():
    done = run_python("", METAL_INDUCTOR_CPU_THREADS="many")
    assert "METAL_INDUCTOR_CPU_THREADS='many'" in done.stderr


def test_processes_that_start_at_once_with_an_empty_cache_all_work(tmp_path):
    program = "out = np.zeros(32, np.uint64); launch('early_return', out, threads=32, group=32); print(out[0])"
    results: list[subprocess.CompletedProcess[str]] = []
    starters = [
        threading.Thread(target=lambda: results.append(run_python(program, METAL_INDUCTOR_CACHE_DIR=str(tmp_path))))
        for _ in range(3)
    ]
    for starter in starters:
        starter.start()
    for starter in starters:
        starter.join()
    assert [done.stdout for done in results] == ["20\n"] * 3, [done.stderr for done in results]
    assert len(list(tmp_path.glob("kernels/*/*.so"))) == 2


def test_a_fault_loses_the_rest_of_its_command_buffer_and_following_ones_run(launch):
    steps = np.zeros(1, np.uint64)
    faulty = launch.listed("step", steps, threads=1, group=1, repeat=3)
    faulty.pointers[0] = 8
    faulty.commit()
    launch.listed("step", steps, threads=1, group=1).commit()
    with pytest.raises(cpu.MetalRuntimeError, match="kernel 'step' faulted: access to address 0x8"):
        cpu.drain()
    assert steps[0] == 1
