// What the run-time checks must see in the text: where pointers come from, and barriers with their memory flags. Without
// MSL_CHECKS these are the plain operations.
#ifndef MSL_CHECKS_H
#define MSL_CHECKS_H
#include "msl/keywords.h"

#ifdef MSL_CHECKS
extern "C" {
device void *msl_check_buffer(device void *address, uint index) __attribute__((const));
device void *msl_check_threadgroup_argument(device void *address, uint index) __attribute__((const));
threadgroup char *msl_check_variable(threadgroup char *block, const __constant char *name, ulong offset, ulong bytes)
    __attribute__((const));
// The compiler's last pass replaces the 0 that is passed for `place` by the number of the call's place in the text.
void msl_check_threadgroup_barrier(uint flags, uint place) __attribute__((convergent, nomerge));
void msl_check_simdgroup_barrier(uint flags, uint place) __attribute__((convergent, nomerge));
void msl_check_fence(uint flags);
}
#define MSL_BUFFER(buffers, index) msl_check_buffer(buffers[index], index)
#define MSL_THREADGROUP_ARGUMENT(arguments, index) msl_check_threadgroup_argument(arguments[index], index)
#define MSL_THREADGROUP_VARIABLE(type, name, block, ...) \
  (*(threadgroup type *)msl_check_variable(block, #name, __VA_ARGS__, sizeof(type)))
#define MSL_THREADGROUP_BARRIER(flags) msl_check_threadgroup_barrier(uint(flags), 0)
#define MSL_SIMDGROUP_BARRIER(flags) msl_check_simdgroup_barrier(uint(flags), 0)
#define MSL_FENCE(flags) msl_check_fence(uint(flags))
#else
#define MSL_BUFFER(buffers, index) buffers[index]
#define MSL_THREADGROUP_ARGUMENT(arguments, index) arguments[index]
#define MSL_THREADGROUP_VARIABLE(type, name, block, ...) (*(threadgroup type *)((block) + (__VA_ARGS__)))
#define MSL_THREADGROUP_BARRIER(flags) msl::wait_for_threadgroup()
#define MSL_SIMDGROUP_BARRIER(flags) msl::wait_for_simdgroup()
#define MSL_FENCE(flags)
#endif

#endif
