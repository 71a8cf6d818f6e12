// How the lanes of a simdgroup meet on an NVIDIA GPU: a simdgroup is a warp. Same functions as exchange.h.
//
// Which lanes take part. In Metal those that are active at the operation, where control flow is structured: lanes that
// left an if or a loop early are back together behind it. A warp's instruction needs the mask of the lanes that execute
// it, and what `activemask` answers is what the hardware has together at that moment. The assembler joins the lanes of a
// structured branch again at its end, which all branches of Metal text are (there is no goto), every operation is inlined
// and volatile, so it is neither moved nor duplicated, and lanes that have returned are gone from the mask. So the answer
// is Metal's. PTX does not promise it: the tests in tests/metal/test_compile_shader_divergence.py watch it. Where a mask is full,
// the operation says so with a constant, which costs nothing; a partial last simdgroup has the mask of its threads.
// A barrier is for all lanes that have not returned, whatever came before, and joins them by force.
#ifndef MSL_EXCHANGE_NVPTX_H
#define MSL_EXCHANGE_NVPTX_H
#include "msl/lanes.h"

namespace msl {

constexpr constant uint every_lane = 0xffffffffu;
struct sum;
struct minimum;
struct maximum;
struct bit_and;
struct bit_or;
struct bit_xor;

MSL_INLINE uint lane() {
  uint result;
  asm("mov.u32 %0, %%laneid;" : "=r"(result));
  return result;
}
#ifdef MSL_WHOLE_SIMDGROUPS  // the text says that all lanes take part in each of its operations
MSL_INLINE uint active_mask() { return every_lane; }
#else
MSL_INLINE uint active_mask() {
  uint result;
  asm volatile("activemask.b32 %0;" : "=r"(result));
  return result;
}
#endif
#define MSL_SHUFFLE_WORD(name, text, clamp) \
  MSL_INLINE uint name(uint word, uint amount, uint mask) { \
    uint result; \
    asm volatile("shfl.sync." text ".b32 %0, %1, %2, " clamp ", %3;" : "=r"(result) : "r"(word), "r"(amount), "r"(mask)); \
    return result; \
  }
MSL_SHUFFLE_WORD(word_of_lane, "idx", "31")
MSL_SHUFFLE_WORD(word_across, "bfly", "31")
MSL_SHUFFLE_WORD(word_below, "up", "0")
#undef MSL_SHUFFLE_WORD

template <class T> MSL_INLINE T value_of_lane(T value, uint source, uint mask) {
  ulong bits = pack(value);
  ulong result = word_of_lane(uint(bits), source, mask);
  if constexpr (sizeof(T) == 8) result |= ulong(word_of_lane(uint(bits >> 32), source, mask)) << 32;
  return unpack<T>(result);
}
template <class T> MSL_INLINE T value_of_lane(T value, uint source) { return value_of_lane(value, source, active_mask()); }
template <class T> MSL_INLINE T value_of_lane_or(T otherwise, T value, uint source) {
  uint mask = active_mask();
  T result = value_of_lane(value, source, mask);
  return (mask >> (source & 31)) & 1 ? result : otherwise;
}
// Of the lane whose number differs in the bits of `difference`, and of the one `distance` below or, at the bottom, itself.
template <class T> MSL_INLINE T value_across(T value, uint difference, uint mask) {
  return unpack<T>(word_across(uint(pack(value)), difference, mask));
}
template <class T> MSL_INLINE T value_below(T value, uint distance, uint mask) {
  return unpack<T>(word_below(uint(pack(value)), distance, mask));
}

// One instruction reduces integers of up to 32 bits over any set of lanes.
template <class T, class Combine> constexpr bool has_instruction() {
  return metal::is_integral_v<T> && sizeof(T) <= 4 &&
         (__is_same(Combine, sum) || __is_same(Combine, minimum) || __is_same(Combine, maximum) ||
          __is_same(Combine, bit_and) || __is_same(Combine, bit_or) || __is_same(Combine, bit_xor));
}
template <class T, class Combine> MSL_INLINE T reduce_by_instruction(T value, uint mask) {
  constexpr bool is_signed = T(-1) < T(0);
  uint word = is_signed ? uint(int(value)) : uint(value), result;
#define MSL_REDUCE(text) \
  asm volatile("redux.sync." text " %0, %1, %2;" : "=r"(result) : "r"(word), "r"(mask))
  if constexpr (__is_same(Combine, sum)) MSL_REDUCE("add.u32");
  else if constexpr (__is_same(Combine, bit_and)) MSL_REDUCE("and.b32");
  else if constexpr (__is_same(Combine, bit_or)) MSL_REDUCE("or.b32");
  else if constexpr (__is_same(Combine, bit_xor)) MSL_REDUCE("xor.b32");
  else if constexpr (__is_same(Combine, minimum) && is_signed) MSL_REDUCE("min.s32");
  else if constexpr (__is_same(Combine, minimum)) MSL_REDUCE("min.u32");
  else if constexpr (is_signed) MSL_REDUCE("max.s32");
  else MSL_REDUCE("max.u32");
#undef MSL_REDUCE
  return T(result);
}

// All lanes, as a butterfly of shuffles; the lanes of a partial mask one after the other, as on the CPU. Every lane takes
// the same path: a shuffle waits for all lanes of its mask.
template <class T, class Combine> MSL_INLINE T reduce_simdgroup(T value, Combine combine, uint mask) {
  if (mask == every_lane) {
#pragma unroll
    for (uint width = 16; width > 0; width >>= 1) value = combine(value, value_across(value, width, every_lane));
    return value;
  }
  T result = value_of_lane(value, __builtin_ctzg(mask), mask);
  for (uint rest = mask & (mask - 1); rest != 0; rest &= rest - 1)
    result = combine(result, value_of_lane(value, __builtin_ctzg(rest), mask));
  return result;
}
template <class T, class Combine> MSL_INLINE T reduce_quad(T value, Combine combine, uint first, uint mask) {
  if (mask == every_lane) {
    value = combine(value, value_across(value, 2, every_lane));
    return combine(value, value_across(value, 1, every_lane));
  }
  T result = value;
  bool started = false;
  for (uint i = 0; i < 4; ++i) {
    T next = value_of_lane(value, first + i, mask);
    bool present = (mask >> (first + i)) & 1;
    if (started) next = combine(result, next);
    if (present) result = next;
    started = started || present;
  }
  return result;
}
// Of the lanes first ... first + count - 1, where count is 32 or 4.
template <class T, class Combine> MSL_INLINE T reduce_lanes(T value, Combine combine, uint first, uint count) {
  uint mask = active_mask();
  if (count != 32) return reduce_quad(value, combine, first, mask);
  if constexpr (has_instruction<T, Combine>()) return reduce_by_instruction<T, Combine>(value, mask);
  else return reduce_simdgroup(value, combine, mask);
}

// Five steps over all lanes, each of which doubles the lanes that a value covers.
template <class T, class Combine> MSL_INLINE T scan_all(T value, Combine combine, T identity, bool inclusive) {
#pragma unroll
  for (uint width = 1; width < 32; width <<= 1) {
    T below = value_below(value, width, every_lane);
    if (lane() >= width) value = combine(below, value);
  }
  if (inclusive) return value;
  T before = value_below(value, 1, every_lane);
  if (lane() == 0) before = identity;
  return before;
}
template <class T, class Combine> MSL_INLINE T scan_lanes(T value, Combine combine, T identity, bool inclusive) {
  uint mask = active_mask();
  if (mask == every_lane) return scan_all(value, combine, identity, inclusive);
  uint end = lane() + (inclusive ? 1 : 0);
  T result = identity;
  for (uint rest = mask; rest != 0; rest &= rest - 1) {
    uint source = __builtin_ctzg(rest);
    T next = value_of_lane(value, source, mask);
    if (source < end) result = combine(result, next);
  }
  return result;
}

template <class T> MSL_INLINE T value_of_first(T value, uint first, uint count) {
  uint mask = active_mask();
  uint among = (mask >> first) & (count == 32 ? every_lane : (1u << count) - 1);
  return value_of_lane(value, first + __builtin_ctzg(among), mask);
}
MSL_INLINE uint ballot(bool vote) {
  uint result;
  asm volatile("{ .reg .pred p; setp.ne.u32 p, %1, 0; vote.sync.ballot.b32 %0, p, %2; }"
               : "=r"(result) : "r"(uint(vote)), "r"(active_mask()));
  return result;
}

MSL_INLINE void fence(bool whole_device) {
  if (whole_device) asm volatile("fence.sc.gpu;" ::: "memory");
  else asm volatile("fence.sc.cta;" ::: "memory");
}
MSL_INLINE void wait_for_threadgroup() { asm volatile("bar.sync 0;" ::: "memory"); }
MSL_INLINE void wait_for_simdgroup() { asm volatile("bar.warp.sync 0xffffffff;" ::: "memory"); }

// The exact product of 8x8 matrices of float: every element adds its eight products one after the other.
struct matrix_operands {
  float a[2], b[2];
};
MSL_INLINE void multiply_matrices(matrix_operands mine, thread float *sums) {
  uint row = matrix_row(lane()), column = matrix_column(lane());
#pragma unroll
  for (uint k = 0; k < 8; ++k) {
    float a = value_of_lane(mine.a[k & 1], matrix_lane(row, k), every_lane);
    uint source = matrix_lane(k, column);
    sums[0] = __builtin_elementwise_fma(a, value_of_lane(mine.b[0], source, every_lane), sums[0]);
    sums[1] = __builtin_elementwise_fma(a, value_of_lane(mine.b[1], source, every_lane), sums[1]);
  }
}

// Products of half or of bfloat run on tensor cores, which take the exact products and add them in float. Their rows lie
// in lanes 4 row + column / 2, two elements in each, so that Apple's layout is one exchange of lanes away; of the right
// matrix they want columns, which one transposition gives. Half of the 16 rows that an instruction multiplies are zero.
template <class A, class B> constexpr bool on_tensor_cores() {
  return __is_same(A, B) && (__is_same(A, half) || __is_same(A, bfloat));
}
template <class T> MSL_INLINE uint as_word(metal::vec<T, 2> pair) { return __builtin_bit_cast(uint, pair.msl_lanes); }
// Rows of a matrix become its columns: lane 4 row + column / 2 holds the elements of column `row`.
MSL_INLINE uint transpose_word(uint word) {
  uint result;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(word));
  return result;
}
#define MSL_MULTIPLY(text) \
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32." text "." text ".f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};" \
               : "+f"(sums[0]), "+f"(sums[1]), "+f"(unused[0]), "+f"(unused[1]) \
               : "r"(left), "r"(0), "r"(right))
template <class T> MSL_INLINE void multiply_words(uint left, uint right, thread float *sums) {
  float unused[2] = {0.0f, 0.0f};
  if constexpr (__is_same(T, half)) MSL_MULTIPLY("f16");
  else MSL_MULTIPLY("bf16");
}
template <class T>
MSL_INLINE void multiply_on_tensor_cores(metal::vec<T, 2> a, metal::vec<T, 2> b, thread float *result) {
  uint there = matrix_lane(lane() >> 2, (lane() & 3) * 2);
  uint back = matrix_row(lane()) * 4 + matrix_column(lane()) / 2;
  uint left = word_of_lane(as_word(a), there, every_lane), rows = word_of_lane(as_word(b), there, every_lane);
  float sums[2] = {value_of_lane(result[0], there, every_lane), value_of_lane(result[1], there, every_lane)};
  multiply_words<T>(left, transpose_word(rows), sums);
  result[0] = value_of_lane(sums[0], back, every_lane);
  result[1] = value_of_lane(sums[1], back, every_lane);
}
#undef MSL_MULTIPLY

}  // namespace msl

#endif
