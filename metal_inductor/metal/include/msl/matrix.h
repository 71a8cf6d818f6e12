// <metal_matrix>: small matrices of float and half, stored as columns.
#ifndef MSL_MATRIX_H
#define MSL_MATRIX_H
#include "msl/relational.h"

namespace metal {

template <class T, int C, int R> struct matrix {
  vec<T, R> columns[C];

  matrix() = default;
  explicit MSL_INLINE matrix(T diagonal) {
    for (int c = 0; c < C; ++c)
      for (int r = 0; r < R; ++r) columns[c][r] = c == r ? diagonal : T(0);
  }
  // One vector for each column, or one number for each element in column order.
  template <class... Parts, class = enable_if_t<sizeof...(Parts) + 1 == C>>
  MSL_INLINE matrix(vec<T, R> first, Parts... rest) : columns{first, vec<T, R>(rest)...} {}
  template <class... Parts, class = enable_if_t<sizeof...(Parts) + 2 == C * R>, class = void>
  MSL_INLINE matrix(T first, T second, Parts... rest) {
    T elements[C * R] = {first, second, T(rest)...};
    for (int i = 0; i < C * R; ++i) columns[i / R][i % R] = elements[i];
  }
  template <class U> explicit MSL_INLINE matrix(matrix<U, C, R> other) {
    for (int c = 0; c < C; ++c) columns[c] = vec<T, R>(other.columns[c]);
  }
  MSL_INLINE vec<T, R> operator[](int c) const & { return columns[c]; }
  MSL_INLINE vec<T, R> operator[](int c) const && { return columns[c]; }
  MSL_INLINE MSL_GENERIC vec<T, R> &operator[](int c) & { return columns[c]; }
  MSL_INLINE thread vec<T, R> &operator[](int c) thread & { return columns[c]; }
  MSL_INLINE threadgroup vec<T, R> &operator[](int c) threadgroup & { return columns[c]; }
  MSL_INLINE device vec<T, R> &operator[](int c) __global & { return ((device vec<T, R> *)columns)[c]; }
  template <class U> MSL_INLINE MSL_GENERIC matrix &operator+=(U other) { return *this = *this + other; }
  template <class U> MSL_INLINE MSL_GENERIC matrix &operator-=(U other) { return *this = *this - other; }
  template <class U> MSL_INLINE MSL_GENERIC matrix &operator*=(U other) { return *this = *this * other; }
};

#define MSL_PER_COLUMN(op) \
  template <class T, int C, int R> MSL_INLINE matrix<T, C, R> operator op(matrix<T, C, R> a, matrix<T, C, R> b) { \
    for (int c = 0; c < C; ++c) a.columns[c] = a.columns[c] op b.columns[c]; \
    return a; \
  }
MSL_PER_COLUMN(+)
MSL_PER_COLUMN(-)
#undef MSL_PER_COLUMN
template <class T, int C, int R> MSL_INLINE matrix<T, C, R> operator*(matrix<T, C, R> m, scalar_operand<T> s) {
  for (int c = 0; c < C; ++c) m.columns[c] = m.columns[c] * s;
  return m;
}
template <class T, int C, int R> MSL_INLINE matrix<T, C, R> operator*(scalar_operand<T> s, matrix<T, C, R> m) { return m * s; }
template <class T, int C, int R> MSL_INLINE matrix<T, C, R> operator-(matrix<T, C, R> m) {
  for (int c = 0; c < C; ++c) m.columns[c] = -m.columns[c];
  return m;
}
template <class T, int C, int R> MSL_INLINE vec<T, R> operator*(matrix<T, C, R> m, vec<T, C> v) {
  vec<T, R> sum = m.columns[0] * v[0];
  for (int c = 1; c < C; ++c) sum += m.columns[c] * v[c];
  return sum;
}
template <class T, int C, int R> MSL_INLINE vec<T, C> operator*(vec<T, R> v, matrix<T, C, R> m) {
  vec<T, C> result;
  for (int c = 0; c < C; ++c) result[c] = dot(v, m.columns[c]);
  return result;
}
template <class T, int K, int R, int C> MSL_INLINE matrix<T, C, R> operator*(matrix<T, K, R> a, matrix<T, C, K> b) {
  matrix<T, C, R> product;
  for (int c = 0; c < C; ++c) product.columns[c] = a * b.columns[c];
  return product;
}
template <class T, int C, int R> MSL_INLINE matrix<T, R, C> transpose(matrix<T, C, R> m) {
  matrix<T, R, C> result;
  for (int c = 0; c < C; ++c)
    for (int r = 0; r < R; ++r) result.columns[r][c] = m.columns[c][r];
  return result;
}

template <class T> MSL_INLINE T determinant(matrix<T, 2, 2> m) {
  return m.columns[0][0] * m.columns[1][1] - m.columns[1][0] * m.columns[0][1];
}
template <class T> MSL_INLINE T determinant(matrix<T, 3, 3> m) {
  return dot(m.columns[0], cross(m.columns[1], m.columns[2]));
}
// Laplace expansion along the first column.
template <class T> MSL_INLINE T determinant(matrix<T, 4, 4> m) {
  T sum = T(0);
  for (int r = 0; r < 4; ++r) {
    matrix<T, 3, 3> minor;
    for (int c = 0; c < 3; ++c)
      for (int i = 0; i < 3; ++i) minor.columns[c][i] = m.columns[c + 1][i < r ? i : i + 1];
    sum += m.columns[0][r] * determinant(minor) * T(r & 1 ? -1 : 1);
  }
  return sum;
}

}  // namespace metal

#define MSL_MATRIX_NAMES(T, C) \
  typedef metal::matrix<T, C, 2> T##C##x2; \
  typedef metal::matrix<T, C, 3> T##C##x3; \
  typedef metal::matrix<T, C, 4> T##C##x4;
MSL_MATRIX_NAMES(float, 2)
MSL_MATRIX_NAMES(float, 3)
MSL_MATRIX_NAMES(float, 4)
MSL_MATRIX_NAMES(half, 2)
MSL_MATRIX_NAMES(half, 3)
MSL_MATRIX_NAMES(half, 4)
#undef MSL_MATRIX_NAMES

#endif
