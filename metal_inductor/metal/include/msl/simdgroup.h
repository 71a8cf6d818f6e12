// <metal_simdgroup>, <metal_quadgroup> and <metal_compute>: barriers, shuffles, reductions, prefix sums and votes.
//
// Each operation is inlined into its caller, and so is every user function: the runtime tells diverged lanes apart by the
// address they wait at.
#ifndef MSL_SIMDGROUP_H
#define MSL_SIMDGROUP_H
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
  thread_scope_simdgroup,
  thread_scope_threadgroup,
  thread_scope_device
};
MSL_INLINE void threadgroup_barrier(mem_flags) { msl::wait_for_threadgroup(); }
MSL_INLINE void simdgroup_barrier(mem_flags) { msl::wait_for_simdgroup(); }
MSL_INLINE void atomic_thread_fence(mem_flags, memory_order = memory_order_seq_cst, thread_scope = thread_scope_device) {
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
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

MSL_INLINE uint lane_above(uint delta) { return lane() + delta > 31 ? lane() : lane() + delta; }
MSL_INLINE uint lane_below(uint delta) { return lane() < delta ? lane() : lane() - delta; }
MSL_INLINE uint lane_in_quad(uint index) { return (lane() & ~3u) | (index & 3); }

}  // namespace msl

namespace metal {

// Shuffles and reductions exist for numbers of at most 32 bits; any other type finds no overload.
template <class T>
using simd_number = enable_if_t<msl::one_of<T, char, uchar, short, ushort, int, uint, half, float, bfloat>(), T>;
template <class T> using simd_integer = enable_if_t<msl::one_of<T, char, uchar, short, ushort, int, uint>(), T>;

#define MSL_SHUFFLE(name, source) \
  template <class T> MSL_INLINE simd_number<T> name(T value, ushort amount) { return msl::value_of_lane(value, source); }
MSL_SHUFFLE(simd_shuffle, amount)
MSL_SHUFFLE(simd_broadcast, amount)
MSL_SHUFFLE(simd_shuffle_xor, msl::lane() ^ amount)
MSL_SHUFFLE(simd_shuffle_down, msl::lane_above(amount))
MSL_SHUFFLE(simd_shuffle_up, msl::lane_below(amount))
MSL_SHUFFLE(simd_shuffle_rotate_down, msl::lane() + amount)
MSL_SHUFFLE(simd_shuffle_rotate_up, msl::lane() - amount)
MSL_SHUFFLE(quad_shuffle, msl::lane_in_quad(amount))
MSL_SHUFFLE(quad_broadcast, msl::lane_in_quad(amount))
MSL_SHUFFLE(quad_shuffle_xor, msl::lane() ^ (amount & 3))
MSL_SHUFFLE(quad_shuffle_down, (msl::lane() & 3) + amount > 3 ? msl::lane() : msl::lane() + amount)
MSL_SHUFFLE(quad_shuffle_up, (msl::lane() & 3) < amount ? msl::lane() : msl::lane() - amount)
MSL_SHUFFLE(quad_shuffle_rotate_down, msl::lane_in_quad(msl::lane() + amount))
MSL_SHUFFLE(quad_shuffle_rotate_up, msl::lane_in_quad(msl::lane() - amount))
#undef MSL_SHUFFLE

// Lanes beyond the end of each block of `width` lanes take the filling of the lane they would wrap around to.
#define MSL_FILL_SHUFFLE(name, source, outside) \
  template <class T> MSL_INLINE simd_number<T> name(T value, T filling, ushort amount, ushort width = 32) { \
    uint lane = msl::lane() & (width - 1u); \
    uint block = msl::lane() - lane; \
    T shuffled = msl::value_of_lane(value, block + ((source) & (width - 1u))); \
    T filled = msl::value_of_lane(filling, block + ((source) & (width - 1u))); \
    if (outside) return filled; \
    return shuffled; \
  }
MSL_FILL_SHUFFLE(simd_shuffle_and_fill_down, lane + amount, lane + amount >= width)
MSL_FILL_SHUFFLE(simd_shuffle_and_fill_up, lane - amount, lane < amount)
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

#define MSL_SCANS(suffix, function, identity) \
  template <class T> MSL_INLINE simd_number<T> simd_prefix_inclusive_##suffix(T value) { \
    return msl::scan_lanes(value, function(), T(identity), true); \
  } \
  template <class T> MSL_INLINE simd_number<T> simd_prefix_exclusive_##suffix(T value) { \
    return msl::scan_lanes(value, function(), T(identity), false); \
  }
MSL_SCANS(sum, msl::sum, 0)
MSL_SCANS(product, msl::product, 1)
#undef MSL_SCANS

template <class T> MSL_INLINE simd_number<T> simd_broadcast_first(T value) { return msl::value_of_first(value, 0, 32); }
template <class T> MSL_INLINE simd_number<T> quad_broadcast_first(T value) {
  return msl::value_of_first(value, msl::lane() & ~3u, 4);
}

#define MSL_VECTOR_SHUFFLE(name) \
  template <class T, int N> MSL_INLINE vec<T, N> name(vec<T, N> value, ushort amount) { \
    vec<T, N> result; \
    for (int i = 0; i < N; ++i) result[i] = name(value[i], amount); \
    return result; \
  }
MSL_VECTOR_SHUFFLE(simd_shuffle)
MSL_VECTOR_SHUFFLE(simd_broadcast)
MSL_VECTOR_SHUFFLE(simd_shuffle_xor)
MSL_VECTOR_SHUFFLE(simd_shuffle_down)
MSL_VECTOR_SHUFFLE(simd_shuffle_up)
MSL_VECTOR_SHUFFLE(simd_shuffle_rotate_down)
MSL_VECTOR_SHUFFLE(simd_shuffle_rotate_up)
MSL_VECTOR_SHUFFLE(quad_shuffle)
MSL_VECTOR_SHUFFLE(quad_broadcast)
MSL_VECTOR_SHUFFLE(quad_shuffle_xor)
MSL_VECTOR_SHUFFLE(quad_shuffle_down)
MSL_VECTOR_SHUFFLE(quad_shuffle_up)
#undef MSL_VECTOR_SHUFFLE
#define MSL_VECTOR_FILL_SHUFFLE(name) \
  template <class T, int N> \
  MSL_INLINE vec<T, N> name(vec<T, N> value, vec<T, N> filling, ushort amount, ushort width = 32) { \
    vec<T, N> result; \
    for (int i = 0; i < N; ++i) result[i] = name(value[i], filling[i], amount, width); \
    return result; \
  }
MSL_VECTOR_FILL_SHUFFLE(simd_shuffle_and_fill_down)
MSL_VECTOR_FILL_SHUFFLE(simd_shuffle_and_fill_up)
#undef MSL_VECTOR_FILL_SHUFFLE
#define MSL_VECTOR_FOLD(name) \
  template <class T, int N> MSL_INLINE vec<T, N> name(vec<T, N> value) { \
    vec<T, N> result; \
    for (int i = 0; i < N; ++i) result[i] = name(value[i]); \
    return result; \
  }
MSL_VECTOR_FOLD(simd_sum)
MSL_VECTOR_FOLD(simd_product)
MSL_VECTOR_FOLD(simd_min)
MSL_VECTOR_FOLD(simd_max)
MSL_VECTOR_FOLD(quad_sum)
MSL_VECTOR_FOLD(simd_broadcast_first)
MSL_VECTOR_FOLD(simd_prefix_inclusive_sum)
MSL_VECTOR_FOLD(simd_prefix_exclusive_sum)
#undef MSL_VECTOR_FOLD

class simd_vote {
 public:
  typedef ulong vote_t;
  explicit constexpr simd_vote(vote_t votes = 0) : votes_(votes) {}
  explicit constexpr operator vote_t() const { return votes_; }
  constexpr bool all() const { return uint(votes_) == 0xffffffffu; }
  constexpr bool any() const { return votes_ != 0; }

 private:
  vote_t votes_;
};

MSL_INLINE simd_vote simd_ballot(bool vote) { return simd_vote(msl::ballot(vote)); }
MSL_INLINE simd_vote simd_active_threads_mask() { return simd_vote(msl::active_mask()); }
MSL_INLINE bool simd_any(bool vote) { return msl::ballot(vote) != 0; }
MSL_INLINE bool simd_all(bool vote) { return msl::ballot(!vote) == 0; }
MSL_INLINE bool simd_is_first() { return msl::lane() == uint(__builtin_ctzg(msl::active_mask())); }
MSL_INLINE bool quad_any(bool vote) { return ((msl::ballot(vote) >> (msl::lane() & ~3u)) & 15) != 0; }
MSL_INLINE bool quad_all(bool vote) { return ((msl::ballot(!vote) >> (msl::lane() & ~3u)) & 15) == 0; }
MSL_INLINE bool quad_is_first() {
  uint quad = msl::lane() & ~3u;
  return msl::lane() == quad + __builtin_ctzg((msl::active_mask() >> quad) & 15u);
}

}  // namespace metal

#endif
