/* A checked dispatch: its memory and threads are made known to the checks, its barriers are watched. */

/* ------------------------------------------------------------------------------------------------------- barriers */

static void report_barrier(uint32_t other_place, uint32_t other_thread, uint32_t here, uint32_t there, uint32_t total) {
  Report *made = report(CHECK_BARRIERS, checks.thread[current_thread()].waits_at, other_place, BASE_UNKNOWN, 0);
  if (!made || made->count > 1) return;
  made->other = thread_name(checks.stamp, other_thread);
  made->here = here;
  made->there = there;
  made->total = total;
}

static void pass_barrier(uint32_t flags, uint32_t *epochs, uint32_t *simdgroup_epochs) {
  for (uint32_t memory = 0; memory < 2; memory++) {
    if (!(flags & (memory ? MEM_THREADGROUP : MEM_DEVICE))) continue;
    if (epochs) epochs[memory]++;
    simdgroup_epochs[memory]++;
  }
}

static uint32_t count_waiting(const Core *core, uint32_t place) {
  uint32_t count = 0;
  for (uint32_t i = 0; i < core->thread_count; i++) count += checks.thread[i].waits_at == place;
  return count;
}

EXPORT void msl_check_threadgroup_barrier(uint32_t flags, uint32_t place) {
  Core *core = this_core;
  uint32_t thread = current_thread();
  ThreadChecks *state = &checks.thread[thread];
  settle_pending();
  state->waits_at = place;
  if (!core->arrived) {
    checks.barrier_place = place;
    checks.barrier_thread = thread;
  } else if (checks.barrier_place != place && (checks.active & CHECK_BARRIERS)) {
    report_barrier(checks.barrier_place, checks.barrier_thread, count_waiting(core, place),
                   count_waiting(core, checks.barrier_place), core->thread_count);
  }
  msl_threadgroup_barrier();
  state->waits_at = 0;
  pass_barrier(flags, state->threadgroup_epoch, state->simdgroup_epoch);
}

EXPORT void msl_check_simdgroup_barrier(uint32_t flags, uint32_t place) {
  Core *core = this_core;
  Fiber *self = (Fiber *)msl_thread;
  ThreadChecks *state = &checks.thread[current_thread()];
  settle_pending();
  state->waits_at = place;
  core->simdgroup->site[self->thread.thread_index_in_simdgroup] = (uint64_t)__builtin_return_address(0);
  lane_wait(core, self);
  uint32_t met = this_core->simdgroup->posted->mask, first = self->thread.simdgroup_index_in_threadgroup * SIMD_WIDTH;
  uint32_t left = this_core->thread_count - first, all = left < SIMD_WIDTH ? (1u << left) - 1 : ~0u;
  if (met != all && (checks.active & CHECK_BARRIERS)) {
    uint32_t absent = first + (uint32_t)__builtin_ctz(all & ~met);
    report_barrier(checks.thread[absent].waits_at, absent, (uint32_t)__builtin_popcount(met), 0,
                   (uint32_t)__builtin_popcount(all));
  }
  state->waits_at = 0;
  pass_barrier(flags, NULL, state->simdgroup_epoch);
}

/* Fences with the atomics between them can order what different threads do. Which accesses those are is not traced: between
 * two threads, or threadgroups, that both have executed one, no race is reported. */
EXPORT void msl_check_fence(uint32_t flags) {
  checks.thread[current_thread()].fenced = 1;
  if (!(flags & MEM_DEVICE)) return;
  if (!checks.fenced_groups) checks.fenced_groups = calloc(checks.group_count, 1);
  if (checks.fenced_groups) checks.fenced_groups[checks.stamp - 1] = 1;
}

/* When nothing can run: lets those go on that wait for threads which have returned, after a report. 0: nobody waits. */
static int checks_release_barrier(Core *core) {
  if (!core->arrived) return 0;
  uint32_t waits = 0, returned = 0;
  while (!(core->simdgroups[waits / SIMD_WIDTH].at_barrier >> waits % SIMD_WIDTH & 1)) waits++;
  while (core->simdgroups[returned / SIMD_WIDTH].live >> returned % SIMD_WIDTH & 1) returned++;
  msl_thread = &core->fibers[waits].thread;
  if (checks.active & CHECK_BARRIERS)
    report_barrier(0, returned, core->arrived, 0, core->thread_count);
  core_release_barrier(core);
  return 1;
}

/* ------------------------------------------------------------------------------------------------------- dispatch */

static int extents_overlap(Extent a, Region b) { return a.begin < b.end && b.begin < a.end; }

/* Adds memory that the kernel may write to the regions with shadow memory; overlapping ones become one. */
static void track_region(Extent extent) {
  if (extent.begin == extent.end) return;
  Region region = {extent.begin & ~(uint64_t)(BLOCK_BYTES - 1), extent.end, NULL};
  for (uint32_t i = 0; i < checks.region_count;) {
    Region *other = &checks.regions[i];
    if (!extents_overlap((Extent){region.begin, region.end}, *other)) {
      i++;
      continue;
    }
    if (other->begin < region.begin) region.begin = other->begin;
    if (other->end > region.end) region.end = other->end;
    *other = checks.regions[--checks.region_count];
    i = 0;
  }
  checks.regions[checks.region_count++] = region;
}

static int checks_track_memory(uint64_t writable) {
  checks.region_count = 0;
  checks.regions = malloc((checks.buffer_count + checks.other_count + 1) * sizeof *checks.regions);
  if (!checks.regions) return 0;
  for (uint32_t i = 0; i < checks.buffer_count; i++)
    if (writable >> i & 1) track_region(checks.extents[i]);
  for (uint32_t i = 0; i < checks.other_count; i++) track_region(checks.others[i]);
  for (uint32_t i = 0; i < checks.region_count; i++) {
    Region *region = &checks.regions[i];
    region->blocks = calloc((region->end - region->begin) / BLOCK_BYTES + 1, sizeof *region->blocks);
    if (!region->blocks) return 0;
  }
  return 1;
}

static int checks_prepare_area(Core *core) {
  if (!checks.area) {
    char *area = malloc(AREA_BYTES + BLOCK_BYTES);
    if (!area) return 0;
    checks.area = (char *)(((uintptr_t)area + BLOCK_BYTES - 1) & ~(uintptr_t)(BLOCK_BYTES - 1));
  }
  checks.plain_memory = core->threadgroup_memory;
  core->threadgroup_memory = checks.area;
  memset(checks.area_blocks, 0, sizeof checks.area_blocks);
  memset(checks.variable_bytes, 0, sizeof checks.variable_bytes);
  checks.threadgroup = (Region){(uint64_t)checks.area, (uint64_t)checks.area + AREA_BYTES, checks.area_blocks};
  return 1;
}

/* Takes over what the checks must know of a dispatch. `extents`: of each slot of the pointer table. 0: no memory. */
static int checks_begin(Core *core, const Job *job, const Extent *extents) {
  const Dispatch *dispatch = job->dispatch;
  const Instrumentation *instrumentation = job->kernel->instrumentation;
  checks.sites = instrumentation->sites;
  checks.image = instrumentation->image;
  checks.kernel = (uint64_t)job->kernel;
  checks.buffer_count = dispatch->slot_count;
  for (uint32_t i = 0; i < dispatch->slot_count; i++) {
    int32_t slot = dispatch->slots[i];
    checks.address[i] = (uint64_t)job->buffers[i];
    checks.extents[i] = slot < 0 ? (Extent){0, 0} : extents[slot];
  }
  checks.others = dispatch->others;
  checks.other_count = dispatch->other_count;
  checks.group_count = (uint32_t)job->units;
  checks.argument_count = job->length_count;
  checks.argument_lengths = job->lengths;
  memcpy(checks.threads, job->threads, sizeof checks.threads);
  memcpy(checks.group, job->group, sizeof checks.group);
  memcpy(checks.groups, job->groups, sizeof checks.groups);
  checks.report_count = 0;
  checks.active = job->checks;
  return checks_prepare_area(core) && checks_track_memory(instrumentation->writable);
}

static void poison(uint32_t begin, uint32_t bytes) {
  memset(checks.area + begin, 0xFF, bytes);
  memset(checks.written + begin / 8, 0, (bytes + 7) / 8);
}

/* The checks see a variable that begins as zero as written, and by nobody. */
EXPORT void msl_zero_variable(char *variable, uint32_t bytes) {
  Core *core = this_core;
  int checked = core->threadgroup_memory == checks.area;
  uint32_t begin = (uint32_t)(variable - core->threadgroup_memory), unit = begin / (checked ? 32 : 16);
  uint64_t bit = 1ull << unit % 64;
  if (core->zeroed[unit / 64] & bit) return;
  core->zeroed[unit / 64] |= bit;
  memset(variable, 0, bytes);
  for (uint32_t byte = begin; checked && byte < begin + bytes; byte++) checks.written[byte / 8] |= (uint8_t)(1 << byte % 8);
}

/* To be called before each threadgroup; `number`: which of the dispatch. */
static void checks_enter_threadgroup(Core *core, const Job *job, uint32_t number) {
  uint32_t offset = 0;
  checks.stamp = number + 1;
  memset(checks.thread, 0, core->thread_count * sizeof *checks.thread);
  poison(0, 2 * job->kernel->threadgroup_bytes);
  for (uint32_t i = 0; i < checks.argument_count; i++) {
    core->threadgroup_arguments[i] = checks.area + VARIABLES_BYTES + 2 * offset;
    offset += (checks.argument_lengths[i] + 15) & ~15u;
  }
  poison(VARIABLES_BYTES, 2 * offset);
}

/* Keeps some of the shadow memory for the next dispatch. */
static void release_chunks(void) {
  Chunk **link = &checks.chunks;
  for (uint32_t kept = 0; *link && kept < KEPT_CHUNKS; kept++) link = &(*link)->next;
  while (*link) {
    Chunk *chunk = *link;
    *link = chunk->next;
    free(chunk);
  }
  checks.chunk = NULL;
  checks.chunk_used = 0;
}

/* After the dispatch: the shadow memory goes, the core gets its own memory back. */
static void checks_end(Core *core) {
  settle_pending();
  for (uint32_t i = 0; checks.regions && i < checks.region_count; i++) free(checks.regions[i].blocks);
  free(checks.regions);
  free(checks.fenced_groups);
  checks.regions = NULL;
  checks.fenced_groups = NULL;
  checks.region_count = 0;
  release_chunks();
  if (checks.plain_memory) core->threadgroup_memory = checks.plain_memory;
  checks.plain_memory = NULL;
  checks.active = 0;
}

/* Whether there is more than races of stores that all stored the same, which real kernels have and which do no harm. */
static int checks_found_errors(void) {
  for (uint32_t i = 0; i < checks.report_count; i++)
    if (!checks.reports[i].same_value) return 1;
  return 0;
}
