/* A program that runs kernels on request, to test the runtime on a machine that Python does not run on.
 *
 * Compiled behind the runtime's own text. `kernels.h`, which the test writes before it, defines KERNELS(K) as
 * K(symbol, has_loop, threadgroup_bytes) for each kernel. Standard input: uint32 cores, uint64 seed, then for each run
 * uint32 kernel, uint32 threads[3], uint32 group[3], uint32 buffers and for each buffer uint64 bytes and its content.
 * Standard output: for each run uint32 failed, char error[512] and the buffers' content. */

long read(int file, void *to, size_t bytes);
long write(int file, const void *from, size_t bytes);
_Noreturn void _exit(int status);

#define DECLARE(symbol, has_loop, bytes) \
  FiberEntry msl_fiber_##symbol;         \
  __attribute__((weak)) LoopEntry msl_loop_##symbol;
KERNELS(DECLARE)

/* Keeps a value of the thread's own in every register that a call preserves while the threadgroup meets 50 times, and
 * writes them: x19 to x28, then d8 to d15. Thread i has 1000 i, 1000 i + 1, ...; each round adds 1 to all of them. */
static void thread_in_registers(void *const *buffers, char *memory, void *const *arguments) {
  uint64_t index = msl_self()->thread_index_in_threadgroup;
  uint64_t *out = (uint64_t *)buffers[0] + 18 * index;
  __asm__ volatile(
      "  stp %[out], x29, [sp, #-32]!\n"
      "  mov x19, %[first]\n  add x20, x19, #1\n  add x21, x19, #2\n  add x22, x19, #3\n  add x23, x19, #4\n"
      "  add x24, x19, #5\n  add x25, x19, #6\n  add x26, x19, #7\n  add x27, x19, #8\n  add x28, x19, #9\n"
      "  add x9, x19, #10\n  fmov d8, x9\n  add x9, x19, #11\n  fmov d9, x9\n  add x9, x19, #12\n  fmov d10, x9\n"
      "  add x9, x19, #13\n  fmov d11, x9\n  add x9, x19, #14\n  fmov d12, x9\n  add x9, x19, #15\n  fmov d13, x9\n"
      "  add x9, x19, #16\n  fmov d14, x9\n  add x9, x19, #17\n  fmov d15, x9\n"
      "  mov x9, #50\n"
      "1:\n"
      "  str x9, [sp, #16]\n"
      "  bl msl_threadgroup_barrier\n"
      "  mov x0, x19\n  mov w1, #0\n"
      "  bl msl_simd_exchange\n"
      "  add x19, x19, #1\n  add x20, x20, #1\n  add x21, x21, #1\n  add x22, x22, #1\n  add x23, x23, #1\n"
      "  add x24, x24, #1\n  add x25, x25, #1\n  add x26, x26, #1\n  add x27, x27, #1\n  add x28, x28, #1\n"
      "  mov x9, #1\n  fmov d0, x9\n"
      "  add d8, d8, d0\n  add d9, d9, d0\n  add d10, d10, d0\n  add d11, d11, d0\n"
      "  add d12, d12, d0\n  add d13, d13, d0\n  add d14, d14, d0\n  add d15, d15, d0\n"
      "  ldr x9, [sp, #16]\n  subs x9, x9, #1\n  b.ne 1b\n"
      "  ldp x9, x10, [sp], #32\n"
      "  cmp x10, x29\n  csel x19, x19, xzr, eq\n" /* the frame pointer is preserved too */
      "  stp x19, x20, [x9, #0]\n  stp x21, x22, [x9, #16]\n  stp x23, x24, [x9, #32]\n  stp x25, x26, [x9, #48]\n"
      "  stp x27, x28, [x9, #64]\n  stp d8, d9, [x9, #80]\n  stp d10, d11, [x9, #96]\n  stp d12, d13, [x9, #112]\n"
      "  stp d14, d15, [x9, #128]\n"
      :
      : [first] "r"(1000 * index), [out] "r"(out)
      : "x0", "x1", "x2", "x3", "x4", "x5", "x6", "x7", "x8", "x9", "x10", "x11", "x12", "x13", "x14", "x15", "x16",
        "x17", "x19", "x20", "x21", "x22", "x23", "x24", "x25", "x26", "x27", "x28", "x30", "v0", "v1", "v2", "v3", "v4",
        "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13", "v14", "v15", "v16", "v17", "v18", "v19", "v20", "v21",
        "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29", "v30", "v31", "cc", "memory");
}

static int receive(void *to, size_t bytes) {
  for (size_t got = 0; got < bytes;) {
    long count = read(0, (char *)to + got, bytes - got);
    if (count <= 0) return 0;
    got += (size_t)count;
  }
  return 1;
}

static void send(const void *from, size_t bytes) {
  for (size_t sent = 0; sent < bytes;) {
    long count = write(1, (const char *)from + sent, bytes - sent);
    if (count <= 0) _exit(1);
    sent += (size_t)count;
  }
}

int main(void) {
  Kernel *kernels[] = {
#define CREATE(symbol, has_loop, bytes) \
  msl_kernel_create(#symbol, msl_fiber_##symbol, has_loop ? msl_loop_##symbol : NULL, !(has_loop), bytes),
      KERNELS(CREATE) msl_kernel_create("registers", thread_in_registers, NULL, 1, 0),
  };
  uint32_t cores, request[8];
  uint64_t seed;
  if (!receive(&cores, sizeof cores) || !receive(&seed, sizeof seed)) return 1;
  msl_initialise();
  msl_configure(cores, seed);
  while (receive(request, sizeof request)) {
    uint64_t pointers[MAX_BUFFERS], bytes[MAX_BUFFERS];
    for (uint32_t i = 0; i < request[7]; i++) {
      if (!receive(&bytes[i], sizeof bytes[i])) return 1;
      pointers[i] = (uint64_t)malloc(bytes[i]);
      if (!receive((void *)pointers[i], bytes[i])) return 1;
    }
    char error[512];
    RunOptions options;
    memset(error, 0, sizeof error);
    memset(&options, 0, sizeof options);
    uint32_t failed = (uint32_t)msl_run(kernels[request[0]], request + 1, pointers, request[7], &options, error);
    send(&failed, sizeof failed);
    send(error, sizeof error);
    for (uint32_t i = 0; i < request[7]; i++) {
      send((void *)pointers[i], bytes[i]);
      free((void *)pointers[i]);
    }
  }
  return 0;
}
