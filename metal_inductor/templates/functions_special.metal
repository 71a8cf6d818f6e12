// Error, gamma, zeta and normal distribution functions, in float32: same layout as functions.metal.

//@ erfcx: horner
// exp(x^2) erfc(x). For x >= 0 one polynomial in t = (x - 3) / (x + 3) for (1 + 2x) erfcx(x) covers the half line
// (Shepherd and Laframboise, Math. Comp. 36, 1981).
constant float mi_erfcx_fit[12] = {1.253008056f, -0.1356211001f, -0.04756215615f, 0.1296447209f,
                                         -0.1192752813f, 0.06831319675f, -0.02376355981f, 0.002506778561f,
                                         0.001875060405f, -0.0007340818904f, -9.253776991e-5f, 8.007447042e-5f};

inline float mi_erfcx_positive(float x) {
  if (x > 1e9f) {
    return 0.564189584f / x;
  }
  return mi_horner((x - 3.0f) / (x + 3.0f), mi_erfcx_fit) / metal::fma(2.0f, x, 1.0f);
}

// exp(-x^2) for x >= 0: the rounding error of the square is put back, it would be multiplied by the exponent's size.
inline float mi_exp_minus_square(float x) {
  const float square = x * x;
  if (square > 104.0f) {
    return 0.0f;
  }
  const float power = metal::precise::exp(-square);
  return metal::fma(-metal::fma(x, x, -square), power, power);
}

inline float mi_erfcx(float x) {
  if (x >= 0.0f || x != x) {
    return x != x ? x : mi_erfcx_positive(x);
  }
  const float square = x * x;
  const float power = metal::precise::exp(square);
  const float corrected = power < INFINITY ? metal::fma(metal::fma(x, x, -square), power, power) : power;
  return 2.0f * corrected - mi_erfcx_positive(-x);
}

//@ erf: horner
// |x| < 0.94: x plus x times a polynomial in x^2 (one rounding less than a product). Beyond: 1 - exp(polynomial), a fit of log(erfc) on [0.9, 4].
constant float mi_erf_small_fit[7] = {0.128379167f, -0.3761263215f, 0.1128367104f, -0.02685804248f,
                                            0.005197684914f, -0.0008105054511f, 8.212780533e-5f};
constant float mi_erf_large_fit[9] = {0.0003185396624f, -1.130231055f, -0.6318239181f,
                                            -0.1100871665f, 0.02642763715f, -0.004762625833f,
                                            0.0005975857702f, -4.616385863e-5f, 1.643063656e-6f};

inline float mi_erf(float x) {
  const float magnitude = metal::fabs(x);
  if (magnitude < 0.94f) {
    return metal::fma(x, mi_horner(x * x, mi_erf_small_fit), x);
  }
  const float tail = metal::precise::exp(mi_horner(metal::fmin(magnitude, 4.0f), mi_erf_large_fit));
  return x != x ? x : metal::copysign(1.0f - tail, x);
}

//@ erfc: erf, erfcx
inline float mi_erfc(float x) {
  if (x < 0.5f) {
    return 1.0f - mi_erf(x);
  }
  return x != x ? x : mi_exp_minus_square(x) * mi_erfcx_positive(x);
}

//@ erfinv: horner, log1p
// erfinv(x) = x P(w), w = -log(1 - x^2) (Giles, Approximating the erfinv function, 2010). P - 1 is fitted on w in
// [0, 1.2] and, in w - 3.5, on [1.2, 6]; P on sqrt(w) in [2.44, 4.1] and [4.1, 10.3] in sqrt(w) - 3.25 and
// sqrt(w) - 7.2.
constant float mi_erfinv_near_fit[8] = {-0.1137730746f, 0.2320136675f, 0.01154932594f, -0.002334997274f,
                                        -0.000128368495f, 4.714022556e-5f, 1.587084389e-6f, -8.867106836e-7f};
constant float mi_erfinv_middle_fit[11] = {0.7428299225f, 0.2353584054f, -0.006717071116f, -0.0004812700186f,
                                           0.0001585700816f, -1.581183681e-5f, -3.870503674e-7f, 3.272634289e-7f,
                                           -3.568014814e-8f, -1.77333175e-9f, 6.246000128e-10f};
constant float mi_erfinv_tail_fit[10] = {3.083885598f, 1.005258943f, 0.005371807303f, -0.00375073545f,
                                               0.002481040593f, -0.001690304013f, 0.0009961818016f,
                                               -0.0003542126061f, -4.971541444e-5f, 7.664247389e-5f};
constant float mi_erfinv_far_fit[11] = {7.070718329f, 1.008391462f, -0.0005075483224f, 1.05953919e-5f,
                                              4.599836411e-6f, -1.322097609e-6f, 2.53207523e-7f,
                                              -3.322060024e-8f, 5.333918069e-9f, -1.784771229e-9f,
                                              2.579314404e-10f};

// x P(w)
inline float mi_erfinv_product(float x, float w) {
  if (w < 1.2f) {
    return metal::fma(x, mi_horner(w, mi_erfinv_near_fit), x);
  }
  if (w < 6.0f) {
    return metal::fma(x, mi_horner(w - 3.5f, mi_erfinv_middle_fit), x);
  }
  const float root = metal::precise::sqrt(w);
  return x * (root < 4.1f ? mi_horner(root - 3.25f, mi_erfinv_tail_fit) : mi_horner(root - 7.2f, mi_erfinv_far_fit));
}

inline float mi_erfinv(float x) {
  const float magnitude = metal::fabs(x);
  if (!(magnitude < 1.0f)) {
    return magnitude == 1.0f ? x * INFINITY : NAN;
  }
  const float inside = magnitude < 0.8f ? mi_log1p(-x * x) : metal::precise::log((1.0f - magnitude) * (1.0f + magnitude));
  return mi_erfinv_product(x, -inside);
}

//@ ndtri: erfinv
// The normal quantile: sqrt(2) erfinv(2p - 1), where 1 - (2p - 1)^2 = 4p(1 - p) keeps a small p exact.
inline float mi_ndtri(float p) {
  if (!(p > 0.0f && p < 1.0f)) {
    return p == 0.0f ? -INFINITY : p == 1.0f ? INFINITY : NAN;
  }
  const float x = 2.0f * p - 1.0f;
  if (metal::fabs(x) < 0.5f) {
    return 1.41421356f * mi_erfinv(x);
  }
  const float w = -(metal::precise::log(p) + metal::precise::log(4.0f * (1.0f - p)));
  return 1.41421356f * mi_erfinv_product(x, metal::fmax(w, 0.0f));
}

//@ log_ndtr: erfc, erfcx, log1p
// log of the normal distribution function; the scaled function keeps the left tail from vanishing.
inline float mi_log_ndtr(float x) {
  const float scaled = x * 0.707106781f;
  if (x < -1.0f) {
    return metal::precise::log(0.5f * mi_erfcx(-scaled)) - 0.5f * x * x;
  }
  return mi_log1p(-0.5f * mi_erfc(scaled));
}

//@ sin_pi
// sin(pi x) for x >= 0, with exact reduction.
inline float mi_sin_pi(float x) {
  const float rest = x - 2.0f * metal::floor(0.5f * x);
  const float folded = rest > 1.0f ? rest - 1.0f : rest;
  const float value = metal::precise::sin(3.14159265f * (folded > 0.5f ? 1.0f - folded : folded));
  return rest > 1.0f ? -value : value;
}

//@ lgamma: horner, sin_pi
// [0.5, 1.5] and [1.5, 3]: the zeros at 1 and 2 times a polynomial in x - 1, x - 2; up to 8 through Gamma(x + 1) =
// x Gamma(x); beyond, Stirling's series. Negative numbers: Gamma(x) Gamma(-x) = -pi / (x sin(pi x)).
constant float mi_lgamma_one_fit[14] = {-0.5772156661f, 0.8224670345f, -0.4006851789f, 0.2705803788f,
                                              -0.2074143589f, 0.1695843512f, -0.1433744658f, 0.1248726364f,
                                              -0.1187445834f, 0.1070867072f, -0.0505540164f, 0.0452779781f,
                                              -0.1776828818f, 0.1662927822f};
constant float mi_lgamma_two_fit[10] = {0.4227843372f, 0.3224670402f, -0.06735251403f, 0.02058075523f,
                                              -0.007382075115f, 0.002887879895f, -0.001210095848f,
                                              0.000535863159f, -0.0002075852539f, 4.357662324e-5f};

inline float mi_lgamma_positive(float x) {
  if (x < 0.5f) {
    return x * mi_horner(x, mi_lgamma_one_fit) - metal::precise::log(x);
  }
  if (x < 1.5f) {
    return (x - 1.0f) * mi_horner(x - 1.0f, mi_lgamma_one_fit);
  }
  if (x < 8.0f) {
    float factors = 1.0f;
    while (x >= 3.0f) {
      x -= 1.0f;
      factors *= x;
    }
    const float base = (x - 2.0f) * mi_horner(x - 2.0f, mi_lgamma_two_fit);
    return factors > 1.0f ? base + metal::precise::log(factors) : base;
  }
  const float inverse = 1.0f / x;
  const float square = inverse * inverse;
  const float series = inverse * (0.0833333333f + square * (-0.00277777778f + square * 0.000793650794f));
  return (x - 0.5f) * (metal::precise::log(x) - 1.0f) + (0.418938533f + series);
}

inline float mi_lgamma(float x) {
  if (metal::fabs(x) == INFINITY) {
    return INFINITY;
  }
  if (x > 0.0f || x != x) {
    return x != x ? x : mi_lgamma_positive(x);
  }
  const float magnitude = -x;
  if (magnitude < 1e-10f) {
    return -metal::precise::log(magnitude);
  }
  const float wave = metal::fabs(mi_sin_pi(magnitude));
  if (wave == 0.0f) {
    return INFINITY;
  }
  const float reflected = 3.14159265f / (magnitude * wave);  // its own statement: one Metal compiler loses it inline
  return metal::precise::log(reflected) - mi_lgamma_positive(magnitude);
}

//@ digamma: horner
// [1, 2]: the zero near 1.4616, in two floats, times a polynomial in x - 1.5; down to it through psi(x + 1) =
// psi(x) + 1/x; beyond 10 the asymptotic series. Negative numbers: psi(x) = psi(1 - x) - pi / tan(pi x).
constant float mi_digamma_fit[11] = {0.951055876f, -0.4236274975f, 0.240542535f, -0.1483988614f,
                                           0.09498468507f, -0.06205598039f, 0.04085002674f, -0.02578688363f,
                                           0.017114989f, -0.01637362026f, 0.01090258867f};

inline float mi_digamma_positive(float x) {
  if (x >= 10.0f) {
    const float square = 1.0f / (x * x);
    const float series = square * (0.0833333333f - square * (0.00833333333f - square * 0.00396825397f));
    return metal::precise::log(x) - 0.5f / x - series;
  }
  float rest = 0.0f;
  if (x < 1.0f) {
    rest = -1.0f / x;
    x += 1.0f;
  }
  while (x > 2.0f) {
    x -= 1.0f;
    rest += 1.0f / x;
  }
  const float from_zero = (x - 1.46163213f) - 1.24381499e-8f;
  return metal::fma(from_zero, mi_horner(x - 1.5f, mi_digamma_fit), rest);
}

inline float mi_digamma(float x) {
  if (x == 0.0f) {
    return metal::copysign(INFINITY, -x);
  }
  if (x > 0.0f || x != x) {
    return mi_digamma_positive(x);
  }
  const float fraction = x - metal::rint(x);
  if (fraction == 0.0f || fraction != fraction) {
    return NAN;
  }
  return mi_digamma_positive(1.0f - x) - 3.14159265f / metal::precise::tan(3.14159265f * fraction);
}

//@ trigamma: sin_pi
// Recurrence up to 6, then the asymptotic series; reflection psi1(x) = pi^2 / sin(pi x)^2 - psi1(1 - x) below 0.5.
inline float mi_trigamma_positive(float x) {
  float sum = 0.0f;
  while (x < 6.0f) {
    sum += 1.0f / (x * x);
    x += 1.0f;
  }
  const float inverse = 1.0f / x;
  const float square = inverse * inverse;
  const float series = 0.166666667f - square * (0.0333333333f - square * (0.0238095238f - square * 0.0333333333f));
  return sum + inverse * (1.0f + inverse * (0.5f + inverse * series));
}

inline float mi_trigamma(float x) {
  if (x >= 0.5f || x != x) {
    return mi_trigamma_positive(x);
  }
  const float wave = mi_sin_pi(metal::fabs(x));
  return 9.8696044f / (wave * wave) - mi_trigamma_positive(1.0f - x);
}

//@ zeta
// Hurwitz zeta: the first terms, then Euler and Maclaurin's formula with Bernoulli numbers B2 ... B12.
inline float mi_zeta(float s, float q) {
  if (!(s >= 1.0f) || q != q) {
    return NAN;
  }
  if (s == 1.0f) {
    return INFINITY;
  }
  if (q <= 0.0f && q == metal::floor(q)) {
    return INFINITY;
  }
  if (q <= 0.0f && s != metal::floor(s)) {
    return NAN;
  }
  const float ratios[6] = {0.0833333333f, -0.00138888889f, 3.30687831e-5f,
                           -8.26719577e-7f, 2.08767570e-8f, -5.28419014e-10f};
  float sum = 0.0f;
  float n = q;
  float k = 0.0f;
  for (; k < 9.0f || n < 9.0f; k += 1.0f) {
    // n is q + k rounded: put the rounding error back to first order, s multiplies it
    const float lost = q - (n - k);
    const float term = metal::precise::pow(n, -s);
    sum += metal::fma(-s * lost / n, term, term);
    n = q + (k + 1.0f);
  }
  const float power = metal::precise::pow(n, -s);
  if (power == 0.0f) {
    return sum;
  }
  sum += power * (n / (s - 1.0f) + 0.5f);
  float factor = s * power / n;
  for (int j = 0; j < 6; ++j) {
    sum += factor * ratios[j];
    factor *= (s + float(2 * j + 1)) * (s + float(2 * j + 2)) / (n * n);
  }
  return sum;
}

//@ gamma_prefix: lgamma, log1p
// x^a exp(-x) / Gamma(a + 1). For large a through x/a - 1 - log(x/a), which stays small where the result is not.
inline float mi_gamma_prefix(float a, float x) {
  if (x > 1e9f && x > 4.0f * a) {
    return 0.0f;
  }
  if (a < 8.0f && x < 80.0f) {
    float factors = 1.0f;
    float z = a + 1.0f;
    while (z > 2.0f) {
      z -= 1.0f;
      factors *= z;
    }
    return metal::precise::pow(x, a) * metal::precise::exp(-x) * metal::precise::exp(-mi_lgamma_positive(z)) / factors;
  }
  const float offset = (x - a) / a;
  float gap = offset - mi_log1p(offset);
  if (metal::fabs(offset) < 0.1f) {
    float power = offset * offset;
    gap = 0.0f;
    for (int k = 2; k < 10; ++k) {
      gap += power / float(k);
      power *= -offset;
    }
  }
  const float inverse = 1.0f / a;
  const float stirling = inverse * (0.0833333333f - inverse * inverse * 0.00277777778f);
  return metal::precise::exp(-a * gap - stirling) / metal::precise::sqrt(6.28318531f * a);
}

//@ gamma_parts: gamma_prefix
// Lower incomplete gamma function by its power series (for x < a + 1), upper one by Legendre's continued fraction,
// evaluated with Lentz's algorithm.
inline float mi_gamma_series(float a, float x) {
  float term = 1.0f;
  float sum = 1.0f;
  for (float n = 1.0f; n < 3000.0f && term > sum * 1e-8f; n += 1.0f) {
    term *= x / (a + n);
    sum += term;
  }
  return mi_gamma_prefix(a, x) * sum;
}

inline float mi_gamma_fraction(float a, float x) {
  float b = x + 1.0f - a;
  float c = 1e30f;
  float d = 1.0f / b;
  float value = d;
  for (float n = 1.0f; n < 3000.0f; n += 1.0f) {
    const float numerator = -n * (n - a);
    b += 2.0f;
    d = numerator * d + b;
    d = 1.0f / (metal::fabs(d) < 1e-30f ? 1e-30f : d);
    c = b + numerator / c;
    c = metal::fabs(c) < 1e-30f ? 1e-30f : c;
    value *= c * d;
    if (metal::fabs(c * d - 1.0f) < 6e-8f) {
      break;
    }
  }
  return mi_gamma_prefix(a, x) * a * value;
}

//@ igamma: gamma_parts
inline float mi_igamma(float a, float x) {
  if (!(a >= 0.0f && x >= 0.0f) || (a == 0.0f && x == 0.0f) || (a == INFINITY && x == INFINITY)) {
    return NAN;
  }
  if (a == 0.0f || x == INFINITY) {
    return 1.0f;
  }
  if (x == 0.0f || a == INFINITY) {
    return 0.0f;
  }
  return x < a + 1.0f ? mi_gamma_series(a, x) : 1.0f - mi_gamma_fraction(a, x);
}

//@ igammac: gamma_parts
inline float mi_igammac(float a, float x) {
  if (!(a >= 0.0f && x >= 0.0f) || (a == 0.0f && x == 0.0f) || (a == INFINITY && x == INFINITY)) {
    return NAN;
  }
  if (a == 0.0f || x == INFINITY) {
    return 0.0f;
  }
  if (x == 0.0f || a == INFINITY) {
    return 1.0f;
  }
  return x < a + 1.0f ? 1.0f - mi_gamma_series(a, x) : mi_gamma_fraction(a, x);
}
