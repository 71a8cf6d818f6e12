// Softmax over the rows of a matrix, one threadgroup a row.
//
// Each thread walks its share of the row. A maximum or sum over the threadgroup takes two steps: simd_max over the lanes
// of each simdgroup, in registers, and then over one value from each simdgroup, through threadgroup memory.
#include <metal_stdlib>
using namespace metal;

kernel void softmax(device const float* in [[buffer(0)]], device float* out [[buffer(1)]],
                    constant uint& columns [[buffer(2)]], uint row [[threadgroup_position_in_grid]],
                    uint i [[thread_index_in_threadgroup]], uint threads [[threads_per_threadgroup]],
                    uint lane [[thread_index_in_simdgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]],
                    uint simdgroups [[simdgroups_per_threadgroup]]) {
  threadgroup float partial[32];
  in += row * columns;
  out += row * columns;

  float largest = -INFINITY;
  for (uint column = i; column < columns; column += threads) largest = max(largest, in[column]);
  largest = simd_max(largest);
  if (lane == 0) partial[simdgroup] = largest;
  // The other simdgroups' maxima are there.
  threadgroup_barrier(mem_flags::mem_threadgroup);
  largest = simd_max(lane < simdgroups ? partial[lane] : -INFINITY);

  float sum = 0;
  for (uint column = i; column < columns; column += threads) sum += exp(in[column] - largest);
  sum = simd_sum(sum);
  // All have read the maxima, whose place the sums take.
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (lane == 0) partial[simdgroup] = sum;
  // The other simdgroups' sums are there.
  threadgroup_barrier(mem_flags::mem_threadgroup);
  sum = simd_sum(lane < simdgroups ? partial[lane] : 0.0f);

  for (uint column = i; column < columns; column += threads) out[column] = exp(in[column] - largest) / sum;
}
