// <metal_type_traits>
#ifndef MSL_TYPE_TRAITS_H
#define MSL_TYPE_TRAITS_H
#include "msl/keywords.h"

struct bfloat;

namespace msl {
template <class T, class... Us> constexpr bool one_of() { return (__is_same(T, Us) || ...); }
}  // namespace msl

namespace metal {

template <class T, T v>
struct integral_constant {
  static constexpr constant T value = v;
  typedef T value_type;
  typedef integral_constant type;
  constexpr operator T() const { return v; }
  constexpr T operator()() const { return v; }
};
template <bool b> using bool_constant = integral_constant<bool, b>;
typedef bool_constant<true> true_type;
typedef bool_constant<false> false_type;

template <bool condition, class T = void> struct enable_if {};
template <class T> struct enable_if<true, T> { typedef T type; };
template <bool condition, class T = void> using enable_if_t = typename enable_if<condition, T>::type;

template <bool condition, class A, class B> struct conditional { typedef A type; };
template <class A, class B> struct conditional<false, A, B> { typedef B type; };
template <bool condition, class A, class B> using conditional_t = typename conditional<condition, A, B>::type;

template <class T> struct type_identity { typedef T type; };
template <class T> using type_identity_t = typename type_identity<T>::type;

template <class T> struct remove_const { typedef T type; };
template <class T> struct remove_const<const T> { typedef T type; };
template <class T> struct remove_volatile { typedef T type; };
template <class T> struct remove_volatile<volatile T> { typedef T type; };

// One specialisation per address space: a reference or pointer to any of them loses it together with the indirection.
template <class T> struct remove_reference { typedef T type; };
template <class T> struct remove_pointer { typedef T type; };
template <class T> struct is_pointer : false_type {};
template <class T> struct is_reference : false_type {};
template <class T> struct remove_address_space { typedef T type; };
#define MSL_FOR_SPACE(space) \
  template <class T> struct remove_reference<space T &> { typedef T type; }; \
  template <class T> struct remove_pointer<space T *> { typedef T type; }; \
  template <class T> struct is_pointer<space T *> : true_type {}; \
  template <class T> struct is_reference<space T &> : true_type {}; \
  template <class T> struct remove_address_space<space T> { typedef T type; };
MSL_FOR_SPACE(device)
MSL_FOR_SPACE(__global)
MSL_FOR_SPACE(threadgroup)
MSL_FOR_SPACE(thread)
MSL_FOR_SPACE(MSL_GENERIC)
#undef MSL_FOR_SPACE
template <class T> struct remove_reference<MSL_GENERIC T &&> { typedef T type; };
template <class T> struct remove_reference<thread T &&> { typedef T type; };

template <class T> using remove_const_t = typename remove_const<T>::type;
template <class T> using remove_volatile_t = typename remove_volatile<T>::type;
template <class T> struct remove_cv { typedef remove_const_t<remove_volatile_t<T>> type; };
template <class T> using remove_cv_t = typename remove_cv<T>::type;
template <class T> using remove_reference_t = typename remove_reference<T>::type;
template <class T> using remove_pointer_t = typename remove_pointer<T>::type;
template <class T> using remove_cvref_t = remove_cv_t<typename remove_address_space<remove_cv_t<remove_reference_t<T>>>::type>;
template <class T> struct decay { typedef remove_cvref_t<T> type; };
template <class T> using decay_t = typename decay<T>::type;
template <class T> struct remove_addrspace { typedef typename remove_address_space<remove_reference_t<T>>::type type; };
template <class T> using remove_addrspace_t = typename remove_addrspace<T>::type;
template <class T> struct add_const { typedef const T type; };
template <class T> using add_const_t = const T;

template <class A, class B> constexpr constant bool is_same_v = __is_same(A, B);
template <class A, class B> struct is_same : bool_constant<__is_same(A, B)> {};


template <class T> constexpr constant bool is_integral_v =
    msl::one_of<remove_cv_t<T>, bool, char, signed char, uchar, short, ushort, int, uint, long, ulong>();
template <class T> constexpr constant bool is_floating_point_v = msl::one_of<remove_cv_t<T>, float, half, bfloat>();
template <class T> constexpr constant bool is_unsigned_v = msl::one_of<remove_cv_t<T>, bool, uchar, ushort, uint, ulong>();
template <class T> constexpr constant bool is_arithmetic_v = is_integral_v<T> || is_floating_point_v<T>;
template <class T> constexpr constant bool is_scalar_v = is_arithmetic_v<T> || is_pointer<T>::value || __is_enum(T);
template <class T> constexpr constant bool is_signed_v = is_arithmetic_v<T> && !is_unsigned_v<T>;
template <class T> constexpr constant bool is_pointer_v = is_pointer<T>::value;
template <class A, class B> constexpr constant bool is_convertible_v = __is_convertible(A, B);
template <class A, class B> constexpr constant bool is_base_of_v = __is_base_of(A, B);
template <class T> constexpr constant bool is_enum_v = __is_enum(T);
template <class T> constexpr constant bool is_class_v = __is_class(T);
template <class T> constexpr constant bool is_void_v = __is_same(remove_cv_t<T>, void);
template <class T> constexpr constant bool is_const_v = __is_const(T);
template <class T> constexpr constant bool is_trivially_copyable_v = __is_trivially_copyable(T);
template <class T> constexpr constant bool is_reference_v = is_reference<T>::value;

template <class T> struct is_integral : bool_constant<is_integral_v<T>> {};
template <class T> struct is_floating_point : bool_constant<is_floating_point_v<T>> {};
template <class T> struct is_unsigned : bool_constant<is_unsigned_v<T>> {};
template <class T> struct is_signed : bool_constant<is_signed_v<T>> {};
template <class T> struct is_arithmetic : bool_constant<is_arithmetic_v<T>> {};
template <class T> struct is_scalar : bool_constant<is_scalar_v<T>> {};
template <class A, class B> struct is_convertible : bool_constant<__is_convertible(A, B)> {};
template <class A, class B> struct is_base_of : bool_constant<__is_base_of(A, B)> {};
template <class T> struct is_enum : bool_constant<__is_enum(T)> {};
template <class T> struct is_class : bool_constant<__is_class(T)> {};
template <class T> struct is_void : bool_constant<is_void_v<T>> {};
template <class T> struct is_const : bool_constant<__is_const(T)> {};
template <class T> struct is_trivial : bool_constant<__is_trivial(T)> {};
template <class T> struct is_trivially_copyable : bool_constant<__is_trivially_copyable(T)> {};

template <class... B> struct conjunction : bool_constant<(B::value && ...)> {};
template <class... B> struct disjunction : bool_constant<(B::value || ...)> {};
template <class... B> using _conjunction = conjunction<B...>;
template <class... B> using _disjunction = disjunction<B...>;
template <class B> struct negation : bool_constant<!B::value> {};
template <class... B> constexpr constant bool conjunction_v = (B::value && ...);
template <class... B> constexpr constant bool disjunction_v = (B::value || ...);

template <class T> struct make_unsigned;
template <class T> struct make_signed;
#define MSL_SIGNS(s, u) \
  template <> struct make_unsigned<s> { typedef u type; }; \
  template <> struct make_unsigned<u> { typedef u type; }; \
  template <> struct make_signed<s> { typedef s type; }; \
  template <> struct make_signed<u> { typedef s type; };
MSL_SIGNS(char, uchar)
MSL_SIGNS(short, ushort)
MSL_SIGNS(int, uint)
MSL_SIGNS(long, ulong)
#undef MSL_SIGNS
template <class T> using make_unsigned_t = typename make_unsigned<T>::type;
template <class T> using make_signed_t = typename make_signed<T>::type;

template <class T> T declval();
template <class T> constexpr MSL_INLINE T move(T value) { return value; }

}  // namespace metal

#endif
