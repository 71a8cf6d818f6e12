// c = a b for row-major matrices of any size: a has rows x depth elements, b has depth x columns.
#include <metal_stdlib>
using namespace metal;

constant constexpr uint tile = 16;

// One thread an element of c, a threadgroup of 16 x 16 threads a tile of it. Tiles of a and b go through threadgroup memory,
// where each element is read 16 times; elements beyond the edges are zero.
kernel void matmul_tiled(device const float* a [[buffer(0)]], device const float* b [[buffer(1)]],
                         device float* c [[buffer(2)]], constant uint& rows [[buffer(3)]],
                         constant uint& columns [[buffer(4)]], constant uint& depth [[buffer(5)]],
                         uint2 group [[threadgroup_position_in_grid]], uint2 at [[thread_position_in_threadgroup]]) {
  threadgroup float a_tile[tile][tile], b_tile[tile][tile];
  const uint row = group.y * tile + at.y, column = group.x * tile + at.x;

  float sum = 0;
  for (uint begin = 0; begin < depth; begin += tile) {
    const uint a_column = begin + at.x, b_row = begin + at.y;
    a_tile[at.y][at.x] = row < rows && a_column < depth ? a[row * depth + a_column] : 0.0f;
    b_tile[at.y][at.x] = b_row < depth && column < columns ? b[b_row * columns + column] : 0.0f;
    // Both tiles are there.
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint k = 0; k < tile; k++) sum += a_tile[at.y][k] * b_tile[k][at.x];
    // All have read the tiles, whose place the next ones take.
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  if (row < rows && column < columns) c[row * columns + column] = sum;
}

// The same with simdgroup matrices: a threadgroup of 128 threads makes 32 x 32 elements of c, each of its four simdgroups
// a quarter of 16 x 16 as 2 x 2 matrices.
constant constexpr uint block = 32;
constant constexpr uint quarter = 16;

kernel void matmul_simdgroup(device const float* a [[buffer(0)]], device const float* b [[buffer(1)]],
                             device float* c [[buffer(2)]], constant uint& rows [[buffer(3)]],
                             constant uint& columns [[buffer(4)]], constant uint& depth [[buffer(5)]],
                             uint2 group [[threadgroup_position_in_grid]], uint i [[thread_index_in_threadgroup]],
                             uint lane [[thread_index_in_simdgroup]],
                             uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  threadgroup float a_block[block * 8], b_block[8 * block], result[4][quarter * quarter];
  const uint top = group.y * block, left = group.x * block;
  const uint my_top = simdgroup / 2 * quarter, my_left = simdgroup % 2 * quarter;

  simdgroup_float8x8 sums[2][2];
  for (uint r = 0; r < 2; r++)
    for (uint s = 0; s < 2; s++) sums[r][s] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);

  for (uint begin = 0; begin < depth; begin += 8) {
    for (uint k = i; k < block * 8; k += 128) {
      const uint row = top + k / 8, a_column = begin + k % 8, b_row = begin + k / block, column = left + k % block;
      a_block[k] = row < rows && a_column < depth ? a[row * depth + a_column] : 0.0f;
      b_block[k] = b_row < depth && column < columns ? b[b_row * columns + column] : 0.0f;
    }
    // Both blocks are there.
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint r = 0; r < 2; r++) {
      simdgroup_float8x8 left_factor;
      simdgroup_load(left_factor, a_block + (my_top + 8 * r) * 8, 8);
      for (uint s = 0; s < 2; s++) {
        simdgroup_float8x8 right_factor;
        simdgroup_load(right_factor, b_block + my_left + 8 * s, block);
        simdgroup_multiply_accumulate(sums[r][s], left_factor, right_factor, sums[r][s]);
      }
    }
    // All have read the blocks, whose place the next ones take.
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }

  // A matrix is stored whole, so it goes through threadgroup memory, and each lane copies what lies inside c.
  threadgroup float* mine = result[simdgroup];
  for (uint r = 0; r < 2; r++)
    for (uint s = 0; s < 2; s++) simdgroup_store(sums[r][s], mine + 8 * r * quarter + 8 * s, quarter);
  // The other lanes' elements are there; no other simdgroup is concerned.
  simdgroup_barrier(mem_flags::mem_threadgroup);
  for (uint k = lane; k < quarter * quarter; k += 32) {
    const uint row = top + my_top + k / quarter, column = left + my_left + k % quarter;
    if (row < rows && column < columns) c[row * columns + column] = mine[k];
  }
}
