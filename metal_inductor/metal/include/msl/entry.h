// What the generated entry points need: parameter types of a kernel, binding of buffers, values of grid attributes.
#ifndef MSL_ENTRY_H
#define MSL_ENTRY_H
#include "msl/checks.h"
#include "msl/vectors.h"
#include "msl_abi.h"

namespace msl {

template <class F> struct signature;
template <class... P> struct signature<void(P...)> {
  template <int i, class First, class... Rest> struct pick { typedef typename pick<i - 1, Rest...>::type type; };
  template <class First, class... Rest> struct pick<0, First, Rest...> { typedef First type; };
  template <int i> using argument = typename pick<i, P...>::type;
};

template <class... P> struct signature<void (*)(P...)> : signature<void(P...)> {};

// A buffer's address as the pointer or reference that the kernel declares.
template <class T> struct bound;
#define MSL_BOUND(space) \
  template <class T> struct bound<space T *> { \
    static MSL_INLINE space T *from(device void *address) { return (space T *)(ulong)address; } \
  }; \
  template <class T> struct bound<space T &> { \
    static MSL_INLINE space T &from(device void *address) { return *(space T *)(ulong)address; } \
  };
MSL_BOUND(device)
MSL_BOUND(__global)
MSL_BOUND(threadgroup)
#undef MSL_BOUND

// A grid attribute in the type of the parameter: uint, uint2, uint3 or their 16-bit forms.
template <class T> struct attribute {
  static MSL_INLINE T of(uint x, uint, uint) { return T(x); }
};
template <class T> struct attribute<metal::vec<T, 2>> {
  static MSL_INLINE metal::vec<T, 2> of(uint x, uint y, uint) { return metal::vec<T, 2>(T(x), T(y)); }
};
template <class T> struct attribute<metal::vec<T, 3>> {
  static MSL_INLINE metal::vec<T, 3> of(uint x, uint y, uint z) { return metal::vec<T, 3>(T(x), T(y), T(z)); }
};
template <class T> using attribute_for = attribute<metal::remove_cv_t<T>>;

// Static threadgroup variables follow each other, each on a 16-byte boundary.
template <class... Before> constexpr uint threadgroup_bytes() { return (((sizeof(Before) + 15u) & ~15u) + ... + 0u); }
constexpr constant uint threadgroup_limit = 32768;

// The operands of a conditional expression as plain values. Otherwise a class in a variable and a temporary of the same
// class differ in address space, and have no common type.
template <class T> constexpr MSL_INLINE T value(T operand) { return operand; }

// What a compound assignment adds: the value of an object that stands for an integral constant, see rewrite.py.
template <class T> constexpr MSL_INLINE auto addend(T operand) {
  if constexpr (__is_class(T) && __is_empty(T)) return T::value;
  else return operand;
}

MSL_INLINE uint smaller(uint a, uint b) { return a < b ? a : b; }

}  // namespace msl

#ifdef __NVPTX__
#include "msl/entry_nvptx.h"
#endif

// A threadgroup variable that begins as zero. On CUDA the entry point has seen to it.
#ifdef __NVPTX__
#define MSL_ZERO_VARIABLE(name)
#else
#define MSL_ZERO_VARIABLE(name) msl_zero_variable((device void *)(ulong)&name, sizeof(name))
#endif

#define MSL_EXPORT extern "C" __attribute__((visibility("default")))

#endif
