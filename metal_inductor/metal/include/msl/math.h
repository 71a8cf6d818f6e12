// <metal_math>: elementary functions, rounding and floating-point manipulation.
#ifndef MSL_MATH_H
#define MSL_MATH_H
#include "msl/inverse.h"

namespace metal {

// half computes in float and rounds once. Vectors compute all lanes at once.
#define MSL_SCALAR_UNARY(name, expression) \
  MSL_INLINE float name(float x) { return expression; } \
  MSL_INLINE half name(half value) { return half(name(float(value))); }
#define MSL_UNARY(name, expression) \
  MSL_SCALAR_UNARY(name, expression) \
  template <class T, int N> MSL_INLINE enable_if_t<is_floating_point_v<T>, vec<T, N>> name(vec<T, N> v) { \
    msl::simd<float, N> x = msl::convert_lanes<float, T, N>(v.msl_lanes); \
    return vec<T, N>(msl::from_lanes(), msl::convert_lanes<T, float, N>(expression)); \
  }
#define MSL_SCALAR_BINARY(name, expression) \
  MSL_INLINE float name(float x, float y) { return expression; } \
  MSL_INLINE half name(half a, half b) { return half(name(float(a), float(b))); }
#define MSL_BINARY(name, expression) \
  MSL_SCALAR_BINARY(name, expression) \
  template <class T, int N> \
  MSL_INLINE enable_if_t<is_floating_point_v<T>, vec<T, N>> name(vec<T, N> a, vec<T, N> b) { \
    msl::simd<float, N> x = msl::convert_lanes<float, T, N>(a.msl_lanes); \
    msl::simd<float, N> y = msl::convert_lanes<float, T, N>(b.msl_lanes); \
    return vec<T, N>(msl::from_lanes(), msl::convert_lanes<T, float, N>(expression)); \
  }

MSL_UNARY(exp, msl::exp(x))
MSL_UNARY(exp2, msl::exp2(x))
MSL_UNARY(exp10, msl::exp10(x))
MSL_UNARY(log, msl::log(x))
MSL_UNARY(log2, msl::log2(x))
MSL_UNARY(log10, msl::log10(x))
MSL_UNARY(sin, msl::sin(x))
MSL_UNARY(cos, msl::cos(x))
MSL_UNARY(tan, msl::tan(x))
MSL_UNARY(tanh, msl::tanh(x))
MSL_UNARY(sinpi, msl::sinpi(x))
MSL_UNARY(cospi, msl::cospi(x))
MSL_UNARY(tanpi, msl::tanpi(x))
MSL_UNARY(asin, msl::asin(x))
MSL_UNARY(acos, msl::acos(x))
MSL_UNARY(atan, msl::atan(x))
MSL_UNARY(sinh, msl::sinh(x))
MSL_UNARY(cosh, msl::cosh(x))
MSL_UNARY(asinh, msl::asinh(x))
MSL_UNARY(acosh, msl::acosh(x))
MSL_UNARY(atanh, msl::atanh(x))
MSL_UNARY(sqrt, __builtin_elementwise_sqrt(x))
MSL_UNARY(rsqrt, msl::rsqrt(x))
MSL_UNARY(floor, __builtin_elementwise_floor(x))
MSL_UNARY(ceil, __builtin_elementwise_ceil(x))
MSL_UNARY(trunc, __builtin_elementwise_trunc(x))
MSL_UNARY(rint, __builtin_elementwise_rint(x))
MSL_UNARY(round, __builtin_elementwise_round(x))
MSL_UNARY(fabs, __builtin_elementwise_abs(x))
MSL_BINARY(pow, msl::pow(x, y))
MSL_BINARY(powr, msl::powr(x, y))
MSL_BINARY(fmod, msl::fmod(x, y))
MSL_BINARY(atan2, msl::atan2(x, y))
MSL_BINARY(copysign, __builtin_elementwise_copysign(x, y))
MSL_BINARY(fmin, __builtin_elementwise_minnum(x, y))
MSL_BINARY(fmax, __builtin_elementwise_maxnum(x, y))
MSL_BINARY(fdim, msl::positive_difference(x, y))
MSL_BINARY(divide, x / y)

// The fraction of a small negative number would round to one: the largest number below one takes its place.
MSL_INLINE float fract(float x) { return msl::fract(x); }
MSL_INLINE half fract(half x) {
  float part = msl::fract(float(x));
  return half(part > 0.99951171875f ? 0.99951171875f : part);
}
template <class T, int N> MSL_INLINE enable_if_t<is_floating_point_v<T>, vec<T, N>> fract(vec<T, N> v) {
  vec<T, N> result;
  for (int i = 0; i < N; ++i) result[i] = T(fract(v[i]));
  return result;
}

MSL_INLINE float fma(float a, float b, float c) { return __builtin_elementwise_fma(a, b, c); }
MSL_INLINE half fma(half a, half b, half c) { return msl::fused_half(a, b, c); }
template <class T, int N> MSL_INLINE enable_if_t<is_floating_point_v<T>, vec<T, N>> fma(vec<T, N> a, vec<T, N> b, vec<T, N> c) {
  if constexpr (is_same_v<T, half>) {
    vec<T, N> result;
    for (int i = 0; i < N; ++i) result[i] = fma(a[i], b[i], c[i]);
    return result;
  } else {
    return vec<T, N>(msl::from_lanes(), msl::narrow<T, N>(__builtin_elementwise_fma(
        msl::widen<T, N>(a.msl_lanes), msl::widen<T, N>(b.msl_lanes), msl::widen<T, N>(c.msl_lanes))));
  }
}

#define MSL_OF_THREE(T) \
  MSL_INLINE T fmin3(T a, T b, T c) { return fmin(a, fmin(b, c)); } \
  MSL_INLINE T fmax3(T a, T b, T c) { return fmax(a, fmax(b, c)); } \
  MSL_INLINE T fmedian3(T a, T b, T c) { return fmax(fmin(a, b), fmin(fmax(a, b), c)); }
MSL_OF_THREE(float)
MSL_OF_THREE(half)
#undef MSL_OF_THREE

MSL_INLINE float nextafter(float x, float y) { return msl::nextafter(x, y); }
MSL_INLINE half nextafter(half x, half y) {
  if (x != x || y != y) return half(NAN);
  if (x == y) return y;
  short bits = as_type<short>(x);
  if (x == half(0)) return as_type<half>(short(y > half(0) ? 0x0001 : 0x8001));
  bool away = (x < y) == (bits >= 0);
  return as_type<half>(short(away ? bits + 1 : bits - 1));
}

// Exact in double for every exponent that leaves a float, then one rounding.
MSL_INLINE float ldexp(float x, int k) {
  k = k < -300 ? -300 : (k > 300 ? 300 : k);
  return float(double(x) * msl::exactly(ulong(1023 + k) << 52));
}
MSL_INLINE half ldexp(half x, int k) { return half(ldexp(float(x), k)); }

MSL_INLINE int ilogb(float x) {
  if (x == 0.0f) return -2147483647 - 1;
  if (x != x || x - x != 0.0f) return 2147483647;
  bool subnormal = __builtin_elementwise_abs(x) < FLT_MIN;
  uint bits = as_type<uint>(subnormal ? x * 16777216.0f : x);
  return int((bits >> 23) & 0xff) - (subnormal ? 151 : 127);
}
MSL_INLINE int ilogb(half x) { return ilogb(float(x)); }

#define MSL_COMPONENTS(count, expression) \
  for (int i = 0; i < count; ++i) result[i] = expression; \
  return result;
template <class T, int N> MSL_INLINE vec<T, N> ldexp(vec<T, N> x, vec<int, N> k) {
  vec<T, N> result;
  MSL_COMPONENTS(N, ldexp(x[i], k[i]))
}
template <class T, int N> MSL_INLINE enable_if_t<is_floating_point_v<T>, vec<int, N>> ilogb(vec<T, N> x) {
  vec<int, N> result;
  MSL_COMPONENTS(N, ilogb(x[i]))
}
template <class T, int N> MSL_INLINE enable_if_t<is_floating_point_v<T>, vec<T, N>> nextafter(vec<T, N> x, vec<T, N> y) {
  vec<T, N> result;
  MSL_COMPONENTS(N, nextafter(x[i], y[i]))
}
#define MSL_VECTOR_OF_THREE(name) \
  template <class T, int N> MSL_INLINE enable_if_t<is_floating_point_v<T>, vec<T, N>> name(vec<T, N> a, vec<T, N> b, vec<T, N> c) { \
    vec<T, N> result; \
    MSL_COMPONENTS(N, name(a[i], b[i], c[i])) \
  }
MSL_VECTOR_OF_THREE(fmin3)
MSL_VECTOR_OF_THREE(fmax3)
MSL_VECTOR_OF_THREE(fmedian3)
#undef MSL_VECTOR_OF_THREE

#define MSL_OUT_PARAMETER(space) \
  MSL_INLINE float frexp(float x, space int &exponent) { \
    bool regular = x - x == 0.0f && x != 0.0f; \
    int e = regular ? ilogb(x) + 1 : 0; \
    exponent = e; \
    return regular ? ldexp(x, -e) : x; \
  } \
  MSL_INLINE half frexp(half x, space int &exponent) { return half(frexp(float(x), exponent)); } \
  MSL_INLINE float modf(float x, space float &whole) { \
    whole = __builtin_elementwise_trunc(x); \
    return __builtin_elementwise_copysign(x - x != 0.0f && x == x ? 0.0f : x - __builtin_elementwise_trunc(x), x); \
  } \
  MSL_INLINE half modf(half x, space half &whole) { \
    whole = trunc(x); \
    float unused; \
    return half(modf(float(x), unused)); \
  } \
  MSL_INLINE float sincos(float x, space float &cosine) { \
    cosine = cos(x); \
    return sin(x); \
  } \
  MSL_INLINE half sincos(half x, space half &cosine) { \
    cosine = cos(x); \
    return sin(x); \
  } \
  template <class T, int N> MSL_INLINE vec<T, N> frexp(vec<T, N> x, space vec<int, N> &exponent) { \
    vec<T, N> result; \
    int e; \
    for (int i = 0; i < N; ++i) { \
      result[i] = frexp(x[i], e); \
      exponent[i] = e; \
    } \
    return result; \
  } \
  template <class T, int N> MSL_INLINE vec<T, N> modf(vec<T, N> x, space vec<T, N> &whole) { \
    vec<T, N> result; \
    T unused; \
    MSL_COMPONENTS(N, (whole[i] = trunc(x[i]), modf(x[i], unused))) \
  } \
  template <class T, int N> MSL_INLINE vec<T, N> sincos(vec<T, N> x, space vec<T, N> &cosine) { \
    cosine = cos(x); \
    return sin(x); \
  }
MSL_OUT_PARAMETER(thread)
MSL_OUT_PARAMETER(device)
MSL_OUT_PARAMETER(threadgroup)
#undef MSL_OUT_PARAMETER

}  // namespace metal

#endif
