// <metal_integer> and the min, max, abs, clamp that integers and floats share.
#ifndef MSL_INTEGER_H
#define MSL_INTEGER_H
#include "msl/math.h"

namespace metal {

#define MSL_FOR_SMALL_INTEGERS(M) M(char) M(uchar) M(short) M(ushort) M(int) M(uint)
#define MSL_FOR_INTEGERS(M) MSL_FOR_SMALL_INTEGERS(M) M(long) M(ulong)
#define MSL_FOR_NUMBERS(M) MSL_FOR_INTEGERS(M) M(half) M(float)

// Plain overloads instead of a template: operands of two different types are ambiguous, as they are for Metal.
#define MSL_INTEGER_ORDER(T) \
  constexpr MSL_INLINE T min(T a, T b) { return b < a ? b : a; } \
  constexpr MSL_INLINE T max(T a, T b) { return a < b ? b : a; } \
  MSL_INLINE make_unsigned_t<T> absdiff(T a, T b) { \
    typedef make_unsigned_t<T> U; \
    return a > b ? U(U(a) - U(b)) : U(U(b) - U(a)); \
  } \
  MSL_INLINE T addsat(T a, T b) { return __builtin_elementwise_add_sat(a, b); } \
  MSL_INLINE T subsat(T a, T b) { return __builtin_elementwise_sub_sat(a, b); } \
  MSL_INLINE T popcount(T x) { return T(__builtin_elementwise_popcount(x)); } \
  MSL_INLINE T reverse_bits(T x) { return __builtin_elementwise_bitreverse(x); } \
  MSL_INLINE T rotate(T x, T amount) { \
    typedef make_unsigned_t<T> U; \
    const int width = sizeof(T) * 8; \
    int left = int(amount) & (width - 1); \
    return T(U(U(x) << left) | U(U(x) >> ((width - left) & (width - 1)))); \
  } \
  MSL_INLINE T clz(T x) { return x == 0 ? T(sizeof(T) * 8) : T(__builtin_clzg(make_unsigned_t<T>(x))); } \
  MSL_INLINE T ctz(T x) { return x == 0 ? T(sizeof(T) * 8) : T(__builtin_ctzg(make_unsigned_t<T>(x))); } \
  MSL_INLINE T hadd(T a, T b) { return T((a >> 1) + (b >> 1) + (a & b & 1)); } \
  MSL_INLINE T rhadd(T a, T b) { return T((a >> 1) + (b >> 1) + ((a | b) & 1)); } \
  MSL_INLINE T extract_bits(T x, uint offset, uint count) { \
    const uint width = sizeof(T) * 8; \
    return count == 0 ? T(0) : T(T(make_unsigned_t<T>(x) << (width - count - offset)) >> (width - count)); \
  } \
  MSL_INLINE T insert_bits(T base, T insert, uint offset, uint count) { \
    typedef make_unsigned_t<T> U; \
    U mask = count >= sizeof(T) * 8 ? U(~U(0)) : U((U(1) << count) - 1); \
    return T((U(base) & ~U(mask << offset)) | U(U(U(insert) & mask) << offset)); \
  }
MSL_FOR_INTEGERS(MSL_INTEGER_ORDER)
#undef MSL_INTEGER_ORDER

#define MSL_FLOAT_ORDER(T) \
  MSL_INLINE T min(T a, T b) { return fmin(a, b); } \
  MSL_INLINE T max(T a, T b) { return fmax(a, b); } \
  MSL_INLINE T abs(T x) { return fabs(x); }
MSL_FLOAT_ORDER(half)
MSL_FLOAT_ORDER(float)
#undef MSL_FLOAT_ORDER

// The smallest number has no positive counterpart and stays as it is.
#define MSL_ABS(signed_type, unsigned_type) \
  constexpr MSL_INLINE signed_type abs(signed_type x) { \
    return signed_type(x < 0 ? unsigned_type(0) - unsigned_type(x) : unsigned_type(x)); \
  } \
  constexpr MSL_INLINE unsigned_type abs(unsigned_type x) { return x; }
MSL_ABS(char, uchar)
MSL_ABS(short, ushort)
MSL_ABS(int, uint)
MSL_ABS(long, ulong)
#undef MSL_ABS

#define MSL_ORDER_OF_THREE(T) \
  MSL_INLINE T clamp(T x, T low, T high) { return min(max(x, low), high); } \
  MSL_INLINE T min3(T a, T b, T c) { return min(a, min(b, c)); } \
  MSL_INLINE T max3(T a, T b, T c) { return max(a, max(b, c)); } \
  MSL_INLINE T median3(T a, T b, T c) { return max(min(a, b), min(max(a, b), c)); }
MSL_FOR_NUMBERS(MSL_ORDER_OF_THREE)
#undef MSL_ORDER_OF_THREE

MSL_INLINE int mulhi(int a, int b) { return int((long(a) * long(b)) >> 32); }
MSL_INLINE uint mulhi(uint a, uint b) { return uint((ulong(a) * ulong(b)) >> 32); }
MSL_INLINE long mulhi(long a, long b) { return long((__int128(a) * __int128(b)) >> 64); }
MSL_INLINE ulong mulhi(ulong a, ulong b) { return ulong((static_cast<unsigned __int128>(a) * b) >> 64); }
MSL_INLINE short mulhi(short a, short b) { return short((int(a) * int(b)) >> 16); }
MSL_INLINE ushort mulhi(ushort a, ushort b) { return ushort((uint(a) * uint(b)) >> 16); }
MSL_INLINE char mulhi(char a, char b) { return char((int(a) * int(b)) >> 8); }
MSL_INLINE uchar mulhi(uchar a, uchar b) { return uchar((uint(a) * uint(b)) >> 8); }
// The sum is saturated, not the product: it is taken in a type that holds every product.
#define MSL_MULTIPLY_ADD(T, W) \
  MSL_INLINE T madhi(T a, T b, T c) { return T(mulhi(a, b) + c); } \
  MSL_INLINE T madsat(T a, T b, T c) { \
    W sum = W(a) * W(b) + W(c); \
    if (sum > W(numeric_limits<T>::max())) return numeric_limits<T>::max(); \
    return sum < W(numeric_limits<T>::min()) ? numeric_limits<T>::min() : T(sum); \
  }
typedef __int128 msl_signed_product;
typedef unsigned __int128 msl_unsigned_product;
MSL_MULTIPLY_ADD(char, int)
MSL_MULTIPLY_ADD(uchar, uint)
MSL_MULTIPLY_ADD(short, long)
MSL_MULTIPLY_ADD(ushort, ulong)
MSL_MULTIPLY_ADD(int, long)
MSL_MULTIPLY_ADD(uint, ulong)
MSL_MULTIPLY_ADD(long, msl_signed_product)
MSL_MULTIPLY_ADD(ulong, msl_unsigned_product)
#undef MSL_MULTIPLY_ADD
MSL_INLINE int mul24(int a, int b) { return ((a << 8) >> 8) * ((b << 8) >> 8); }
MSL_INLINE uint mul24(uint a, uint b) { return (a & 0xffffffu) * (b & 0xffffffu); }
MSL_INLINE int mad24(int a, int b, int c) { return mul24(a, b) + c; }
MSL_INLINE uint mad24(uint a, uint b, uint c) { return mul24(a, b) + c; }

#define MSL_COMPONENTWISE_1(name) \
  template <class T, int N> MSL_INLINE vec<T, N> name(vec<T, N> a) { \
    vec<T, N> result; \
    for (int i = 0; i < N; ++i) result[i] = T(name(a[i])); \
    return result; \
  }
#define MSL_COMPONENTWISE_2(name) \
  template <class T, int N> MSL_INLINE vec<T, N> name(vec<T, N> a, vec<T, N> b) { \
    vec<T, N> result; \
    for (int i = 0; i < N; ++i) result[i] = T(name(a[i], b[i])); \
    return result; \
  } \
  template <class T, int N> MSL_INLINE vec<T, N> name(vec<T, N> a, scalar_operand<T> b) { return name(a, vec<T, N>(b)); } \
  template <class T, int N> MSL_INLINE vec<T, N> name(scalar_operand<T> a, vec<T, N> b) { return name(vec<T, N>(a), b); }
#define MSL_COMPONENTWISE_3(name) \
  template <class T, int N> MSL_INLINE vec<T, N> name(vec<T, N> a, vec<T, N> b, vec<T, N> c) { \
    vec<T, N> result; \
    for (int i = 0; i < N; ++i) result[i] = T(name(a[i], b[i], c[i])); \
    return result; \
  }
MSL_COMPONENTWISE_1(abs)
MSL_COMPONENTWISE_1(popcount)
MSL_COMPONENTWISE_1(clz)
MSL_COMPONENTWISE_1(ctz)
MSL_COMPONENTWISE_1(reverse_bits)
MSL_COMPONENTWISE_2(min)
MSL_COMPONENTWISE_2(max)
MSL_COMPONENTWISE_2(addsat)
MSL_COMPONENTWISE_2(subsat)
MSL_COMPONENTWISE_2(mulhi)
MSL_COMPONENTWISE_2(rotate)
MSL_COMPONENTWISE_2(hadd)
MSL_COMPONENTWISE_2(rhadd)
MSL_COMPONENTWISE_3(clamp)
MSL_COMPONENTWISE_3(min3)
MSL_COMPONENTWISE_3(max3)
MSL_COMPONENTWISE_3(median3)
MSL_COMPONENTWISE_3(madhi)
MSL_COMPONENTWISE_3(madsat)
MSL_COMPONENTWISE_2(mul24)
MSL_COMPONENTWISE_3(mad24)
template <class T, int N> MSL_INLINE vec<make_unsigned_t<T>, N> absdiff(vec<T, N> a, vec<T, N> b) {
  vec<make_unsigned_t<T>, N> result;
  for (int i = 0; i < N; ++i) result[i] = absdiff(a[i], b[i]);
  return result;
}
template <class T, int N> MSL_INLINE vec<T, N> extract_bits(vec<T, N> x, uint offset, uint count) {
  vec<T, N> result;
  for (int i = 0; i < N; ++i) result[i] = extract_bits(x[i], offset, count);
  return result;
}
template <class T, int N> MSL_INLINE vec<T, N> insert_bits(vec<T, N> base, vec<T, N> insert, uint offset, uint count) {
  vec<T, N> result;
  for (int i = 0; i < N; ++i) result[i] = insert_bits(base[i], insert[i], offset, count);
  return result;
}
template <class T, int N> MSL_INLINE vec<T, N> clamp(vec<T, N> x, scalar_operand<T> low, scalar_operand<T> high) {
  return clamp(x, vec<T, N>(low), vec<T, N>(high));
}

}  // namespace metal

#endif
