/* The worker's helpers: one OS thread for each further core, which take chunks of the worker's current job. */

enum { MAX_CORES = 256, MAX_CHUNKS = (1 << 24) - 1 };
/* A sleeping thread needs a few microseconds to wake; one that still spins answers at once. Measured on a 2-core VM. */
enum { HELPER_SPIN_NS = 20000, SPLIT_AWAKE_NS = 3000, SPLIT_ASLEEP_NS = 25000 };
/* First guesses of a thread's cost, replaced by the measured one after the first run of a kernel. */
enum { LOOP_PICOSECONDS = 1000, FIBER_PICOSECONDS = 50000 };

/* The claim word: generation (16 bits), next chunk (24), number of chunks (24). A chunk is taken by compare-and-swap on the
 * whole word, so a helper that looked at an old job can never take a chunk of the new one. */
#define CLAIM(generation, next, count) ((uint64_t)(generation) << 48 | (uint64_t)(next) << 24 | (uint64_t)(count))
#define CLAIM_NEXT(claim) ((claim) >> 24 & MAX_CHUNKS)
#define CLAIM_COUNT(claim) ((claim) & MAX_CHUNKS)

static struct {
  __attribute__((aligned(128))) uint64_t claim;
  __attribute__((aligned(128))) uint64_t finished_chunks;
  __attribute__((aligned(128))) uint32_t awake;
  Job job;
  uint64_t generation;
  uint32_t core_count, helper_count;
  uint64_t seed;
  Core *cores[MAX_CORES];
  pthread_mutex_t mutex;
  pthread_cond_t work;
} pool;

static int pool_take_chunk(Core *core) {
  uint64_t claim = __atomic_load_n(&pool.claim, __ATOMIC_ACQUIRE);
  if (CLAIM_NEXT(claim) >= CLAIM_COUNT(claim)) return 0;
  uint64_t taken = claim + (1ul << 24);
  if (__atomic_compare_exchange_n(&pool.claim, &claim, taken, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
    run_chunk(core, &pool.job, CLAIM_NEXT(claim));
    __atomic_fetch_add(&pool.finished_chunks, 1, __ATOMIC_RELEASE);
  }
  return 1;
}

static int pool_has_work_for(const Core *core) {
  uint64_t claim = __atomic_load_n(&pool.claim, __ATOMIC_SEQ_CST);
  return CLAIM_NEXT(claim) < CLAIM_COUNT(claim) && core->index < __atomic_load_n(&pool.core_count, __ATOMIC_RELAXED);
}

static void *helper_body(void *argument) {
  Core *core = argument;
  faults_prepare_thread();
  for (;;) {
    while (pool_has_work_for(core)) pool_take_chunk(core);
    SPIN_WHILE(!pool_has_work_for(core), HELPER_SPIN_NS);
    if (pool_has_work_for(core)) continue;
    pthread_mutex_lock(&pool.mutex);
    __atomic_fetch_sub(&pool.awake, 1, __ATOMIC_SEQ_CST);
    while (!pool_has_work_for(core)) pthread_cond_wait(&pool.work, &pool.mutex);
    __atomic_fetch_add(&pool.awake, 1, __ATOMIC_SEQ_CST);
    pthread_mutex_unlock(&pool.mutex);
  }
  return NULL;
}

/* Starts an OS thread on which no signal handler runs: those belong to the threads of the host program. */
static int start_thread(void *(*body)(void *), void *argument) {
  sigset_t all, old;
  memset(&all, 0xFF, sizeof all);
  const int synchronous[] = {SIGILL, SIGTRAP, SIGBUS, SIGFPE, SIGSEGV};
  for (uint32_t i = 0; i < 5; i++) all.opaque[0] &= ~(1ul << (synchronous[i] - 1));
  pthread_t thread;
  pthread_sigmask(SIG_SETMASK, &all, &old);
  int failed = pthread_create(&thread, NULL, body, argument);
  pthread_sigmask(SIG_SETMASK, &old, NULL);
  if (!failed) pthread_detach(thread);
  return !failed;
}

/* Helpers start with the first job that is worth it, so that a program with small kernels has none. */
static void pool_start_helpers(void) {
  while (pool.helper_count + 1 < pool.core_count) {
    Core **core = &pool.cores[pool.helper_count + 1];
    if (!*core) *core = core_create(pool.helper_count + 1);
    __atomic_fetch_add(&pool.awake, 1, __ATOMIC_SEQ_CST);
    if (!*core || !start_thread(helper_body, *core)) {
      __atomic_fetch_sub(&pool.awake, 1, __ATOMIC_SEQ_CST);
      pool.core_count = pool.helper_count + 1; /* the system refuses more threads: go on with these */
      return;
    }
    pool.helper_count++;
  }
}

static uint64_t job_nanoseconds(const Job *job) {
  uint64_t each = job->kernel->picoseconds;
  if (!each) each = job->kernel->uses_fibers ? FIBER_PICOSECONDS : LOOP_PICOSECONDS;
  return job->thread_count > ~0ul / each ? ~0ul : job->thread_count * each / 1000;
}

static int pool_is_worth_splitting(const Job *job) {
  if (job->checks || pool.core_count < 2 || job->units < 2 || (!job->kernel->uses_fibers && job->units < 2 * LOOP_GRAIN)) return 0;
  return job_nanoseconds(job) > (__atomic_load_n(&pool.awake, __ATOMIC_RELAXED) ? SPLIT_AWAKE_NS : SPLIT_ASLEEP_NS);
}

static void job_cut(Job *job, uint64_t pieces) {
  uint64_t grain = job->kernel->uses_fibers ? 1 : LOOP_GRAIN;
  job->chunk = (job->units + pieces - 1) / pieces;
  job->chunk = (job->chunk + grain - 1) / grain * grain;
  job->chunk_count = (uint32_t)((job->units + job->chunk - 1) / job->chunk);
}

/* Several chunks for each core: the cores of a virtual machine are not equally fast. */
static void pool_run_split(Job *job) {
  job_cut(job, (job->kernel->uses_fibers ? 16 : 4) * (uint64_t)pool.core_count);
  pool_start_helpers();
  pool.finished_chunks = 0;
  __atomic_store_n(&pool.claim, CLAIM(++pool.generation & 0xFFFF, 0, job->chunk_count), __ATOMIC_SEQ_CST);
  if (__atomic_load_n(&pool.awake, __ATOMIC_SEQ_CST) < pool.helper_count) {
    pthread_mutex_lock(&pool.mutex);
    pthread_cond_broadcast(&pool.work);
    pthread_mutex_unlock(&pool.mutex);
  }
  while (pool_take_chunk(pool.cores[0])) {
  }
  for (uint32_t spins = 0; __atomic_load_n(&pool.finished_chunks, __ATOMIC_ACQUIRE) < job->chunk_count;) {
    cpu_relax();
    if (!(++spins & 255)) sched_yield(); /* a helper with the last chunk may wait for this very core */
  }
}

static void pool_run_alone(Job *job) {
  job_cut(job, job->seed ? 64 : 1);
  for (uint32_t i = 0; i < job->chunk_count; i++) run_chunk(pool.cores[0], job, i);
}

/* A shorter measurement is nearer the truth (no interruption), a longer one counts only in part. */
static void kernel_learn(Kernel *kernel, const Job *job, uint64_t nanoseconds) {
  uint64_t measured = nanoseconds * 1000 / job->thread_count + 1;
  if (!kernel->picoseconds || measured < kernel->picoseconds)
    kernel->picoseconds = measured;
  else
    kernel->picoseconds += (measured - kernel->picoseconds) / 8;
}

/* Runs the prepared pool.job; returns the time at its end. */
static uint64_t pool_run(uint64_t start) {
  Job *job = &pool.job;
  int split = pool_is_worth_splitting(job);
  if (split)
    pool_run_split(job);
  else
    pool_run_alone(job);
  uint64_t end = now_ns();
  kernel_learn(job->kernel, job, (end - start) * (split ? pool.core_count : 1));
  return end;
}
