// Exponentials, logarithms, powers and circular functions for float and SIMD vectors of float.
//
// Everything is straight-line arithmetic and selects, so that loops over threads vectorise. Polynomials are minimax fits
// on the reduced range; errors are within 2 ulp of the exact result over the whole range of float.
#ifndef MSL_ELEMENTARY_H
#define MSL_ELEMENTARY_H
#include "msl/vectors.h"

namespace msl {

// The integer and double types that go with a float type.
template <class F> struct shape;
template <> struct shape<float> {
  typedef int integer;
  typedef double wide;
  typedef long wide_integer;
};
template <int N> struct shape<simd<float, N>> {
  typedef simd<int, N> integer;
  typedef simd<double, N> wide;
  typedef simd<long, N> wide_integer;
};
template <class To, class From> MSL_INLINE To convert(From value) {
  if constexpr (__is_arithmetic(From)) return To(value);
  else return __builtin_convertvector(value, To);
}
template <class To, class From> MSL_INLINE To bits(From value) { return __builtin_bit_cast(To, value); }
// A double by its bits: literals are float in Metal.
constexpr MSL_INLINE double exactly(ulong pattern) { return __builtin_bit_cast(double, pattern); }
template <class F> MSL_INLINE F fused(F a, F b, F c) { return __builtin_elementwise_fma(a, b, c); }

// c[0] + x c[1] + x^2 c[2] ...
template <class F> MSL_INLINE F polynomial(F, F c) { return c; }
template <class F, class... Cs> MSL_INLINE F polynomial(F x, F c, Cs... rest) { return fused(x, polynomial(x, F(rest)...), c); }
template <class F, class... Cs> MSL_INLINE F poly(F x, Cs... c) { return polynomial(x, F(c)...); }

// value * 2^n in two steps, so that results may be subnormal or overflow.
template <class F, class I> MSL_INLINE F scale_by_power(F value, I n) {
  I half_n = n >> 1;
  F first = bits<F>((half_n + 127) << 23);
  F second = bits<F>((n - half_n + 127) << 23);
  return value * first * second;
}

// Adding this constant rounds a float to an integer, whose value then sits in the low bits.
template <class F> MSL_INLINE F integer_shifter() { return F(12582912.0f); }

template <class F> MSL_INLINE F exp_reduced(F r) {
  F tail = poly(r, 0.5000000078f, 0.1666666686f, 0.04166626986f, 0.008333265445f, 0.001394607506f, 0.0001991781446f);
  return fused(r * r, tail, r) + 1.0f;
}

// exp(x) * 2^power
template <class F> MSL_INLINE F exp_scaled(F x, int power) {
  typedef typename shape<F>::integer I;
  x = x > F(128.0f) ? F(128.0f) : x;
  x = x < F(-128.0f) ? F(-128.0f) : x;
  F shifted = fused(x, F(1.44269504f), integer_shifter<F>());
  F n = shifted - integer_shifter<F>();
  F r = fused(n, F(-0.693145751953125f), x);
  r = fused(n, F(-1.42860682e-6f), r);
  return scale_by_power(exp_reduced(r), bits<I>(shifted) - 0x4b400000 + power);
}
template <class F> MSL_INLINE F exp(F x) { return exp_scaled(x, 0); }

template <class F> MSL_INLINE F exp2(F x) {
  typedef typename shape<F>::integer I;
  x = x > F(160.0f) ? F(160.0f) : x;
  x = x < F(-160.0f) ? F(-160.0f) : x;
  F shifted = x + integer_shifter<F>();
  F f = x - (shifted - integer_shifter<F>());
  F tail = poly(f, 0.6931471805f, 0.2402265108f, 0.05550410963f, 0.009618036911f, 0.001333343079f, 0.0001546711034f,
                1.531494682e-05f);
  return scale_by_power(fused(f, tail, F(1.0f)), bits<I>(shifted) - 0x4b400000);
}

template <class F> MSL_INLINE F exp10(F x) {
  typedef typename shape<F>::integer I;
  x = x > F(48.0f) ? F(48.0f) : x;
  x = x < F(-48.0f) ? F(-48.0f) : x;
  F shifted = fused(x, F(3.32192809f), integer_shifter<F>());
  F n = shifted - integer_shifter<F>();
  F r = fused(n, F(-0.301025390625f), x);
  r = fused(n, F(-4.6050390e-6f), r);
  // ln(10) in two parts keeps the error of the product out of the result
  r = fused(r, F(2.30258512f), r * F(-3.0e-8f));
  return scale_by_power(exp_reduced(r), bits<I>(shifted) - 0x4b400000);
}

// x = 2^exponent (1 + f) with f in [sqrt(1/2) - 1, sqrt(2) - 1]; log(1 + f) = f + tail.
template <class F> struct logarithm {
  F f, tail, exponent;
  MSL_INLINE explicit logarithm(F x) {
    typedef typename shape<F>::integer I;
    F scaled = x < F(1.17549435e-38f) ? x * F(8388608.0f) : x;
    F bias = x < F(1.17549435e-38f) ? F(-23.0f) : F(0.0f);
    I offset = bits<I>(scaled) - 0x3f3504f3;
    exponent = convert<F>(offset >> 23) + bias;
    f = bits<F>((offset & 0x7fffff) + 0x3f3504f3) - 1.0f;
    F square = f * f;
    F cubic = poly(f, 0.3333333286f, -0.2499996604f, 0.2000003581f, -0.1666943466f, 0.1428694455f, -0.1242509144f,
                   0.1101204118f, -0.1079404107f, 0.1074344057f, -0.06151515373f);
    tail = fused(square, F(-0.5f), f * square * cubic);
  }
  // Logarithms of zero, negative numbers, infinity and NaN.
  static MSL_INLINE F finish(F x, F result) {
    result = x == F(0.0f) ? F(-INFINITY) : result;
    result = x == F(INFINITY) ? x : result;
    return x >= F(0.0f) ? result : F(NAN);
  }
};

template <class F> MSL_INLINE F log(F x) {
  logarithm<F> parts(x);
  F result = parts.f + fused(parts.exponent, F(1.42860682e-6f), parts.tail);
  return logarithm<F>::finish(x, fused(parts.exponent, F(0.693145751953125f), result));
}

// log2(e) - 1 multiplies the parts, which are then added unscaled: no rounding error where the result is small.
template <class F> MSL_INLINE F log2(F x) {
  logarithm<F> parts(x);
  F excess = fused(parts.f, F(0.442695041f), parts.tail * 0.442695041f);
  return logarithm<F>::finish(x, ((excess + parts.tail) + parts.f) + parts.exponent);
}

template <class F> MSL_INLINE F log10(F x) {
  logarithm<F> parts(x);
  // log10(e) and log10(2) in two parts each, the first with few bits
  F low = parts.tail * 0.434294482f;
  low = fused(parts.f, F(7.00731903e-4f), low);
  low = fused(parts.exponent, F(4.6050390e-6f), low);
  F high = fused(parts.f, F(0.43359375f), low);
  return logarithm<F>::finish(x, fused(parts.exponent, F(0.301025390625f), high));
}

template <class F> MSL_INLINE F tanh(F x) {
  F a = __builtin_elementwise_abs(x);
  F square = x * x;
  F odd = poly(square, -0.3333333091f, 0.1333320976f, -0.05394720427f, 0.02170296711f, -0.008182673859f, 0.002147536863f);
  F small = fused(a * square, odd, a);
  F large = 1.0f - 2.0f / (exp(a + a) + 1.0f);
  return __builtin_elementwise_copysign(a < F(0.625f) ? small : large, x);
}

// x = quadrant * pi/2 + r + r_low, |r| <= pi/4.
//
// x times 2/pi modulo 4, in double. 2/pi comes in three parts: the first two have so few digits that their products with a
// float are exact, and the integers in them are taken off before the sum is rounded. From 2^49 on x is a multiple of 2^26, so
// whatever 2^26 * 2/pi has in multiples of 4 can go; likewise from 2^75 and 2^101 on.
template <class F> struct quadrant_reduction {
  typedef typename shape<F>::integer I;
  F r, r_low;
  I quadrant;

  MSL_INLINE explicit quadrant_reduction(F x) {
    typedef typename shape<F>::wide D;
    typedef typename shape<F>::wide_integer L;
    D wide = convert<D>(x), size = __builtin_elementwise_abs(wide);
    D first = wide * for_size(size, exactly(0x3fe45f306c000000ul), exactly(0x3e5b939106000000ul), exactly(0x3cb529fc28000000ul), exactly(0x3b1d5f47d4000000ul));
    D second = wide * for_size(size, exactly(0x3e2c9c882a000000ul), exactly(0xbc86b01ec6000000ul), exactly(0xbae505c15a000000ul), exactly(0x394a6ee06e000000ul));
    D third = for_size(size, exactly(0x3c44fe13abe8fa9aul), exactly(0x3ab7d1f534ddc0dbul), exactly(0x391377036d8a5665ul), exactly(0xb763ad4cd8778df8ul));
    D n = __builtin_elementwise_rint(first), m = __builtin_elementwise_rint(second);
    D sum = (first - n) + (second - m);
    D rest = __builtin_elementwise_rint(sum);
    D turns = fused(wide, third, sum - rest);
    D reduced = turns * D(exactly(0x3ff921fb54442d18ul));
    r = convert<F>(reduced);
    r_low = convert<F>(reduced - convert<D>(r));
    // the shifter is 1.5 * 2^52: it leaves the integer in the low bits
    quadrant = convert<I>(bits<L>(n + (m + rest) + D(exactly(0x4338000000000000ul))) & 3);
  }

  template <class D> static MSL_INLINE D for_size(D size, double small, double from_49, double from_75, double from_101) {
    D part = size < D(exactly(0x4300000000000000ul)) ? D(small) : D(from_49);
    part = size < D(exactly(0x44a0000000000000ul)) ? part : D(from_75);
    return size < D(exactly(0x4640000000000000ul)) ? part : D(from_101);
  }

  MSL_INLINE F sine() const {
    F square = r * r;
    F correction = fused(square, r_low * -0.5f, r_low);
    F tail = r * square * poly(square, -0.1666666664f, 0.008333329384f, -0.0001983933407f, 2.718304137e-06f);
    return r + (tail + correction);
  }
  MSL_INLINE F cosine() const {
    F square = r * r;
    F tail = poly(square, 0.04166666662f, -0.001388888375f, 2.479951915e-05f, -2.721016639e-07f);
    F low = fused(square * square, tail, -r * r_low);
    F high = fused(square, F(-0.5f), F(1.0f));
    return high + (fused(square, F(-0.5f), 1.0f - high) + low);
  }
  // sin of r + which * pi/2
  MSL_INLINE F sine_in_quadrant(I which) const {
    F value = (which & 1) == 0 ? sine() : cosine();
    return bits<F>(bits<I>(value) ^ ((which & 2) << 30));
  }
};

template <class F> MSL_INLINE F sin(F x) {
  quadrant_reduction<F> reduced(x);
  F result = reduced.sine_in_quadrant(reduced.quadrant);
  return x == F(0.0f) ? x : result;
}
template <class F> MSL_INLINE F cos(F x) {
  quadrant_reduction<F> reduced(x);
  return reduced.sine_in_quadrant(reduced.quadrant + 1);
}
template <class F> MSL_INLINE F tan(F x) {
  quadrant_reduction<F> reduced(x);
  F s = reduced.sine(), c = reduced.cosine();
  F result = (reduced.quadrant & 1) == 0 ? s / c : -c / s;
  return x == F(0.0f) ? x : result;
}

template <class F> MSL_INLINE F fract(F x) {
  F part = x - __builtin_elementwise_floor(x);
  return part < F(1.0f) ? part : (part != part ? part : F(0.99999994f));
}

// |x|^y in double, which leaves one rounding to float at the end.
template <class F> MSL_INLINE F power_of_magnitude(F x, F y) {
  typedef typename shape<F>::wide D;
  typedef typename shape<F>::wide_integer L;
  D wide = convert<D>(__builtin_elementwise_abs(x));
  // log2: x = 2^e m with m in [sqrt(1/2), sqrt(2)), then an odd series in (m - 1) / (m + 1)
  L offset = bits<L>(wide) - 0x3fe6a09e667f3bcdl;
  D m = bits<D>((offset & 0x000fffffffffffffl) + 0x3fe6a09e667f3bcdl);
  D s = (m - D(1.0f)) / (m + D(1.0f));
  D square = s * s;
  D series = poly(square, exactly(0x40071547652b82feul), exactly(0x3feec709dc3a03fdul), exactly(0x3fe2776c50ef9bfeul), exactly(0x3fda61762a7aded9ul),
                  exactly(0x3fd484b13d7c02a9ul), exactly(0x3fd0c9a84994022dul), exactly(0x3fcc68f568d31760ul), exactly(0x3fc89f3b1694cffeul),
                  exactly(0x3fc5b9ac9b743f0dul));
  D logarithm = fused(s, series, convert<D>(offset >> 52));
  logarithm = wide == D(0.0f) ? D(-INFINITY) : logarithm;
  logarithm = wide < D(INFINITY) ? logarithm : wide;  // infinity and NaN
  D exponent = convert<D>(y) * logarithm;
  exponent = exponent > D(1000.0f) ? D(1000.0f) : exponent;
  exponent = exponent < D(-1000.0f) ? D(-1000.0f) : exponent;
  D shifter = D(exactly(0x4338000000000000ul));
  D shifted = exponent + shifter;
  D f = exponent - (shifted - shifter);
  D result = poly(f, exactly(0x3ff0000000000000ul), exactly(0x3fe62e42fefa39eful), exactly(0x3fcebfbdff82c58eul), exactly(0x3fac6b08d704a0bful),
                  exactly(0x3f83b2ab6fba4e77ul), exactly(0x3f55d87fe78a6730ul), exactly(0x3f2430912f86c786ul), exactly(0x3eeffcbfc588b0c5ul),
                  exactly(0x3eb62c0223a5c822ul), exactly(0x3e7b5253d395e7c1ul), exactly(0x3e3e4cf5158b8ec7ul), exactly(0x3dfe8cac7351bb22ul));
  return convert<F>(result * bits<D>((bits<L>(shifted) + 1023) << 52));
}

template <class F> MSL_INLINE F powr(F x, F y) {
  F result = power_of_magnitude(x, y);
  return x < F(0.0f) ? F(NAN) : result;
}

// The cases of C99: an odd integer y keeps the sign of x, another integer drops it, no other y takes a negative x.
template <class F> MSL_INLINE F pow(F x, F y) {
  typedef typename shape<F>::integer I;
  F magnitude = power_of_magnitude(x, y);
  F half_y = y * 0.5f;
  auto integer = __builtin_elementwise_trunc(y) == y;
  auto odd = (integer & (__builtin_elementwise_trunc(half_y) != half_y)) & (__builtin_elementwise_abs(y) < F(16777216.0f));
  F signed_result = bits<F>(bits<I>(magnitude) | (bits<I>(x) & I(-2147483647 - 1)));
  F result = odd ? signed_result : magnitude;
  auto undefined = ((x < F(0.0f)) & (x > F(-INFINITY))) & (integer == 0);
  result = undefined ? F(NAN) : result;
  result = __builtin_elementwise_abs(x) == F(1.0f) ? (x == F(1.0f) ? F(1.0f) : (odd ? F(-1.0f) : (integer ? F(1.0f) : F(NAN)))) : result;
  return y == F(0.0f) ? F(1.0f) : result;
}

}  // namespace msl

#endif
