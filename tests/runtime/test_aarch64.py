"""The CPU runtime for aarch64, its switch of fibers first of all, runs under qemu; results are this machine's."""

from __future__ import annotations

import pathlib
import shutil
import struct
import subprocess
from collections.abc import Sequence

import numpy as np
import pytest

from metal_inductor.metal import clang
from metal_inductor.metal.frontend import Translation, translate
from metal_inductor.runtime import cpu

pytestmark = pytest.mark.slow

ERROR_BYTES = 512
SOURCE = """
#include <metal_stdlib>
using namespace metal;

kernel void pointwise(device half* o, device const bfloat* a, device const float* b, constant int& n,
                      uint i [[thread_position_in_grid]]) {
  o[i] = half(tanh(float(a[i])) * exp(b[i]) + n);
}

kernel void row_sums(device float* o, device const float* a, constant int& columns,
                     uint row [[threadgroup_position_in_grid]], uint t [[thread_position_in_threadgroup]],
                     uint threads [[threads_per_threadgroup]], uint lane [[thread_index_in_simdgroup]],
                     uint simdgroup [[simdgroup_index_in_threadgroup]],
                     uint simdgroups [[simdgroups_per_threadgroup]]) {
  threadgroup float partial[32];
  float sum = 0;
  for (int column = t; column < columns; column += threads) sum += a[row * columns + column];
  sum = simd_sum(sum);
  if (lane == 0) partial[simdgroup] = sum;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (simdgroup == 0) {
    sum = simd_sum(lane < simdgroups ? partial[lane] : 0.0f);
    if (lane == 0) o[row] = sum;
  }
}

kernel void divergent(device int* o, uint i [[thread_position_in_grid]], uint lane [[thread_index_in_simdgroup]]) {
  int sum = 0;
  if (lane % 3 == 0) sum = simd_sum(1);
  else if (lane % 3 == 1) sum = simd_sum(100) + simd_max(int(lane));
  else for (uint step = 0; step < lane; step++) sum += simd_sum(1);
  o[i] = sum + 100000 * simd_sum(1);
}

kernel void multiply(device float* c, device const float* a, device const float* b,
                     uint2 tile [[threadgroup_position_in_grid]]) {
  simdgroup_float8x8 sum = make_filled_simdgroup_matrix<float, 8>(0.0f), left, right;
  for (int k = 0; k < 24; k += 8) {
    simdgroup_load(left, a + tile.y * 8 * 24 + k, 24);
    simdgroup_load(right, b + k * 16 + tile.x * 8, 16);
    simdgroup_multiply_accumulate(sum, left, right, sum);
  }
  simdgroup_store(sum, c + tile.y * 8 * 16 + tile.x * 8, 16);
}

kernel void scan(device long* o, device const int* a, uint i [[thread_position_in_grid]],
                 uint t [[thread_index_in_threadgroup]], uint threads [[threads_per_threadgroup]]) {
  threadgroup long sums[1024];
  sums[t] = a[i];
  for (uint step = 1; step < threads; step *= 2) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    long before = t >= step ? sums[t - step] : 0;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    sums[t] += before;
  }
  o[i] = sums[t];
}

kernel void many_live_values(device float* o, device const float* a, uint i [[thread_position_in_grid]],
                             uint lane [[thread_index_in_simdgroup]]) {
  float values[24];
  for (int j = 0; j < 24; j++) values[j] = a[i] * (j + 1);
  for (int round = 0; round < 20; round++) {
    threadgroup_barrier(mem_flags::mem_none);
    float next = simd_shuffle(values[0], (lane + 1) % 32);
    for (int j = 0; j < 24; j++) values[j] = values[j] + next;
  }
  float sum = 0;
  for (int j = 0; j < 24; j++) sum += values[j];
  o[i] = sum;
}

kernel void count(device atomic_int* o, uint i [[thread_position_in_grid]]) {
  atomic_fetch_add_explicit(o + i % 7, int(i % 5), memory_order_relaxed);
}

kernel void deadlock(device int* o, uint t [[thread_position_in_threadgroup]]) {
  if (t < 5) return;
  threadgroup_barrier(mem_flags::mem_none);
  o[t] = 1;
}
"""

Arrays = list[np.ndarray]
random = np.random.default_rng(0)


def rows(count: int, columns: int) -> np.ndarray:
    return random.standard_normal((count, columns), np.float32)


def bfloats(values: np.ndarray) -> np.ndarray:
    return (values.view(np.uint32) >> 16).astype(np.uint16)


RUNS: dict[str, tuple[Arrays, Sequence[int], Sequence[int]]] = {
    "pointwise": (
        [np.zeros(50001, np.float16), bfloats(rows(1, 50001)), rows(1, 50001), np.int32(3)[None]],
        (50001, 1, 1),
        (100, 1, 1),
    ),
    "row_sums": ([np.zeros(70, np.float32), rows(70, 333), np.int32(333)[None]], (70 * 96, 1, 1), (96, 1, 1)),
    "divergent": ([np.zeros(4000, np.int32)], (4000, 1, 1), (64, 1, 1)),
    "multiply": ([np.zeros((16, 16), np.float32), rows(16, 24), rows(24, 16)], (64, 2, 1), (32, 1, 1)),
    "scan": ([np.zeros(5000, np.int64), random.integers(-9, 9, 5000, np.int32)], (5000, 1, 1), (1000, 1, 1)),
    "many_live_values": ([np.zeros(5120, np.float32), rows(1, 5120)], (5120, 1, 1), (256, 1, 1)),
    "count": ([np.zeros(7, np.int32)], (100003, 1, 1), (128, 1, 1)),
}


@pytest.fixture(scope="session")
def translation() -> Translation:
    return translate(SOURCE)


@pytest.fixture(scope="session")
def program(translation: Translation, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Runtime, driver and kernels in one static executable for aarch64 Linux."""
    folder = tmp_path_factory.mktemp("aarch64")
    kernels = " ".join(f"K({k.symbol}, {int(not k.uses_fibers)}, {k.threadgroup_bytes})" for k in translation.kernels)
    driver = (pathlib.Path(__file__).parent / "aarch64_driver.c").read_text()
    text = f"{cpu.native_source()}\n#define KERNELS(K) {kernels}\n{driver}"
    (folder / "runtime.o").write_bytes(clang.compile_object(text, "aarch64", runtime=True))
    (folder / "kernels.o").write_bytes(clang.compile_object(translation.text, "aarch64"))
    link = [clang.command()[0], "cc", "-target", "aarch64-linux-musl", "-static", "runtime.o", "kernels.o", "-o", "run"]
    built = subprocess.run(link, cwd=folder, capture_output=True, text=True)  # zig compiles musl once and keeps it
    assert built.returncode == 0, built.stderr
    return folder / "run"


def emulate(
    program: pathlib.Path, cores: int, seed: int, runs: Sequence[tuple[int, Arrays, Sequence[int], Sequence[int]]]
):
    """(error or "", buffers afterwards) of each run."""
    qemu = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")
    assert qemu, "this test needs qemu-aarch64: install the package 'qemu-user' (Debian, Ubuntu) or 'qemu-user-static'"
    request = struct.pack("=IQ", cores, seed)
    for kernel, arrays, threads, group in runs:
        request += struct.pack("=8I", kernel, *threads, *group, len(arrays))
        request += b"".join(struct.pack("=Q", array.nbytes) + array.tobytes() for array in arrays)
    answer = subprocess.run([qemu, str(program)], input=request, capture_output=True, timeout=600)
    assert answer.returncode == 0, answer.stderr
    left = memoryview(answer.stdout)
    for _, arrays, _, _ in runs:
        (failed,), error = struct.unpack_from("=I", left), bytes(left[4 : 4 + ERROR_BYTES])
        left = left[4 + ERROR_BYTES :]
        found = []
        for array in arrays:
            found.append(np.frombuffer(left[: array.nbytes], array.dtype).reshape(array.shape))
            left = left[array.nbytes :]
        yield error.partition(b"\0")[0].decode() if failed else "", found


def here(arrays: Arrays, name: str, threads: Sequence[int], group: Sequence[int]) -> Arrays:
    copies = [array.copy() for array in arrays]
    cpu.run(cpu.CpuLibrary.load(SOURCE), name, [array.ctypes.data for array in copies], threads, group)
    return copies


def expected(name: str, arrays: Arrays) -> np.ndarray:
    """What the first buffer holds after the kernel, by numpy."""
    out, *inputs = arrays
    if name == "pointwise":
        a = (inputs[0].astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        return (np.tanh(a) * np.exp(inputs[1].astype(np.float64)) + 3)[0]
    if name == "row_sums":
        return inputs[0].astype(np.float64).sum(1)
    if name == "multiply":
        return inputs[0].astype(np.float64) @ inputs[1].astype(np.float64)
    if name == "scan":
        return inputs[0].reshape(5, 1000).astype(np.int64).cumsum(1).reshape(-1)
    if name == "many_live_values":
        return live_values(inputs[0][0].astype(np.float64))
    if name == "count":
        i = np.arange(100003)
        return np.bincount(i % 7, i % 5).astype(np.int32)
    lane = np.arange(out.size) % 32
    loops = [sum((lane[:32][lane[:32] % 3 == 2] > step).sum() for step in range(n)) for n in range(32)]
    ways = [np.full(32, 11), np.full(32, 100 * 11 + 31), np.array(loops)]
    return np.array(ways)[lane % 3, lane] + 3200000


def live_values(a: np.ndarray) -> np.ndarray:
    values = a[:, None] * np.arange(1, 25)
    for _ in range(20):
        values = values + np.roll(values[:, 0].reshape(-1, 32), -1, 1).reshape(-1, 1)
    return values.sum(1)


@pytest.mark.parametrize("cores, seed", [(1, 0), (4, 0), (1, 7), (3, 11)])
def test_kernels_compute_what_numpy_and_this_machine_do(translation, program, cores, seed):
    numbers = {kernel.name: number for number, kernel in enumerate(translation.kernels)}
    runs = [(numbers[name], *RUNS[name]) for name in RUNS]
    for name, (error, found) in zip(RUNS, emulate(program, cores, seed, runs), strict=True):
        assert error == "", name
        arrays, threads, group = RUNS[name]
        for emulated, native in zip(found, here(arrays, name, threads, group)):
            np.testing.assert_array_equal(emulated, native, err_msg=name)
        exact = expected(name, arrays)
        rounding = 1e-3 if name == "pointwise" else 1e-6
        np.testing.assert_allclose(found[0], exact, rtol=rounding, atol=rounding * np.abs(exact).max(), err_msg=name)


@pytest.mark.parametrize("seed", [0, 5])
def test_every_register_that_a_call_preserves_survives_a_switch(translation, program, seed):
    threads = 1000
    run = (len(translation.kernels), [np.zeros((threads, 18), np.uint64)], (threads, 1, 1), (threads, 1, 1))
    ((error, (found,)),) = emulate(program, 1, seed, [run])
    assert error == ""
    np.testing.assert_array_equal(found, 1000 * np.arange(threads)[:, None] + np.arange(18) + 50)


def test_a_deadlock_is_reported_and_the_next_kernel_runs(translation, program):
    numbers = {kernel.name: number for number, kernel in enumerate(translation.kernels)}
    stuck = (numbers["deadlock"], [np.zeros(64, np.int32)], (64, 1, 1), (64, 1, 1))
    after = (numbers["divergent"], *RUNS["divergent"])
    (error, _), (no_error, (found,)) = emulate(program, 1, 0, [stuck, after])
    assert "59 of 64" in error and no_error == ""
    np.testing.assert_array_equal(found, expected("divergent", RUNS["divergent"][0]))
