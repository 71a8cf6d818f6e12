/* One core: what one OS thread needs to run the threads of one threadgroup as fibers. */

/* `thread` comes first, so that msl_thread is also the address of the running fiber. */
typedef struct {
  __attribute__((aligned(128))) MslThread thread;
  void *stack_pointer; /* valid while the fiber is suspended */
} Fiber;

/* Lane sets are bit masks. A live lane is fresh, ready, at the barrier, running, or else it waits in an exchange. */
typedef struct {
  uint32_t fresh;      /* not started yet: needs a stack */
  uint32_t ready;      /* suspended, may continue */
  uint32_t live;       /* not returned yet */
  uint32_t at_barrier; /* waits for the threadgroup */
  uint32_t index;
  uint32_t phase; /* lanes post into slot `phase` and read slot `phase ^ 1`: */
  MslExchange *posting, *posted;
  uint64_t site[SIMD_WIDTH]; /* where each exchanging lane waits: its program counter, or the site the caller named */
  MslExchange slots[2];
} Simdgroup;

typedef struct {
  Simdgroup *simdgroup; /* of the running fiber; written only when it changes, which keeps it off the critical path of a switch */
  uint32_t index;    /* 0: of the worker thread */
  uint32_t runnable; /* simdgroups that may have fresh or ready lanes */
  uint32_t thread_count, arrived, finished; /* arrived: at the threadgroup barrier */
  uint32_t out_of_stacks;
  uint32_t fault_signal;  /* 0: the kernel did not fault */
  uint64_t fault_address;
  uint64_t random; /* 0: deterministic order; else the state of the generator that picks the next thread */
  void *home; /* stack pointer of the OS thread while fibers run */
  FiberEntry *entry;
  void *const *buffers;
  char *threadgroup_memory;
  void *threadgroup_arguments[MAX_BUFFERS];
  uint64_t zeroed[MAX_THREADGROUP_BYTES / 16 / 64]; /* variables that have become zero, a bit for each 16 bytes */
  uint32_t entering_stack; /* handed to the fiber that starts next */
  uint32_t stack_count, free_count;
  char *stacks[MAX_THREADS]; /* top of each stack */
  uint32_t free_stacks[MAX_THREADS];
  struct { void *job; uint64_t begin, end; } loop; /* what loop_body is to run */
  char *loop_stack; /* top of the stack of loops over threads; NULL: not yet used */
  uint32_t geometry[12]; /* of the last threadgroup: while equal, only positions in the grid change */
  Simdgroup simdgroups[MAX_SIMDGROUPS];
  Fiber fibers[MAX_THREADS];
} Core;

static THREAD_LOCAL Core *this_core;
