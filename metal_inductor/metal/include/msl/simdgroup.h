// <metal_simdgroup>, <metal_quadgroup> and <metal_compute>: barriers, shuffles, reductions, prefix sums and votes.
//
// Each operation is inlined into its caller, and so is every user function: the runtime tells diverged lanes apart by the
// address they wait at.
#ifndef MSL_SIMDGROUP_H
#define MSL_SIMDGROUP_H
#include "msl/checks.h"
#include "msl/relational.h"
#ifdef __NVPTX__
#include "msl/exchange_nvptx.h"
#else
#include "msl/exchange.h"
#endif

namespace metal {
enum class mem_flags : uint {
  mem_none = 0,
  mem_device = 1,
  mem_threadgroup = 2,
  mem_texture = 4,
  mem_threadgroup_imageblock = 8,
  mem_object_data = 16
};
constexpr MSL_INLINE mem_flags operator|(mem_flags a, mem_flags b) { return mem_flags(uint(a) | uint(b)); }
constexpr MSL_INLINE mem_flags operator&(mem_flags a, mem_flags b) { return mem_flags(uint(a) & uint(b)); }
enum memory_order {
  memory_order_relaxed,
  memory_order_acquire,
  memory_order_release,
  memory_order_acq_rel,
  memory_order_seq_cst
};
enum thread_scope {
  thread_scope_thread,
  thread_scope_threadgroup,
  thread_scope_device,
  thread_scope_simdgroup = 4
};
MSL_INLINE void threadgroup_barrier(mem_flags flags) { MSL_THREADGROUP_BARRIER(flags); }
MSL_INLINE void simdgroup_barrier(mem_flags flags) { MSL_SIMDGROUP_BARRIER(flags); }
MSL_INLINE void atomic_thread_fence(mem_flags flags, memory_order = memory_order_seq_cst,
                                    thread_scope scope = thread_scope_device) {
  MSL_FENCE(flags);
#ifdef __NVPTX__
  msl::fence(scope == thread_scope_device);
#else
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
#endif
}
}  // namespace metal

namespace msl {

struct sum { template <class T> MSL_INLINE T operator()(T a, T b) const { return T(a + b); } };
struct product { template <class T> MSL_INLINE T operator()(T a, T b) const { return T(a * b); } };
struct minimum { template <class T> MSL_INLINE T operator()(T a, T b) const { return T(metal::min(a, b)); } };
struct maximum { template <class T> MSL_INLINE T operator()(T a, T b) const { return T(metal::max(a, b)); } };
struct bit_and { template <class T> MSL_INLINE T operator()(T a, T b) const { return T(a & b); } };
struct bit_or { template <class T> MSL_INLINE T operator()(T a, T b) const { return T(a | b); } };
struct bit_xor { template <class T> MSL_INLINE T operator()(T a, T b) const { return T(a ^ b); } };

// Each takes the lane's number, which costs a call on the CPU, once.
MSL_INLINE uint lane_above(uint lane, uint delta) { return lane + delta > 31 ? lane : lane + delta; }
MSL_INLINE uint lane_below(uint lane, uint delta) { return lane < delta ? lane : lane - delta; }
MSL_INLINE uint lane_in_quad(uint lane, uint index) { return (lane & ~3u) | (index & 3); }

// Combines the values of the active lanes before this one in its quad.
template <class T, class Combine> MSL_INLINE T scan_quad(T value, Combine combine, T identity) {
  uint quad = lane() & ~3u, active = active_mask() >> quad;
  T result = identity;
  for (uint i = 0; i < 3; ++i) {
    T next = value_of_lane(value, quad + i);
    if (i < lane() - quad && ((active >> i) & 1)) result = combine(result, next);
  }
  return result;
}

}  // namespace msl

namespace metal {

// Shuffles and reductions exist for numbers of at most 32 bits; any other type finds no overload.
template <class T>
using simd_number = enable_if_t<msl::one_of<T, char, uchar, short, ushort, int, uint, half, float, bfloat>(), T>;
template <class T> using simd_integer = enable_if_t<msl::one_of<T, char, uchar, short, ushort, int, uint>(), T>;

#define MSL_SHUFFLE(name, source) \
  template <class T> MSL_INLINE simd_number<T> name(T value, ushort amount) { \
    const uint lane = msl::lane(); \
    (void)lane; \
    return msl::value_of_lane(value, source); \
  }
MSL_SHUFFLE(simd_shuffle, amount)
MSL_SHUFFLE(simd_broadcast, amount)
MSL_SHUFFLE(simd_shuffle_xor, lane ^ amount)
MSL_SHUFFLE(simd_shuffle_down, msl::lane_above(lane, amount))
MSL_SHUFFLE(simd_shuffle_up, msl::lane_below(lane, amount))
MSL_SHUFFLE(simd_shuffle_rotate_down, lane + amount)
MSL_SHUFFLE(simd_shuffle_rotate_up, lane - amount)
MSL_SHUFFLE(quad_shuffle, msl::lane_in_quad(lane, amount))
MSL_SHUFFLE(quad_broadcast, msl::lane_in_quad(lane, amount))
MSL_SHUFFLE(quad_shuffle_xor, lane ^ (amount & 3))
MSL_SHUFFLE(quad_shuffle_down, (lane & 3) + amount > 3 ? lane : lane + amount)
MSL_SHUFFLE(quad_shuffle_up, (lane & 3) < amount ? lane : lane - amount)
MSL_SHUFFLE(quad_shuffle_rotate_down, msl::lane_in_quad(lane, lane + amount))
MSL_SHUFFLE(quad_shuffle_rotate_up, msl::lane_in_quad(lane, lane - amount))
#undef MSL_SHUFFLE

// Lanes beyond the end of each block of `modulo` lanes take the filling of the lane they would wrap around to. What a lane
// that takes no part holds is undefined; on Apple's GPUs these functions read zero, which torch's sums of 64-bit integers
// rely on, so they do here too.
#define MSL_FILL_SHUFFLE(name, source, outside, width) \
  template <class T> MSL_INLINE simd_number<T> name(T value, T filling, ushort amount, ushort modulo = width) { \
    uint self = msl::lane(), lane = self & (modulo - 1u), block = self - lane; \
    T shuffled = msl::value_of_lane_or(T(0), value, block + ((source) & (modulo - 1u))); \
    T filled = msl::value_of_lane_or(filling, filling, block + ((source) & (modulo - 1u))); \
    if (outside) return filled; \
    return shuffled; \
  }
MSL_FILL_SHUFFLE(simd_shuffle_and_fill_down, lane + amount, lane + amount >= modulo, 32)
MSL_FILL_SHUFFLE(simd_shuffle_and_fill_up, lane - amount, lane < amount, 32)
MSL_FILL_SHUFFLE(quad_shuffle_and_fill_down, lane + amount, lane + amount >= modulo, 4)
MSL_FILL_SHUFFLE(quad_shuffle_and_fill_up, lane - amount, lane < amount, 4)
#undef MSL_FILL_SHUFFLE

#define MSL_FOLDS(suffix, function, number) \
  template <class T> MSL_INLINE number<T> simd_##suffix(T value) { return msl::reduce_lanes(value, function(), 0, 32); } \
  template <class T> MSL_INLINE number<T> quad_##suffix(T value) { \
    return msl::reduce_lanes(value, function(), msl::lane() & ~3u, 4); \
  }
MSL_FOLDS(sum, msl::sum, simd_number)
MSL_FOLDS(product, msl::product, simd_number)
MSL_FOLDS(min, msl::minimum, simd_number)
MSL_FOLDS(max, msl::maximum, simd_number)
MSL_FOLDS(and, msl::bit_and, simd_integer)
MSL_FOLDS(or, msl::bit_or, simd_integer)
MSL_FOLDS(xor, msl::bit_xor, simd_integer)
#undef MSL_FOLDS

// A quad scans through its own four lanes: a lane of another quad counts as the identity.
#define MSL_SCANS(suffix, function, identity) \
  template <class T> MSL_INLINE simd_number<T> simd_prefix_inclusive_##suffix(T value) { \
    return msl::scan_lanes(value, function(), T(identity), true); \
  } \
  template <class T> MSL_INLINE simd_number<T> simd_prefix_exclusive_##suffix(T value) { \
    return msl::scan_lanes(value, function(), T(identity), false); \
  } \
  template <class T> MSL_INLINE simd_number<T> quad_prefix_exclusive_##suffix(T value) { \
    return msl::scan_quad(value, function(), T(identity)); \
  } \
  template <class T> MSL_INLINE simd_number<T> quad_prefix_inclusive_##suffix(T value) { \
    return function()(quad_prefix_exclusive_##suffix(value), value); \
  }
MSL_SCANS(sum, msl::sum, 0)
MSL_SCANS(product, msl::product, 1)
#undef MSL_SCANS

template <class T> MSL_INLINE simd_number<T> simd_broadcast_first(T value) { return msl::value_of_first(value, 0, 32); }
template <class T> MSL_INLINE simd_number<T> quad_broadcast_first(T value) {
  return msl::value_of_first(value, msl::lane() & ~3u, 4);
}

// Vectors: each component by itself.
#define MSL_PER_COMPONENT(expression) \
  vec<T, N> result; \
  for (int i = 0; i < N; ++i) result[i] = expression; \
  return result;
#define MSL_VECTOR_SHUFFLE(name) \
  template <class T, int N> MSL_INLINE vec<T, N> name(vec<T, N> value, ushort amount) { \
    MSL_PER_COMPONENT(name(value[i], amount)) \
  }
#define MSL_VECTOR_SHUFFLES(group) \
  MSL_VECTOR_SHUFFLE(group##_shuffle) MSL_VECTOR_SHUFFLE(group##_broadcast) MSL_VECTOR_SHUFFLE(group##_shuffle_xor) \
  MSL_VECTOR_SHUFFLE(group##_shuffle_down) MSL_VECTOR_SHUFFLE(group##_shuffle_up) \
  MSL_VECTOR_SHUFFLE(group##_shuffle_rotate_down) MSL_VECTOR_SHUFFLE(group##_shuffle_rotate_up)
MSL_VECTOR_SHUFFLES(simd)
MSL_VECTOR_SHUFFLES(quad)
#define MSL_VECTOR_FILL_SHUFFLE(name, width) \
  template <class T, int N> \
  MSL_INLINE vec<T, N> name(vec<T, N> value, vec<T, N> filling, ushort amount, ushort modulo = width) { \
    MSL_PER_COMPONENT(name(value[i], filling[i], amount, modulo)) \
  }
MSL_VECTOR_FILL_SHUFFLE(simd_shuffle_and_fill_down, 32)
MSL_VECTOR_FILL_SHUFFLE(simd_shuffle_and_fill_up, 32)
MSL_VECTOR_FILL_SHUFFLE(quad_shuffle_and_fill_down, 4)
MSL_VECTOR_FILL_SHUFFLE(quad_shuffle_and_fill_up, 4)
#define MSL_VECTOR_FOLD(name) \
  template <class T, int N> MSL_INLINE vec<T, N> name(vec<T, N> value) { MSL_PER_COMPONENT(name(value[i])) }
#define MSL_VECTOR_FOLDS(group) \
  MSL_VECTOR_FOLD(group##_sum) MSL_VECTOR_FOLD(group##_product) MSL_VECTOR_FOLD(group##_min) MSL_VECTOR_FOLD(group##_max) \
  MSL_VECTOR_FOLD(group##_and) MSL_VECTOR_FOLD(group##_or) MSL_VECTOR_FOLD(group##_xor) \
  MSL_VECTOR_FOLD(group##_broadcast_first) MSL_VECTOR_FOLD(group##_prefix_inclusive_sum) \
  MSL_VECTOR_FOLD(group##_prefix_exclusive_sum) MSL_VECTOR_FOLD(group##_prefix_inclusive_product) \
  MSL_VECTOR_FOLD(group##_prefix_exclusive_product)
MSL_VECTOR_FOLDS(simd)
MSL_VECTOR_FOLDS(quad)
#undef MSL_VECTOR_FOLDS
#undef MSL_VECTOR_FOLD
#undef MSL_VECTOR_FILL_SHUFFLE
#undef MSL_VECTOR_SHUFFLES
#undef MSL_VECTOR_SHUFFLE
#undef MSL_PER_COMPONENT

#define MSL_VOTE(name, type, everyone) \
  class name { \
   public: \
    typedef type vote_t; \
    explicit constexpr name(vote_t votes = 0) : votes_(votes) {} \
    explicit constexpr operator vote_t() const { return votes_; } \
    constexpr bool all() const { return (votes_ & everyone) == everyone; } \
    constexpr bool any() const { return (votes_ & everyone) != 0; } \
\
   private: \
    vote_t votes_; \
  };
MSL_VOTE(simd_vote, ulong, 0xffffffffu)
MSL_VOTE(quad_vote, uint, 15u)
#undef MSL_VOTE

MSL_INLINE simd_vote simd_ballot(bool vote) { return simd_vote(msl::ballot(vote)); }
MSL_INLINE simd_vote simd_active_threads_mask() { return simd_vote(msl::active_mask()); }
MSL_INLINE bool simd_any(bool vote) { return msl::ballot(vote) != 0; }
MSL_INLINE bool simd_all(bool vote) { return msl::ballot(!vote) == 0; }
MSL_INLINE bool simd_is_first() { return msl::lane() == uint(__builtin_ctzg(msl::active_mask())); }
MSL_INLINE quad_vote quad_ballot(bool vote) { return quad_vote((msl::ballot(vote) >> (msl::lane() & ~3u)) & 15u); }
MSL_INLINE quad_vote quad_active_threads_mask() { return quad_vote((msl::active_mask() >> (msl::lane() & ~3u)) & 15u); }
MSL_INLINE bool quad_any(bool vote) { return ((msl::ballot(vote) >> (msl::lane() & ~3u)) & 15) != 0; }
MSL_INLINE bool quad_all(bool vote) { return ((msl::ballot(!vote) >> (msl::lane() & ~3u)) & 15) == 0; }
MSL_INLINE bool quad_is_first() {
  uint quad = msl::lane() & ~3u;
  return msl::lane() == quad + __builtin_ctzg((msl::active_mask() >> quad) & 15u);
}

}  // namespace metal

#endif
