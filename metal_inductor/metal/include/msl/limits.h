// <metal_limits>
#ifndef MSL_LIMITS_H
#define MSL_LIMITS_H
#include "msl/bfloat.h"

namespace metal {

template <class T> struct numeric_limits {
  static constexpr constant bool is_specialized = false;
};

#define MSL_INTEGER_LIMITS(T, lowest_value, max_value, digit_count, sign) \
  template <> struct numeric_limits<T> { \
    static constexpr constant bool is_specialized = true; \
    static constexpr constant bool is_integer = true; \
    static constexpr constant bool is_exact = true; \
    static constexpr constant bool is_signed = sign; \
    static constexpr constant bool has_infinity = false; \
    static constexpr constant bool has_quiet_NaN = false; \
    static constexpr constant bool is_bounded = true; \
    static constexpr constant bool is_modulo = !sign; \
    static constexpr constant int digits = digit_count; \
    static constexpr constant int digits10 = digit_count * 30103 / 100000; \
    static constexpr constant int max_digits10 = 0; \
    static constexpr constant int radix = 2; \
    static constexpr constant int min_exponent = 0; \
    static constexpr constant int max_exponent = 0; \
    static constexpr T min() { return lowest_value; } \
    static constexpr T lowest() { return lowest_value; } \
    static constexpr T max() { return max_value; } \
    static constexpr T infinity() { return T(0); } \
    static constexpr T quiet_NaN() { return T(0); } \
    static constexpr T epsilon() { return T(0); } \
  };
MSL_INTEGER_LIMITS(bool, false, true, 1, false)
MSL_INTEGER_LIMITS(char, CHAR_MIN, CHAR_MAX, 7, true)
MSL_INTEGER_LIMITS(uchar, 0, UCHAR_MAX, 8, false)
MSL_INTEGER_LIMITS(short, SHRT_MIN, SHRT_MAX, 15, true)
MSL_INTEGER_LIMITS(ushort, 0, USHRT_MAX, 16, false)
MSL_INTEGER_LIMITS(int, INT_MIN, INT_MAX, 31, true)
MSL_INTEGER_LIMITS(uint, 0, UINT_MAX, 32, false)
MSL_INTEGER_LIMITS(long, LONG_MIN, LONG_MAX, 63, true)
MSL_INTEGER_LIMITS(ulong, 0, ULONG_MAX, 64, false)
#undef MSL_INTEGER_LIMITS

// Every value is given by its bits.
#define MSL_FLOAT_LIMITS(T, U, max_bits, min_bits, infinity_bits, nan_bits, epsilon_bits, half_bits, digit_count, lowest_exponent, highest_exponent, tens, least_ten, most_ten) \
  template <> struct numeric_limits<T> { \
    static constexpr constant bool is_specialized = true; \
    static constexpr constant bool is_integer = false; \
    static constexpr constant bool is_exact = false; \
    static constexpr constant bool is_signed = true; \
    static constexpr constant bool has_infinity = true; \
    static constexpr constant bool has_quiet_NaN = true; \
    static constexpr constant bool has_signaling_NaN = true; \
    static constexpr constant bool is_bounded = true; \
    static constexpr constant bool is_modulo = false; \
    static constexpr constant bool is_iec559 = true; \
    static constexpr constant int digits = digit_count; \
    static constexpr constant int digits10 = tens; \
    static constexpr constant int max_digits10 = digit_count * 30103 / 100000 + 2; \
    static constexpr constant int radix = 2; \
    static constexpr constant int min_exponent = lowest_exponent; \
    static constexpr constant int max_exponent = highest_exponent; \
    static constexpr constant int min_exponent10 = least_ten; \
    static constexpr constant int max_exponent10 = most_ten; \
    static constexpr T max() { return __builtin_bit_cast(T, U(max_bits)); } \
    static constexpr T lowest() { return -__builtin_bit_cast(T, U(max_bits)); } \
    static constexpr T min() { return __builtin_bit_cast(T, U(min_bits)); } \
    static constexpr T infinity() { return __builtin_bit_cast(T, U(infinity_bits)); } \
    static constexpr T quiet_NaN() { return __builtin_bit_cast(T, U(nan_bits)); } \
    static constexpr T signaling_NaN() { return __builtin_bit_cast(T, U(infinity_bits | 1)); } \
    static constexpr T round_error() { return __builtin_bit_cast(T, U(half_bits)); } \
    static constexpr T epsilon() { return __builtin_bit_cast(T, U(epsilon_bits)); } \
    static constexpr T denorm_min() { return __builtin_bit_cast(T, U(1)); } \
  };
MSL_FLOAT_LIMITS(float, uint, 0x7f7fffff, 0x00800000, 0x7f800000, 0x7fc00000, 0x34000000, 0x3f000000, 24, -125, 128, 6, -37, 38)
MSL_FLOAT_LIMITS(half, ushort, 0x7bff, 0x0400, 0x7c00, 0x7e00, 0x1400, 0x3800, 11, -13, 16, 3, -4, 4)
MSL_FLOAT_LIMITS(bfloat, ushort, 0x7f7f, 0x0080, 0x7f80, 0x7fc0, 0x3c00, 0x3f00, 8, -125, 128, 2, -37, 38)
#undef MSL_FLOAT_LIMITS

}  // namespace metal

#endif
