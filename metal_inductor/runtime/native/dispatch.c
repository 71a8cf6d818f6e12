/* One dispatch: a grid of threads cut into chunks that any core can run. */

enum { LOOP_GRAIN = 64 }; /* chunks of a loop are multiples of this: whole vectors, and cache lines of 1-byte elements */

static uint64_t mix(uint64_t value) {
  value = (value ^ value >> 31) * 0x9E3779B97F4A7C15ul;
  value = (value ^ value >> 29) * 0xBF58476D1CE4E5B9ul;
  return (value ^ value >> 32) | 1;
}

/* A permutation of 0..count-1 that depends on the seed: an affine map with a step prime to count. Beyond 32 bits, where the
 * product would overflow, the order stays as it is. */
static uint64_t shuffled(uint64_t index, uint64_t count, uint64_t seed) {
  if (count >> 32) return index;
  uint64_t step = mix(seed) % count | 1, a, b;
  for (;; step++) {
    for (a = step, b = count; b;) {
      uint64_t rest = a % b;
      a = b;
      b = rest;
    }
    if (a == 1) break;
  }
  return (index * step % count + mix(seed + 1) % count) % count;
}

/* First use of a threadgroup shape: every field of every thread. Afterwards only the positions in the grid change. */
static void core_set_geometry(Core *core, const Job *job, const uint32_t size[3]) {
  uint32_t geometry[12];
  memcpy(geometry, size, 12);
  memcpy(geometry + 3, job->group, 12);
  memcpy(geometry + 6, job->groups, 12);
  memcpy(geometry + 9, job->threads, 12);
  core->thread_count = size[0] * size[1] * size[2];
  if (!memcmp(geometry, core->geometry, sizeof geometry)) return;
  memcpy(core->geometry, geometry, sizeof geometry);
  uint32_t position[3] = {0, 0, 0};
  for (uint32_t i = 0; i < core->thread_count; i++) {
    MslThread *thread = &core->fibers[i].thread;
    memcpy(thread->thread_position_in_threadgroup, position, 12);
    memcpy(thread->threads_per_threadgroup, geometry, sizeof geometry);
    thread->thread_index_in_simdgroup = i % SIMD_WIDTH;
    thread->simdgroup_index_in_threadgroup = i / SIMD_WIDTH;
    thread->simdgroups_per_threadgroup = (core->thread_count + SIMD_WIDTH - 1) / SIMD_WIDTH;
    thread->thread_index_in_threadgroup = i;
    for (uint32_t axis = 0; axis < 3 && ++position[axis] == size[axis]; axis++) position[axis] = 0;
  }
}

static void core_set_threads(Core *core, const Job *job, const uint32_t where[3]) {
  uint32_t size[3], origin[3];
  for (uint32_t axis = 0; axis < 3; axis++) {
    origin[axis] = where[axis] * job->group[axis];
    size[axis] = job->threads[axis] - origin[axis] < job->group[axis] ? job->threads[axis] - origin[axis] : job->group[axis];
  }
  core_set_geometry(core, job, size);
  for (uint32_t i = 0; i < core->thread_count; i++) {
    MslThread *thread = &core->fibers[i].thread;
    for (uint32_t axis = 0; axis < 3; axis++) {
      thread->threadgroup_position_in_grid[axis] = where[axis];
      thread->thread_position_in_grid[axis] = origin[axis] + thread->thread_position_in_threadgroup[axis];
    }
  }
  uint32_t left = core->thread_count;
  for (uint32_t i = 0; left; i++) {
    Simdgroup *simdgroup = &core->simdgroups[i];
    simdgroup->fresh = left >= SIMD_WIDTH ? ~0u : (1u << left) - 1;
    simdgroup->live = simdgroup->fresh;
    simdgroup->ready = simdgroup->at_barrier = 0;
    left -= left >= SIMD_WIDTH ? SIMD_WIDTH : left;
    core->runnable = i == 31 ? ~0u : (2u << i) - 1;
  }
}

/* `thread`: position in the grid; NULL in a loop over threads, of which several may be computed together. */
static void job_describe_fault(Job *job, const Core *core, const uint32_t *thread) {
  char what[200], where[80] = "";
  fault_describe(core, !thread, what, sizeof what);
  if (thread) snprintf(where, sizeof where, " in thread (%u, %u, %u) of the grid", thread[0], thread[1], thread[2]);
  snprintf(job->error, sizeof job->error, "kernel '%s' faulted%s: %s", job->kernel->name, where, what);
}

static void job_fail(Job *job, const Core *core, const uint32_t where[3]) {
  if (__atomic_exchange_n(&job->failed, 1, __ATOMIC_ACQ_REL)) return;
  if (core->fault_signal)
    job_describe_fault(job, core, &msl_thread->thread_position_in_grid[0]);
  else if (!core->out_of_stacks)
    snprintf(job->error, sizeof job->error,
             "kernel '%s': deadlock in threadgroup (%u, %u, %u): threadgroup_barrier was reached by %u of %u threads, "
             "the other %u have returned",
             job->kernel->name, where[0], where[1], where[2], core->arrived, core->thread_count, core->finished);
  else
    snprintf(job->error, sizeof job->error, "kernel '%s': no memory for the stacks of %u threads", job->kernel->name, core->thread_count);
}

/* Lays the threadgroup arguments out behind the static variables and poisons both, so that a read before a write shows. */
static void core_set_threadgroup_memory(Core *core, const Job *job) {
  memset(core->zeroed, 0, sizeof core->zeroed);
  if (job->checks) return;
  uint32_t bytes = job->kernel->threadgroup_bytes;
  for (uint32_t i = 0; i < job->length_count; i++) {
    bytes = (bytes + 15) & ~15u;
    core->threadgroup_arguments[i] = core->threadgroup_memory + bytes;
    bytes += job->lengths[i];
  }
  memset(core->threadgroup_memory, 0xFF, bytes);
}

static void run_threadgroup(Core *core, Job *job, uint64_t index) {
  if (job->seed) index = shuffled(index, job->units, job->seed);
  uint32_t where[3] = {(uint32_t)(index % job->groups[0]), (uint32_t)(index / job->groups[0] % job->groups[1]),
                       (uint32_t)(index / job->groups[0] / job->groups[1])};
  core_set_threads(core, job, where);
  core_set_threadgroup_memory(core, job);
  core->entry = job->kernel->fiber;
  core->buffers = job->buffers;
  core->arrived = core->finished = core->out_of_stacks = 0;
  core->random = job->seed ? mix(job->seed + index) : 0;
  core->simdgroup = &core->simdgroups[0];
  core->home = NULL; /* stays so when not even the first thread gets a stack */
  this_core = core;
  if (job->checks) checks_enter_threadgroup(core, job, (uint32_t)index);
  guarded_core = core;
  do core_yield(core, &core->home);
  while (job->checks && !core->fault_signal && checks_release_barrier(core));
  guarded_core = NULL;
  if (core->finished == core->thread_count) return;
  job_fail(job, core, where);
  core_reset(core);
}

/* Runs threads begin..end-1 of row `row`, split where the last, smaller threadgroup begins. */
static void run_row(Core *core, Job *job, MslThread *thread, uint64_t row, uint32_t begin, uint32_t end) {
  uint32_t position[3] = {0, (uint32_t)(row % job->threads[1]), (uint32_t)(row / job->threads[1])};
  for (uint32_t axis = 1; axis < 3; axis++) {
    uint32_t group = position[axis] / job->group[axis], left = job->threads[axis] - group * job->group[axis];
    thread->thread_position_in_grid[axis] = position[axis];
    thread->threadgroup_position_in_grid[axis] = group;
    thread->thread_position_in_threadgroup[axis] = position[axis] - group * job->group[axis];
    thread->threads_per_threadgroup[axis] = left < job->group[axis] ? left : job->group[axis];
  }
  uint32_t edge = job->threads[0] / job->group[0] * job->group[0];
  while (begin < end) {
    uint32_t stop = begin < edge && edge < end ? edge : end;
    thread->threads_per_threadgroup[0] = begin < edge ? job->group[0] : job->threads[0] - edge;
    uint32_t count = thread->threads_per_threadgroup[0] * thread->threads_per_threadgroup[1] * thread->threads_per_threadgroup[2];
    thread->simdgroups_per_threadgroup = (count + SIMD_WIDTH - 1) / SIMD_WIDTH;
    job->kernel->loop(thread, job->buffers, begin, stop, core->threadgroup_memory);
    begin = stop;
  }
}

static void run_loop(Core *core, Job *job, uint64_t begin, uint64_t end) {
  MslThread thread;
  memset(&thread, 0, sizeof thread);
  memcpy(thread.dispatch_threads_per_threadgroup, job->group, 12);
  memcpy(thread.threadgroups_per_grid, job->groups, 12);
  memcpy(thread.threads_per_grid, job->threads, 12);
  while (begin < end) {
    uint64_t row = begin / job->threads[0], x = begin % job->threads[0], room = job->threads[0] - x;
    uint64_t count = end - begin < room ? end - begin : room;
    run_row(core, job, &thread, row, (uint32_t)x, (uint32_t)(x + count));
    begin += count;
  }
}

static void loop_body(void) {
  Core *core = this_core;
  run_loop(core, core->loop.job, core->loop.begin, core->loop.end);
  core->finished = 1;
  msl_leave(core->home, NULL);
}

/* A loop runs on a stack of its own, which a fault can leave. */
static void run_loop_guarded(Core *core, Job *job, uint64_t begin, uint64_t end) {
  char *stack = core_loop_stack(core);
  if (!stack) {
    run_loop(core, job, begin, end);
    return;
  }
  core->loop.job = job;
  core->loop.begin = begin;
  core->loop.end = end;
  core->finished = 0;
  this_core = guarded_core = core;
  msl_start(&core->home, stack, loop_body);
  guarded_core = NULL;
  if (core->finished) return;
  if (!__atomic_exchange_n(&job->failed, 1, __ATOMIC_ACQ_REL)) job_describe_fault(job, core, NULL);
  core_reset(core);
}

static void run_chunk(Core *core, Job *job, uint64_t index) {
  if (job->seed && !job->kernel->uses_fibers) index = shuffled(index, job->chunk_count, job->seed);
  uint64_t begin = index * job->chunk, end = begin + job->chunk < job->units ? begin + job->chunk : job->units;
  if (!job->kernel->uses_fibers) {
    run_loop_guarded(core, job, begin, end);
    return;
  }
  for (; begin < end && !__atomic_load_n(&job->failed, __ATOMIC_RELAXED); begin++) run_threadgroup(core, job, begin);
}

/* Fills a job from a dispatch; 0 when the grid is empty. */
static int job_prepare(Job *job, const Dispatch *dispatch, const uint64_t *pointers, uint64_t seed) {
  uint64_t threads = 1, groups = 1;
  for (uint32_t axis = 0; axis < 3; axis++) {
    job->threads[axis] = dispatch->threads[axis];
    job->group[axis] = dispatch->group[axis];
    job->groups[axis] = (uint32_t)(((uint64_t)dispatch->threads[axis] + dispatch->group[axis] - 1) / dispatch->group[axis]);
    threads *= job->threads[axis];
    groups *= job->groups[axis];
  }
  for (uint32_t i = 0; i < dispatch->slot_count; i++)
    job->buffers[i] = dispatch->slots[i] < 0 ? NULL : (void *)pointers[dispatch->slots[i]];
  job->kernel = dispatch->kernel;
  job->lengths = dispatch->lengths;
  job->length_count = dispatch->length_count;
  job->thread_count = threads;
  job->units = dispatch->kernel->uses_fibers ? groups : threads;
  job->seed = seed;
  job->failed = 0;
  job->checks = dispatch->checks;
  job->dispatch = dispatch;
  return threads != 0;
}
