// What the generated entry points need: parameter types of a kernel, binding of buffers, values of grid attributes.
#ifndef MSL_ENTRY_H
#define MSL_ENTRY_H
#include "msl/vectors.h"
#include "msl_abi.h"

namespace msl {

template <class F> struct signature;
template <class... P> struct signature<void(P...)> {
  template <int i, class First, class... Rest> struct pick { typedef typename pick<i - 1, Rest...>::type type; };
  template <class First, class... Rest> struct pick<0, First, Rest...> { typedef First type; };
  template <int i> using argument = typename pick<i, P...>::type;
};

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

MSL_INLINE uint smaller(uint a, uint b) { return a < b ? a : b; }

#ifdef __NVPTX__
#define MSL_SPECIAL_REGISTER(name, text) \
  MSL_INLINE uint name() { \
    uint result; \
    asm volatile("mov.u32 %0, %%" text ";" : "=r"(result)); \
    return result; \
  }
MSL_SPECIAL_REGISTER(thread_x, "tid.x")
MSL_SPECIAL_REGISTER(thread_y, "tid.y")
MSL_SPECIAL_REGISTER(thread_z, "tid.z")
MSL_SPECIAL_REGISTER(block_x, "ctaid.x")
MSL_SPECIAL_REGISTER(block_y, "ctaid.y")
MSL_SPECIAL_REGISTER(block_z, "ctaid.z")
MSL_SPECIAL_REGISTER(block_threads_x, "ntid.x")
MSL_SPECIAL_REGISTER(block_threads_y, "ntid.y")
MSL_SPECIAL_REGISTER(block_threads_z, "ntid.z")
#undef MSL_SPECIAL_REGISTER

MSL_INLINE void place_on_axis(thread MslThread &t, int axis, uint in_block, uint block, uint block_threads, uint grid) {
  t.thread_position_in_threadgroup[axis] = in_block;
  t.threadgroup_position_in_grid[axis] = block;
  t.thread_position_in_grid[axis] = block * block_threads + in_block;
  t.dispatch_threads_per_threadgroup[axis] = block_threads;
  t.threads_per_threadgroup[axis] = smaller(block_threads, grid - block * block_threads);
  t.threads_per_grid[axis] = grid;
  t.threadgroups_per_grid[axis] = (grid + block_threads - 1) / block_threads;
}

// Fills in where the thread is; false for a thread beyond the grid, which has nothing to do. A lane keeps its number in
// a block at the edge of the grid, so indices there count the threads that are missing.
MSL_INLINE bool enter_grid(thread MslThread &t, uint x, uint y, uint z) {
  place_on_axis(t, 0, thread_x(), block_x(), block_threads_x(), x);
  place_on_axis(t, 1, thread_y(), block_y(), block_threads_y(), y);
  place_on_axis(t, 2, thread_z(), block_z(), block_threads_z(), z);
  uint rows = block_threads_y(), columns = block_threads_x();
  uint index = thread_x() + columns * (thread_y() + rows * thread_z());
  t.thread_index_in_threadgroup = index;
  t.thread_index_in_simdgroup = index & 31;
  t.simdgroup_index_in_threadgroup = index >> 5;
  t.simdgroups_per_threadgroup = (columns * rows * block_threads_z() + 31) >> 5;
  return t.thread_position_in_grid[0] < x && t.thread_position_in_grid[1] < y && t.thread_position_in_grid[2] < z;
}

MSL_INLINE ulong shared_memory() {
  ulong result;
  asm volatile("mov.u64 %0, msl_shared;" : "=l"(result));
  return result;
}
#endif

}  // namespace msl

#ifdef __NVPTX__
// The launch says how large the block's memory is.
__asm__(".extern .shared .align 16 .b8 msl_shared[];");
#endif

#define MSL_EXPORT extern "C" __attribute__((visibility("default")))

#endif
