// Values as bits, and where the elements of a matrix are.
#ifndef MSL_LANES_H
#define MSL_LANES_H
#include "msl/vectors.h"

namespace msl {

template <class T> MSL_INLINE ulong pack(T value) {
  if constexpr (sizeof(T) == 1) return as_type<uchar>(value);
  else if constexpr (sizeof(T) == 2) return as_type<ushort>(value);
  else if constexpr (sizeof(T) == 4) return as_type<uint>(value);
  else return as_type<ulong>(value);
}
template <class T> MSL_INLINE T unpack(ulong bits) {
  if constexpr (sizeof(T) == 1) return as_type<T>(uchar(bits));
  else if constexpr (sizeof(T) == 2) return as_type<T>(ushort(bits));
  else if constexpr (sizeof(T) == 4) return as_type<T>(uint(bits));
  else return as_type<T>(bits);
}

#ifdef MSL_NATIVE_MATRICES
// Element layout of 8x8 matrices as NVIDIA's tensor cores take it, for text that works with any.
constexpr MSL_INLINE uint matrix_row(uint lane) { return lane >> 2; }
constexpr MSL_INLINE uint matrix_column(uint lane) { return (lane & 3) << 1; }
constexpr MSL_INLINE uint matrix_lane(uint row, uint column) { return (row << 2) | (column >> 1); }
#else
// Element layout of 8x8 matrices. Lane bits 4..0 are row 2, column 2, row 1, row 0, column 1, as on Apple's GPUs.
constexpr MSL_INLINE uint matrix_row(uint lane) { return ((lane >> 2) & 4) + ((lane >> 1) & 3); }
constexpr MSL_INLINE uint matrix_column(uint lane) { return ((lane >> 1) & 4) + ((lane & 1) << 1); }
constexpr MSL_INLINE uint matrix_lane(uint row, uint column) {
  return ((row & 4) << 2) | ((column & 4) << 1) | ((row & 3) << 1) | ((column >> 1) & 1);
}
#endif

}  // namespace msl

#endif
