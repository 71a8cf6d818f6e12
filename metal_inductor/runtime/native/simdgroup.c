/* Threads as fibers: which one runs next, simdgroup exchange, barriers.
 *
 * The 32 lanes of a simdgroup run one after the other until each waits at an exchange; the last to arrive releases all.
 * When lanes wait at different program counters (a divergent branch), the lowest is released first, which reconverges
 * structured code where the branches join. Slots are double-buffered: a lane reads the slot of the last release, while
 * faster lanes already post into the other one; no release can happen before every lane has come back. */

enum { STACK_BYTES = 64 * 1024, STACK_COLOURS = 64, COLOUR_BYTES = 192, PAGE_BYTES = 16384, STACKS_PER_CHUNK = 32 };
enum { STACK_ROOM = (STACK_BYTES + STACK_COLOURS * COLOUR_BYTES + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES, STACK_STRIDE = STACK_ROOM + PAGE_BYTES };

/* Maps more stacks, each above a page that faults. Bases differ by a few cache lines, else all tops share one cache set. */
static int core_grow_stacks(Core *core) {
  size_t stride = STACK_STRIDE;
  char *chunk = mmap(NULL, STACKS_PER_CHUNK * stride, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (chunk == (char *)-1) return 0;
  for (uint32_t i = 0; i < STACKS_PER_CHUNK; i++) {
    /* May fail where the system limits the number of mappings: then the stack works, without its guard. */
    mprotect(chunk + i * stride, PAGE_BYTES, PROT_NONE);
    core->stacks[core->stack_count] = chunk + (i + 1) * stride - (core->stack_count % STACK_COLOURS) * COLOUR_BYTES;
    core->free_stacks[core->free_count++] = core->stack_count++;
  }
  return 1;
}

/* Back to the state of a new core, but for the stacks: all are taken back, also those of fibers that were abandoned in a
 * deadlock, after a fault or by a fork in the middle of a threadgroup. */
static void core_reset(Core *core) {
  core->fault_signal = 0;
  core->free_count = core->stack_count;
  for (uint32_t i = 0; i < core->stack_count; i++) core->free_stacks[i] = core->stack_count - 1 - i;
  memset(core->geometry, 0, sizeof core->geometry);
  for (uint32_t i = 0; i < MAX_SIMDGROUPS; i++) {
    core->simdgroups[i].index = i;
    core->simdgroups[i].phase = 0;
    core->simdgroups[i].posting = &core->simdgroups[i].slots[0];
  }
}

static Core *core_create(uint32_t index) {
  size_t bytes = sizeof(Core) + MAX_THREADGROUP_BYTES + 64;
  Core *core = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (core == (Core *)-1) return NULL;
  core->threadgroup_memory = (char *)(((uintptr_t)(core + 1) + 63) & ~63ul);
  core->index = index;
  core_reset(core);
  return core;
}

static uint64_t core_random(Core *core) {
  core->random ^= core->random << 13;
  core->random ^= core->random >> 7;
  return core->random ^= core->random << 17;
}

/* One element of a non-empty set: the lowest, or a random one when the schedule is shuffled. */
INLINE uint32_t core_choose(Core *core, uint32_t set) {
  if (__builtin_expect(core->random != 0, 0))
    for (uint32_t skip = (uint32_t)(core_random(core) >> 32) % (uint32_t)__builtin_popcount(set); skip; skip--) set &= set - 1;
  return (uint32_t)__builtin_ctz(set);
}

/* Chooses the simdgroup that runs next: the current one while it has work, in order not to change the cache. 0: none can. */
INLINE int core_choose_simdgroup(Core *core) {
  Simdgroup *simdgroup = core->simdgroup;
  if (__builtin_expect(core->random != 0, 0)) simdgroup = &core->simdgroups[core_choose(core, core->runnable | 1u << simdgroup->index)];
  while (!(simdgroup->fresh | simdgroup->ready)) {
    core->runnable &= ~(1u << simdgroup->index);
    if (!core->runnable) return 0;
    simdgroup = &core->simdgroups[core_choose(core, core->runnable)];
  }
  if (simdgroup != core->simdgroup) core->simdgroup = simdgroup;
  return 1;
}

/* Takes the lane that runs next out of its set and makes it current; `fresh` says which set it was. */
INLINE Fiber *core_choose_lane(Core *core, int *fresh) {
  Simdgroup *simdgroup = core->simdgroup;
  uint32_t lane = core_choose(core, simdgroup->fresh | simdgroup->ready), bit = 1u << lane;
  *fresh = (simdgroup->fresh & bit) != 0;
  if (*fresh)
    simdgroup->fresh &= ~bit;
  else
    simdgroup->ready &= ~bit;
  Fiber *next = &core->fibers[simdgroup->index * SIMD_WIDTH + lane];
  msl_thread = &next->thread;
  return next;
}

static void fiber_body(void);

/* The stack of the fiber that starts next; NULL when there is no memory for one. */
INLINE char *core_take_stack(Core *core) {
  if (!core->free_count && !core_grow_stacks(core)) {
    core->out_of_stacks = 1; /* the launcher reports it; nobody comes back here */
    return NULL;
  }
  core->entering_stack = core->free_stacks[--core->free_count];
  return core->stacks[core->entering_stack];
}

/* Suspends the caller into *save and runs another fiber. When none can run, the core goes home: to the launcher, which knows
 * a finished threadgroup from a deadlock. Returns what was posted at the exchange that the caller waits at, if at one. */
INLINE MslExchange *core_yield(Core *core, void **save) {
  if (core_choose_simdgroup(core)) {
    int fresh;
    Fiber *next = core_choose_lane(core, &fresh);
    if (save == &next->stack_pointer) return core->simdgroup->posted; /* released itself, and was chosen to go on */
    if (!fresh) return msl_switch(save, next->stack_pointer, core->simdgroup->posted);
    char *stack = core_take_stack(core);
    if (stack) return msl_start(save, stack, fiber_body);
  }
  return core->home ? msl_switch(save, core->home, NULL) : NULL;
}

/* Whether two of the lanes wait at different sites. */
INLINE int simdgroup_diverges(const Simdgroup *simdgroup, uint32_t lanes) {
  uint64_t difference = 0;
  if (lanes == ~0u) {
    for (uint32_t lane = 1; lane < SIMD_WIDTH; lane++) difference |= simdgroup->site[lane] ^ simdgroup->site[0];
    return difference != 0;
  }
  uint64_t first = simdgroup->site[__builtin_ctz(lanes)];
  for (; lanes; lanes &= lanes - 1) difference |= simdgroup->site[__builtin_ctz(lanes)] ^ first;
  return difference != 0;
}

/* Returns the lanes at the lowest site and moves what the others posted to the slot of the next release. */
static uint32_t simdgroup_split(Simdgroup *simdgroup, uint32_t waiting) {
  uint64_t lowest = ~0ul;
  uint32_t released = 0, from = simdgroup->phase, to = from ^ 1;
  for (uint32_t left = waiting; left; left &= left - 1) {
    uint64_t site = simdgroup->site[__builtin_ctz(left)];
    if (site < lowest) lowest = site;
  }
  for (uint32_t left = waiting; left; left &= left - 1) {
    uint32_t lane = (uint32_t)__builtin_ctz(left);
    if (simdgroup->site[lane] == lowest) {
      released |= 1u << lane;
      continue;
    }
    simdgroup->slots[to].value[lane] = simdgroup->slots[from].value[lane];
    memcpy(simdgroup->slots[to].more[lane], simdgroup->slots[from].more[lane], MORE_WORDS * sizeof(uint64_t));
  }
  return released;
}

/* To be called by a lane that posted, came to a barrier or returned. When no lane of the simdgroup can run any more, those of
 * one site continue with each other's values. */
INLINE void simdgroup_settle(Simdgroup *simdgroup) {
  if (simdgroup->fresh | simdgroup->ready) return;
  uint32_t released = simdgroup->live & ~simdgroup->at_barrier;
  if (!released) return;
  if (simdgroup_diverges(simdgroup, released)) released = simdgroup_split(simdgroup, released);
  simdgroup->posted = simdgroup->posting;
  simdgroup->posted->mask = released;
  simdgroup->posted->combined = 0;
  simdgroup->phase ^= 1;
  simdgroup->posting = &simdgroup->slots[simdgroup->phase];
  simdgroup->ready = released;
}

/* All cases of a wait but the frequent one: not started lanes, the last lane to arrive, other simdgroups, shuffled order. */
__attribute__((noinline)) static MslExchange *lane_wait_slowly(Core *core, Fiber *self) {
  Simdgroup *simdgroup = core->simdgroup;
  uint32_t lane = 1u << self->thread.thread_index_in_simdgroup;
  simdgroup_settle(simdgroup);
  if (!(simdgroup->ready & lane) || core->random) return core_yield(core, &self->stack_pointer);
  simdgroup->ready &= ~lane;
  return simdgroup->posted;
}

/* Suspends the current lane, which has noted what it waits for. Frequent case: the next lane of the simdgroup can run. */
INLINE MslExchange *lane_wait(Core *core, Fiber *self) {
  Simdgroup *simdgroup = core->simdgroup;
  uint32_t ready = simdgroup->ready;
  if (!ready || core->random) return lane_wait_slowly(core, self);
  Fiber *next = &core->fibers[simdgroup->index * SIMD_WIDTH + (uint32_t)__builtin_ctz(ready)];
  simdgroup->ready = ready & (ready - 1);
  msl_thread = &next->thread;
  return msl_switch(&self->stack_pointer, next->stack_pointer, simdgroup->posted);
}

#define CALL_SITE(site) ((site) ? (uint64_t)(site) : (uint64_t)__builtin_return_address(0))

EXPORT MslExchange *msl_simd_exchange(uint64_t bits, uint32_t op_site) {
  Core *core = this_core;
  Fiber *self = (Fiber *)msl_thread;
  uint32_t lane = self->thread.thread_index_in_simdgroup;
  core->simdgroup->posting->value[lane] = bits;
  core->simdgroup->site[lane] = CALL_SITE(op_site);
  return lane_wait(core, self);
}

/* Three words of each lane. They come in registers: through memory they would be copied twice. */
EXPORT MslExchange *msl_simd_exchange_wide(uint64_t first, uint64_t second, uint64_t third) {
  Core *core = this_core;
  Fiber *self = (Fiber *)msl_thread;
  Simdgroup *simdgroup = core->simdgroup;
  uint32_t lane = self->thread.thread_index_in_simdgroup;
  simdgroup->posting->value[lane] = first;
  simdgroup->posting->more[lane][0] = second;
  simdgroup->posting->more[lane][1] = third;
  simdgroup->site[lane] = CALL_SITE(0);
  return lane_wait(core, self);
}

EXPORT void msl_simdgroup_barrier(void) {
  Core *core = this_core;
  Fiber *self = (Fiber *)msl_thread;
  core->simdgroup->site[self->thread.thread_index_in_simdgroup] = CALL_SITE(0);
  lane_wait(core, self);
}

__attribute__((noinline)) static void core_release_barrier(Core *core) {
  core->arrived = 0;
  for (uint32_t i = 0; i * SIMD_WIDTH < core->thread_count; i++) {
    core->simdgroups[i].ready = core->simdgroups[i].at_barrier;
    core->simdgroups[i].at_barrier = 0;
    core->runnable |= 1u << i;
  }
}

EXPORT void msl_threadgroup_barrier(void) {
  Core *core = this_core;
  Fiber *self = (Fiber *)msl_thread;
  core->simdgroup->at_barrier |= 1u << self->thread.thread_index_in_simdgroup;
  if (++core->arrived == core->thread_count) {
    core_release_barrier(core);
    lane_wait_slowly(core, self);
  } else {
    lane_wait(core, self);
  }
}

/* Runs threads on one stack for as long as the next one to run has not started: a thread that never waits costs no switch. */
static void fiber_body(void) {
  Core *core = this_core;
  uint32_t stack = core->entering_stack;
  void *to = core->home;
  for (;;) {
    core->entry(core->buffers, core->threadgroup_memory, core->threadgroup_arguments);
    core->finished++;
    core->simdgroup->live &= ~(1u << msl_thread->thread_index_in_simdgroup);
    simdgroup_settle(core->simdgroup);
    if (!core_choose_simdgroup(core)) break;
    int fresh;
    Fiber *next = core_choose_lane(core, &fresh);
    if (fresh) continue;
    to = next->stack_pointer;
    break;
  }
  core->free_stacks[core->free_count++] = stack;
  msl_leave(to, core->simdgroup->posted);
}
