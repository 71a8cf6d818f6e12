// The compiler's own names for functions of the library, by which published kernels extend them to further types.
#ifndef MSL_BUILTINS_H
#define MSL_BUILTINS_H
#include "msl/simdgroup.h"

#define __METAL_PRECISE_MATH__ false
#define __METAL_FAST_MATH__ true
#define __METAL_MAYBE_FAST_MATH__ false

// The last argument asks for fast math, which here is no other function.
#define MSL_BUILTIN_1(name) \
  template <class T> MSL_INLINE T __metal_##name(T x, bool) { return metal::name(x); }
#define MSL_BUILTIN_2(name) \
  template <class T> MSL_INLINE T __metal_##name(T x, T y, bool) { return metal::name(x, y); }
#define MSL_BUILTIN_3(name) \
  template <class T> MSL_INLINE T __metal_##name(T x, T y, T z, bool) { return metal::name(x, y, z); }
MSL_BUILTIN_1(fabs) MSL_BUILTIN_1(acos) MSL_BUILTIN_1(acosh) MSL_BUILTIN_1(asin) MSL_BUILTIN_1(asinh) MSL_BUILTIN_1(atan)
MSL_BUILTIN_1(atanh) MSL_BUILTIN_1(ceil) MSL_BUILTIN_1(cos) MSL_BUILTIN_1(cosh) MSL_BUILTIN_1(cospi) MSL_BUILTIN_1(exp)
MSL_BUILTIN_1(exp2) MSL_BUILTIN_1(exp10) MSL_BUILTIN_1(floor) MSL_BUILTIN_1(fract) MSL_BUILTIN_1(log) MSL_BUILTIN_1(log2)
MSL_BUILTIN_1(log10) MSL_BUILTIN_1(rint) MSL_BUILTIN_1(round) MSL_BUILTIN_1(rsqrt) MSL_BUILTIN_1(sin) MSL_BUILTIN_1(sinh)
MSL_BUILTIN_1(sinpi) MSL_BUILTIN_1(sqrt) MSL_BUILTIN_1(tan) MSL_BUILTIN_1(tanh) MSL_BUILTIN_1(tanpi) MSL_BUILTIN_1(trunc)
MSL_BUILTIN_2(atan2) MSL_BUILTIN_2(divide) MSL_BUILTIN_2(fmax) MSL_BUILTIN_2(fmin) MSL_BUILTIN_2(fmod) MSL_BUILTIN_2(pow)
MSL_BUILTIN_2(powr)
MSL_BUILTIN_3(fmax3) MSL_BUILTIN_3(fmin3) MSL_BUILTIN_3(fmedian3)
#undef MSL_BUILTIN_3
#undef MSL_BUILTIN_2
#undef MSL_BUILTIN_1
template <class T> MSL_INLINE T __metal_fma(T a, T b, T c) { return metal::fma(a, b, c); }
template <class T> MSL_INLINE T __metal_nextafter(T x, T y) { return metal::nextafter(x, y); }
template <class T> MSL_INLINE T __metal_ldexp(T x, int k, bool) { return metal::ldexp(x, k); }
template <class T> MSL_INLINE T __metal_frexp(T x, thread int *exponent) { return metal::frexp(x, *exponent); }

#define MSL_BUILTIN_LANES(name) \
  template <class T, class... Rest> MSL_INLINE T __metal_simd_##name(T value, Rest... rest) { \
    return metal::simd_##name(value, rest...); \
  }
MSL_BUILTIN_LANES(broadcast) MSL_BUILTIN_LANES(shuffle) MSL_BUILTIN_LANES(shuffle_down) MSL_BUILTIN_LANES(shuffle_up)
MSL_BUILTIN_LANES(shuffle_xor) MSL_BUILTIN_LANES(shuffle_rotate_down) MSL_BUILTIN_LANES(shuffle_rotate_up)
MSL_BUILTIN_LANES(shuffle_and_fill_down) MSL_BUILTIN_LANES(shuffle_and_fill_up)
MSL_BUILTIN_LANES(max) MSL_BUILTIN_LANES(min) MSL_BUILTIN_LANES(sum) MSL_BUILTIN_LANES(product)
MSL_BUILTIN_LANES(and) MSL_BUILTIN_LANES(or)
MSL_BUILTIN_LANES(prefix_exclusive_product) MSL_BUILTIN_LANES(prefix_exclusive_sum)
MSL_BUILTIN_LANES(prefix_inclusive_product) MSL_BUILTIN_LANES(prefix_inclusive_sum)
#undef MSL_BUILTIN_LANES
// Unlike the function, this takes numbers of every type: it combines their bits.
template <class T> MSL_INLINE T __metal_simd_xor(T value) {
  typedef metal::conditional_t<sizeof(T) == 4, uint, metal::conditional_t<sizeof(T) == 2, ushort, uchar>> word;
  return as_type<T>(metal::simd_xor(as_type<word>(value)));
}
MSL_INLINE ushort __metal_get_simdgroup_size(ushort) { return 32; }
MSL_INLINE ushort __metal_get_thread_index_in_simdgroup(ushort) { return ushort(msl::lane()); }

#endif
