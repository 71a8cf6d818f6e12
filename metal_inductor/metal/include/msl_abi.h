/* Interface between a compiled Metal library and the CPU runtime. Reads as C and as C++ for OpenCL.
 *
 * For kernel number N of a library the compiled object exports
 *   msl_fiber_kN  always: runs the thread that msl_self() describes to its end;
 *   msl_loop_kN   only when KernelInfo.uses_fibers is false: runs threads x = begin .. end-1 of one grid row.
 *                 y, z and all sizes of *thread are set by the caller; x positions are derived from the loop counter.
 * The runtime provides the msl_* functions declared below. */
#ifndef MSL_ABI_H
#define MSL_ABI_H

#ifdef __OPENCL_CPP_VERSION__
#define MSL_RUNTIME __attribute__((opencl_global_device))
typedef unsigned int msl_u32;
typedef unsigned long msl_u64;
extern "C" {
#else
#include <stdint.h>
#define MSL_RUNTIME
typedef uint32_t msl_u32;
typedef uint64_t msl_u64;
#endif

#define MSL_SIMD_WIDTH 32
#define MSL_MORE_WORDS 2

typedef struct {
  msl_u32 thread_position_in_grid[3];
  msl_u32 threadgroup_position_in_grid[3];
  msl_u32 thread_position_in_threadgroup[3];
  msl_u32 threads_per_threadgroup[3]; /* of this threadgroup: smaller at the edge of the grid */
  msl_u32 dispatch_threads_per_threadgroup[3];
  msl_u32 threadgroups_per_grid[3];
  msl_u32 threads_per_grid[3];
  msl_u32 thread_index_in_simdgroup;
  msl_u32 simdgroup_index_in_threadgroup;
  msl_u32 simdgroups_per_threadgroup;
  msl_u32 thread_index_in_threadgroup;
} MslThread;

typedef struct {
  msl_u64 value[MSL_SIMD_WIDTH];
  msl_u32 mask;     /* bit i: lane i took part */
  msl_u32 combined; /* 0 until the first lane that goes on has replaced the values by their combination */
  msl_u64 more[MSL_SIMD_WIDTH][MSL_MORE_WORDS]; /* of msl_simd_exchange_wide */
} MslExchange;

/* The running thread. Its address stays the same while the fiber lives, so translated code may keep it. */
MSL_RUNTIME MslThread *msl_self(void) __attribute__((const));

/* All active lanes of the simdgroup post 8 bytes; returns when all have arrived. The result stays valid until this
 * lane's next exchange. op_site 0: the return address tells diverged lanes apart, and the lowest one is released first.
 * Lanes that meet are at one place in the text, so they do the same with the values: the first may do it for all. */
MSL_RUNTIME MslExchange *msl_simd_exchange(msl_u64 bits, msl_u32 op_site) __attribute__((convergent, nomerge));

/* As above with three words of each lane: value, more[0], more[1]. */
MSL_RUNTIME MslExchange *msl_simd_exchange_wide(msl_u64 first, msl_u64 second, msl_u64 third)
    __attribute__((convergent, nomerge));

/* Makes a threadgroup variable zero, once in each threadgroup: the first thread that comes there does it for all. */
void msl_zero_variable(MSL_RUNTIME void *variable, msl_u32 bytes);

void msl_threadgroup_barrier(void) __attribute__((convergent, nomerge));
void msl_simdgroup_barrier(void) __attribute__((convergent, nomerge));

#ifdef __OPENCL_CPP_VERSION__
}
#endif
#endif
