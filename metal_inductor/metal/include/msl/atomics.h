// <metal_atomic>: atomics of int, uint, float and 64-bit integers in device and threadgroup memory.
#ifndef MSL_ATOMICS_H
#define MSL_ATOMICS_H
#include "msl/simdgroup.h"

namespace metal {

template <class T> struct atomic { T value; };
typedef atomic<int> atomic_int;
typedef atomic<uint> atomic_uint;
typedef atomic<float> atomic_float;
typedef atomic<ulong> atomic_ulong;
typedef atomic<long> atomic_long;
typedef atomic<bool> atomic_bool;

// The order argument is accepted for its name; the strongest order that a call may ask for costs nothing on x86.
#define MSL_MODIFY(space, name, builtin) \
  template <class T> \
  MSL_INLINE T atomic_fetch_##name##_explicit(volatile space atomic<T> *object, type_identity_t<T> operand, memory_order) { \
    return builtin(&object->value, T(operand), __ATOMIC_RELAXED); \
  }
// Of 64-bit integers there is the form without a result alone.
#define MSL_EXTREMUM(space, name) \
  MSL_MODIFY(space, name, __atomic_fetch_##name) \
  template <class T> \
  MSL_INLINE void atomic_##name##_explicit(volatile space atomic<T> *object, type_identity_t<T> operand, memory_order order) { \
    atomic_fetch_##name##_explicit(object, operand, order); \
  }
#define MSL_COMPARE_EXCHANGE(space, expected_space) \
  template <class T> \
  MSL_INLINE bool atomic_compare_exchange_weak_explicit(volatile space atomic<T> *object, expected_space T *expected, \
                                                        type_identity_t<T> desired, memory_order, memory_order) { \
    msl_word_t<T> wanted = as_type<msl_word_t<T>>(*expected); \
    bool done = __atomic_compare_exchange_n((volatile space msl_word_t<T> *)&object->value, &wanted, \
                                            as_type<msl_word_t<T>>(T(desired)), true, __ATOMIC_RELAXED, __ATOMIC_RELAXED); \
    *expected = as_type<T>(wanted); \
    return done; \
  }
#define MSL_ATOMICS(space) \
  template <class T> MSL_INLINE T atomic_load_explicit(const volatile space atomic<T> *object, memory_order) { \
    return as_type<T>(__atomic_load_n((const volatile space msl_word_t<T> *)&object->value, __ATOMIC_RELAXED)); \
  } \
  template <class T> \
  MSL_INLINE void atomic_store_explicit(volatile space atomic<T> *object, type_identity_t<T> desired, memory_order) { \
    __atomic_store_n((volatile space msl_word_t<T> *)&object->value, as_type<msl_word_t<T>>(T(desired)), __ATOMIC_RELAXED); \
  } \
  template <class T> \
  MSL_INLINE T atomic_exchange_explicit(volatile space atomic<T> *object, type_identity_t<T> desired, memory_order) { \
    return as_type<T>(__atomic_exchange_n((volatile space msl_word_t<T> *)&object->value, \
                                          as_type<msl_word_t<T>>(T(desired)), __ATOMIC_RELAXED)); \
  } \
  MSL_COMPARE_EXCHANGE(space, thread) \
  MSL_COMPARE_EXCHANGE(space, device) \
  MSL_COMPARE_EXCHANGE(space, threadgroup) \
  MSL_MODIFY(space, add, __atomic_fetch_add) \
  MSL_MODIFY(space, sub, msl_fetch_sub) \
  MSL_MODIFY(space, and, __atomic_fetch_and) \
  MSL_MODIFY(space, or, __atomic_fetch_or) \
  MSL_MODIFY(space, xor, __atomic_fetch_xor) \
  MSL_EXTREMUM(space, min) \
  MSL_EXTREMUM(space, max)

// GPUs add floats, but do not subtract them.
#define msl_fetch_sub(object, operand, order) __atomic_fetch_add(object, T(-operand), order)

template <class T> using msl_word_t = conditional_t<sizeof(T) == 8, ulong, conditional_t<sizeof(T) == 4, uint, uchar>>;
MSL_ATOMICS(device)
MSL_ATOMICS(threadgroup)
#undef MSL_ATOMICS
#undef MSL_COMPARE_EXCHANGE
#undef MSL_EXTREMUM
#undef MSL_MODIFY
#undef msl_fetch_sub

}  // namespace metal

#endif
