// bfloat: a class, because float and half may only convert to it explicitly.
#ifndef MSL_BFLOAT_H
#define MSL_BFLOAT_H
#include "msl/type_traits.h"

struct bfloat {
  ushort msl_bits;

  bfloat() = default;
  explicit constexpr MSL_INLINE bfloat(float value) : msl_bits(round_to_nearest_even(value)) {}
  explicit constexpr MSL_INLINE bfloat(half value) : msl_bits(round_to_nearest_even(float(value))) {}
  template <class I, class = metal::enable_if_t<metal::is_integral_v<I>>>
  constexpr MSL_INLINE bfloat(I value) : msl_bits(round_to_nearest_even(float(value))) {}

  constexpr MSL_INLINE operator float() const { return __builtin_bit_cast(float, uint(msl_bits) << 16); }
  template <class H, class = metal::enable_if_t<metal::is_same_v<H, half>>> explicit constexpr MSL_INLINE operator H() const {
    return half(float(*this));
  }
  template <class I, class = metal::enable_if_t<metal::is_integral_v<I>>, class = void>
  explicit constexpr MSL_INLINE operator I() const {
    return I(float(*this));
  }

  static constexpr MSL_INLINE ushort round_to_nearest_even(float value) {
#ifdef __NVPTX__
    return __builtin_bit_cast(ushort, (__bf16)value);  // one instruction
#endif
    uint bits = __builtin_bit_cast(uint, value);
    uint rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return ushort((bits & 0x7fffffffu) > 0x7f800000u ? (bits >> 16) | 0x40u : rounded);
  }

#define MSL_ASSIGN(op) \
  template <class U> MSL_INLINE MSL_GENERIC bfloat &operator op##=(U other) { \
    *this = bfloat(float(*this) op float(other)); \
    return *this; \
  }
  MSL_ASSIGN(+)
  MSL_ASSIGN(-)
  MSL_ASSIGN(*)
  MSL_ASSIGN(/)
#undef MSL_ASSIGN
  MSL_INLINE MSL_GENERIC bfloat &operator++() { return *this += 1; }
  MSL_INLINE MSL_GENERIC bfloat &operator--() { return *this -= 1; }
  MSL_INLINE bfloat operator++(int) { bfloat old = *this; *this += 1; return old; }
  MSL_INLINE bfloat operator--(int) { bfloat old = *this; *this -= 1; return old; }
};

#define MSL_BFLOAT_OPERATOR(op) \
  constexpr MSL_INLINE bfloat operator op(bfloat a, bfloat b) { return bfloat(float(a) op float(b)); } \
  constexpr MSL_INLINE float operator op(bfloat a, float b) { return float(a) op b; } \
  constexpr MSL_INLINE float operator op(float a, bfloat b) { return a op float(b); } \
  template <class I, class = metal::enable_if_t<metal::is_integral_v<I>>> \
  constexpr MSL_INLINE bfloat operator op(bfloat a, I b) { return bfloat(float(a) op float(b)); } \
  template <class I, class = metal::enable_if_t<metal::is_integral_v<I>>> \
  constexpr MSL_INLINE bfloat operator op(I a, bfloat b) { return bfloat(float(a) op float(b)); }
MSL_BFLOAT_OPERATOR(+)
MSL_BFLOAT_OPERATOR(-)
MSL_BFLOAT_OPERATOR(*)
MSL_BFLOAT_OPERATOR(/)
#undef MSL_BFLOAT_OPERATOR

constexpr MSL_INLINE bfloat operator-(bfloat a) {
  return __builtin_bit_cast(bfloat, ushort(a.msl_bits ^ 0x8000u));
}
constexpr MSL_INLINE bfloat operator+(bfloat a) { return a; }

#endif
