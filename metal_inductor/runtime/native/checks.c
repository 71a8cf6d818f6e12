/* Checks of an instrumented kernel: every access to device and threadgroup memory comes here before it happens.
 *
 * A checked dispatch runs on the worker's core alone, so nothing here needs a lock. Barriers are met by all threads that
 * they order, so that two accesses are ordered exactly when their threads have passed different numbers of barriers with
 * the right flags: shadow memory keeps, for each cell of memory, who accessed it and after how many barriers. */

enum { CHECK_RACES = 1, CHECK_BOUNDS = 2, CHECK_ALIGNMENT = 4, CHECK_UNINITIALISED = 8, CHECK_BARRIERS = 16 };
enum { ACCESS_READ = 1, ACCESS_WRITE = 2, ACCESS_ATOMIC = 4 };
enum { BASE_UNKNOWN, BASE_BUFFER, BASE_ARGUMENT, BASE_VARIABLE, BASE_OTHER }; /* OTHER: memory whose address is in a buffer */
enum { MEM_DEVICE = 1, MEM_THREADGROUP = 2 };
enum { MAX_REPORTS = 64, BLOCK_BYTES = 64, THREAD_BITS = 10, CHUNK_BYTES = 1 << 20, SCRATCH_BYTES = 1 << 16 };
enum { NEAR_BYTES = 1 << 30, KEPT_CHUNKS = 64 };
/* Each threadgroup variable and argument lies at twice its offset: the gap behind it catches what runs over its end. */
enum { VARIABLES_BYTES = 2 * MAX_THREADGROUP_BYTES, AREA_BYTES = 2 * VARIABLES_BYTES };
enum { VARIABLE_SLOTS = MAX_THREADGROUP_BYTES / 16 };

typedef struct { uint32_t group[3], position[3], index; } ThreadName;

/* Layout known to runtime/checks.py. */
typedef struct {
  uint64_t kernel;
  int64_t offset; /* of the access, from the beginning of the buffer, argument or variable */
  uint32_t check, access, other_access, place, other_place, base, index, bytes, same_value, count;
  uint32_t here, there, total; /* barriers: threads that wait at `place`, at `other_place` or elsewhere, all threads */
  ThreadName thread, other;
} Report;

/* One access in shadow memory. Stamp: number of its threadgroup in the dispatch plus one, 0: none. */
typedef struct { uint32_t stamp, site_and_thread, threadgroup_epoch, simdgroup_epoch; } Access;
typedef struct { Access write, reads[2], atomics[2]; } Cell;
typedef struct { Cell *cells; uint32_t shift; } Block; /* BLOCK_BYTES bytes of memory in cells of 1 << shift bytes */
typedef struct { uint64_t begin, end; Block *blocks; } Region;

/* Barriers that one thread has passed, for each kind of memory that they order: [0] device, [1] threadgroup. */
typedef struct { uint32_t threadgroup_epoch[2], simdgroup_epoch[2], waits_at, fenced; } ThreadChecks;

typedef struct Chunk { struct Chunk *next; char bytes[CHUNK_BYTES]; } Chunk;

struct Checks {
  uint32_t active; /* the wanted checks while a checked threadgroup runs */
  const Site *sites;
  const uint64_t *image;
  uint64_t kernel;
  uint64_t address[MAX_BUFFERS];
  Extent extents[MAX_BUFFERS]; /* of the memory behind each bound buffer */
  const Extent *others;        /* memory whose addresses stand in buffers */
  uint32_t buffer_count, other_count, group_count, stamp, argument_count;
  uint32_t threads[3], group[3], groups[3];
  const uint32_t *argument_lengths;
  Region threadgroup, *regions;
  uint32_t region_count;
  uint8_t *fenced_groups; /* by number, allocated by the first fence */
  ThreadChecks thread[MAX_THREADS];
  uint32_t variable_bytes[VARIABLE_SLOTS];
  char *area; /* threadgroup memory of checked kernels */
  char *plain_memory; /* the core's own, while a checked kernel uses `area` */
  uint8_t written[AREA_BYTES / 8];
  Block area_blocks[AREA_BYTES / BLOCK_BYTES];
  Chunk *chunks, *chunk;
  size_t chunk_used;
  uint32_t barrier_place, barrier_thread; /* of the first thread that waits for the threadgroup */
  struct { char *at; uint32_t bytes, report; char old[BLOCK_BYTES]; } pending; /* a store that may change nothing */
  uint32_t report_count;
  Report reports[MAX_REPORTS];
};
static struct Checks checks;
static __attribute__((aligned(64))) char check_scratch[SCRATCH_BYTES];

/* ------------------------------------------------------------------------------------------------------- reports */

static ThreadName thread_name(uint32_t stamp, uint32_t index) {
  ThreadName name = {.index = index};
  uint32_t number = stamp - 1, size[2], rest = index;
  name.group[0] = number % checks.groups[0];
  name.group[1] = number / checks.groups[0] % checks.groups[1];
  name.group[2] = number / checks.groups[0] / checks.groups[1];
  for (uint32_t axis = 0; axis < 2; axis++) {
    uint32_t left = checks.threads[axis] - name.group[axis] * checks.group[axis];
    size[axis] = left < checks.group[axis] ? left : checks.group[axis];
    name.position[axis] = rest % size[axis];
    rest /= size[axis];
  }
  name.position[2] = rest;
  return name;
}

static uint32_t current_thread(void) { return msl_thread->thread_index_in_threadgroup; }

/* The report of a mistake at these places, a new one at its first occurrence; NULL when there are too many others. */
static Report *report(uint32_t check, uint32_t place, uint32_t other_place, uint32_t base, uint32_t index) {
  for (uint32_t i = 0; i < checks.report_count; i++) {
    Report *known = &checks.reports[i];
    if (known->check != check || known->place != place || known->other_place != other_place) continue;
    if (known->base != base || known->index != index || known->kernel != checks.kernel) continue;
    known->count++;
    return known;
  }
  if (checks.report_count == MAX_REPORTS) return NULL;
  Report *fresh = &checks.reports[checks.report_count++];
  memset(fresh, 0, sizeof *fresh);
  fresh->kernel = checks.kernel;
  fresh->check = check;
  fresh->place = place;
  fresh->other_place = other_place;
  fresh->base = base;
  fresh->index = index;
  fresh->count = 1;
  fresh->thread = thread_name(checks.stamp, current_thread());
  return fresh;
}

/* What an address belongs to, and how far from its beginning it is. */
typedef struct { uint32_t base, index; int64_t offset; } Location;

static Location location_of_buffer(uint32_t index, uint64_t address) {
  return (Location){BASE_BUFFER, index, (int64_t)(address - checks.address[index])};
}

static uint64_t distance_to(Extent extent, uint64_t address) {
  return address < extent.begin ? extent.begin - address : address >= extent.end ? address - extent.end + 1 : 0;
}

/* What an address without known origin belongs to: the memory that is nearest, if any is near. */
static Location nearest_memory(uint64_t address) {
  uint64_t nearest = NEAR_BYTES;
  Location found = {BASE_UNKNOWN, 0, 0};
  for (uint32_t i = 0; i < checks.buffer_count + checks.other_count; i++) {
    int is_other = i >= checks.buffer_count;
    Extent extent = is_other ? checks.others[i - checks.buffer_count] : checks.extents[i];
    uint64_t apart = distance_to(extent, address);
    if (extent.begin == extent.end || apart >= nearest) continue;
    nearest = apart;
    found = is_other ? (Location){BASE_OTHER, i - checks.buffer_count, (int64_t)(address - extent.begin)}
                     : location_of_buffer(i, address);
  }
  return found;
}

static Location location_in_area(uint64_t offset) {
  if (offset < VARIABLES_BYTES) {
    uint32_t slot = (uint32_t)(offset / 32);
    while (slot && !checks.variable_bytes[slot]) slot--;
    return (Location){BASE_VARIABLE, 16 * slot, (int64_t)(offset - 32 * slot)};
  }
  uint32_t index = checks.argument_count ? checks.argument_count - 1 : 0;
  while (index && (char *)this_core->threadgroup_arguments[index] > checks.area + offset) index--;
  return (Location){BASE_ARGUMENT, index, checks.area + offset - (char *)this_core->threadgroup_arguments[index]};
}

static Location location_of(const Site *site, char *pointer) {
  uint64_t address = (uint64_t)pointer, offset = (uint64_t)(pointer - checks.area);
  if (site->base == BASE_BUFFER) return location_of_buffer(site->index, address);
  if (site->base == BASE_VARIABLE) return (Location){BASE_VARIABLE, site->index, (int64_t)(offset - 2 * site->index)};
  if (site->base == BASE_ARGUMENT)
    return (Location){BASE_ARGUMENT, site->index, pointer - (char *)this_core->threadgroup_arguments[site->index]};
  return offset < AREA_BYTES ? location_in_area(offset) : nearest_memory(address);
}

static Report *report_access(uint32_t check, const Site *site, char *pointer, uint32_t other_place) {
  Location where = location_of(site, pointer);
  Report *made = report(check, site->place, other_place, where.base, where.index);
  if (!made || made->count > 1) return made;
  made->offset = where.offset;
  made->access = site->access;
  made->bytes = site->bytes;
  return made;
}

/* ------------------------------------------------------------------------------------------------------- shadow memory */

static void *shadow_allocate(size_t bytes) {
  if (!checks.chunk || checks.chunk_used + bytes > CHUNK_BYTES) {
    Chunk *next = checks.chunk ? checks.chunk->next : checks.chunks;
    if (!next) {
      next = malloc(sizeof *next);
      if (!next) return NULL;
      next->next = NULL;
      if (checks.chunk)
        checks.chunk->next = next;
      else
        checks.chunks = next;
    }
    checks.chunk = next;
    checks.chunk_used = 0;
  }
  void *result = checks.chunk->bytes + checks.chunk_used;
  checks.chunk_used += bytes;
  return memset(result, 0, bytes);
}

/* The block's cells, none larger than 1 << shift bytes: a larger one is split into equal copies. */
static Cell *block_cells(Block *block, uint32_t shift) {
  if (block->cells && block->shift <= shift) return block->cells;
  Cell *cells = shadow_allocate((BLOCK_BYTES >> shift) * sizeof *cells);
  if (!cells) return NULL;
  for (uint32_t i = 0; block->cells && i < BLOCK_BYTES >> shift; i++) cells[i] = block->cells[i >> (block->shift - shift)];
  block->cells = cells;
  block->shift = shift;
  return cells;
}

/* How far apart two accesses are: 0: ordered, 1: other lane, 2: other simdgroup, 3: other threadgroup. */
static uint32_t distance(const Access *a, const Access *b) {
  if (a->stamp != b->stamp) return 3;
  if (a->threadgroup_epoch != b->threadgroup_epoch) return 0;
  uint32_t difference = (a->site_and_thread ^ b->site_and_thread) & (MAX_THREADS - 1);
  if (difference >= SIMD_WIDTH) return 2;
  return difference && a->simdgroup_epoch == b->simdgroup_epoch;
}

/* Keeps the latest access and the one farthest from it: some thread that is unordered with a later access is then kept. */
static void remember(Access slots[2], const Access *access) {
  uint32_t apart = slots[0].stamp ? distance(&slots[0], access) : 0;
  if (apart && (!slots[1].stamp || distance(&slots[1], access) <= apart)) slots[1] = slots[0];
  slots[0] = *access;
}

static int group_is_fenced(uint32_t stamp) { return checks.fenced_groups && checks.fenced_groups[stamp - 1]; }

static int is_unordered(const Access *earlier, const Access *now, int in_threadgroup) {
  if (!earlier->stamp || (in_threadgroup && earlier->stamp != now->stamp)) return 0;
  uint32_t apart = distance(earlier, now);
  if (!apart) return 0;
  if (apart == 3) return !(group_is_fenced(earlier->stamp) && group_is_fenced(now->stamp));
  return !(checks.thread[earlier->site_and_thread & (MAX_THREADS - 1)].fenced &&
           checks.thread[now->site_and_thread & (MAX_THREADS - 1)].fenced);
}

/* The earlier access that races with this one, or NULL. Two atomic accesses never race. */
static const Access *cell_conflict(const Cell *cell, const Access *now, uint32_t access, int in_threadgroup) {
  if (is_unordered(&cell->write, now, in_threadgroup)) return &cell->write;
  if (!(access & ACCESS_ATOMIC))
    for (uint32_t i = 0; i < 2; i++)
      if (is_unordered(&cell->atomics[i], now, in_threadgroup)) return &cell->atomics[i];
  if (!(access & ACCESS_WRITE)) return NULL;
  for (uint32_t i = 0; i < 2; i++) {
    if (!is_unordered(&cell->reads[i], now, in_threadgroup)) continue;
    if (access & checks.sites[cell->reads[i].site_and_thread >> THREAD_BITS].access & ACCESS_ATOMIC) continue;
    return &cell->reads[i];
  }
  return NULL;
}

static void cell_record(Cell *cell, const Access *now, uint32_t access) {
  if (!(access & ACCESS_WRITE))
    remember(cell->reads, now);
  else if (access & ACCESS_ATOMIC)
    remember(cell->atomics, now);
  else
    cell->write = *now;
}

/* ------------------------------------------------------------------------------------------------------- races */

/* A store that raced with another store is harmless in practice where both wrote the same: seen once it has happened. */
static void settle_pending(void) {
  if (!checks.pending.at) return;
  if (memcmp(checks.pending.at, checks.pending.old, checks.pending.bytes))
    checks.reports[checks.pending.report].same_value = 0;
  checks.pending.at = NULL;
}

static void report_race(const Site *site, char *pointer, const Access *earlier) {
  const Site *other = &checks.sites[earlier->site_and_thread >> THREAD_BITS];
  Report *made = report_access(CHECK_RACES, site, pointer, other->place);
  if (!made) return;
  int two_stores = site->access == ACCESS_WRITE && other->access == ACCESS_WRITE;
  if (made->count == 1) {
    made->other_access = other->access;
    made->other = thread_name(earlier->stamp, earlier->site_and_thread & (MAX_THREADS - 1));
    made->same_value = two_stores;
  }
  if (!two_stores || !made->same_value || site->bytes > BLOCK_BYTES) {
    made->same_value = 0;
    return;
  }
  checks.pending.at = pointer;
  checks.pending.bytes = site->bytes;
  checks.pending.report = (uint32_t)(made - checks.reports);
  memcpy(checks.pending.old, pointer, site->bytes);
}

static void check_races(Region *region, const Site *site, char *pointer, int memory) {
  uint64_t address = (uint64_t)pointer, end = address + site->bytes, low = address | site->bytes;
  uint32_t shift = low & 1 ? 0 : low & 2 ? 1 : 2, thread = current_thread();
  const ThreadChecks *state = &checks.thread[thread];
  Access now = {checks.stamp, (uint32_t)(site - checks.sites) << THREAD_BITS | thread, state->threadgroup_epoch[memory],
                state->simdgroup_epoch[memory]};
  const Access *first = NULL;
  Access earlier;
  while (address < end) {
    Block *block = &region->blocks[(address - region->begin) / BLOCK_BYTES];
    uint64_t block_end = (address & ~(uint64_t)(BLOCK_BYTES - 1)) + BLOCK_BYTES, stop = end < block_end ? end : block_end;
    Cell *cells = block_cells(block, shift);
    if (!cells) return;
    uint32_t last = (uint32_t)((stop - 1) % BLOCK_BYTES) >> block->shift;
    for (uint32_t i = (uint32_t)(address % BLOCK_BYTES) >> block->shift; i <= last; i++) {
      const Access *conflict = first ? NULL : cell_conflict(&cells[i], &now, site->access, memory);
      if (conflict) earlier = *conflict, first = &earlier;
      cell_record(&cells[i], &now, site->access);
    }
    address = stop;
  }
  if (first) report_race(site, pointer, first);
}

static Region *region_of(uint64_t address, uint32_t bytes) {
  for (uint32_t i = 0; i < checks.region_count; i++)
    if (address >= checks.regions[i].begin && address + bytes <= checks.regions[i].end) return &checks.regions[i];
  return NULL;
}

/* ------------------------------------------------------------------------------------------------------- accesses */

/* Where a forbidden access goes instead: it reads zeros there, and what it writes is lost. */
static char *instead(const Site *site, char *pointer) {
  if (site->bytes > SCRATCH_BYTES) return pointer;
  memset(check_scratch, 0, site->bytes);
  return check_scratch;
}

static int is_written(uint64_t byte) { return checks.written[byte / 8] >> byte % 8 & 1; }

/* Bytes that nobody writes are no mistake in the gaps of a copied structure and in the fourth component that a 3-vector has
 * in memory: what is missing there is not all of it, or exactly the last quarter. */
static void check_initialised(const Site *site, uint64_t offset) {
  uint64_t end = offset + site->bytes, last_quarter = end - site->bytes / 4;
  uint32_t missing = 0, missing_in_quarter = 0;
  for (uint64_t byte = offset; byte < end; byte++) {
    if (is_written(byte)) continue;
    missing++;
    missing_in_quarter += byte >= last_quarter;
    checks.written[byte / 8] |= (uint8_t)(1 << byte % 8);
  }
  if (!missing || !(site->access & ACCESS_READ)) return;
  if (site->bytes > 16 ? missing < site->bytes : missing == missing_in_quarter && missing * 4 == site->bytes) return;
  report_access(CHECK_UNINITIALISED, site, checks.area + offset, 0);
}

static void *check_threadgroup_access(const Site *site, char *pointer) {
  Location where = location_of(site, pointer);
  int64_t room = 0;
  if (site->base == BASE_VARIABLE)
    room = site->base_bytes;
  else if (where.base == BASE_VARIABLE)
    room = checks.variable_bytes[where.index / 16];
  else if (where.index < checks.argument_count)
    room = checks.argument_lengths[where.index];
  if (where.offset < 0 || where.offset + site->bytes > room) {
    if (checks.active & CHECK_BOUNDS) report_access(CHECK_BOUNDS, site, pointer, 0);
    return instead(site, pointer);
  }
  if ((checks.active & CHECK_ALIGNMENT) && ((uint64_t)pointer & (site->align - 1)))
    report_access(CHECK_ALIGNMENT, site, pointer, 0);
  if (checks.active & CHECK_UNINITIALISED) check_initialised(site, (uint64_t)(pointer - checks.area));
  if (checks.active & CHECK_RACES) check_races(&checks.threadgroup, site, pointer, 1);
  return pointer;
}

static int is_inside(Extent extent, uint64_t address, uint32_t bytes) {
  return address >= extent.begin && address + bytes <= extent.end;
}

static int is_allowed(const Site *site, uint64_t address) {
  if (site->base == BASE_BUFFER) return is_inside(checks.extents[site->index], address, site->bytes);
  for (uint32_t i = 0; i < checks.buffer_count; i++)
    if (is_inside(checks.extents[i], address, site->bytes)) return 1;
  for (uint32_t i = 0; i < checks.other_count; i++)
    if (is_inside(checks.others[i], address, site->bytes)) return 1;
  return 0;
}

/* Memory that is neither device nor threadgroup memory: this thread's stack, the library's constants, the core. */
static int is_private(const Site *site, uint64_t address) {
  uint64_t here = (uint64_t)__builtin_frame_address(0);
  if (site->base == BASE_BUFFER) return 0;
  if (address - here + STACK_BYTES < 2 * STACK_BYTES) return 1;
  if (address - checks.image[0] < checks.image[1] - checks.image[0]) return 1;
  return address - (uint64_t)this_core < sizeof(Core);
}

static void *check_device_access(const Site *site, char *pointer) {
  uint64_t address = (uint64_t)pointer;
  if (!is_allowed(site, address)) {
    if (is_private(site, address)) return pointer;
    if (checks.active & CHECK_BOUNDS) report_access(CHECK_BOUNDS, site, pointer, 0);
    return instead(site, pointer);
  }
  if (address & (site->align - 1)) {
    if (checks.active & CHECK_ALIGNMENT) report_access(CHECK_ALIGNMENT, site, pointer, 0);
    if (site->access & ACCESS_ATOMIC) return instead(site, pointer);
  }
  if (checks.active & CHECK_RACES) {
    Region *region = region_of(address, site->bytes);
    if (region) check_races(region, site, pointer, 0);
  }
  return pointer;
}

static void *check_access(char *pointer, uint32_t number) {
  const Site *site = &checks.sites[number];
  settle_pending();
  uint64_t offset = (uint64_t)(pointer - checks.area);
  if (site->base >= BASE_ARGUMENT || (site->base == BASE_UNKNOWN && offset < AREA_BYTES))
    return check_threadgroup_access(site, pointer);
  return check_device_access(site, pointer);
}

/* One name for each address space: a symbol has one type in LLVM's text. */
EXPORT void *msl_check_access_1(char *pointer, uint32_t site) { return check_access(pointer, site); }
EXPORT void *msl_check_access_3(char *pointer, uint32_t site) { return check_access(pointer, site); }
EXPORT void *msl_check_access_4(char *pointer, uint32_t site) { return check_access(pointer, site); }
EXPORT void *msl_check_access_5(char *pointer, uint32_t site) { return check_access(pointer, site); }

/* These mark in the text what a pointer was made from. */
EXPORT void *msl_check_buffer(void *address, uint32_t index) {
  (void)index;
  return address;
}
EXPORT void *msl_check_threadgroup_argument(void *address, uint32_t index) {
  (void)index;
  return address;
}
EXPORT char *msl_check_variable(char *block, const char *name, uint64_t offset, uint64_t bytes) {
  (void)name;
  checks.variable_bytes[offset / 16] = (uint32_t)bytes;
  return block + 2 * offset;
}
