/* Kernels written by hand against the interface of translated Metal, to test the runtime without the front-end. */

typedef unsigned int uint;
typedef unsigned long ulong;
typedef struct {
  uint grid_position[3], group_position[3], position_in_group[3], group_size[3], dispatch_group_size[3], groups[3], grid[3];
  uint lane, simdgroup, simdgroups, index_in_group;
} MslThread;
typedef struct { ulong value[32]; uint mask, combined; ulong more[32][2]; } MslExchange;

#define CONVERGENT __attribute__((convergent, nomerge))
MslThread *msl_self(void);
MslExchange *msl_simd_exchange(ulong bits, uint op_site) CONVERGENT;
MslExchange *msl_simd_exchange_wide(ulong first, ulong second, ulong third) CONVERGENT;
void msl_threadgroup_barrier(void) CONVERGENT;
void msl_simdgroup_barrier(void) CONVERGENT;

#define EXPORT __attribute__((visibility("default")))
#define KERNEL(name) EXPORT void msl_fiber_##name(void *const *buffers, char *memory, void *const *arguments)
#define INLINE static inline __attribute__((always_inline))

INLINE uint flat(const MslThread *t) {
  return t->grid_position[0] + t->grid[0] * (t->grid_position[1] + t->grid[1] * t->grid_position[2]);
}

INLINE ulong simd_sum(ulong value) {
  const MslExchange *posted = msl_simd_exchange(value, 0);
  ulong sum = 0;
  for (uint lane = 0; lane < 32; lane++) sum += posted->mask >> lane & 1 ? posted->value[lane] : 0;
  return sum;
}

/* out[i] = 2 * in[i] + 1 */
KERNEL(affine) {
  uint i = flat(msl_self());
  ((float *)buffers[1])[i] = ((const float *)buffers[0])[i] * 2 + 1;
}
EXPORT void msl_loop_affine(MslThread *t, void *const *buffers, uint begin, uint end, char *memory) {
  const float *in = buffers[0];
  float *out = buffers[1];
  uint row = t->grid[0] * (t->grid_position[1] + t->grid[1] * t->grid_position[2]);
  for (uint x = begin; x < end; x++) out[row + x] = in[row + x] * 2 + 1;
}

/* What each thread is told about itself. */
KERNEL(describe) { ((MslThread *)buffers[0])[flat(msl_self())] = *msl_self(); }

/* The same for a loop: what the runtime sets, once for each call. */
EXPORT void msl_loop_describe_rows(MslThread *t, void *const *buffers, uint begin, uint end, char *memory) {
  uint row = t->grid[0] * (t->grid_position[1] + t->grid[1] * t->grid_position[2]);
  for (uint x = begin; x < end; x++) ((MslThread *)buffers[0])[row + x] = *t;
}
KERNEL(describe_rows) {}

KERNEL(divergent) {
  MslThread *t = msl_self();
  ulong sum = t->lane & 1 ? simd_sum(1) : simd_sum(100);
  ((ulong *)buffers[0])[flat(t)] = sum;
}

/* Trip counts differ by lane; after the loop all lanes meet again. */
KERNEL(ragged_loop) {
  MslThread *t = msl_self();
  ulong sum = 0;
  for (uint i = 0; i <= t->lane; i++) sum += simd_sum(1);
  ((ulong *)buffers[0])[flat(t)] = sum + 100000 * simd_sum(1);
}

/* Three-way branch whose arms exchange different numbers of times. */
KERNEL(three_ways) {
  MslThread *t = msl_self();
  ulong sum = 0;
  if (t->lane % 3 == 0)
    sum = simd_sum(t->lane);
  else if (t->lane % 3 == 1)
    sum = simd_sum(t->lane) + 1000 * simd_sum(1);
  ((ulong *)buffers[0])[flat(t)] = sum + 100000 * simd_sum(1);
}

/* Lanes that returned take no part. */
KERNEL(early_return) {
  MslThread *t = msl_self();
  if (t->lane >= 20) return;
  ((ulong *)buffers[0])[flat(t)] = simd_sum(1);
}

KERNEL(wide) {
  MslThread *t = msl_self();
  ulong first = 3 * flat(t);
  MslExchange *posted = msl_simd_exchange_wide(first, first + 1, first + 2);
  if (!posted->combined) {
    posted->combined = 1;
    ulong sum = 0;
    for (uint lane = 0; lane < 32; lane++)
      sum += posted->mask >> lane & 1 ? posted->value[lane] + posted->more[lane][0] + posted->more[lane][1] : 0;
    for (uint lane = 0; lane < 32; lane++) posted->value[lane] = sum + lane;
  }
  ((ulong *)buffers[0])[flat(t)] = posted->value[t->lane];
}

/* Reverses each threadgroup through threadgroup memory, three times with barriers between. */
KERNEL(reverse) {
  MslThread *t = msl_self();
  float *shared = (float *)memory, value = ((const float *)buffers[0])[flat(t)];
  uint size = t->group_size[0];
  for (int round = 0; round < 3; round++) {
    shared[t->index_in_group] = value;
    msl_threadgroup_barrier();
    value = shared[size - 1 - t->index_in_group];
    msl_threadgroup_barrier();
  }
  ((float *)buffers[1])[flat(t)] = value;
}

/* The same with threadgroup arguments in the place of variables. */
KERNEL(reverse_argument) {
  MslThread *t = msl_self();
  float *shared = arguments[1];
  *(char *)arguments[0] = 1;
  shared[t->index_in_group] = ((const float *)buffers[0])[flat(t)];
  msl_threadgroup_barrier();
  ((float *)buffers[1])[flat(t)] = shared[t->group_size[0] - 1 - t->index_in_group];
}

/* A missing barrier: thread 0 writes, the others read at once. */
KERNEL(race) {
  MslThread *t = msl_self();
  uint *shared = (uint *)memory;
  if (t->index_in_group == 0) *shared = 7;
  msl_simdgroup_barrier();
  ((uint *)buffers[0])[flat(t)] = *shared;
}

KERNEL(unwritten) { ((uint *)buffers[0])[flat(msl_self())] = *(uint *)memory; }

KERNEL(deadlock) {
  if (msl_self()->index_in_group < 5) return;
  msl_threadgroup_barrier();
}

/* x = 3 x + 1 over one cell, by one thread: shows the order of dispatches. */
KERNEL(step) {
  if (msl_self()->index_in_group == 0) {
    ulong *cell = buffers[0];
    *cell = *cell * 3 + 1;
  }
}
EXPORT void msl_loop_step(MslThread *t, void *const *buffers, uint begin, uint end, char *memory) {
  ulong *cell = buffers[0];
  *cell = *cell * 3 + 1;
}

/* Keeps a thread busy for `count` rounds. */
KERNEL(busy) {
  volatile ulong rounds = *(const ulong *)buffers[0];
  while (rounds) rounds--;
  ((ulong *)buffers[1])[flat(msl_self())] += 1;
}
