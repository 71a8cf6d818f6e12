// How the lanes of a simdgroup meet on an NVIDIA GPU: a simdgroup is a warp. Same functions as exchange.h.
#ifndef MSL_EXCHANGE_NVPTX_H
#define MSL_EXCHANGE_NVPTX_H
#include "msl/lanes.h"

namespace msl {

MSL_INLINE uint lane() {
  uint result;
  asm("mov.u32 %0, %%laneid;" : "=r"(result));
  return result;
}
MSL_INLINE uint active_mask() {
  uint result;
  asm volatile("activemask.b32 %0;" : "=r"(result));
  return result;
}
MSL_INLINE uint word_of_lane(uint word, uint source, uint mask) {
  uint result;
  asm volatile("shfl.sync.idx.b32 %0, %1, %2, 31, %3;" : "=r"(result) : "r"(word), "r"(source), "r"(mask));
  return result;
}
template <class T> MSL_INLINE T value_of_lane(T value, uint source, uint mask) {
  ulong bits = pack(value);
  ulong result = word_of_lane(uint(bits), source, mask);
  if constexpr (sizeof(T) == 8) result |= ulong(word_of_lane(uint(bits >> 32), source, mask)) << 32;
  return unpack<T>(result);
}
template <class T> MSL_INLINE T value_of_lane(T value, uint source) { return value_of_lane(value, source, active_mask()); }

template <class T, class Combine> MSL_INLINE T reduce_lanes(T value, Combine combine, uint first, uint count) {
  uint mask = active_mask();
  if (mask == 0xffffffffu && count == 32) {
#pragma unroll
    for (uint width = 16; width > 0; width >>= 1) value = combine(value, value_of_lane(value, lane() ^ width, mask));
    return value;
  }
  bool started = false;
  T result = value;
  for (uint i = 0; i < count; ++i) {
    T next = value_of_lane(value, first + i, mask);
    if (!((mask >> (first + i)) & 1)) continue;
    if (started) next = combine(result, next);
    result = next;
    started = true;
  }
  return result;
}

template <class T, class Combine> MSL_INLINE T scan_lanes(T value, Combine combine, T identity, bool inclusive) {
  uint mask = active_mask(), end = lane() + (inclusive ? 1 : 0);
  T result = identity;
  for (uint i = 0; i < 32; ++i) {
    T next = value_of_lane(value, i, mask);
    if (i < end && ((mask >> i) & 1)) result = combine(result, next);
  }
  return result;
}

template <class T> MSL_INLINE T value_of_first(T value, uint first, uint count) {
  uint mask = active_mask();
  uint among = (mask >> first) & (count == 32 ? 0xffffffffu : (1u << count) - 1);
  return value_of_lane(value, first + __builtin_ctzg(among), mask);
}
MSL_INLINE uint ballot(bool vote) {
  uint result;
  asm volatile("{ .reg .pred p; setp.ne.u32 p, %1, 0; vote.sync.ballot.b32 %0, p, %2; }"
               : "=r"(result) : "r"(uint(vote)), "r"(active_mask()));
  return result;
}

MSL_INLINE void wait_for_threadgroup() { asm volatile("bar.sync 0;" ::: "memory"); }
MSL_INLINE void wait_for_simdgroup() { asm volatile("bar.warp.sync 0xffffffff;" ::: "memory"); }

struct matrix_operands {
  float a[2], b[2];
};
MSL_INLINE void multiply_matrices(matrix_operands mine, thread float *sums) {
  uint mask = active_mask(), row = matrix_row(lane()), column = matrix_column(lane());
#pragma unroll
  for (uint k = 0; k < 8; ++k) {
    float a = value_of_lane(mine.a[k & 1], matrix_lane(row, k), mask);
    uint source = matrix_lane(k, column);
    sums[0] = __builtin_elementwise_fma(a, value_of_lane(mine.b[0], source, mask), sums[0]);
    sums[1] = __builtin_elementwise_fma(a, value_of_lane(mine.b[1], source, mask), sums[1]);
  }
}

}  // namespace msl

#endif
