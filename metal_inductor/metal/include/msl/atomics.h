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
// Read, compute, try to replace, again.
#define MSL_EXTREMUM(space, name, function) \
  template <class T> \
  MSL_INLINE T atomic_fetch_##name##_explicit(volatile space atomic<T> *object, type_identity_t<T> operand, memory_order) { \
    T old = atomic_load_explicit(object, memory_order_relaxed); \
    while (!atomic_compare_exchange_weak_explicit(object, &old, function(old, T(operand)), memory_order_relaxed, \
                                                  memory_order_relaxed)) { \
    } \
    return old; \
  } \
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
  MSL_MODIFY(space, sub, __atomic_fetch_sub) \
  MSL_MODIFY(space, and, __atomic_fetch_and) \
  MSL_MODIFY(space, or, __atomic_fetch_or) \
  MSL_MODIFY(space, xor, __atomic_fetch_xor) \
  MSL_EXTREMUM(space, min, metal::min) \
  MSL_EXTREMUM(space, max, metal::max)

template <class T> using msl_word_t = conditional_t<sizeof(T) == 8, ulong, conditional_t<sizeof(T) == 4, uint, uchar>>;
MSL_ATOMICS(device)
MSL_ATOMICS(threadgroup)
#undef MSL_ATOMICS
#undef MSL_COMPARE_EXCHANGE
#undef MSL_EXTREMUM
#undef MSL_MODIFY

}  // namespace metal

#endif
