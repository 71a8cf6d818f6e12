// Kernels that benchmarks/metal_cpu.py times. POINTWISE(name, type, expression) comes from there.
#include <metal_stdlib>
using namespace metal;

#define POINTWISE(name, type, expression) \
  kernel void name(device const type *in, device type *out, uint i [[thread_position_in_grid]]) { \
    const float x = float(in[i]); \
    out[i] = type(expression); \
  }

// One threadgroup for each row of n elements.
kernel void softmax(device const float *in, device float *out, constant int &n, uint row [[threadgroup_position_in_grid]],
                    uint thread_index [[thread_position_in_threadgroup]], uint threads [[threads_per_threadgroup]],
                    uint lane [[thread_index_in_simdgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]],
                    uint simdgroups [[simdgroups_per_threadgroup]]) {
  threadgroup float partial[32];
  device const float *x = in + row * n;
  device float *y = out + row * n;
  float largest = -INFINITY;
  for (int i = thread_index; i < n; i += threads) largest = max(largest, x[i]);
  largest = simd_max(largest);
  if (lane == 0) partial[simdgroup] = largest;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  largest = simd_max(lane < simdgroups ? partial[lane] : -INFINITY);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float sum = 0;
  for (int i = thread_index; i < n; i += threads) {
    const float e = exp(x[i] - largest);
    y[i] = e;
    sum += e;
  }
  sum = simd_sum(sum);
  if (lane == 0) partial[simdgroup] = sum;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  sum = simd_sum(lane < simdgroups ? partial[lane] : 0.0f);
  for (int i = thread_index; i < n; i += threads) y[i] /= sum;
}

// One simdgroup for each row of n elements, n a multiple of 4.
kernel void matrix_times_vector(device const float *matrix, device const float *vector, device float *out, constant int &n,
                                uint row [[threadgroup_position_in_grid]], uint lane [[thread_index_in_simdgroup]]) {
  float sum = 0;
  for (int i = 4 * lane; i < n; i += 128)
    sum += dot(*(device const float4 *)(matrix + row * n + i), *(device const float4 *)(vector + i));
  sum = simd_sum(sum);
  if (lane == 0) out[row] = sum;
}

// One simdgroup for each 8x8 tile of the product of two square matrices, n a multiple of 8.
kernel void matrix_product(device const float *a, device const float *b, device float *out, constant int &n,
                           uint2 tile [[threadgroup_position_in_grid]]) {
  simdgroup_float8x8 left, right, sum = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  for (int k = 0; k < n; k += 8) {
    simdgroup_load(left, a + 8 * tile.y * n + k, n);
    simdgroup_load(right, b + k * n + 8 * tile.x, n);
    simdgroup_multiply_accumulate(sum, left, right, sum);
  }
  simdgroup_store(sum, out + 8 * tile.y * n + 8 * tile.x, n);
}

// A 32x32 tile through threadgroup memory by 32x8 threads; both sides are multiples of 32.
kernel void transpose(device const float *in, device float *out, constant int &n, uint2 tile [[threadgroup_position_in_grid]],
                      uint2 place [[thread_position_in_threadgroup]]) {
  threadgroup float shared[32][33];
  for (uint i = place.y; i < 32; i += 8) shared[i][place.x] = in[(32 * tile.y + i) * n + 32 * tile.x + place.x];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint i = place.y; i < 32; i += 8) out[(32 * tile.x + i) * n + 32 * tile.y + place.x] = shared[place.x][i];
}

// The same operation n times, for its cost.
#define REPEATED(name, start, operation) \
  kernel void name(device float *out, constant int &n, uint i [[thread_position_in_grid]]) { \
    float x = start; \
    for (int k = 0; k < n; ++k) operation; \
    out[i] = x; \
  }
REPEATED(repeat_barrier, 1.0f, threadgroup_barrier(mem_flags::mem_threadgroup))
REPEATED(repeat_shuffle, 1.0f, x = simd_shuffle_xor(x, 1))
REPEATED(repeat_sum, 1.0f, x = simd_sum(x) * 0.03125f)
REPEATED(repeat_max, 1.0f, x = simd_max(x) * 0.5f)
REPEATED(repeat_prefix, 1.0f, x = simd_prefix_inclusive_sum(x) * 0.03125f)
REPEATED(repeat_any, 1.0f, x += simd_any(x > 3.0f))
REPEATED(repeat_quad, 1.0f, x = quad_sum(x) * 0.25f)
kernel void repeat_product(device float *out, constant int &n, uint i [[thread_position_in_grid]]) {
  simdgroup_float8x8 unit(1.0f), sum(0.0f);
  for (int k = 0; k < n; ++k) simdgroup_multiply_accumulate(sum, unit, unit, sum);
  out[i] = sum.thread_elements()[0];
}
