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

// As above, but `otherwise` stands in for a lane that takes no part.
template <class T> MSL_INLINE T value_of_lane_or(T otherwise, T value, uint source) {
  const device MslExchange *all = msl_simd_exchange(pack(value), 0);
  source &= 31;
  return (all->mask >> source) & 1 ? unpack<T>(all->value[source]) : otherwise;
}

// Work on the posted values: lanes that meet are at the same place in the text, so the first that goes on does it once for
// all, in place. It needs no inlining: only the exchange itself marks a place.
#define MSL_SHARED_CODE inline __attribute__((noinline))

// All 32 values: halves fold onto each other, so that sums round as a butterfly of shuffles does.
template <class T, class Combine> MSL_INLINE T fold_all(const device ulong *values, Combine combine) {
  T partial[32];
  for (uint i = 0; i < 32; ++i) partial[i] = unpack<T>(values[i]);
  for (uint width = 16; width > 0; width >>= 1)
    for (uint i = 0; i < width; ++i) partial[i] = combine(partial[i], partial[i + width]);
  return partial[0];
}
// The lanes of `mask` one after the other: those of a quad, or where some are missing.
template <class T, class Combine>
MSL_SHARED_CODE T fold_some(const device ulong *values, Combine combine, uint mask) {
  T result = unpack<T>(values[__builtin_ctzg(mask)]);
  for (mask &= mask - 1; mask != 0; mask &= mask - 1)
    result = combine(result, unpack<T>(values[__builtin_ctzg(mask)]));
  return result;
}
// Leaves the combination of each `count` lanes in the value of the first of them.
template <uint count, class T, class Combine> MSL_SHARED_CODE void fold(device MslExchange *all, Combine combine) {
  for (uint first = 0; first < 32; first += count) {
    uint mask = (all->mask >> first) & (count == 32 ? 0xffffffffu : (1u << (count & 31)) - 1);
    device ulong *values = all->value + first;
    if (mask == 0xffffffffu) *values = pack(fold_all<T>(values, combine));
    else if (mask != 0) *values = pack(fold_some<T>(values, combine, mask));
  }
  all->combined = 1;
}
// Of the lanes first ... first + count - 1, where count is 32 or 4.
template <class T, class Combine> MSL_INLINE T reduce_lanes(T value, Combine combine, uint first, uint count) {
  device MslExchange *all = msl_simd_exchange(pack(value), 0);
  if (all->combined == 0) {
    if (count == 32) fold<32, T>(all, combine);
    else fold<4, T>(all, combine);
  }
  return unpack<T>(all->value[first]);
}

// Each value becomes that of the lanes up to and including its own, or before it.
template <bool inclusive, class T, class Combine>
MSL_SHARED_CODE void scan(device MslExchange *all, Combine combine, T identity) {
  T result = identity;
  for (uint mask = all->mask; mask != 0; mask &= mask - 1) {
    device ulong &value = all->value[__builtin_ctzg(mask)];
    T next = combine(result, unpack<T>(value));
    value = pack(inclusive ? next : result);
    result = next;
  }
  all->combined = 1;
}
template <class T, class Combine> MSL_INLINE T scan_lanes(T value, Combine combine, T identity, bool inclusive) {
  device MslExchange *all = msl_simd_exchange(pack(value), 0);
  if (all->combined == 0) {
    if (inclusive) scan<true>(all, combine, identity);
    else scan<false>(all, combine, identity);
  }
  return unpack<T>(all->value[lane()]);
}

// The value of the first active lane among first ... first + count - 1.
template <class T> MSL_INLINE T value_of_first(T value, uint first, uint count) {
  const device MslExchange *all = msl_simd_exchange(pack(value), 0);
  uint mask = (all->mask >> first) & (count == 32 ? 0xffffffffu : (1u << count) - 1);
  return unpack<T>(all->value[first + __builtin_ctzg(mask)]);
}

MSL_SHARED_CODE void votes(device MslExchange *all) {
  uint result = 0;
  for (uint i = 0; i < 32; ++i) result |= uint(all->value[i] & 1) << i;
  all->value[0] = result & all->mask;
  all->combined = 1;
}
MSL_INLINE uint ballot(bool vote) {
  device MslExchange *all = msl_simd_exchange(vote, 0);
  if (all->combined == 0) votes(all);
  return uint(all->value[0]);
}
MSL_INLINE uint active_mask() { return msl_simd_exchange(0, 0)->mask; }

MSL_INLINE void wait_for_threadgroup() { msl_threadgroup_barrier(); }
MSL_INLINE void wait_for_simdgroup() { msl_simdgroup_barrier(); }

// A matrix product: each lane posts two elements of a, two of b and two sums, as words 0, 1 and 2.
struct matrix_operands {
  float a[2], b[2];
};
typedef simd<float, 8> matrix_row_values;

MSL_INLINE device ulong *posted_word(device MslExchange *all, uint lane, uint word) {
  return word == 0 ? &all->value[lane] : &all->more[lane][word - 1];
}
MSL_INLINE matrix_row_values posted_row(device MslExchange *all, uint row, uint word) {
  ulong pairs[4];
  for (uint i = 0; i < 4; ++i) pairs[i] = *posted_word(all, matrix_lane(row, 2 * i), word);
  return __builtin_bit_cast(matrix_row_values, pairs);
}
// The whole product: every element adds its eight products to its sum one after the other, each step rounded once. The
// operands of lanes that take no part are undefined in Metal: they are NaN, as in value_of_lane.
MSL_SHARED_CODE void multiply_posted(device MslExchange *all) {
  for (uint absent = ~all->mask; absent != 0; absent &= absent - 1)
    for (uint word = 0; word < 3; ++word) *posted_word(all, __builtin_ctzg(absent), word) = 0x7fa77fa77fa77fa7ul;
  matrix_row_values b[8];
  for (uint k = 0; k < 8; ++k) b[k] = posted_row(all, k, 1);
  for (uint row = 0; row < 8; ++row) {
    matrix_row_values a = posted_row(all, row, 0), sums = posted_row(all, row, 2);
    for (uint k = 0; k < 8; ++k) sums = __builtin_elementwise_fma(matrix_row_values(a[k]), b[k], sums);
    for (uint i = 0; i < 4; ++i)
      *posted_word(all, matrix_lane(row, 2 * i), 2) = as_type<ulong>(metal::vec<float, 2>(sums[2 * i], sums[2 * i + 1]));
  }
  all->combined = 1;
}
// Adds the products for this lane's two elements.
MSL_INLINE void multiply_matrices(matrix_operands mine, thread float *sums) {
  device MslExchange *all = msl_simd_exchange_wide(as_type<ulong>(metal::vec<float, 2>(mine.a[0], mine.a[1])),
                                                   as_type<ulong>(metal::vec<float, 2>(mine.b[0], mine.b[1])),
                                                   as_type<ulong>(metal::vec<float, 2>(sums[0], sums[1])));
  if (all->combined == 0) multiply_posted(all);
  metal::vec<float, 2> result = as_type<metal::vec<float, 2>>(*posted_word(all, lane(), 2));
  sums[0] = result[0];
  sums[1] = result[1];
}

}  // namespace msl

#endif
