// Running sums along the rows of a matrix, in two ways.
#include <metal_stdlib>
using namespace metal;

// One threadgroup a row of any length, tile by tile. Within a simdgroup the hardware sums; between simdgroups each adds up
// the totals of those before it; between tiles every thread carries the sum of all that went before.
kernel void scan(device const float* in [[buffer(0)]], device float* out [[buffer(1)]],
                 constant uint& columns [[buffer(2)]], uint row [[threadgroup_position_in_grid]],
                 uint i [[thread_index_in_threadgroup]], uint threads [[threads_per_threadgroup]],
                 uint lane [[thread_index_in_simdgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]],
                 uint simdgroups [[simdgroups_per_threadgroup]]) {
  threadgroup float totals[32];
  in += row * columns;
  out += row * columns;

  float carried = 0;
  for (uint begin = 0; begin < columns; begin += threads) {
    const uint column = begin + i;
    const float value = column < columns ? in[column] : 0.0f;
    const float sum = simd_prefix_inclusive_sum(value);
    if (lane == 31 || i == threads - 1) totals[simdgroup] = sum;
    // The totals of this tile are there.
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float before = carried;
    for (uint other = 0; other < simdgroups; other++) {
      if (other == simdgroup && column < columns) out[column] = before + sum;
      before += totals[other];
    }
    carried = before;
    // All have read the totals, whose place those of the next tile take.
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
}

// One threadgroup a row of at most 1024 values, one a thread, all in threadgroup memory: after the round with distance d
// each value is the sum of the last 2 d.
[[max_total_threads_per_threadgroup(1024)]]
kernel void scan_by_doubling(device const float* in [[buffer(0)]], device float* out [[buffer(1)]],
                             uint row [[threadgroup_position_in_grid]], uint i [[thread_index_in_threadgroup]],
                             uint columns [[threads_per_threadgroup]]) {
  threadgroup float values[1024];
  values[i] = in[row * columns + i];
  for (uint distance = 1; distance < columns; distance *= 2) {
    // The sums of the last round are there.
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const float left = i >= distance ? values[i - distance] : 0.0f;
    // All have read what this round changes.
    threadgroup_barrier(mem_flags::mem_threadgroup);
    values[i] += left;
  }
  out[row * columns + i] = values[i];
}
