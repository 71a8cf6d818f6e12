// <metal_atomic>: int, uint and bool in device and threadgroup memory, float in device memory, extrema of ulong.
#ifndef MSL_ATOMICS_H
#define MSL_ATOMICS_H
#include "msl/simdgroup.h"

namespace metal {

template <class T> struct atomic {
  static_assert(msl::one_of<T, int, uint, bool, ulong, float>(), "atomic is for int, uint, bool, ulong and float");
  T value;
};
typedef atomic<int> atomic_int;
typedef atomic<uint> atomic_uint;
typedef atomic<float> atomic_float;
typedef atomic<ulong> atomic_ulong;
typedef atomic<bool> atomic_bool;

// Which types an operation is for; another finds no overload.
template <class T> using msl_counted = enable_if_t<msl::one_of<T, int, uint>(), T>;
template <class T> using msl_counted_or_float = enable_if_t<msl::one_of<T, int, uint, float>(), T>;
template <class T> using msl_exchanged = enable_if_t<msl::one_of<T, int, uint, bool>(), T>;
template <class T> using msl_exchanged_or_float = enable_if_t<msl::one_of<T, int, uint, bool, float>(), T>;
template <class T> using msl_word_t = conditional_t<sizeof(T) == 4, uint, uchar>;

// The order argument is accepted for its name: relaxed is the only one that operations have.
#define MSL_MODIFY(space, types, name, builtin) \
  template <class T> \
  MSL_INLINE types<T> atomic_fetch_##name##_explicit(volatile space atomic<T> *object, type_identity_t<T> operand, \
                                                     memory_order) { \
    return builtin(&object->value, T(operand), __ATOMIC_RELAXED); \
  }
#define MSL_COMPARE_EXCHANGE(space, types, expected_space) \
  template <class T, class = types<T>> \
  MSL_INLINE bool atomic_compare_exchange_weak_explicit(volatile space atomic<T> *object, expected_space T *expected, \
                                                        type_identity_t<T> desired, memory_order, memory_order) { \
    msl_word_t<T> wanted = as_type<msl_word_t<T>>(*expected); \
    bool done = __atomic_compare_exchange_n((volatile space msl_word_t<T> *)&object->value, &wanted, \
                                            as_type<msl_word_t<T>>(T(desired)), true, __ATOMIC_RELAXED, __ATOMIC_RELAXED); \
    *expected = as_type<T>(wanted); \
    return done; \
  }
#define MSL_ATOMICS(space, exchanged, added) \
  template <class T> MSL_INLINE exchanged<T> atomic_load_explicit(const volatile space atomic<T> *object, memory_order) { \
    return as_type<T>(__atomic_load_n((const volatile space msl_word_t<T> *)&object->value, __ATOMIC_RELAXED)); \
  } \
  template <class T, class = exchanged<T>> \
  MSL_INLINE void atomic_store_explicit(volatile space atomic<T> *object, type_identity_t<T> desired, memory_order) { \
    __atomic_store_n((volatile space msl_word_t<T> *)&object->value, as_type<msl_word_t<T>>(T(desired)), __ATOMIC_RELAXED); \
  } \
  template <class T> \
  MSL_INLINE exchanged<T> atomic_exchange_explicit(volatile space atomic<T> *object, type_identity_t<T> desired, \
                                                   memory_order) { \
    return as_type<T>(__atomic_exchange_n((volatile space msl_word_t<T> *)&object->value, \
                                          as_type<msl_word_t<T>>(T(desired)), __ATOMIC_RELAXED)); \
  } \
  MSL_COMPARE_EXCHANGE(space, exchanged, thread) \
  MSL_COMPARE_EXCHANGE(space, exchanged, device) \
  MSL_COMPARE_EXCHANGE(space, exchanged, threadgroup) \
  MSL_MODIFY(space, added, add, __atomic_fetch_add) \
  MSL_MODIFY(space, added, sub, msl_fetch_sub) \
  MSL_MODIFY(space, msl_counted, and, __atomic_fetch_and) \
  MSL_MODIFY(space, msl_counted, or, __atomic_fetch_or) \
  MSL_MODIFY(space, msl_counted, xor, __atomic_fetch_xor) \
  MSL_MODIFY(space, msl_counted, min, __atomic_fetch_min) \
  MSL_MODIFY(space, msl_counted, max, __atomic_fetch_max)

// GPUs add floats, but do not subtract them.
#define msl_fetch_sub(object, operand, order) __atomic_fetch_add(object, T(-operand), order)

MSL_ATOMICS(device, msl_exchanged_or_float, msl_counted_or_float)
MSL_ATOMICS(threadgroup, msl_exchanged, msl_counted)
MSL_INLINE void atomic_min_explicit(volatile device atomic_ulong *object, ulong operand, memory_order) {
  __atomic_fetch_min(&object->value, operand, __ATOMIC_RELAXED);
}
MSL_INLINE void atomic_max_explicit(volatile device atomic_ulong *object, ulong operand, memory_order) {
  __atomic_fetch_max(&object->value, operand, __ATOMIC_RELAXED);
}
#undef MSL_ATOMICS
#undef MSL_COMPARE_EXCHANGE
#undef MSL_MODIFY
#undef msl_fetch_sub

}  // namespace metal

#endif
