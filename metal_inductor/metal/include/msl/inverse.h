// Hyperbolic functions and the inverses of circular and hyperbolic functions, remainders, neighbours: as elementary.h.
#ifndef MSL_INVERSE_H
#define MSL_INVERSE_H
#include "msl/elementary.h"

namespace msl {

// 1 / sqrt(x), with the error of the first result taken back: correctly rounded.
template <class F> MSL_INLINE F rsqrt(F x) {
  F y = 1.0f / __builtin_elementwise_sqrt(x);
  // beyond these bounds products leave the range of float; a power of four scales x without rounding
  auto small = x < F(1e-30f);
  auto large = x > F(1e30f);
  F scale = small ? F(18446744073709551616.0f) : (large ? F(5.421010862427522e-20f) : F(1.0f));
  F root_scale = small ? F(4294967296.0f) : (large ? F(2.3283064365386963e-10f) : F(1.0f));
  F scaled = x * scale;
  F start = y * (small ? F(2.3283064365386963e-10f) : (large ? F(4294967296.0f) : F(1.0f)));
  F product = scaled * start;
  F low = fused(scaled, start, -product);
  F error = fused(-product, start, F(1.0f)) - low * start;
  F refined = fused(start * 0.5f, error, start) * root_scale;
  return ((x > F(0.0f)) & (x < F(INFINITY))) ? refined : y;
}

// sin, cos and tan of pi x. x = quadrant / 2 + r exactly, so zeros and extremes are exact; pi r has two parts.
template <class F> struct half_turns : quadrant_reduction<F> {
  MSL_INLINE explicit half_turns(F x) : quadrant_reduction<F>(F(0.0f)) {
    F turn = x - 2.0f * __builtin_elementwise_rint(x * 0.5f);
    F shifted = fused(turn, F(2.0f), integer_shifter<F>());
    F r = fused(shifted - integer_shifter<F>(), F(-0.5f), turn);
    this->r = r * 3.14159274f;
    this->r_low = fused(r, F(3.14159274f), -this->r) + r * -8.74227766e-8f;
    this->quadrant = bits<typename shape<F>::integer>(shifted) & 3;
  }
};
template <class F> MSL_INLINE F sinpi(F x) {
  half_turns<F> reduced(x);
  return reduced.sine_in_quadrant(reduced.quadrant);
}
template <class F> MSL_INLINE F cospi(F x) {
  half_turns<F> reduced(x);
  return reduced.sine_in_quadrant(reduced.quadrant + 1);
}
template <class F> MSL_INLINE F tanpi(F x) {
  half_turns<F> reduced(x);
  F s = reduced.sine(), c = reduced.cosine();
  return (reduced.quadrant & 1) == 0 ? s / c : -c / s;
}

// a b + c rounded once. Where the processor has no such instruction: the product of two halves is exact in float, and a
// sum rounded to odd rounds to half as the exact sum does.
MSL_INLINE half fused_half(half a, half b, half c) {
#ifdef __NVPTX__
  return __builtin_elementwise_fma(a, b, c);
#else
  float product = float(a) * float(b), addend = float(c);
  float sum = product + addend;
  float recovered = sum - product;
  float error = (product - (sum - recovered)) + (addend - recovered);
  uint pattern = bits<uint>(sum);
  bool inexact_even = error != 0.0f && (pattern & 1) == 0 && sum - sum == 0.0f;
  uint towards_error = (error > 0.0f) == (sum > 0.0f) ? pattern + 1 : pattern - 1;
  return half(inexact_even ? bits<float>(towards_error) : sum);
#endif
}

// log(1 + y): the rounding of the sum comes back as a correction.
template <class F> MSL_INLINE F log1p(F y) {
  F sum = 1.0f + y;
  F correction = (y - (sum - 1.0f)) / sum;
  F result = log(sum);
  return __builtin_elementwise_abs(y) < F(1e30f) ? result + correction : result;
}

template <class F> MSL_INLINE F sinh(F x) {
  F a = __builtin_elementwise_abs(x);
  F square = x * x;
  F odd = poly(square, 0.1666666649f, 0.008333350598f, 0.0001983606625f, 2.817439654e-06f);
  F small = fused(a * square, odd, a);
  F half_exponential = exp_scaled(a, -1);
  F large = half_exponential - 0.25f / half_exponential;
  return __builtin_elementwise_copysign(a < F(1.0f) ? small : large, x);
}

template <class F> MSL_INLINE F cosh(F x) {
  F half_exponential = exp_scaled(F(__builtin_elementwise_abs(x)), -1);
  return half_exponential + 0.25f / half_exponential;
}

template <class F> MSL_INLINE F asinh(F x) {
  F a = __builtin_elementwise_abs(x);
  F middle = log1p(a + a * a / (1.0f + __builtin_elementwise_sqrt(fused(a, a, F(1.0f)))));
  F large = log(a) + 0.693147181f;
  F result = a < F(1e9f) ? middle : large;
  return __builtin_elementwise_copysign(result, x);
}

template <class F> MSL_INLINE F acosh(F x) {
  F t = x - 1.0f;
  F middle = log1p(t + __builtin_elementwise_sqrt(fused(t, t, t + t)));
  F large = log(x) + 0.693147181f;
  F result = x < F(1e9f) ? middle : large;
  return x < F(1.0f) ? F(NAN) : result;
}

template <class F> MSL_INLINE F atanh(F x) {
  F a = __builtin_elementwise_abs(x);
  F quotient = (a + a) / (1.0f - a);
  F result = 0.5f * log1p(quotient);
  result = a == F(1.0f) ? F(INFINITY) : result;
  return __builtin_elementwise_copysign(result, x);
}

// The inverse circular functions compute in double and round once: differences with pi/2 would cost digits of a float.
constexpr constant double half_pi = exactly(0x3ff921fb54442d18ul);
constexpr constant double quarter_pi = exactly(0x3fe921fb54442d18ul);

// atan of t in [0, 1]: beyond tan(pi/8) around pi/4.
template <class D> MSL_INLINE D atan_of_fraction(D t) {
  auto upper = t > D(0.41421356f);
  D r = upper ? (t - D(1.0f)) / (t + D(1.0f)) : t;
  D square = r * r;
  D odd = poly(square, -0.3333331542f, 0.1999848397f, -0.1424373828f, 0.1059513645f, -0.06081148285f);
  D angle = fused(r * square, odd, r);
  return upper ? angle + D(quarter_pi) : angle;
}

template <class F> MSL_INLINE F atan(F x) {
  typedef typename shape<F>::wide D;
  D a = convert<D>(F(__builtin_elementwise_abs(x)));
  auto inverted = a > D(1.0f);
  D angle = atan_of_fraction(inverted ? D(1.0f) / a : a);
  angle = inverted ? D(half_pi) - angle : angle;
  return __builtin_elementwise_copysign(convert<F>(angle), x);
}

template <class F> MSL_INLINE F atan2(F y, F x) {
  typedef typename shape<F>::wide D;
  typedef typename shape<F>::wide_integer L;
  D wide_x = convert<D>(x);
  D ax = __builtin_elementwise_abs(wide_x), ay = convert<D>(F(__builtin_elementwise_abs(y)));
  auto steep = ay > ax;
  D numerator = steep ? ax : ay, denominator = steep ? ay : ax;
  D quotient = numerator / denominator;
  quotient = denominator == D(0.0f) ? D(0.0f) : quotient;
  quotient = numerator == D(INFINITY) ? D(1.0f) : quotient;
  D angle = atan_of_fraction(quotient);
  angle = steep ? D(half_pi) - angle : angle;
  angle = bits<L>(wide_x) < 0 ? D(half_pi) + D(half_pi) - angle : angle;
  F result = convert<F>(angle);
  result = ((x != x) | (y != y)) ? x + y : result;
  return __builtin_elementwise_copysign(result, y);
}

// asin of r with |r| <= 1/2
template <class D> MSL_INLINE D asin_of_half(D r) {
  D square = r * r;
  D odd = poly(square, 0.1666665987f, 0.07500510917f, 0.04451572050f, 0.03181760929f, 0.01440261508f, 0.03756518825f);
  return fused(r * square, odd, r);
}

template <class F> MSL_INLINE F asin(F x) {
  typedef typename shape<F>::wide D;
  D a = convert<D>(F(__builtin_elementwise_abs(x)));
  auto near_one = a > D(0.5f);
  D root = __builtin_elementwise_sqrt(fused(a, D(-0.5f), D(0.5f)));
  D angle = asin_of_half(near_one ? root : a);
  angle = near_one ? D(half_pi) - (angle + angle) : angle;
  return __builtin_elementwise_copysign(convert<F>(angle), x);
}

template <class F> MSL_INLINE F acos(F x) {
  typedef typename shape<F>::wide D;
  D wide = convert<D>(x), a = __builtin_elementwise_abs(wide);
  auto near_one = a > D(0.5f);
  D root = __builtin_elementwise_sqrt(fused(a, D(-0.5f), D(0.5f)));
  D angle = asin_of_half(near_one ? root : wide);
  D outer = wide < D(0.0f) ? D(half_pi) - angle + (D(half_pi) - angle) : angle + angle;
  return convert<F>(near_one ? outer : D(half_pi) - angle);
}

// Exact remainder: the divisor times falling powers of 2^48 leaves every quotient and remainder exact in double. The
// reciprocal is a little too small, so that no quotient is too large; one that is too small by one leaves a rest below twice
// the multiple, which the next step takes.
template <class F> MSL_INLINE F fmod(F x, F y) {
  typedef typename shape<F>::wide D;
  D rest = convert<D>(__builtin_elementwise_abs(x)), divisor = convert<D>(__builtin_elementwise_abs(y));
  D reciprocal = exactly(0x3feffffffffffff8ul) / divisor;  // 1 - 2^-50
  for (int step = 5; step >= 0; --step) {
    D multiple = divisor * exactly(ulong(1023 + 48 * step) << 52);
    D quotient = __builtin_elementwise_trunc(rest * (reciprocal * exactly(ulong(1023 - 48 * step) << 52)));
    rest = fused(-quotient, multiple, rest);
  }
  rest = rest < divisor ? rest : rest - divisor;
  F result = convert<F>(rest);
  auto whole = (__builtin_elementwise_abs(y) == F(INFINITY)) & (__builtin_elementwise_abs(x) < F(INFINITY));
  return __builtin_elementwise_copysign(whole ? F(__builtin_elementwise_abs(x)) : result, x);
}

template <class F> MSL_INLINE F positive_difference(F x, F y) { return x <= y ? F(0.0f) : x - y; }

MSL_INLINE float nextafter(float x, float y) {
  if (x != x || y != y) return x + y;
  if (x == y) return y;
  int pattern = bits<int>(x);
  if (x == 0.0f) return bits<float>(y > 0.0f ? 1 : int(0x80000001u));
  return bits<float>((x < y) == (pattern >= 0) ? pattern + 1 : pattern - 1);
}

}  // namespace msl

#endif
