/* Kernels, dispatches, and the job that a dispatch becomes when its turn comes. */

typedef struct { uint64_t begin, end; } Extent; /* addresses of a piece of memory */

/* What the compiler knows of one access; `index` is a buffer's or argument's number, or a variable's offset. */
typedef struct { uint32_t access, bytes, align, base, index, base_bytes, place; } Site;

/* What an instrumented kernel brings along. */
typedef struct {
  const Site *sites;
  const uint64_t *image; /* begin and end of its library, where its constants lie */
  uint64_t writable;     /* buffers that it may write, a bit each */
} Instrumentation;

typedef struct {
  const char *name;
  FiberEntry *fiber;
  LoopEntry *loop;
  uint32_t uses_fibers;       /* 0: threads are independent and run as a vectorised loop */
  uint32_t threadgroup_bytes; /* static threadgroup variables */
  uint64_t picoseconds;       /* measured cost of one thread on one core; 0: not yet run */
  const Instrumentation *instrumentation; /* NULL: compiled without checks */
} Kernel;

typedef struct {
  Kernel *kernel;
  uint32_t threads[3], group[3];
  const int32_t *slots; /* index in the pointer table for each buffer, -1: unbound */
  const uint32_t *lengths; /* bytes of each threadgroup argument */
  uint32_t slot_count, length_count;
  uint32_t checks; /* which ones; 0 for a kernel without instrumentation */
  const Extent *others; /* memory whose addresses stand in buffers */
  uint32_t other_count;
} Dispatch;

typedef struct {
  Kernel *kernel;
  uint32_t threads[3], group[3], groups[3];
  uint32_t length_count;
  const uint32_t *lengths;
  uint64_t thread_count; /* of the whole grid */
  uint64_t units; /* threadgroups, or threads for a loop kernel */
  uint64_t chunk; /* units in a chunk */
  uint64_t seed;  /* 0: deterministic order */
  uint32_t chunk_count;
  uint32_t checks; /* as in Dispatch */
  uint32_t failed; /* set once by the core that met the error; the others stop early */
  char error[400];
  void *buffers[MAX_BUFFERS + 1];
  const Dispatch *dispatch;
} Job;
