// Bessel functions and orthogonal polynomials, in float32: same layout as functions.metal.

//@ bessel_i: horner
// Modified Bessel functions. |x| <= 6: power series in (x / 2)^2, economised; beyond: exp(x) / sqrt(x) times a
// polynomial in 1 / x.
constant float mi_i0_small_fit[9] = {1.0f, 0.2499999944f, 0.02777779445f, 0.001736092178f, 6.945518953e-5f,
                                           1.925600031e-6f, 4.000006265e-8f, 5.476564104e-10f, 1.135286475e-11f};
constant float mi_i0_large_fit[8] = {0.3989422822f, 0.0498664247f, 0.0282147143f, 0.02198941513f,
                                           0.1924779649f, -1.407477634f, 7.333395313f, -10.61433919f};
constant float mi_i1_small_fit[9] = {1.000000003f, 0.4999999417f, 0.08333350551f, 0.006944248941f,
                                           0.0003473331055f, 1.15388955e-5f, 2.820831836e-7f, 4.22845948e-9f,
                                           1.067083971e-10f};
constant float mi_i1_large_fit[8] = {0.3989422785f, -0.1496019219f, -0.04692377243f, -0.03331064776f,
                                           -0.2122606334f, 1.449933616f, -7.597220537f, 10.54490019f};

inline float mi_i0_series(float x) {
  const float q = 0.25f * x * x;
  return metal::fma(q, mi_horner(q, mi_i0_small_fit), 1.0f);
}

inline float mi_i1_series(float x) {
  return 0.5f * x * mi_horner(0.25f * x * x, mi_i1_small_fit);
}

//@ i0: bessel_i
inline float mi_i0(float x) {
  const float y = metal::fabs(x);
  if (y <= 6.0f) {
    return mi_i0_series(y);
  }
  const float half_power = metal::precise::exp(0.5f * y);  // exp(y) overflows before the result does
  return half_power * (mi_horner(1.0f / y, mi_i0_large_fit) / metal::precise::sqrt(y)) * half_power;
}

//@ i0e: bessel_i
inline float mi_i0e(float x) {
  const float y = metal::fabs(x);
  if (y <= 6.0f) {
    return metal::precise::exp(-y) * mi_i0_series(y);
  }
  return mi_horner(1.0f / y, mi_i0_large_fit) / metal::precise::sqrt(y);
}

//@ i1: bessel_i
inline float mi_i1(float x) {
  const float y = metal::fabs(x);
  if (y <= 6.0f) {
    return mi_i1_series(x);
  }
  const float half_power = metal::precise::exp(0.5f * y);
  const float scaled = mi_horner(1.0f / y, mi_i1_large_fit) / metal::precise::sqrt(y);
  return metal::copysign(half_power * scaled * half_power, x);
}

//@ i1e: bessel_i
inline float mi_i1e(float x) {
  const float y = metal::fabs(x);
  if (y <= 6.0f) {
    return metal::precise::exp(-y) * mi_i1_series(x);
  }
  return metal::copysign(mi_horner(1.0f / y, mi_i1_large_fit) / metal::precise::sqrt(y), x);
}

//@ bessel_j: horner
// Bessel functions of the first kind. x <= 5: the first zeros, each in two floats, times a polynomial in x^2. Beyond:
// Hankel's form with fitted P(1 / x^2) and x Q(1 / x^2); cos and sin of x - pi / 4 come from those of x, because the
// difference would be rounded. Names end in the order.
constant float mi_j0_fit[8] = {0.002686163561f, -0.0001331317815f, 2.758296888e-6f, -3.271578721e-8f,
                               2.549267281e-10f, -1.41360441e-12f, 5.907166946e-15f, -1.913000822e-17f};
constant float mi_j1_fit[8] = {-0.01436483282f, 0.0009684130655f, -2.544411286e-5f, 3.660674623e-7f,
                               -3.355633943e-9f, 2.140618233e-11f, -1.011476055e-13f, 3.655765532e-16f};
constant float mi_hankel_p0_fit[5] = {0.9999999955f, -0.0703067981f, 0.1109293948f, -0.4722512449f, 1.953896502f};
constant float mi_hankel_q0_fit[7] = {-0.1249999996f, 0.07324118419f, -0.2266810354f, 1.655051689f,
                                      -17.80808152f, 171.626619f, -867.5934074f};
constant float mi_hankel_p1_fit[5] = {1.000000005f, 0.1171810514f, -0.142814493f, 0.5636799128f, -2.271908682f};
constant float mi_hankel_q1_fit[6] = {0.3749999973f, -0.102534081f, 0.2760186471f,
                                      -1.80084902f, 14.7297625f, -74.38400115f};

inline float mi_near_zero(float x, float high, float low) {
  return ((x - high) - low) * (x + high);
}

inline float mi_j0_small(float x) {
  const float zeros = mi_near_zero(x, 2.40482545f, 1.08705905e-7f) * mi_near_zero(x, 5.52007818f, -7.19341483e-8f);
  return zeros * mi_horner(x * x - 16.0f, mi_j0_fit);
}

inline float mi_j1_small(float x) {
  return x * mi_near_zero(x, 3.83170605f, -7.68505932e-8f) * mi_horner(x * x - 14.0f, mi_j1_fit);
}

// J (second == false) or Y (true) for x > 5
inline float mi_hankel0(float x, bool second) {
  const float v = 1.0f / (x * x);
  const float p = mi_horner(v, mi_hankel_p0_fit);
  const float q = mi_horner(v, mi_hankel_q0_fit) / x;
  const float c = metal::precise::cos(x);
  const float s = metal::precise::sin(x);
  const float wave = second ? p * (s - c) + q * (c + s) : p * (c + s) - q * (s - c);
  return 0.564189584f / metal::precise::sqrt(x) * wave;
}

inline float mi_hankel1(float x, bool second) {
  const float v = 1.0f / (x * x);
  const float p = mi_horner(v, mi_hankel_p1_fit);
  const float q = mi_horner(v, mi_hankel_q1_fit) / x;
  const float c = metal::precise::cos(x);
  const float s = metal::precise::sin(x);
  const float wave = second ? q * (s - c) - p * (s + c) : p * (s - c) + q * (s + c);
  return 0.564189584f / metal::precise::sqrt(x) * wave;
}

//@ bessel_j0: bessel_j
inline float mi_bessel_j0(float x) {
  const float y = metal::fabs(x);
  return y <= 5.0f ? mi_j0_small(y) : mi_hankel0(y, false);
}

//@ bessel_j1: bessel_j
inline float mi_bessel_j1(float x) {
  const float y = metal::fabs(x);
  const float value = y <= 5.0f ? mi_j1_small(y) : mi_hankel1(y, false);
  return x < 0.0f ? -value : value;
}

//@ bessel_y0: bessel_j
// Second kind; x <= 5: (2 / pi) log(x / 2) J plus a polynomial in x^2 (and a pole for order one).
constant float mi_y0_fit[10] = {0.2707990705f, -0.04393114151f, -0.0006733154679f, 0.0001058442729f,
                                -2.827442886e-6f, 3.83786414e-8f, -3.275159903e-10f, 1.944696535e-12f,
                                -8.582485773e-15f, 2.908920939e-17f};

inline float mi_bessel_y0(float x) {
  if (!(x > 0.0f)) {
    return x == 0.0f ? -INFINITY : NAN;
  }
  if (x > 5.0f) {
    return mi_hankel0(x, true);
  }
  const float singular = 0.636619772f * metal::precise::log(0.5f * x) * mi_j0_small(x);
  return singular + mi_horner(x * x - 13.5f, mi_y0_fit);
}

//@ bessel_y1: bessel_j
constant float mi_y1_fit[9] = {0.1537739158f, -0.001775073305f, -0.0004930652993f, 2.015591203e-5f, -3.571428841e-7f,
                               3.733751055e-9f, -2.61754948e-11f, 1.331175483e-13f, -5.10159669e-16f};

inline float mi_bessel_y1(float x) {
  if (!(x > 0.0f)) {
    return x == 0.0f ? -INFINITY : NAN;
  }
  if (x > 5.0f) {
    return mi_hankel1(x, true);
  }
  const float singular = metal::precise::log(0.5f * x) * mi_j1_small(x) - 1.0f / x;
  return 0.636619772f * singular + x * mi_horner(x * x - 13.5f, mi_y1_fit);
}

//@ spherical_bessel_j0
inline float mi_spherical_bessel_j0(float x) {
  const float y = metal::fabs(x);
  if (y == INFINITY) {
    return 0.0f;
  }
  if (y < 0.5f) {
    const float q = x * x;
    return 1.0f + q * (-0.166666667f + q * (0.00833333333f + q * (-0.000198412698f + q * 2.75573192e-6f)));
  }
  return metal::precise::sin(y) / y;
}

//@ bessel_k: bessel_i
// Modified Bessel functions of the second kind, scaled by exp(x). x <= 2: the logarithm times I plus a polynomial in
// x^2; beyond: a polynomial in 1 / x - 1/4, over sqrt(x).
constant float mi_k0_small_fit[7] = {-0.5772156649f, 0.1056960835f, 0.01441850624f, 0.0005451884555f,
                                     1.021508577e-5f, 1.153127112e-7f, 9.522368895e-10f};
constant float mi_k1_small_fit[7] = {0.03860783245f, -0.04204902093f, -0.002837112048f, -7.493033271e-5f,
                                     -1.089286893e-6f, -1.008786271e-8f, -6.99101499e-11f};
constant float mi_k0_large_fit[8] = {1.218595331f, -0.1242858355f, 0.04853029173f, -0.03071124855f,
                                     0.02517371579f, -0.02485984291f, 0.03621829007f, -0.04708878459f};
constant float mi_k1_large_fit[9] = {1.36315189f, 0.4133988848f, -0.08906757411f, 0.04710030856f, -0.03575698315f,
                                     0.03285400292f, -0.03548917855f, 0.06010296924f, -0.08327142144f};

inline float mi_k0_small(float x) {
  return mi_horner(x * x, mi_k0_small_fit) - metal::precise::log(0.5f * x) * mi_i0_series(x);
}

inline float mi_k1_small(float x) {
  return 1.0f / x + x * mi_horner(x * x, mi_k1_small_fit) + metal::precise::log(0.5f * x) * mi_i1_series(x);
}

inline float mi_k0_large(float x) {
  return mi_horner(1.0f / x - 0.25f, mi_k0_large_fit) / metal::precise::sqrt(x);
}

inline float mi_k1_large(float x) {
  return mi_horner(1.0f / x - 0.25f, mi_k1_large_fit) / metal::precise::sqrt(x);
}

//@ bessel_k0: bessel_k
inline float mi_bessel_k0(float x) {
  if (!(x > 0.0f)) {
    return x == 0.0f ? INFINITY : NAN;
  }
  return x <= 2.0f ? mi_k0_small(x) : metal::precise::exp(-x) * mi_k0_large(x);
}

//@ bessel_k1: bessel_k
inline float mi_bessel_k1(float x) {
  if (!(x > 0.0f)) {
    return x == 0.0f ? INFINITY : NAN;
  }
  return x <= 2.0f ? mi_k1_small(x) : metal::precise::exp(-x) * mi_k1_large(x);
}

//@ bessel_k0e: bessel_k
inline float mi_bessel_k0e(float x) {
  if (!(x > 0.0f)) {
    return x == 0.0f ? INFINITY : NAN;
  }
  return x <= 2.0f ? metal::precise::exp(x) * mi_k0_small(x) : mi_k0_large(x);
}

//@ bessel_k1e: bessel_k
inline float mi_bessel_k1e(float x) {
  if (!(x > 0.0f)) {
    return x == 0.0f ? INFINITY : NAN;
  }
  return x <= 2.0f ? metal::precise::exp(x) * mi_k1_small(x) : mi_k1_large(x);
}

//@ chebyshev
// The four kinds share p[k] = 2x p[k-1] - p[k-2] and differ in p[1] and at x = 1 and -1. Inside of (-1, 1) long
// recurrences give way to the trigonometric form, as in eager.
inline float mi_chebyshev(float x, int n, float first) {
  if (n <= 0) {
    return n == 0 ? 1.0f : 0.0f;
  }
  float before = 1.0f;
  float value = first;
  for (int k = 2; k <= n && value == value; ++k) {
    const float next = 2.0f * x * value - before;
    before = value;
    value = next;
  }
  return value;
}

inline float mi_alternating(float magnitude, float x, int n) {
  return x > 0.0f || n % 2 == 0 ? magnitude : -magnitude;
}

//@ chebyshev_t: chebyshev
inline float mi_chebyshev_t(float x, float order) {
  const int n = int(order);
  if (n > 6 && metal::fabs(x) <= 1.0f) {
    return metal::fabs(x) == 1.0f ? mi_alternating(1.0f, x, n)
                                  : metal::precise::cos(float(n) * metal::precise::acos(x));
  }
  return mi_chebyshev(x, n, x);
}

//@ chebyshev_u: chebyshev
inline float mi_chebyshev_u(float x, float order) {
  const int n = int(order);
  if (n > 8 && metal::fabs(x) <= 1.0f) {
    const float angle = metal::precise::acos(x);
    return metal::fabs(x) == 1.0f ? mi_alternating(float(n + 1), x, n)
                                  : metal::precise::sin(float(n + 1) * angle) / metal::precise::sin(angle);
  }
  return mi_chebyshev(x, n, 2.0f * x);
}

//@ chebyshev_v: chebyshev
inline float mi_chebyshev_v(float x, float order) {
  const int n = int(order);
  if (n > 8 && metal::fabs(x) <= 1.0f) {
    if (metal::fabs(x) == 1.0f) {
      return x > 0.0f ? 1.0f : mi_alternating(float(2 * n + 1), x, n);
    }
    const float angle = metal::precise::acos(x);
    return metal::precise::cos((float(n) + 0.5f) * angle) / metal::precise::cos(0.5f * angle);
  }
  return mi_chebyshev(x, n, 2.0f * x - 1.0f);
}

//@ chebyshev_w: chebyshev
inline float mi_chebyshev_w(float x, float order) {
  const int n = int(order);
  if (n > 8 && metal::fabs(x) <= 1.0f) {
    if (metal::fabs(x) == 1.0f) {
      return x > 0.0f ? float(2 * n + 1) : mi_alternating(1.0f, x, n);
    }
    const float angle = metal::precise::acos(x);
    return metal::precise::sin((float(n) + 0.5f) * angle) / metal::precise::sin(0.5f * angle);
  }
  return mi_chebyshev(x, n, 2.0f * x + 1.0f);
}

//@ hermite_h
// Physicists' form; orders over 128 are not a number, as in eager.
inline float mi_hermite_h(float x, float order) {
  const int n = int(order);
  if (n > 128) {
    return NAN;
  }
  float before = n < 0 ? 0.0f : 1.0f;
  float value = 2.0f * x;
  for (int k = 1; k < n; ++k) {
    const float next = 2.0f * (x * value - float(k) * before);
    before = value;
    value = next;
  }
  return n <= 0 ? before : value;
}

//@ hermite_he
// Probabilists' form.
inline float mi_hermite_he(float x, float order) {
  const int n = int(order);
  if (n > 128) {
    return NAN;
  }
  float before = n < 0 ? 0.0f : 1.0f;
  float value = x;
  for (int k = 1; k < n; ++k) {
    const float next = x * value - float(k) * before;
    before = value;
    value = next;
  }
  return n <= 0 ? before : value;
}

//@ laguerre
inline float mi_laguerre(float x, float order) {
  const int n = int(order);
  float before = n < 0 ? 0.0f : 1.0f;
  float value = 1.0f - x;
  for (int k = 1; k < n && value == value; ++k) {
    const float next = ((float(2 * k + 1) - x) * value - float(k) * before) / float(k + 1);
    before = value;
    value = next;
  }
  return n <= 0 ? before : value;
}

//@ legendre
inline float mi_legendre(float x, float order) {
  const int n = int(order);
  if (n >= 0 && metal::fabs(x) == 1.0f) {
    return x > 0.0f || n % 2 == 0 ? 1.0f : -1.0f;
  }
  float before = n < 0 ? 0.0f : 1.0f;
  float value = x;
  for (int k = 1; k < n && value == value; ++k) {
    const float next = (float(2 * k + 1) * x * value - float(k) * before) / float(k + 1);
    before = value;
    value = next;
  }
  return n <= 0 ? before : value;
}
