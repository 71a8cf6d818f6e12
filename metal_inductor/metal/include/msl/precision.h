// metal::precise and metal::fast, which exist for float alone: half converts to it.
// Both are the exact version, unless the hardware has a function that is less exact and faster.
#ifndef MSL_PRECISION_H
#define MSL_PRECISION_H
#include "msl/relational.h"
#ifdef __NVPTX__
#include "msl/fast_nvptx.h"
#endif

namespace metal {

#define MSL_FORWARD_1(name) \
  MSL_INLINE float name(float x) { return metal::name(x); } \
  template <int N> MSL_INLINE vec<float, N> name(vec<float, N> x) { return metal::name(x); }
#define MSL_FORWARD_2(name) \
  MSL_INLINE float name(float x, float y) { return metal::name(x, y); } \
  template <int N> MSL_INLINE vec<float, N> name(vec<float, N> x, vec<float, N> y) { return metal::name(x, y); }
#define MSL_FORWARD_MIXED(name) \
  MSL_FORWARD_2(name) \
  template <int N> MSL_INLINE vec<float, N> name(vec<float, N> x, scalar_operand<float> y) { return metal::name(x, y); }
#define MSL_FORWARD_3(name) \
  MSL_INLINE float name(float x, float y, float z) { return metal::name(x, y, z); } \
  template <int N> MSL_INLINE vec<float, N> name(vec<float, N> x, vec<float, N> y, vec<float, N> z) { \
    return metal::name(x, y, z); \
  }
#define MSL_FORWARD_OUT(name, T, space) \
  MSL_INLINE float name(float x, space T &out) { return metal::name(x, out); } \
  template <int N> MSL_INLINE vec<float, N> name(vec<float, N> x, space vec<T, N> &out) { return metal::name(x, out); }
#define MSL_FORWARD_OUTS(space) \
  MSL_FORWARD_OUT(frexp, int, space) MSL_FORWARD_OUT(modf, float, space) MSL_FORWARD_OUT(sincos, float, space)
#define MSL_BOTH_PRECISIONS \
  MSL_ROUGHLY_1(exp) MSL_ROUGHLY_1(exp2) MSL_ROUGHLY_1(exp10) MSL_ROUGHLY_1(log) MSL_ROUGHLY_1(log2) \
  MSL_ROUGHLY_1(log10) MSL_ROUGHLY_1(sin) MSL_ROUGHLY_1(cos) MSL_FORWARD_1(tan) MSL_FORWARD_1(tanh) \
  MSL_FORWARD_1(sinpi) MSL_FORWARD_1(cospi) MSL_FORWARD_1(tanpi) MSL_FORWARD_1(asin) MSL_FORWARD_1(acos) \
  MSL_FORWARD_1(atan) MSL_FORWARD_1(sinh) MSL_FORWARD_1(cosh) MSL_FORWARD_1(asinh) MSL_FORWARD_1(acosh) \
  MSL_FORWARD_1(atanh) MSL_ROUGHLY_1(sqrt) MSL_ROUGHLY_1(rsqrt) MSL_FORWARD_1(floor) MSL_FORWARD_1(ceil) \
  MSL_FORWARD_1(trunc) MSL_FORWARD_1(rint) MSL_FORWARD_1(round) MSL_FORWARD_1(fabs) MSL_FORWARD_1(abs) \
  MSL_FORWARD_1(fract) MSL_FORWARD_1(sign) MSL_FORWARD_1(saturate) \
  MSL_FORWARD_2(pow) MSL_FORWARD_2(powr) MSL_FORWARD_2(fmod) MSL_FORWARD_2(atan2) MSL_FORWARD_2(copysign) \
  MSL_FORWARD_MIXED(fmin) MSL_FORWARD_MIXED(fmax) MSL_FORWARD_MIXED(min) MSL_FORWARD_MIXED(max) MSL_FORWARD_2(fdim) \
  MSL_ROUGHLY_2(divide) MSL_FORWARD_2(nextafter) MSL_FORWARD_2(step) \
  MSL_FORWARD_3(fma) MSL_FORWARD_3(fmin3) MSL_FORWARD_3(fmax3) MSL_FORWARD_3(fmedian3) MSL_FORWARD_3(min3) \
  MSL_FORWARD_3(max3) MSL_FORWARD_3(median3) MSL_FORWARD_3(clamp) MSL_FORWARD_3(mix) MSL_FORWARD_3(smoothstep) \
  MSL_FORWARD_OUTS(thread) MSL_FORWARD_OUTS(device) MSL_FORWARD_OUTS(threadgroup) \
  MSL_INLINE float ldexp(float x, int k) { return metal::ldexp(x, k); } \
  template <int N> MSL_INLINE vec<float, N> ldexp(vec<float, N> x, vec<int, N> k) { return metal::ldexp(x, k); } \
  MSL_INLINE int ilogb(float x) { return metal::ilogb(x); } \
  template <int N> MSL_INLINE vec<int, N> ilogb(vec<float, N> x) { return metal::ilogb(x); } \
  template <int N> MSL_INLINE vec<float, N> clamp(vec<float, N> x, scalar_operand<float> low, scalar_operand<float> high) { \
    return metal::clamp(x, low, high); \
  } \
  template <int N> MSL_INLINE float length(vec<float, N> v) { return metal::length(v); } \
  template <int N> MSL_INLINE float distance(vec<float, N> a, vec<float, N> b) { return metal::distance(a, b); } \
  template <int N> MSL_INLINE vec<float, N> normalize(vec<float, N> v) { return metal::normalize(v); } \
  template <int N> MSL_INLINE float dot(vec<float, N> a, vec<float, N> b) { return metal::dot(a, b); } \
  MSL_INLINE bool isnan(float x) { return metal::isnan(x); } \
  MSL_INLINE bool isinf(float x) { return metal::isinf(x); } \
  MSL_INLINE bool isfinite(float x) { return metal::isfinite(x); }

#define MSL_ROUGHLY_1 MSL_FORWARD_1
#define MSL_ROUGHLY_2 MSL_FORWARD_2
namespace precise {
MSL_BOTH_PRECISIONS
}
#ifdef __NVPTX__
#undef MSL_ROUGHLY_1
#undef MSL_ROUGHLY_2
#define MSL_ROUGHLY_1(name) \
  MSL_INLINE float name(float x) { return msl::fast_##name(x); } \
  template <int N> MSL_INLINE vec<float, N> name(vec<float, N> x) { \
    vec<float, N> result; \
    for (int i = 0; i < N; ++i) result[i] = msl::fast_##name(x[i]); \
    return result; \
  }
#define MSL_ROUGHLY_2(name) \
  MSL_INLINE float name(float x, float y) { return msl::fast_##name(x, y); } \
  template <int N> MSL_INLINE vec<float, N> name(vec<float, N> x, vec<float, N> y) { \
    vec<float, N> result; \
    for (int i = 0; i < N; ++i) result[i] = msl::fast_##name(x[i], y[i]); \
    return result; \
  }
#endif
namespace fast {
MSL_BOTH_PRECISIONS
}
#undef MSL_BOTH_PRECISIONS
#undef MSL_ROUGHLY_2
#undef MSL_ROUGHLY_1
#undef MSL_FORWARD_OUTS
#undef MSL_FORWARD_OUT
#undef MSL_FORWARD_3
#undef MSL_FORWARD_MIXED
#undef MSL_FORWARD_2
#undef MSL_FORWARD_1

}  // namespace metal

#endif
