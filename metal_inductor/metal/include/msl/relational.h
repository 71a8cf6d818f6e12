// <metal_relational>, <metal_common> and <metal_geometric>.
#ifndef MSL_RELATIONAL_H
#define MSL_RELATIONAL_H
#include "msl/integer.h"

namespace metal {

#define MSL_CLASSIFY(name, expression) \
  MSL_INLINE bool name(float x) { return expression; } \
  MSL_INLINE bool name(half x) { return name(float(x)); } \
  template <class T, int N> MSL_INLINE vec<bool, N> name(vec<T, N> v) { \
    vec<bool, N> result; \
    for (int i = 0; i < N; ++i) result[i] = name(v[i]); \
    return result; \
  }
MSL_CLASSIFY(isnan, (as_type<uint>(x) & 0x7fffffffu) > 0x7f800000u)
MSL_CLASSIFY(isinf, (as_type<uint>(x) & 0x7fffffffu) == 0x7f800000u)
MSL_CLASSIFY(isfinite, (as_type<uint>(x) & 0x7fffffffu) < 0x7f800000u)
MSL_CLASSIFY(signbit, (as_type<uint>(x) >> 31) != 0)
#undef MSL_CLASSIFY
MSL_INLINE bool isnormal(float x) { return ((as_type<uint>(x) & 0x7fffffffu) - 0x00800000u) < 0x7f000000u; }
// A number is normal by the exponents of its own type, and bfloat has those of float.
MSL_INLINE bool isnormal(half x) { return ((as_type<ushort>(x) & 0x7fffu) - 0x0400u) < 0x7800u; }
template <class T, int N> MSL_INLINE vec<bool, N> isnormal(vec<T, N> v) {
  vec<bool, N> result;
  for (int i = 0; i < N; ++i) result[i] = isnormal(v[i]);
  return result;
}
#define MSL_ORDERED(T) \
  MSL_INLINE bool isordered(T x, T y) { return x == x && y == y; } \
  MSL_INLINE bool isunordered(T x, T y) { return x != x || y != y; }
MSL_ORDERED(half)
MSL_ORDERED(float)
MSL_ORDERED(bfloat)
#undef MSL_ORDERED
template <class T, int N> MSL_INLINE vec<bool, N> isordered(vec<T, N> x, vec<T, N> y) { return (x == x) & (y == y); }
template <class T, int N> MSL_INLINE vec<bool, N> isunordered(vec<T, N> x, vec<T, N> y) { return (x != x) | (y != y); }

template <int N> MSL_INLINE bool any(vec<bool, N> v) {
  bool result = false;
  for (int i = 0; i < N; ++i) result |= v[i];
  return result;
}
template <int N> MSL_INLINE bool all(vec<bool, N> v) {
  bool result = true;
  for (int i = 0; i < N; ++i) result &= v[i];
  return result;
}
MSL_INLINE bool any(bool v) { return v; }
MSL_INLINE bool all(bool v) { return v; }

#define MSL_SELECT(T) MSL_INLINE T select(T a, T b, bool c) { return c ? b : a; }
MSL_FOR_NUMBERS(MSL_SELECT)
MSL_SELECT(bool)
MSL_SELECT(bfloat)
#undef MSL_SELECT
template <class T, int N> MSL_INLINE vec<T, N> select(vec<T, N> a, vec<T, N> b, vec<bool, N> c) {
  vec<T, N> result;
  for (int i = 0; i < N; ++i) result[i] = c[i] ? b[i] : a[i];
  return result;
}
template <class T, int N> MSL_INLINE vec<T, N> select(vec<T, N> a, vec<T, N> b, bool c) { return c ? b : a; }

#define MSL_COMMON(T) \
  MSL_INLINE T mix(T x, T y, T a) { return x + (y - x) * a; } \
  MSL_INLINE T step(T edge, T x) { return x < edge ? T(0) : T(1); } \
  MSL_INLINE T saturate(T x) { return min(max(x, T(0)), T(1)); } \
  MSL_INLINE T sign(T x) { return x > T(0) ? T(1) : (x < T(0) ? T(-1) : (x == T(0) ? x : T(0))); } \
  MSL_INLINE T smoothstep(T low, T high, T x) { \
    T t = saturate((x - low) / (high - low)); \
    return t * t * (T(3) - T(2) * t); \
  }
MSL_COMMON(half)
MSL_COMMON(float)
#undef MSL_COMMON
MSL_COMPONENTWISE_1(saturate)
MSL_COMPONENTWISE_1(sign)
MSL_COMPONENTWISE_2(step)
MSL_COMPONENTWISE_3(mix)
MSL_COMPONENTWISE_3(smoothstep)
template <class T, int N> MSL_INLINE vec<T, N> mix(vec<T, N> x, vec<T, N> y, scalar_operand<T> a) {
  return mix(x, y, vec<T, N>(a));
}

template <class T, int N> MSL_INLINE T dot(vec<T, N> a, vec<T, N> b) {
  T sum = a[0] * b[0];
  for (int i = 1; i < N; ++i) sum += a[i] * b[i];
  return sum;
}
template <class T, int N> MSL_INLINE T length_squared(vec<T, N> v) { return dot(v, v); }
template <class T, int N> MSL_INLINE T length(vec<T, N> v) { return T(sqrt(dot(v, v))); }
template <class T, int N> MSL_INLINE T distance(vec<T, N> a, vec<T, N> b) { return length(a - b); }
template <class T, int N> MSL_INLINE T distance_squared(vec<T, N> a, vec<T, N> b) { return length_squared(a - b); }
template <class T, int N> MSL_INLINE vec<T, N> normalize(vec<T, N> v) { return v * T(rsqrt(dot(v, v))); }
template <class T, int N> MSL_INLINE vec<T, N> faceforward(vec<T, N> n, vec<T, N> incident, vec<T, N> reference) {
  if (dot(reference, incident) < T(0)) return n;
  return -n;
}
template <class T, int N> MSL_INLINE vec<T, N> reflect(vec<T, N> incident, vec<T, N> n) {
  return incident - n * T(T(2) * dot(n, incident));
}
// Zero where no ray passes: total reflection.
template <class T, int N> MSL_INLINE vec<T, N> refract(vec<T, N> incident, vec<T, N> n, scalar_operand<T> ratio) {
  T cosine = dot(n, incident);
  T k = T(1) - ratio * ratio * (T(1) - cosine * cosine);
  if (k < T(0)) return vec<T, N>(T(0));
  return incident * ratio - n * T(ratio * cosine + sqrt(k));
}
template <class T> MSL_INLINE vec<T, 3> cross(vec<T, 3> a, vec<T, 3> b) {
  return vec<T, 3>(a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]);
}

}  // namespace metal

#endif
