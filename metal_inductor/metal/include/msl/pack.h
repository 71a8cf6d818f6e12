// <metal_pack>: numbers of [0, 1] or [-1, 1] as integers of few bits, side by side in a word, the first component lowest.
#ifndef MSL_PACK_H
#define MSL_PACK_H
#include "msl/relational.h"

namespace msl {

MSL_INLINE uint to_unorm(float x, uint bits) {
  float largest = float((1u << bits) - 1);
  return uint(__builtin_elementwise_rint(metal::saturate(x) * largest));
}
MSL_INLINE uint to_snorm(float x, uint bits) {
  float largest = float((1u << (bits - 1)) - 1);
  float limited = metal::clamp(x == x ? x : 0.0f, -1.0f, 1.0f);
  return uint(int(__builtin_elementwise_rint(limited * largest))) & ((1u << bits) - 1);
}
MSL_INLINE float from_unorm(uint field, uint bits) { return float(field & ((1u << bits) - 1)) / float((1u << bits) - 1); }
// The two lowest patterns both mean -1.
MSL_INLINE float from_snorm(uint field, uint bits) {
  int value = int(field << (32 - bits)) >> (32 - bits);
  return metal::max(float(value) / float((1u << (bits - 1)) - 1), -1.0f);
}
MSL_INLINE float to_srgb(float linear) {
  float x = metal::saturate(linear);
  return x < 0.0031308f ? x * 12.92f : 1.055f * metal::powr(x, 1.0f / 2.4f) - 0.055f;
}
MSL_INLINE float from_srgb(float encoded) {
  return encoded <= 0.04045f ? encoded / 12.92f : metal::powr((encoded + 0.055f) / 1.055f, 2.4f);
}

}  // namespace msl

namespace metal {

#define MSL_PACK_EVEN(T, kind, N, bits) \
  MSL_INLINE uint pack_##T##_to_##kind##N##x##bits(T##N v) { \
    uint word = 0; \
    for (int i = 0; i < N; ++i) word |= msl::to_##kind(v[i], bits) << (i * bits); \
    return word; \
  } \
  MSL_INLINE T##N unpack_##kind##N##x##bits##_to_##T(uint word) { \
    T##N v; \
    for (int i = 0; i < N; ++i) v[i] = T(msl::from_##kind(word >> (i * bits), bits)); \
    return v; \
  }
// The last component is opacity, which is linear.
#define MSL_PACK_SRGB(T) \
  MSL_INLINE uint pack_##T##_to_srgb_unorm4x8(T##4 v) { \
    return pack_float_to_unorm4x8(float4(msl::to_srgb(v[0]), msl::to_srgb(v[1]), msl::to_srgb(v[2]), v[3])); \
  } \
  MSL_INLINE T##4 unpack_unorm4x8_srgb_to_##T(uint word) { \
    float4 v = unpack_unorm4x8_to_float(word); \
    return T##4(T(msl::from_srgb(v[0])), T(msl::from_srgb(v[1])), T(msl::from_srgb(v[2])), T(v[3])); \
  }
#define MSL_PACK_UNEVEN(T) \
  MSL_INLINE uint pack_##T##_to_unorm10a2(T##4 v) { \
    return msl::to_unorm(v[0], 10) | msl::to_unorm(v[1], 10) << 10 | msl::to_unorm(v[2], 10) << 20 | \
           msl::to_unorm(v[3], 2) << 30; \
  } \
  MSL_INLINE T##4 unpack_unorm10a2_to_##T(uint word) { \
    return T##4(T(msl::from_unorm(word, 10)), T(msl::from_unorm(word >> 10, 10)), T(msl::from_unorm(word >> 20, 10)), \
                T(msl::from_unorm(word >> 30, 2))); \
  } \
  MSL_INLINE ushort pack_##T##_to_unorm565(T##3 v) { \
    return ushort(msl::to_unorm(v[0], 5) << 11 | msl::to_unorm(v[1], 6) << 5 | msl::to_unorm(v[2], 5)); \
  } \
  MSL_INLINE T##3 unpack_unorm565_to_##T(ushort word) { \
    return T##3(T(msl::from_unorm(word >> 11, 5)), T(msl::from_unorm(word >> 5, 6)), T(msl::from_unorm(word, 5))); \
  }
#define MSL_PACK(T) \
  MSL_PACK_EVEN(T, unorm, 4, 8) \
  MSL_PACK_EVEN(T, snorm, 4, 8) \
  MSL_PACK_EVEN(T, unorm, 2, 16) \
  MSL_PACK_EVEN(T, snorm, 2, 16) \
  MSL_PACK_UNEVEN(T) \
  MSL_PACK_SRGB(T)
MSL_PACK(float)
MSL_PACK(half)
#undef MSL_PACK
#undef MSL_PACK_UNEVEN
#undef MSL_PACK_SRGB
#undef MSL_PACK_EVEN

}  // namespace metal

#endif
