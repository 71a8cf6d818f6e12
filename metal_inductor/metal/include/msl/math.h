// <metal_math>: elementary functions, rounding and floating-point manipulation, in metal, metal::precise and metal::fast.
// The three agree: a less exact version would gain nothing here.
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
MSL_UNARY(sinpi, msl::sin(3.14159265358979324f * (x - 2.0f * __builtin_elementwise_rint(x * 0.5f))))
MSL_UNARY(cospi, msl::cos(3.14159265358979324f * (x - 2.0f * __builtin_elementwise_rint(x * 0.5f))))
MSL_UNARY(tanpi, msl::tan(3.14159265358979324f * (x - __builtin_elementwise_rint(x))))
MSL_UNARY(asin, msl::asin(x))
MSL_UNARY(acos, msl::acos(x))
MSL_UNARY(atan, msl::atan(x))
MSL_UNARY(sinh, msl::sinh(x))
MSL_UNARY(cosh, msl::cosh(x))
MSL_UNARY(asinh, msl::asinh(x))
MSL_UNARY(acosh, msl::acosh(x))
MSL_UNARY(atanh, msl::atanh(x))
MSL_UNARY(sqrt, __builtin_elementwise_sqrt(x))
MSL_UNARY(rsqrt, 1.0f / __builtin_elementwise_sqrt(x))
MSL_UNARY(floor, __builtin_elementwise_floor(x))
MSL_UNARY(ceil, __builtin_elementwise_ceil(x))
MSL_UNARY(trunc, __builtin_elementwise_trunc(x))
MSL_UNARY(rint, __builtin_elementwise_rint(x))
MSL_UNARY(round, __builtin_elementwise_round(x))
MSL_UNARY(fabs, __builtin_elementwise_abs(x))
MSL_UNARY(fract, msl::fract(x))
MSL_BINARY(pow, msl::pow(x, y))
MSL_BINARY(powr, msl::powr(x, y))
MSL_BINARY(fmod, msl::fmod(x, y))
MSL_BINARY(atan2, msl::atan2(x, y))
MSL_BINARY(copysign, __builtin_elementwise_copysign(x, y))
MSL_BINARY(fmin, __builtin_elementwise_minnum(x, y))
MSL_BINARY(fmax, __builtin_elementwise_maxnum(x, y))
MSL_BINARY(fdim, msl::positive_difference(x, y))
MSL_BINARY(divide, x / y)

MSL_INLINE float fma(float a, float b, float c) { return __builtin_elementwise_fma(a, b, c); }
MSL_INLINE half fma(half a, half b, half c) { return __builtin_elementwise_fma(a, b, c); }
template <class T, int N> MSL_INLINE vec<T, N> fma(vec<T, N> a, vec<T, N> b, vec<T, N> c) {
  return vec<T, N>(msl::from_lanes(), msl::narrow<T, N>(__builtin_elementwise_fma(
      msl::widen<T, N>(a.msl_lanes), msl::widen<T, N>(b.msl_lanes), msl::widen<T, N>(c.msl_lanes))));
}

MSL_INLINE float nextafter(float x, float y) { return msl::nextafter(x, y); }

MSL_INLINE half nextafter(half x, half y) {
  if (x != x || y != y) return half(NAN);
  if (x == y) return y;
  short bits = as_type<short>(x);
  if (x == half(0)) return as_type<half>(short(y > half(0) ? 0x0001 : 0x8001));
  bool away = (x < y) == (bits >= 0);
  return as_type<half>(short(away ? bits + 1 : bits - 1));
}

// Exact for every exponent: three factors reach from the smallest subnormal to the largest number.
MSL_INLINE float ldexp(float x, int k) {
  k = k < -300 ? -300 : (k > 300 ? 300 : k);
  int third = k / 3;
  float factor = as_type<float>((third + 127) << 23);
  float last = as_type<float>((k - 2 * third + 127) << 23);
  return (x >= -1.0f && x <= 1.0f) == (k > 0) ? x * factor * factor * last : x * last * factor * factor;
}
MSL_INLINE half ldexp(half x, int k) { return half(ldexp(float(x), k)); }
template <class T, int N> MSL_INLINE vec<T, N> ldexp(vec<T, N> x, vec<int, N> k) {
  vec<T, N> result;
  for (int i = 0; i < N; ++i) result[i] = ldexp(x[i], k[i]);
  return result;
}

MSL_INLINE int ilogb(float x) {
  if (x == 0.0f) return -2147483647 - 1;
  if (x != x || x - x != 0.0f) return 2147483647;
  bool subnormal = __builtin_elementwise_abs(x) < FLT_MIN;
  uint bits = as_type<uint>(subnormal ? x * 16777216.0f : x);
  return int((bits >> 23) & 0xff) - (subnormal ? 151 : 127);
}
MSL_INLINE int ilogb(half x) { return ilogb(float(x)); }

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
    return __builtin_elementwise_copysign(x - x != 0.0f && x == x ? 0.0f : x - whole, x); \
  } \
  MSL_INLINE float sincos(float x, space float &cosine) { \
    cosine = cos(x); \
    return sin(x); \
  } \
  MSL_INLINE half sincos(half x, space half &cosine) { \
    cosine = cos(x); \
    return sin(x); \
  }
MSL_OUT_PARAMETER(thread)
MSL_OUT_PARAMETER(device)
MSL_OUT_PARAMETER(threadgroup)
#undef MSL_OUT_PARAMETER

#define MSL_ALL_PRECISIONS(name) using metal::name;
#define MSL_SHARED_NAMES \
  MSL_ALL_PRECISIONS(exp) MSL_ALL_PRECISIONS(exp2) MSL_ALL_PRECISIONS(exp10) MSL_ALL_PRECISIONS(log) \
  MSL_ALL_PRECISIONS(log2) MSL_ALL_PRECISIONS(log10) MSL_ALL_PRECISIONS(sin) MSL_ALL_PRECISIONS(cos) \
  MSL_ALL_PRECISIONS(tan) MSL_ALL_PRECISIONS(tanh) MSL_ALL_PRECISIONS(sinpi) MSL_ALL_PRECISIONS(cospi) \
  MSL_ALL_PRECISIONS(tanpi) MSL_ALL_PRECISIONS(asin) MSL_ALL_PRECISIONS(acos) MSL_ALL_PRECISIONS(atan) \
  MSL_ALL_PRECISIONS(sinh) MSL_ALL_PRECISIONS(cosh) MSL_ALL_PRECISIONS(asinh) MSL_ALL_PRECISIONS(acosh) \
  MSL_ALL_PRECISIONS(atanh) MSL_ALL_PRECISIONS(sqrt) MSL_ALL_PRECISIONS(rsqrt) MSL_ALL_PRECISIONS(floor) \
  MSL_ALL_PRECISIONS(ceil) MSL_ALL_PRECISIONS(trunc) MSL_ALL_PRECISIONS(rint) MSL_ALL_PRECISIONS(round) \
  MSL_ALL_PRECISIONS(fabs) MSL_ALL_PRECISIONS(fract) MSL_ALL_PRECISIONS(pow) MSL_ALL_PRECISIONS(powr) \
  MSL_ALL_PRECISIONS(fmod) MSL_ALL_PRECISIONS(atan2) MSL_ALL_PRECISIONS(copysign) MSL_ALL_PRECISIONS(fmin) \
  MSL_ALL_PRECISIONS(fmax) MSL_ALL_PRECISIONS(fdim) MSL_ALL_PRECISIONS(divide) MSL_ALL_PRECISIONS(fma) \
  MSL_ALL_PRECISIONS(nextafter) MSL_ALL_PRECISIONS(ldexp) MSL_ALL_PRECISIONS(ilogb) MSL_ALL_PRECISIONS(frexp) \
  MSL_ALL_PRECISIONS(modf) MSL_ALL_PRECISIONS(sincos)
namespace precise {
MSL_SHARED_NAMES
}
namespace fast {
MSL_SHARED_NAMES
}

}  // namespace metal

#endif
