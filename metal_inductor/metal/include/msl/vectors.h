// vec<T, N>, packed vectors and their operators.
//
// The lanes are one SIMD value, so arithmetic stays in vector registers; x, y, z and w are views of the same bytes.
// The front-end turns a swizzle v.zx into v.template msl_get<2, 0>() where it is read, msl_set where it is written.
#ifndef MSL_VECTORS_H
#define MSL_VECTORS_H
#include "msl/limits.h"

namespace metal {
template <class T, int N> struct vec;
template <class T, int N> struct packed_vec;
}  // namespace metal

namespace msl {

template <class T> struct stored { typedef T type; typedef T computed; };
template <> struct stored<bool> { typedef uchar type; typedef uchar computed; };
template <> struct stored<bfloat> { typedef ushort type; typedef float computed; };
template <class T, int N> using simd __attribute__((ext_vector_type(N))) = T;
template <class T, int N> using lanes = simd<typename stored<T>::type, N>;
template <class T, int N> using computed_lanes = simd<typename stored<T>::computed, N>;

template <class T> constexpr MSL_INLINE T to_lane(T value) { return value; }
constexpr MSL_INLINE ushort to_lane(bfloat value) { return value.msl_bits; }
template <class T> constexpr MSL_INLINE T from_lane(typename stored<T>::type lane) {
  if constexpr (__is_same(T, bfloat)) return __builtin_bit_cast(bfloat, lane);
  else return T(lane);
}

// To and from the form that arithmetic uses: bfloat computes as float and rounds after every operation.
template <class T, int N> constexpr MSL_INLINE computed_lanes<T, N> widen(lanes<T, N> stored) {
  if constexpr (__is_same(T, bfloat)) {
    return __builtin_bit_cast(simd<float, N>, __builtin_convertvector(stored, simd<uint, N>) << 16);
  } else return stored;
}
template <class T, int N> constexpr MSL_INLINE lanes<T, N> narrow(computed_lanes<T, N> computed) {
  if constexpr (__is_same(T, bfloat)) {
#ifdef __NVPTX__
    return __builtin_bit_cast(lanes<T, N>, __builtin_convertvector(computed, simd<__bf16, N>));
#endif
    simd<uint, N> bits = __builtin_bit_cast(simd<uint, N>, computed);
    simd<uint, N> rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    simd<uint, N> quiet = (bits >> 16) | 0x40u;
    return __builtin_convertvector((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded, simd<ushort, N>);
  } else return computed;
}
// A number beyond an integer type becomes its nearest value and NaN becomes zero, as the scalar conversion does.
template <class To, int N> constexpr MSL_INLINE simd<To, N> saturate_lanes(simd<float, N> source) {
  constexpr float high = float(metal::numeric_limits<To>::max()), low = float(metal::numeric_limits<To>::min());
  typedef simd<metal::make_signed_t<To>, N> mask;
  simd<To, N> inside = __builtin_convertvector(source, simd<To, N>);
  inside = __builtin_convertvector(source >= high, mask) ? simd<To, N>(metal::numeric_limits<To>::max()) : inside;
  inside = __builtin_convertvector(source <= low, mask) ? simd<To, N>(metal::numeric_limits<To>::min()) : inside;
  return __builtin_convertvector(source != source, mask) ? simd<To, N>(To(0)) : inside;
}
// Component-wise conversion. A number is true unless it is zero.
template <class To, class From, int N> constexpr MSL_INLINE lanes<To, N> convert_lanes(lanes<From, N> source) {
  computed_lanes<From, N> wide = widen<From, N>(source);
  if constexpr (__is_same(To, bool)) return __builtin_convertvector(wide != computed_lanes<From, N>(0), simd<uchar, N>) & uchar(1);
  else if constexpr (metal::is_integral_v<To> && metal::is_floating_point_v<From>) {
    return saturate_lanes<To, N>(__builtin_convertvector(wide, simd<float, N>));
  } else return narrow<To, N>(__builtin_convertvector(wide, computed_lanes<To, N>));
}
struct from_lanes {};

// What a written swizzle stands for: assigns the named lanes of the vector behind it.
template <class T, int N, int... I> struct swizzle_reference {
  typedef metal::vec<T, sizeof...(I)> value_type;
  MSL_GENERIC lanes<T, N> *target;
  MSL_INLINE value_type value() const { return value_type(from_lanes(), __builtin_shufflevector(*target, *target, I...)); }
  MSL_INLINE void operator=(value_type source) const {
    lanes<T, N> updated = *target;
    int position = 0;
    ((updated[I] = source.msl_lanes[position++]), ...);
    *target = updated;
  }
#define MSL_SWIZZLE_COMPOUND(op) \
  template <class U> MSL_INLINE void operator op##=(U other) const { *this = value() op other; }
  MSL_SWIZZLE_COMPOUND(+) MSL_SWIZZLE_COMPOUND(-) MSL_SWIZZLE_COMPOUND(*) MSL_SWIZZLE_COMPOUND(/) MSL_SWIZZLE_COMPOUND(%)
  MSL_SWIZZLE_COMPOUND(&) MSL_SWIZZLE_COMPOUND(|) MSL_SWIZZLE_COMPOUND(^) MSL_SWIZZLE_COMPOUND(<<) MSL_SWIZZLE_COMPOUND(>>)
#undef MSL_SWIZZLE_COMPOUND
};

// The same for a packed vector, whose components are assigned one by one.
template <class T, class P, int... I> struct packed_swizzle_reference {
  typedef metal::vec<T, sizeof...(I)> value_type;
  MSL_GENERIC P *target;
  MSL_INLINE value_type value() const;
  MSL_INLINE void operator=(value_type source) const {
    int position = 0;
    (((&target->x)[I] = source[position++]), ...);
  }
#define MSL_SWIZZLE_COMPOUND(op) \
  template <class U> MSL_INLINE void operator op##=(U other) const { *this = value() op other; }
  MSL_SWIZZLE_COMPOUND(+) MSL_SWIZZLE_COMPOUND(-) MSL_SWIZZLE_COMPOUND(*) MSL_SWIZZLE_COMPOUND(/) MSL_SWIZZLE_COMPOUND(%)
  MSL_SWIZZLE_COMPOUND(&) MSL_SWIZZLE_COMPOUND(|) MSL_SWIZZLE_COMPOUND(^) MSL_SWIZZLE_COMPOUND(<<) MSL_SWIZZLE_COMPOUND(>>)
#undef MSL_SWIZZLE_COMPOUND
};

}  // namespace msl

namespace metal {

// Members that do not depend on the number of components. Copying is not trivial on purpose: such a class
// passes through calls in memory, which inlining removes, and not as a pair of doubles, which hides its lanes.
#define MSL_VECTOR_MEMBERS(N) \
  vec() = default; \
  constexpr MSL_INLINE vec(const vec &o) : msl_lanes(o.msl_lanes) {} \
  MSL_INLINE MSL_GENERIC vec &operator=(const vec &o) { msl_lanes = o.msl_lanes; return *this; } \
  constexpr MSL_INLINE vec(msl::from_lanes, msl::lanes<T, N> source) : msl_lanes(source) {} \
  template <int... I> MSL_INLINE vec<T, sizeof...(I)> msl_get() const { \
    static_assert(((I < N) && ...), "swizzle names a component that the vector does not have"); \
    return vec<T, sizeof...(I)>(msl::from_lanes(), __builtin_shufflevector(msl_lanes, msl_lanes, I...)); \
  } \
  template <int... I> MSL_INLINE msl::swizzle_reference<T, N, I...> msl_set() { \
    static_assert(((I < N) && ...), "swizzle names a component that the vector does not have"); \
    return {&msl_lanes}; \
  } \
  constexpr MSL_INLINE T operator[](int i) const & { return msl::from_lane<T>(msl_lanes[i]); } \
  constexpr MSL_INLINE T operator[](int i) const && { return msl::from_lane<T>(msl_lanes[i]); } \
  MSL_INLINE MSL_GENERIC T &operator[](int i) & { return (&x)[i]; } \
  MSL_INLINE thread T &operator[](int i) thread & { return (&x)[i]; } \
  MSL_INLINE threadgroup T &operator[](int i) threadgroup & { return (&x)[i]; } \
  MSL_INLINE device T &operator[](int i) __global & { return ((device T *)&x)[i]; } \
  MSL_COMPOUND(+) MSL_COMPOUND(-) MSL_COMPOUND(*) MSL_COMPOUND(/) MSL_COMPOUND(%) MSL_COMPOUND(&) MSL_COMPOUND(|) \
  MSL_COMPOUND(^) MSL_COMPOUND(<<) MSL_COMPOUND(>>) \
  MSL_INLINE MSL_GENERIC vec &operator++() { return *this = *this + T(1); } \
  MSL_INLINE MSL_GENERIC vec &operator--() { return *this = *this - T(1); } \
  MSL_INLINE vec operator++(int) { vec old = *this; *this = old + T(1); return old; } \
  MSL_INLINE vec operator--(int) { vec old = *this; *this = old - T(1); return old; }
#define MSL_COMPOUND(op) \
  template <class U> MSL_INLINE MSL_GENERIC vec &operator op##=(U other) { return *this = *this op other; }

template <class T> struct vec<T, 2> {
  union { msl::lanes<T, 2> msl_lanes; struct { T x, y; }; struct { T r, g; }; };
  MSL_VECTOR_MEMBERS(2)
  constexpr MSL_INLINE vec(T all) : msl_lanes{msl::to_lane(all), msl::to_lane(all)} {}
  constexpr MSL_INLINE vec(T a, T b) : msl_lanes{msl::to_lane(a), msl::to_lane(b)} {}
  template <class U> explicit constexpr MSL_INLINE vec(vec<U, 2> o) : msl_lanes(msl::convert_lanes<T, U, 2>(o.msl_lanes)) {}
};

template <class T> struct vec<T, 3> {
  union { msl::lanes<T, 3> msl_lanes; struct { T x, y, z; }; struct { T r, g, b; }; };
  MSL_VECTOR_MEMBERS(3)
  constexpr MSL_INLINE vec(T all) : vec(all, all, all) {}
  constexpr MSL_INLINE vec(T a, T b, T c) : msl_lanes{msl::to_lane(a), msl::to_lane(b), msl::to_lane(c)} {}
  constexpr MSL_INLINE vec(vec<T, 2> ab, T c) : vec(ab[0], ab[1], c) {}
  constexpr MSL_INLINE vec(T a, vec<T, 2> bc) : vec(a, bc[0], bc[1]) {}
  template <class U> explicit constexpr MSL_INLINE vec(vec<U, 3> o) : msl_lanes(msl::convert_lanes<T, U, 3>(o.msl_lanes)) {}
};

template <class T> struct vec<T, 4> {
  union { msl::lanes<T, 4> msl_lanes; struct { T x, y, z, w; }; struct { T r, g, b, a; }; };
  MSL_VECTOR_MEMBERS(4)
  constexpr MSL_INLINE vec(T all) : vec(all, all, all, all) {}
  constexpr MSL_INLINE vec(T a, T b, T c, T d)
      : msl_lanes{msl::to_lane(a), msl::to_lane(b), msl::to_lane(c), msl::to_lane(d)} {}
  constexpr MSL_INLINE vec(T a, T b, T c) : vec(a, b, c, T(0)) {}  // {a, b, c}
  constexpr MSL_INLINE vec(vec<T, 2> ab, T c, T d) : vec(ab[0], ab[1], c, d) {}
  constexpr MSL_INLINE vec(T a, vec<T, 2> bc, T d) : vec(a, bc[0], bc[1], d) {}
  constexpr MSL_INLINE vec(T a, T b, vec<T, 2> cd) : vec(a, b, cd[0], cd[1]) {}
  constexpr MSL_INLINE vec(vec<T, 2> ab, vec<T, 2> cd) : vec(ab[0], ab[1], cd[0], cd[1]) {}
  constexpr MSL_INLINE vec(vec<T, 3> abc, T d) : vec(abc[0], abc[1], abc[2], d) {}
  constexpr MSL_INLINE vec(T a, vec<T, 3> bcd) : vec(a, bcd[0], bcd[1], bcd[2]) {}
  template <class U> explicit constexpr MSL_INLINE vec(vec<U, 4> o) : msl_lanes(msl::convert_lanes<T, U, 4>(o.msl_lanes)) {}
};

// Packed vectors have the alignment of one component.
#define MSL_PACKED_MEMBERS(N) \
  packed_vec() = default; \
  MSL_INLINE packed_vec(vec<T, N> o) { for (int i = 0; i < N; ++i) (&x)[i] = o[i]; } \
  template <class U> explicit MSL_INLINE packed_vec(packed_vec<U, N> o) : packed_vec(vec<T, N>(vec<U, N>(o))) {} \
  explicit MSL_INLINE packed_vec(T all) : packed_vec(vec<T, N>(all)) {} \
  MSL_INLINE operator vec<T, N>() const { \
    vec<T, N> v; \
    for (int i = 0; i < N; ++i) v[i] = (&x)[i]; \
    return v; \
  } \
  template <class U> explicit MSL_INLINE operator vec<U, N>() const { return vec<U, N>(vec<T, N>(*this)); } \
  template <int... I> MSL_INLINE vec<T, sizeof...(I)> msl_get() const { \
    return vec<T, N>(*this).template msl_get<I...>(); \
  } \
  template <int... I> MSL_INLINE msl::packed_swizzle_reference<T, packed_vec, I...> msl_set() { \
    static_assert(((I < N) && ...), "swizzle names a component that the vector does not have"); \
    return {this}; \
  } \
  MSL_INLINE T operator[](int i) const & { return (&x)[i]; } \
  MSL_INLINE T operator[](int i) const && { return (&x)[i]; } \
  MSL_INLINE MSL_GENERIC T &operator[](int i) & { return (&x)[i]; } \
  MSL_INLINE thread T &operator[](int i) thread & { return (&x)[i]; } \
  MSL_INLINE threadgroup T &operator[](int i) threadgroup & { return (&x)[i]; } \
  MSL_INLINE device T &operator[](int i) __global & { return ((device T *)&x)[i]; } \
  MSL_PACKED_COMPOUND(+) MSL_PACKED_COMPOUND(-) MSL_PACKED_COMPOUND(*) MSL_PACKED_COMPOUND(/) MSL_PACKED_COMPOUND(%) \
  MSL_PACKED_COMPOUND(&) MSL_PACKED_COMPOUND(|) MSL_PACKED_COMPOUND(^) MSL_PACKED_COMPOUND(<<) MSL_PACKED_COMPOUND(>>) \
  MSL_INLINE MSL_GENERIC packed_vec &operator++() { return *this += T(1); } \
  MSL_INLINE MSL_GENERIC packed_vec &operator--() { return *this -= T(1); } \
  MSL_INLINE packed_vec operator++(int) { packed_vec old = *this; *this += T(1); return old; } \
  MSL_INLINE packed_vec operator--(int) { packed_vec old = *this; *this -= T(1); return old; }
#define MSL_PACKED_COMPOUND(op) \
  template <class U> MSL_INLINE MSL_GENERIC packed_vec &operator op##=(U other) { \
    return *this = packed_vec(vec<T, msl_size>(*this) op other); \
  }
template <class T> struct packed_vec<T, 2> {
  static constexpr constant int msl_size = 2;
  T x, y;
  MSL_PACKED_MEMBERS(2)
  MSL_INLINE packed_vec(T a, T b) : x(a), y(b) {}
};
template <class T> struct packed_vec<T, 3> {
  static constexpr constant int msl_size = 3;
  T x, y, z;
  MSL_PACKED_MEMBERS(3)
  MSL_INLINE packed_vec(T a, T b, T c) : x(a), y(b), z(c) {}
  MSL_INLINE packed_vec(vec<T, 2> ab, T c) : x(ab[0]), y(ab[1]), z(c) {}
  MSL_INLINE packed_vec(T a, vec<T, 2> bc) : x(a), y(bc[0]), z(bc[1]) {}
};
template <class T> struct packed_vec<T, 4> {
  static constexpr constant int msl_size = 4;
  T x, y, z, w;
  MSL_PACKED_MEMBERS(4)
  MSL_INLINE packed_vec(T a, T b, T c, T d) : x(a), y(b), z(c), w(d) {}
  MSL_INLINE packed_vec(vec<T, 2> ab, T c, T d) : x(ab[0]), y(ab[1]), z(c), w(d) {}
  MSL_INLINE packed_vec(T a, vec<T, 2> bc, T d) : x(a), y(bc[0]), z(bc[1]), w(d) {}
  MSL_INLINE packed_vec(T a, T b, vec<T, 2> cd) : x(a), y(b), z(cd[0]), w(cd[1]) {}
  MSL_INLINE packed_vec(vec<T, 2> ab, vec<T, 2> cd) : x(ab[0]), y(ab[1]), z(cd[0]), w(cd[1]) {}
  MSL_INLINE packed_vec(vec<T, 3> abc, T d) : x(abc[0]), y(abc[1]), z(abc[2]), w(d) {}
  MSL_INLINE packed_vec(T a, vec<T, 3> bcd) : x(a), y(bcd[0]), z(bcd[1]), w(bcd[2]) {}
};
#undef MSL_VECTOR_MEMBERS
#undef MSL_COMPOUND
#undef MSL_PACKED_MEMBERS
#undef MSL_PACKED_COMPOUND

}  // namespace metal

template <class T, class P, int... I>
MSL_INLINE typename msl::packed_swizzle_reference<T, P, I...>::value_type
msl::packed_swizzle_reference<T, P, I...>::value() const {
  P copy = *target;
  return copy.template msl_get<I...>();
}

namespace metal {

template <class T> using scalar_operand = typename type_identity<T>::type;

// A scalar or packed operand takes the vector's type first.
#define MSL_MIXED_OPERANDS(op, R) \
  template <class T, int N> MSL_INLINE R operator op(vec<T, N> a, scalar_operand<T> b) { return a op vec<T, N>(b); } \
  template <class T, int N> MSL_INLINE R operator op(scalar_operand<T> a, vec<T, N> b) { return vec<T, N>(a) op b; } \
  template <class T, int N> MSL_INLINE R operator op(packed_vec<T, N> a, packed_vec<T, N> b) { \
    return vec<T, N>(a) op vec<T, N>(b); \
  } \
  template <class T, int N> MSL_INLINE R operator op(packed_vec<T, N> a, vec<T, N> b) { return vec<T, N>(a) op b; } \
  template <class T, int N> MSL_INLINE R operator op(vec<T, N> a, packed_vec<T, N> b) { return a op vec<T, N>(b); } \
  template <class T, int N> MSL_INLINE R operator op(packed_vec<T, N> a, scalar_operand<T> b) { \
    return vec<T, N>(a) op vec<T, N>(b); \
  } \
  template <class T, int N> MSL_INLINE R operator op(scalar_operand<T> a, packed_vec<T, N> b) { \
    return vec<T, N>(a) op vec<T, N>(b); \
  }
#define MSL_ARITHMETIC(op) \
  template <class T, int N> MSL_INLINE vec<T, N> operator op(vec<T, N> a, vec<T, N> b) { \
    return vec<T, N>(msl::from_lanes(), msl::narrow<T, N>(msl::widen<T, N>(a.msl_lanes) op msl::widen<T, N>(b.msl_lanes))); \
  } \
  MSL_MIXED_OPERANDS(op, MSL_VEC(T))
#define MSL_COMPARISON(op) \
  template <class T, int N> MSL_INLINE vec<bool, N> operator op(vec<T, N> a, vec<T, N> b) { \
    return vec<bool, N>(msl::from_lanes(), \
        __builtin_convertvector(msl::widen<T, N>(a.msl_lanes) op msl::widen<T, N>(b.msl_lanes), msl::simd<uchar, N>) & uchar(1)); \
  } \
  MSL_MIXED_OPERANDS(op, MSL_VEC(bool))
#define MSL_VEC(T) vec<T, N>
MSL_ARITHMETIC(+)
MSL_ARITHMETIC(-)
MSL_ARITHMETIC(*)
MSL_ARITHMETIC(/)
MSL_ARITHMETIC(%)
MSL_ARITHMETIC(&)
MSL_ARITHMETIC(|)
MSL_ARITHMETIC(^)
MSL_ARITHMETIC(<<)
MSL_ARITHMETIC(>>)
MSL_COMPARISON(<)
MSL_COMPARISON(>)
MSL_COMPARISON(<=)
MSL_COMPARISON(>=)
MSL_COMPARISON(==)
MSL_COMPARISON(!=)
#undef MSL_ARITHMETIC
#undef MSL_COMPARISON
#undef MSL_MIXED_OPERANDS
#undef MSL_VEC

template <int N> MSL_INLINE vec<bool, N> operator&&(vec<bool, N> a, vec<bool, N> b) { return a & b; }
template <int N> MSL_INLINE vec<bool, N> operator||(vec<bool, N> a, vec<bool, N> b) { return a | b; }
template <class T, int N> MSL_INLINE vec<bool, N> operator!(vec<T, N> a) { return a == vec<T, N>(T(0)); }
template <class T, int N> MSL_INLINE vec<T, N> operator-(vec<T, N> a) {
  return vec<T, N>(msl::from_lanes(), msl::narrow<T, N>(-msl::widen<T, N>(a.msl_lanes)));
}
template <class T, int N> MSL_INLINE vec<T, N> operator+(vec<T, N> a) { return a; }
template <class T, int N> MSL_INLINE vec<T, N> operator~(vec<T, N> a) { return vec<T, N>(msl::from_lanes(), ~a.msl_lanes); }
template <class T, int N> MSL_INLINE vec<T, N> operator-(packed_vec<T, N> a) { return -vec<T, N>(a); }
template <class T, int N> MSL_INLINE vec<T, N> operator+(packed_vec<T, N> a) { return a; }
template <class T, int N> MSL_INLINE vec<T, N> operator~(packed_vec<T, N> a) { return ~vec<T, N>(a); }
template <class T, int N> MSL_INLINE vec<bool, N> operator!(packed_vec<T, N> a) { return !vec<T, N>(a); }

template <class T> struct uniform {
  T value;
  constexpr MSL_INLINE uniform(T source) : value(source) {}
  constexpr MSL_INLINE operator T() const { return value; }
};
template <class T> constexpr MSL_INLINE uniform<T> make_uniform(T value) { return uniform<T>(value); }

// The bits of a vector are those of its lanes.
template <class T, int N> constexpr MSL_INLINE msl::lanes<T, N> msl_bits_of(vec<T, N> v) { return v.msl_lanes; }
template <class T> constexpr MSL_INLINE T msl_bits_of(T scalar) { return scalar; }

template <class T> struct is_vector : false_type {};
template <class T, int N> struct is_vector<vec<T, N>> : true_type {};
template <class T> constexpr constant bool is_vector_v = is_vector<T>::value;
template <class T> struct make_scalar { typedef T type; };
template <class T, int N> struct make_scalar<vec<T, N>> { typedef T type; };
template <class T> using make_scalar_t = typename make_scalar<T>::type;

}  // namespace metal

template <class To, class From> constexpr MSL_INLINE To as_type(From source) {
  auto bits = metal::msl_bits_of(source);
  static_assert(sizeof(To) == sizeof(From), "as_type needs types of equal size");
  if constexpr (metal::is_vector_v<To>) return To(msl::from_lanes(), __builtin_bit_cast(decltype(To::msl_lanes), bits));
  else return __builtin_bit_cast(To, bits);
}

#define MSL_VECTOR_NAMES(T) \
  typedef metal::vec<T, 2> T##2; \
  typedef metal::vec<T, 3> T##3; \
  typedef metal::vec<T, 4> T##4; \
  typedef metal::packed_vec<T, 2> packed_##T##2; \
  typedef metal::packed_vec<T, 3> packed_##T##3; \
  typedef metal::packed_vec<T, 4> packed_##T##4;
MSL_VECTOR_NAMES(bool)
MSL_VECTOR_NAMES(char)
MSL_VECTOR_NAMES(uchar)
MSL_VECTOR_NAMES(short)
MSL_VECTOR_NAMES(ushort)
MSL_VECTOR_NAMES(int)
MSL_VECTOR_NAMES(uint)
MSL_VECTOR_NAMES(long)
MSL_VECTOR_NAMES(ulong)
MSL_VECTOR_NAMES(half)
MSL_VECTOR_NAMES(float)
MSL_VECTOR_NAMES(bfloat)
#undef MSL_VECTOR_NAMES

#endif
