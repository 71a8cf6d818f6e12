// How the lanes of a simdgroup meet on the CPU: they post their values and the runtime brings them together.
#ifndef MSL_EXCHANGE_H
#define MSL_EXCHANGE_H
#include "msl/lanes.h"
#include "msl_abi.h"

namespace msl {

MSL_INLINE uint lane() { return msl_self()->thread_index_in_simdgroup; }

// The value that another lane holds. A lane that takes no part holds a pattern that is NaN in every float type: Metal
// leaves it undefined, and a loud value finds the mistake.
template <class T> MSL_INLINE T value_of_lane(T value, uint source) {
  const device MslExchange *all = msl_simd_exchange(pack(value), 0);
  source &= 31;
  return unpack<T>((all->mask >> source) & 1 ? all->value[source] : 0x7ff7dead7fa77fa7ul);
}

// Work on the posted values needs no inlining: only the exchange itself marks a place in the text.
#define MSL_SHARED_CODE inline __attribute__((noinline))

// Halves fold onto each other, so that sums round as a butterfly of shuffles does.
template <class T, class Combine>
MSL_SHARED_CODE T fold(const device MslExchange *all, Combine combine, T value, uint first, uint count) {
  uint mask = all->mask;
  if (mask == 0xffffffffu && count == 32) {
    T partial[32];
    for (int i = 0; i < 32; ++i) partial[i] = unpack<T>(all->value[i]);
    for (int width = 16; width > 0; width >>= 1)
      for (int i = 0; i < width; ++i) partial[i] = combine(partial[i], partial[i + width]);
    return partial[0];
  }
  bool started = false;
  T result = value;
  for (uint i = first; i < first + count; ++i) {
    if (!((mask >> i) & 1)) continue;
    T next = unpack<T>(all->value[i]);
    if (started) next = combine(result, next);
    result = next;
    started = true;
  }
  return result;
}
template <class T, class Combine> MSL_INLINE T reduce_lanes(T value, Combine combine, uint first, uint count) {
  return fold(msl_simd_exchange(pack(value), 0), combine, value, first, count);
}

template <class T, class Combine>
MSL_SHARED_CODE T scan(const device MslExchange *all, Combine combine, T identity, uint end) {
  T result = identity;
  for (uint i = 0; i < end; ++i)
    if ((all->mask >> i) & 1) result = combine(result, unpack<T>(all->value[i]));
  return result;
}
template <class T, class Combine> MSL_INLINE T scan_lanes(T value, Combine combine, T identity, bool inclusive) {
  return scan(msl_simd_exchange(pack(value), 0), combine, identity, lane() + (inclusive ? 1 : 0));
}

// The value of the first active lane among first ... first + count - 1.
template <class T> MSL_INLINE T value_of_first(T value, uint first, uint count) {
  const device MslExchange *all = msl_simd_exchange(pack(value), 0);
  uint mask = (all->mask >> first) & (count == 32 ? 0xffffffffu : (1u << count) - 1);
  return unpack<T>(all->value[first + __builtin_ctzg(mask)]);
}

MSL_SHARED_CODE uint votes(const device MslExchange *all) {
  uint result = 0;
  for (uint i = 0; i < 32; ++i) result |= uint(all->value[i] & 1) << i;
  return result & all->mask;
}
MSL_INLINE uint ballot(bool vote) { return votes(msl_simd_exchange(vote, 0)); }
MSL_INLINE uint active_mask() { return msl_simd_exchange(0, 0)->mask; }

MSL_INLINE void wait_for_threadgroup() { msl_threadgroup_barrier(); }
MSL_INLINE void wait_for_simdgroup() { msl_simdgroup_barrier(); }

// Operands of a matrix product: each lane posts two elements of a and two of b.
struct matrix_operands {
  float a[2], b[2];
};
struct posted_operands {
  matrix_operands operands;
  uchar unused[MSL_WIDE_LANE_BYTES - sizeof(matrix_operands)];
};
MSL_SHARED_CODE void row_times_columns(const device posted_operands *lanes, uint row, uint column, thread float *sums) {
  for (uint k = 0; k < 8; ++k) {
    float a = lanes[matrix_lane(row, k)].operands.a[k & 1];
    const device posted_operands &b = lanes[matrix_lane(k, column)];
    sums[0] = __builtin_elementwise_fma(a, b.operands.b[0], sums[0]);
    sums[1] = __builtin_elementwise_fma(a, b.operands.b[1], sums[1]);
  }
}
// Adds the products for this lane's two elements, one after the other.
MSL_INLINE void multiply_matrices(matrix_operands mine, thread float *sums) {
  const device posted_operands *lanes =
      (const device posted_operands *)msl_simd_exchange_wide((const device void *)(ulong)&mine, sizeof(mine), 0);
  row_times_columns(lanes, matrix_row(lane()), matrix_column(lane()), sums);
}

}  // namespace msl

#endif
