// Helper functions of the scalar operations (codegen/ops.py), in float32. A block is `//@ name: blocks it calls`; a
// kernel gets only the blocks that it needs. Polynomial coefficients are Chebyshev interpolants computed in 40 digits
// for exactly the interval named beside them, so that the fit error is under a tenth of a float32 ulp.

//@ horner
// c[0] + x * (c[1] + x * (...)): coefficients in rising order.
template <int N>
inline float mi_horner(float x, constant float (&c)[N]) {
  float result = c[N - 1];
  for (int k = N - 2; k >= 0; --k) {
    result = metal::fma(result, x, c[k]);
  }
  return result;
}

//@ maximum
inline float mi_maximum(float a, float b) {
  return a != a ? a : (a < b || b != b) ? b : a;
}

//@ minimum
inline float mi_minimum(float a, float b) {
  return a != a ? a : (b < a || b != b) ? b : a;
}

//@ unsigned
// The unsigned type in which arithmetic on T wraps.
template <typename T> struct mi_unsigned { typedef uint type; };
template <> struct mi_unsigned<long> { typedef ulong type; };
template <> struct mi_unsigned<ulong> { typedef ulong type; };

//@ trunc_div: unsigned
// Division by zero gives zero; the most negative number divided by -1 wraps.
template <typename T>
inline T mi_trunc_div(T a, T b) {
  typedef typename mi_unsigned<T>::type U;
  if (b == T(0)) {
    return T(0);
  }
  return T(-1) < T(0) && b == T(-1) ? T(U(0) - U(a)) : T(a / b);
}

inline float mi_trunc_div(float a, float b) {
  return metal::trunc(a / b);
}

//@ fmod
// The remainder with the sign of the dividend.
template <typename T>
inline T mi_fmod(T a, T b) {
  return b == T(0) || (T(-1) < T(0) && b == T(-1)) ? T(0) : T(a % b);
}

inline float mi_fmod(float a, float b) {
  return metal::precise::fmod(a, b);
}

//@ remainder: fmod
// The remainder with the sign of the divisor.
template <typename T>
inline T mi_remainder(T a, T b) {
  const T rest = mi_fmod(a, b);
  return rest != T(0) && (rest < T(0)) != (b < T(0)) ? T(rest + b) : rest;
}

inline float mi_remainder(float a, float b) {
  const float rest = mi_fmod(a, b);
  return rest != 0.0f && (rest < 0.0f) != (b < 0.0f) ? rest + b : rest;
}

//@ floor_div: fmod, trunc_div
// Floats: exact through the remainder, because floor(a / b) may have been rounded up to the next integer.
template <typename T>
inline T mi_floor_div(T a, T b) {
  const T quotient = mi_trunc_div(a, b);
  return mi_fmod(a, b) != T(0) && (a < T(0)) != (b < T(0)) ? T(quotient - T(1)) : quotient;
}

inline float mi_floor_div(float a, float b) {
  if (b == 0.0f) {
    return a / b;
  }
  const float rest = mi_fmod(a, b);
  float quotient = (a - rest) / b;
  if (rest != 0.0f && (rest < 0.0f) != (b < 0.0f)) {
    quotient -= 1.0f;
  }
  if (quotient == 0.0f) {
    return metal::copysign(0.0f, a / b);
  }
  const float whole = metal::floor(quotient);
  return quotient - whole > 0.5f ? whole + 1.0f : whole;
}

//@ pow: unsigned
// Integers by repeated squaring, wrapping; a negative exponent leaves only the powers of 1 and -1.
template <typename T>
inline T mi_pow(T base, T exponent) {
  typedef typename mi_unsigned<T>::type U;
  if (exponent < T(0)) {
    if (base == T(1) || (base == T(-1) && (exponent & T(1)) == T(0))) {
      return T(1);
    }
    return base == T(-1) ? T(-1) : T(0);
  }
  U result = 1;
  U square = U(base);
  for (U rest = U(exponent); rest != 0; rest >>= 1) {
    result = (rest & U(1)) != 0 ? result * square : result;
    square *= square;
  }
  return T(result);
}

inline float mi_pow(float base, float exponent) {
  return metal::precise::pow(base, exponent);
}

//@ gcd: unsigned
// Euclid's algorithm on the magnitudes.
template <typename T>
inline T mi_gcd(T x, T y) {
  typedef typename mi_unsigned<T>::type U;
  U a = x < T(0) ? U(0) - U(x) : U(x);
  U b = y < T(0) ? U(0) - U(y) : U(y);
  while (b != 0) {
    const U rest = a % b;
    a = b;
    b = rest;
  }
  return T(a);
}

//@ shift_left: unsigned
template <typename T>
inline T mi_shift_left(T a, T count) {
  typedef typename mi_unsigned<T>::type U;
  const T width = T(8 * sizeof(T));
  return count < T(0) || count >= width ? T(0) : T(U(a) << U(count));
}

//@ shift_right
// Arithmetic; a count outside of the width shifts all but the sign out.
template <typename T>
inline T mi_shift_right(T a, T count) {
  const T width = T(8 * sizeof(T));
  if (count < T(0) || count >= width) {
    return a < T(0) ? T(-1) : T(0);
  }
  return T(a >> count);
}

//@ nextafter
// Neighbouring floats have neighbouring bit patterns, with the order reversed for negative numbers.
inline float mi_nextafter(float from, float to) {
  if (from != from || to != to) {
    return from + to;
  }
  if (from == to) {
    return to;
  }
  if (from == 0.0f) {
    return metal::copysign(as_type<float>(1), to);
  }
  const int bits = as_type<int>(from);
  return as_type<float>((from < to) == (from > 0.0f) ? bits + 1 : bits - 1);
}

//@ scale
// x * 2^exponent with one rounding for -252 <= exponent <= 254.
inline float mi_scale(float x, int exponent) {
  const int first = exponent / 2;
  return x * as_type<float>((first + 127) << 23) * as_type<float>((exponent - first + 127) << 23);
}

//@ ldexp
// x * 2^exponent in three factors, each of which is a float, so that no power overflows before the product does.
inline float mi_ldexp(float x, float exponent) {
  const float bounded = metal::fmin(metal::fmax(exponent, -378.0f), 378.0f);
  const float third = metal::trunc(bounded / 3.0f);
  const float factor = metal::precise::exp2(third);
  return x * metal::precise::exp2(bounded - 2.0f * third) * factor * factor;
}

//@ frexp_exponent
inline int mi_frexp_exponent(float x) {
  const float magnitude = metal::fabs(x);
  if (magnitude == 0.0f || !(magnitude < INFINITY)) {
    return 0;
  }
  const bool subnormal = magnitude < 1.17549435e-38f;
  const int bits = as_type<int>(subnormal ? magnitude * 16777216.0f : magnitude);
  return (bits >> 23) - (subnormal ? 150 : 126);
}

//@ frexp_mantissa
inline float mi_frexp_mantissa(float x) {
  const float magnitude = metal::fabs(x);
  if (magnitude == 0.0f || !(magnitude < INFINITY)) {
    return x;
  }
  const int bits = as_type<int>(magnitude < 1.17549435e-38f ? x * 16777216.0f : x);
  return as_type<float>((bits & int(0x807fffff)) | 0x3f000000);
}

//@ hypot
// Scaled by a power of two where the squares would overflow or vanish.
inline float mi_hypot(float a, float b) {
  const float x = metal::fabs(a);
  const float y = metal::fabs(b);
  if (x == INFINITY || y == INFINITY) {
    return INFINITY;
  }
  const float large = metal::fmax(x, y);
  const float scale = large > 1e18f ? 5.42101086e-20f : large < 1e-18f ? 1.84467441e19f : 1.0f;  // 2^-64, 2^64
  const float p = x * scale;
  const float q = y * scale;
  return metal::precise::sqrt(metal::fma(p, p, q * q)) / scale;
}

//@ sigmoid
inline float mi_sigmoid(float x) {
  return 1.0f / (1.0f + metal::precise::exp(-x));
}

//@ expm1: horner, scale
// x = n ln 2 + r, |r| <= ln(2) / 2; expm1(x) = 2^n expm1(r) + (2^n - 1), whose two terms do not cancel (Cody and
// Waite's reduction). The fit is (expm1(r) - r) / r^2.
constant float mi_expm1_fit[6] = {0.5000000013f, 0.1666666668f, 0.04166646494f,
                                        0.008333310928f, 0.001393364786f, 0.0001989098846f};

inline float mi_expm1(float x) {
  if (!(x < 88.75f)) {
    return x != x ? x : INFINITY;
  }
  if (x < -18.0f) {
    return -1.0f;
  }
  const float n = metal::rint(x * 1.44269504f);
  float r = metal::fma(n, -0.693145752f, x);
  r = metal::fma(n, -1.42860677e-6f, r);
  const float small = metal::fma(r * r, mi_horner(r, mi_expm1_fit), r);
  if (n == 0.0f) {
    return small;
  }
  const int halved = int(n) - 1;  // 2^128 is not a float: compute half of the result
  const float power = mi_scale(1.0f, halved);
  return 2.0f * metal::fma(power, small, power - 0.5f);
}

//@ log1p
// log(u) with u = 1 + x rounded, corrected by the rounding error of u (Kahan).
inline float mi_log1p(float x) {
  const float u = 1.0f + x;
  if (u == INFINITY || u <= 0.0f) {
    return metal::precise::log(u);
  }
  const float lost = metal::fabs(x) < 1.0f ? x - (u - 1.0f) : 1.0f - (u - x);
  return x == 0.0f ? x : metal::precise::log(u) + lost / u;
}

//@ logaddexp: maximum, log1p
inline float mi_logaddexp(float a, float b) {
  if (a == b && metal::fabs(a) == INFINITY) {
    return a;
  }
  return mi_maximum(a, b) + mi_log1p(metal::precise::exp(-metal::fabs(a - b)));
}

//@ logaddexp2: maximum, log1p
inline float mi_logaddexp2(float a, float b) {
  if (a == b && metal::fabs(a) == INFINITY) {
    return a;
  }
  return mi_maximum(a, b) + 1.44269504f * mi_log1p(metal::precise::exp2(-metal::fabs(a - b)));
}
