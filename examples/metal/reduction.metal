// Mean and variance of the rows of a matrix, one threadgroup a row, with sums by halves in threadgroup memory.
#include <metal_stdlib>
using namespace metal;

constant constexpr uint max_threads = 256;

// The sum of `mine` over the threadgroup, the same in every thread. The upper half of the values is folded onto the
// lower one until one is left; an odd value in the middle waits for the next round.
inline float sum_over_threadgroup(threadgroup float* values, float mine, uint i, uint threads) {
  // A sum that was asked for before has been read by all.
  threadgroup_barrier(mem_flags::mem_threadgroup);
  values[i] = mine;
  for (uint width = threads; width > 1;) {
    const uint half_width = (width + 1) / 2;
    // The values of the last round are there.
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (i + half_width < width) values[i] += values[i + half_width];
    width = half_width;
  }
  // The sum is there.
  threadgroup_barrier(mem_flags::mem_threadgroup);
  return values[0];
}

[[max_total_threads_per_threadgroup(max_threads)]]
kernel void mean_and_variance(device const float* in [[buffer(0)]], device float* mean [[buffer(1)]],
                              device float* variance [[buffer(2)]], constant uint& columns [[buffer(3)]],
                              uint row [[threadgroup_position_in_grid]], uint i [[thread_index_in_threadgroup]],
                              uint threads [[threads_per_threadgroup]]) {
  threadgroup float values[max_threads];
  in += row * columns;

  float sum = 0;
  for (uint column = i; column < columns; column += threads) sum += in[column];
  const float average = sum_over_threadgroup(values, sum, i, threads) / columns;

  float squares = 0;
  for (uint column = i; column < columns; column += threads) {
    const float distance = in[column] - average;
    squares += distance * distance;
  }
  squares = sum_over_threadgroup(values, squares, i, threads);
  if (i == 0) {
    mean[row] = average;
    variance[row] = squares / columns;
  }
}
