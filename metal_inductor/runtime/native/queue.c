/* Command buffers: a first-in-first-out queue, one worker thread that runs them, and those who wait for it. */

enum { WORKER_SPIN_NS = 30000, WAITER_SPIN_NS = 30000, ERROR_BYTES = 512 };

/* What checks found in one or more command buffers. */
typedef struct { uint32_t count, unused; Report reports[MAX_REPORTS]; } CheckResult;

typedef struct {
  const uint64_t *pointers; /* owned by the caller, who keeps it until the list is drained */
  const Extent *extents;    /* the memory behind each pointer, likewise; NULL where no kernel is checked */
  uint32_t count, capacity;
  Dispatch *dispatches;
} List;

typedef struct CommandBuffer {
  struct CommandBuffer *next;
  const uint64_t *pointers;
  const Extent *extents;
  CheckResult *checked; /* where to put reports; NULL: for the next drain */
  char *error; /* ERROR_BYTES, of the one who waits for this command buffer; NULL: for the next drain */
  uint32_t count;
  Dispatch dispatches[];
} CommandBuffer;

static struct {
  __attribute__((aligned(128))) uint64_t committed;
  __attribute__((aligned(128))) uint64_t completed;
  uint32_t worker_started, worker_sleeps, waiters;
  CommandBuffer *first, *last;
  char error[ERROR_BYTES]; /* the first one since the last drain */
  CheckResult checked;     /* what checks found since the last drain */
  pthread_mutex_t mutex;
  pthread_cond_t work, done;
} queue;

EXPORT const uint64_t *msl_completed(void) { return &queue.completed; }

/* Runs the prepared job with its checks, which fail it when they find something. */
static void run_checked(const CommandBuffer *commands) {
  Job *job = &pool.job;
  Core *core = pool.cores[0];
  if (checks_begin(core, job, commands->extents)) {
    pool_run(now_ns());
  } else {
    job->failed = 1;
    snprintf(job->error, sizeof job->error, "kernel '%s': no memory for its checks", job->kernel->name);
  }
  checks_end(core);
  if (job->failed || !checks_found_errors()) return;
  job->failed = 1;
  snprintf(job->error, sizeof job->error, "kernel '%s' failed its checks", job->kernel->name);
}

/* Adds the reports of a dispatch to those that somebody waits for, as far as there is room. */
static void command_buffer_take_reports(const CommandBuffer *commands) {
  pthread_mutex_lock(&queue.mutex);
  CheckResult *result = commands->checked ? commands->checked : &queue.checked;
  for (uint32_t i = 0; i < checks.report_count && result->count < MAX_REPORTS; i++)
    result->reports[result->count++] = checks.reports[i];
  pthread_mutex_unlock(&queue.mutex);
}

static void command_buffer_run(CommandBuffer *commands) {
  uint64_t time = now_ns();
  for (uint32_t i = 0; i < commands->count; i++) {
    if (!job_prepare(&pool.job, &commands->dispatches[i], commands->pointers, pool.seed)) continue;
    if (pool.job.checks)
      run_checked(commands);
    else
      time = pool_run(time);
    if (pool.job.checks) command_buffer_take_reports(commands);
    if (!pool.job.failed) continue;
    /* As on a GPU, the rest of a command buffer is lost after an error and the following ones run. */
    pthread_mutex_lock(&queue.mutex);
    char *error = commands->error ? commands->error : queue.error;
    if (!error[0]) snprintf(error, ERROR_BYTES, "%s", pool.job.error);
    pthread_mutex_unlock(&queue.mutex);
    return;
  }
}

static CommandBuffer *queue_take(void) {
  SPIN_WHILE(__atomic_load_n(&queue.committed, __ATOMIC_ACQUIRE) == queue.completed, WORKER_SPIN_NS);
  pthread_mutex_lock(&queue.mutex);
  while (!queue.first) {
    queue.worker_sleeps = 1;
    pthread_cond_wait(&queue.work, &queue.mutex);
    queue.worker_sleeps = 0;
  }
  CommandBuffer *commands = queue.first;
  queue.first = commands->next;
  if (!queue.first) queue.last = NULL;
  pthread_mutex_unlock(&queue.mutex);
  return commands;
}

static void *worker_body(void *unused) {
  (void)unused;
  faults_prepare_thread();
  for (;;) {
    CommandBuffer *commands = queue_take();
    command_buffer_run(commands);
    free(commands);
    pthread_mutex_lock(&queue.mutex);
    __atomic_store_n(&queue.completed, queue.completed + 1, __ATOMIC_RELEASE);
    if (queue.waiters) pthread_cond_broadcast(&queue.done);
    pthread_mutex_unlock(&queue.mutex);
  }
  return NULL;
}

/* Queues a command buffer; returns its ticket (1, 2, ...), 0 when no worker thread can be started. */
static uint64_t queue_commit(CommandBuffer *commands) {
  pthread_mutex_lock(&queue.mutex);
  if (!queue.worker_started) {
    if (!pool.cores[0]) pool.cores[0] = core_create(0);
    faults_install();
    queue.worker_started = pool.cores[0] && start_thread(worker_body, NULL);
  }
  uint64_t ticket = queue.worker_started ? queue.committed + 1 : 0;
  if (ticket) {
    if (queue.last)
      queue.last->next = commands;
    else
      queue.first = commands;
    queue.last = commands;
    __atomic_store_n(&queue.committed, ticket, __ATOMIC_RELEASE);
    if (queue.worker_sleeps) pthread_cond_signal(&queue.work);
  }
  pthread_mutex_unlock(&queue.mutex);
  if (!ticket) free(commands);
  return ticket;
}

static void queue_wait(uint64_t ticket) {
  SPIN_WHILE(__atomic_load_n(&queue.completed, __ATOMIC_ACQUIRE) < ticket, WAITER_SPIN_NS);
  if (__atomic_load_n(&queue.completed, __ATOMIC_ACQUIRE) >= ticket) return;
  pthread_mutex_lock(&queue.mutex);
  queue.waiters++;
  while (queue.completed < ticket) pthread_cond_wait(&queue.done, &queue.mutex);
  queue.waiters--;
  pthread_mutex_unlock(&queue.mutex);
}

/* To be called while no work is committed. Helpers beyond a smaller number of cores stay and take no more chunks. */
EXPORT void msl_configure(uint32_t core_count, uint64_t seed) {
  pool.core_count = core_count < 1 ? 1 : core_count > MAX_CORES ? MAX_CORES : core_count;
  pool.seed = seed;
}

/* To be called once after loading and again in the child of a fork: the parent's threads and pending work are not ours.
 * Cores are kept, with their stacks, since no thread of this process uses them. */
EXPORT void msl_initialise(void) {
  pthread_mutex_init(&pool.mutex, NULL);
  pthread_cond_init(&pool.work, NULL);
  pthread_mutex_init(&queue.mutex, NULL);
  pthread_cond_init(&queue.work, NULL);
  pthread_cond_init(&queue.done, NULL);
  pool.claim = pool.helper_count = pool.awake = 0;
  queue.worker_started = queue.worker_sleeps = queue.waiters = 0;
  queue.first = queue.last = NULL;
  queue.completed = queue.committed;
  queue.error[0] = 0;
  queue.checked.count = 0;
  for (uint32_t i = 0; i < MAX_CORES; i++)
    if (pool.cores[i]) core_reset(pool.cores[i]);
}

EXPORT Kernel *msl_kernel_create(const char *name, FiberEntry *fiber, LoopEntry *loop, uint32_t uses_fibers, uint32_t threadgroup_bytes) {
  Kernel *kernel = calloc(1, sizeof *kernel);
  if (!kernel) return NULL;
  kernel->name = strdup(name);
  kernel->fiber = fiber;
  kernel->loop = loop;
  kernel->uses_fibers = uses_fibers;
  kernel->threadgroup_bytes = threadgroup_bytes;
  return kernel;
}

/* Makes a kernel one that is instrumented for checks; `writable`: buffers that it may write, a bit each. */
EXPORT int msl_kernel_instrument(Kernel *kernel, const Site *sites, const uint64_t *image, uint64_t writable) {
  Instrumentation *made = malloc(sizeof *made);
  if (!made) return 0;
  *made = (Instrumentation){sites, image, writable};
  kernel->instrumentation = made;
  return 1;
}

/* `extents`: for lists with checked kernels, the memory behind each pointer. */
EXPORT List *msl_list_create(const uint64_t *pointers, const Extent *extents) {
  List *list = calloc(1, sizeof *list);
  if (list) {
    list->pointers = pointers;
    list->extents = extents;
  }
  return list;
}

EXPORT void msl_list_free(List *list) {
  for (uint32_t i = 0; i < list->count; i++) free((void *)list->dispatches[i].slots);
  free(list->dispatches);
  free(list);
}

static void dispatch_set_threads(Dispatch *dispatch, const uint32_t *geometry) {
  memcpy(dispatch->threads, geometry, sizeof dispatch->threads);
  memcpy(dispatch->group, geometry + 3, sizeof dispatch->group);
}

/* `geometry`: threads and threads per threadgroup, 3 each. `table`: slot_count slots, then length_count threadgroup lengths,
 * copied into one block that stays put while the list grows. Returns the index of the dispatch, -1 without memory. */
EXPORT int msl_list_add(List *list, Kernel *kernel, const uint32_t *geometry, const int32_t *table, uint32_t slot_count, uint32_t length_count) {
  if (list->count == list->capacity) {
    uint32_t capacity = list->capacity ? 2 * list->capacity : 16;
    Dispatch *grown = realloc(list->dispatches, capacity * sizeof *grown);
    if (!grown) return -1;
    list->dispatches = grown;
    list->capacity = capacity;
  }
  int32_t *copy = malloc((slot_count + length_count + 1) * sizeof *copy);
  if (!copy) return -1;
  memcpy(copy, table, (slot_count + length_count) * sizeof *copy);
  Dispatch *dispatch = &list->dispatches[list->count];
  dispatch_set_threads(dispatch, geometry);
  dispatch->kernel = kernel;
  dispatch->slots = copy;
  dispatch->slot_count = slot_count;
  dispatch->lengths = (const uint32_t *)copy + slot_count;
  dispatch->length_count = length_count;
  dispatch->checks = dispatch->other_count = 0;
  return (int)list->count++;
}

EXPORT void msl_list_check(List *list, uint32_t index, uint32_t checks) { list->dispatches[index].checks = checks; }

EXPORT void msl_list_set_threads(List *list, uint32_t index, const uint32_t *geometry) {
  dispatch_set_threads(&list->dispatches[index], geometry);
}

static CommandBuffer *command_buffer_create(const Dispatch *dispatches, uint32_t count, const uint64_t *pointers) {
  CommandBuffer *commands = calloc(1, sizeof *commands + count * sizeof(Dispatch));
  if (!commands) return NULL;
  commands->pointers = pointers;
  commands->count = count;
  memcpy(commands->dispatches, dispatches, count * sizeof(Dispatch));
  return commands;
}

EXPORT uint64_t msl_list_commit(const List *list, uint32_t begin, uint32_t end) {
  CommandBuffer *commands = command_buffer_create(list->dispatches + begin, end - begin, list->pointers);
  if (!commands) return 0;
  commands->extents = list->extents;
  return queue_commit(commands);
}

/* What one run may have besides buffers. `extents`: memory behind each buffer; `others`: whose addresses stand in buffers. */
typedef struct {
  uint32_t length_count, checks, other_count, unused;
  const uint32_t *lengths; /* bytes of each threadgroup argument */
  const Extent *extents, *others;
  CheckResult *checked;
} RunOptions;

/* Runs one kernel on buffer(i) = pointers[i] behind all committed work and waits for it. Returns 0 when it ran; else 1, with
 * the reason in `error` and reported nowhere else. */
EXPORT int msl_run(Kernel *kernel, const uint32_t *geometry, const uint64_t *pointers, uint32_t count,
                   const RunOptions *options, char *error) {
  static const int32_t slots[MAX_BUFFERS] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15,
                                             16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30};
  Dispatch dispatch = {
      .kernel = kernel, .slots = slots, .slot_count = count, .lengths = options->lengths,
      .length_count = options->length_count, .checks = options->checks, .others = options->others,
      .other_count = options->other_count,
  };
  dispatch_set_threads(&dispatch, geometry);
  error[0] = 0;
  CommandBuffer *commands = command_buffer_create(&dispatch, 1, pointers);
  uint64_t ticket = 0;
  if (commands) {
    commands->error = error;
    commands->extents = options->extents;
    commands->checked = options->checked;
    ticket = queue_commit(commands);
  }
  if (ticket)
    queue_wait(ticket);
  else
    snprintf(error, ERROR_BYTES, "kernel '%s': no memory, or the system refuses a worker thread", kernel->name);
  return error[0] != 0;
}

/* Waits for everything committed so far; returns 1 and moves the first error out when there was one, and what checks found. */
EXPORT int msl_drain(char *error, CheckResult *checked) {
  queue_wait(__atomic_load_n(&queue.committed, __ATOMIC_ACQUIRE));
  pthread_mutex_lock(&queue.mutex);
  int failed = queue.error[0] != 0;
  if (failed) memcpy(error, queue.error, ERROR_BYTES);
  if (queue.checked.count && checked) memcpy(checked, &queue.checked, sizeof *checked);
  queue.error[0] = 0;
  queue.checked.count = 0;
  pthread_mutex_unlock(&queue.mutex);
  return failed;
}
