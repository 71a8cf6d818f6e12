// <metal_simdgroup_matrix>: 8x8 matrices spread over the 32 lanes of a simdgroup, two neighbouring elements a lane.
#ifndef MSL_SIMDGROUP_MATRIX_H
#define MSL_SIMDGROUP_MATRIX_H
#include "msl/simdgroup.h"

namespace msl {
// Adds the products for this lane's two elements to `sums`.
template <class A, class B> MSL_INLINE void multiply_pairs(metal::vec<A, 2> a, metal::vec<B, 2> b, thread float *sums) {
#ifdef __NVPTX__
  if constexpr (on_tensor_cores<A, B>()) return multiply_on_tensor_cores(a, b, sums);
#endif
  matrix_operands mine = {{float(a[0]), float(a[1])}, {float(b[0]), float(b[1])}};
  multiply_matrices(mine, sums);
}
}  // namespace msl

namespace metal {

template <class T, int Columns, int Rows = Columns> struct simdgroup_matrix {
  static_assert(Columns == 8 && Rows == 8, "simdgroup_matrix has 8 columns and 8 rows");
  static_assert(is_floating_point_v<T>, "simdgroup_matrix has elements of float, half or bfloat");
  vec<T, 2> msl_elements;
#ifdef MSL_NATIVE_MATRICES
  // The right operand of a tensor core wants columns; a load finds them by the way, and what nobody asks for is dropped.
  uint msl_columns;
  bool msl_knows_columns = false;
#endif
  simdgroup_matrix() = default;
  explicit MSL_INLINE simdgroup_matrix(T diagonal) {
    uint lane = msl::lane(), row = msl::matrix_row(lane), column = msl::matrix_column(lane);
    float value = diagonal;
    msl_elements = vec<T, 2>(T(row == column ? value : 0.0f), T(row == column + 1 ? value : 0.0f));
  }
  MSL_INLINE thread vec<T, 2> &thread_elements() thread {
#ifdef MSL_NATIVE_MATRICES
    msl_knows_columns = false;
#endif
    return msl_elements;
  }
  MSL_INLINE const thread vec<T, 2> &thread_elements() const thread { return msl_elements; }
};
typedef simdgroup_matrix<float, 8> simdgroup_float8x8;
typedef simdgroup_matrix<half, 8> simdgroup_half8x8;
typedef simdgroup_matrix<bfloat, 8> simdgroup_bfloat8x8;

template <class T> MSL_INLINE simdgroup_matrix<T, 8> make_filled_simdgroup_matrix(T value) {
  simdgroup_matrix<T, 8> result;
  result.msl_elements = vec<T, 2>(value);
  return result;
}
template <class T, int Columns, int Rows = Columns>
MSL_INLINE simdgroup_matrix<T, Columns, Rows> make_filled_simdgroup_matrix(T value) {
  return make_filled_simdgroup_matrix<T>(value);
}
template <class T, int Columns, int Rows = Columns>
MSL_INLINE simdgroup_matrix<T, Columns, Rows> make_diagonal_simdgroup_matrix(T value) {
  return simdgroup_matrix<T, Columns, Rows>(value);
}

namespace msl_matrix {
// Index of the lane's first element; the second is `stride` further in a transposed matrix, else next to it.
MSL_INLINE ulong first_element(ulong stride, vec<ulong, 2> origin, bool transposed) {
  uint lane = msl::lane();
  ulong row = msl::matrix_row(lane), column = msl::matrix_column(lane);
  return transposed ? (origin.y + column) * stride + origin.x + row : (origin.y + row) * stride + origin.x + column;
}
#ifdef MSL_NATIVE_MATRICES
template <class T> constexpr bool loads_words() { return sizeof(T) == 2; }
// A lane's pair of neighbours in memory is its pair of elements or, in a transposed matrix, half of its column.
template <class T> MSL_INLINE void set_words(thread simdgroup_matrix<T, 8> &m, uint word, bool transposed) {
  uint other = msl::transpose_word(word);
  m.msl_elements.msl_lanes = __builtin_bit_cast(decltype(m.msl_elements.msl_lanes), transposed ? other : word);
  m.msl_columns = transposed ? word : other;
  m.msl_knows_columns = true;
}
// Columns as the hardware loads them, from rows of 16 bytes: lanes 0 to 7 say where these begin.
template <class T> MSL_INLINE void set_columns(thread simdgroup_matrix<T, 8> &m, ulong row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];" : "=r"(m.msl_columns) : "l"(row));
}
#else
template <class T> constexpr bool loads_words() { return false; }
template <class T> MSL_INLINE void set_columns(thread simdgroup_matrix<T, 8> &, ulong) {}
template <class T> MSL_INLINE void set_words(thread simdgroup_matrix<T, 8> &, uint, bool) {}
#endif
}  // namespace msl_matrix

// simdgroup_load and simdgroup_store touch only the lane's own elements; stores by other lanes need a barrier, as on a GPU.
#define MSL_MATRIX_LOAD(space, shared) \
  template <class T> \
  MSL_INLINE void simdgroup_load(thread simdgroup_matrix<T, 8> &m, const space T *source, ulong elements_per_row = 8, \
                                 vec<ulong, 2> origin = vec<ulong, 2>(0), bool transpose = false) { \
    if constexpr (msl_matrix::loads_words<T>()) { \
      ulong odd = (ulong(source) / 2 | elements_per_row | origin.x) & 1; \
      ulong amid_word = (ulong(source) / 2 | elements_per_row | origin.x) & 7; \
      const space T *row = source + (origin.y + (msl::lane() & 7)) * elements_per_row + origin.x; \
      source += msl_matrix::first_element(elements_per_row, origin, false); \
      if (shared && !transpose && __builtin_constant_p(amid_word) && amid_word == 0) { \
        msl_matrix::set_words(m, *(const space uint *)source, false); \
        return msl_matrix::set_columns(m, ulong(row)); \
      } \
      if (__builtin_constant_p(odd) && odd == 0) return msl_matrix::set_words(m, *(const space uint *)source, transpose); \
      return msl_matrix::set_words(m, msl::pack(source[0]) | msl::pack(source[1]) << 16, transpose); \
    } \
    source += msl_matrix::first_element(elements_per_row, origin, transpose); \
    m.msl_elements[0] = source[0]; \
    m.msl_elements[1] = source[transpose ? elements_per_row : 1]; \
  }
#define MSL_MATRIX_STORE(space) \
  template <class T> \
  MSL_INLINE void simdgroup_store(simdgroup_matrix<T, 8> m, space T *target, ulong elements_per_row = 8, \
                                  vec<ulong, 2> origin = vec<ulong, 2>(0), bool transpose = false) { \
    target += msl_matrix::first_element(elements_per_row, origin, transpose); \
    target[0] = m.msl_elements[0]; \
    target[transpose ? elements_per_row : 1] = m.msl_elements[1]; \
  }
MSL_MATRIX_LOAD(device, false)
MSL_MATRIX_LOAD(__global, false)
MSL_MATRIX_LOAD(threadgroup, true)
MSL_MATRIX_STORE(device)
MSL_MATRIX_STORE(threadgroup)
#undef MSL_MATRIX_LOAD
#undef MSL_MATRIX_STORE

// d = a b + c, summed in float.
template <class D, class A, class B, class C>
MSL_INLINE void simdgroup_multiply_accumulate(thread simdgroup_matrix<D, 8> &d, simdgroup_matrix<A, 8> a,
                                              simdgroup_matrix<B, 8> b, simdgroup_matrix<C, 8> c) {
  float sums[2] = {float(c.msl_elements[0]), float(c.msl_elements[1])};
#ifdef MSL_NATIVE_MATRICES
  if constexpr (msl::on_tensor_cores<A, B>()) {
    uint right = b.msl_knows_columns ? b.msl_columns : msl::transpose_word(msl::as_word(b.msl_elements));
    msl::multiply_words<A>(msl::as_word(a.msl_elements), right, sums);
    d.msl_elements = vec<D, 2>(D(sums[0]), D(sums[1]));
    d.msl_knows_columns = false;
    return;
  }
#endif
  msl::multiply_pairs(a.msl_elements, b.msl_elements, sums);
  d.msl_elements = vec<D, 2>(D(sums[0]), D(sums[1]));
}
template <class D, class A, class B>
MSL_INLINE void simdgroup_multiply(thread simdgroup_matrix<D, 8> &d, simdgroup_matrix<A, 8> a, simdgroup_matrix<B, 8> b) {
  simdgroup_multiply_accumulate(d, a, b, make_filled_simdgroup_matrix(D(0)));
}
template <class T>
MSL_INLINE simdgroup_matrix<T, 8> operator*(simdgroup_matrix<T, 8> a, simdgroup_matrix<T, 8> b) {
  simdgroup_matrix<T, 8> result;
  simdgroup_multiply(result, a, b);
  return result;
}

}  // namespace metal

using metal::simdgroup_bfloat8x8;
using metal::simdgroup_float8x8;
using metal::simdgroup_half8x8;

#endif
