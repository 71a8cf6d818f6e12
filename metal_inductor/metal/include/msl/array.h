// <metal_array>
#ifndef MSL_ARRAY_H
#define MSL_ARRAY_H
#include "msl/type_traits.h"

namespace metal {

template <class T, size_t N> struct array {
  typedef T value_type;
  T msl_elements[N];
  constexpr size_t size() const { return N; }
  constexpr bool empty() const { return N == 0; }
  constexpr MSL_INLINE T operator[](size_t i) const & { return msl_elements[i]; }
  constexpr MSL_INLINE T operator[](size_t i) const && { return msl_elements[i]; }
  MSL_INLINE MSL_GENERIC T &operator[](size_t i) & { return msl_elements[i]; }
  MSL_INLINE thread T &operator[](size_t i) thread & { return msl_elements[i]; }
  MSL_INLINE threadgroup T &operator[](size_t i) threadgroup & { return msl_elements[i]; }
  MSL_INLINE device T &operator[](size_t i) __global & { return ((device T *)msl_elements)[i]; }
  constexpr MSL_INLINE T front() const { return msl_elements[0]; }
  constexpr MSL_INLINE T back() const { return msl_elements[N - 1]; }
  // A range-for over the elements, and data(), in each memory that the array may be in.
#define MSL_ELEMENTS(qualifiers, pointer) \
  MSL_INLINE pointer begin() qualifiers { return (pointer)msl_elements; } \
  MSL_INLINE pointer end() qualifiers { return (pointer)msl_elements + N; } \
  MSL_INLINE pointer data() qualifiers { return (pointer)msl_elements; }
  MSL_ELEMENTS(thread, thread T *)
  MSL_ELEMENTS(const thread, const thread T *)
  MSL_ELEMENTS(threadgroup, threadgroup T *)
  MSL_ELEMENTS(const threadgroup, const threadgroup T *)
  MSL_ELEMENTS(__global, device T *)
  MSL_ELEMENTS(const __global, const __global T *)
#undef MSL_ELEMENTS
};

}  // namespace metal

#endif
