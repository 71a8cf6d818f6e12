/* What translated kernels and this runtime share. The layout is repeated in metal/include/msl_abi.h for kernels. */

typedef struct {
  uint32_t thread_position_in_grid[3], threadgroup_position_in_grid[3], thread_position_in_threadgroup[3];
  uint32_t threads_per_threadgroup[3]; /* of this threadgroup: smaller at the grid's edge */
  uint32_t dispatch_threads_per_threadgroup[3], threadgroups_per_grid[3], threads_per_grid[3];
  uint32_t thread_index_in_simdgroup, simdgroup_index_in_threadgroup, simdgroups_per_threadgroup, thread_index_in_threadgroup;
} MslThread;

enum { SIMD_WIDTH = 32, MORE_WORDS = 2, MAX_THREADS = 1024, MAX_SIMDGROUPS = MAX_THREADS / SIMD_WIDTH };
enum { MAX_BUFFERS = 31, MAX_THREADGROUP_BYTES = 32768 };

/* `combined` belongs to the readers: 0 at the release, set by the lane that works for all on what was posted. */
typedef struct { uint64_t value[SIMD_WIDTH]; uint32_t mask, combined; uint64_t more[SIMD_WIDTH][MORE_WORDS]; } MslExchange;

typedef void FiberEntry(void *const *buffers, char *threadgroup_memory, void *const *threadgroup_arguments);
typedef void LoopEntry(MslThread *thread, void *const *buffers, uint32_t begin, uint32_t end, char *threadgroup_memory);

_Static_assert(sizeof(MslThread) == 25 * 4, "MslThread is 25 words");
_Static_assert(sizeof(MslExchange) == 776, "MslExchange is 97 words of 8 bytes");

/* Defined by the includer of the sources: "initial-exec" reads it in one instruction; "global-dynamic" needs no static TLS. */
#ifndef MSL_TLS_MODEL
#define MSL_TLS_MODEL "initial-exec"
#endif
#define THREAD_LOCAL __attribute__((tls_model(MSL_TLS_MODEL))) _Thread_local
EXPORT THREAD_LOCAL MslThread *msl_thread;
EXPORT MslThread *msl_self(void) { return msl_thread; }
