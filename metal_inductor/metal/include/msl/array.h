// <metal_array>
#ifndef MSL_ARRAY_H
#define MSL_ARRAY_H
#include "msl/type_traits.h"

namespace metal {

template <class T, size_t N> struct array {
  T msl_elements[N];
  constexpr size_t size() const { return N; }
  constexpr MSL_INLINE T operator[](size_t i) const & { return msl_elements[i]; }
  constexpr MSL_INLINE T operator[](size_t i) const && { return msl_elements[i]; }
  MSL_INLINE MSL_GENERIC T &operator[](size_t i) & { return msl_elements[i]; }
  MSL_INLINE thread T &operator[](size_t i) thread & { return msl_elements[i]; }
  MSL_INLINE threadgroup T &operator[](size_t i) threadgroup & { return msl_elements[i]; }
  MSL_INLINE device T &operator[](size_t i) __global & { return ((device T *)msl_elements)[i]; }
};

}  // namespace metal

#endif
