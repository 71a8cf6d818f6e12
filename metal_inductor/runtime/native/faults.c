/* Faults of kernels: a bad pointer, a stack that overflows, a deadly instruction end the dispatch, not the process.
 *
 * A kernel runs on stacks of its own, and the OS thread waits in a saved context, core->home. The signal handler, on a
 * stack of its own as well, leaves for that context as if the kernel had come to its end: nothing of the kernel runs again.
 * It does so only where a kernel runs on this OS thread; every other fault goes to the handler that was there before. */

enum { HANDLER_STACK_BYTES = 64 * 1024, LOOP_STACK_BYTES = 8 << 20, FAULT_SIGNALS = 5 };
static const int fault_signals[FAULT_SIGNALS] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP};
static SignalAction previous_actions[FAULT_SIGNALS];

/* The core whose kernel runs on this OS thread. */
static THREAD_LOCAL Core *guarded_core;

/* What would have happened without this runtime. */
static void fault_pass_on(int signal, SignalInfo *info, void *context) {
  uint32_t i = 0;
  while (fault_signals[i] != signal) i++;
  const SignalAction *previous = &previous_actions[i];
  if (previous->handler == SIG_DFL || previous->handler == SIG_IGN) {
    SignalAction standard;
    memset(&standard, 0, sizeof standard);
    sigaction(signal, &standard, NULL);
    if (info->code <= 0) raise(signal); /* sent by a program; a fault happens again by itself */
  } else {
    ((void (*)(int, SignalInfo *, void *))previous->handler)(signal, info, context); /* more arguments than some take */
  }
}

static void fault_handler(int signal, SignalInfo *info, void *context) {
  Core *core = guarded_core;
  if (!core || !core->home || info->code == SI_USER) {
    fault_pass_on(signal, info, context);
    return;
  }
  if (signal == SIGFPE && division_complete(context)) return;
  guarded_core = NULL;
  core->fault_signal = (uint32_t)signal;
  core->fault_address = info->code == SI_KERNEL ? ~0ul : (uint64_t)info->address; /* x86 keeps addresses beyond 48 bits secret */
  msl_leave(core->home, NULL);
}

/* Signals stay unmasked in the handler, because in general it does not return. */
static void faults_install(void) {
  static int installed;
  if (installed) return;
  installed = 1;
  for (uint32_t i = 0; i < FAULT_SIGNALS; i++) {
    SignalAction action;
    memset(&action, 0, sizeof action);
    action.handler = (void *)fault_handler;
    action.flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    sigaction(fault_signals[i], &action, &previous_actions[i]);
  }
}

/* To be called by each OS thread that runs kernels. Without memory for the handler an overflowing stack ends the process. */
static void faults_prepare_thread(void) {
  SignalStack stack;
  memset(&stack, 0, sizeof stack);
  stack.bytes = HANDLER_STACK_BYTES;
  stack.base = mmap(NULL, HANDLER_STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (stack.base != (void *)-1) sigaltstack(&stack, NULL);
}

/* The stack of loops over threads, above a page that faults; NULL without memory. */
static char *core_loop_stack(Core *core) {
  if (!core->loop_stack) {
    char *stack = mmap(NULL, PAGE_BYTES + LOOP_STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stack == (char *)-1) return NULL;
    mprotect(stack, PAGE_BYTES, PROT_NONE);
    core->loop_stack = stack + PAGE_BYTES + LOOP_STACK_BYTES;
  }
  return core->loop_stack;
}

static int is_in_guard(uint64_t address, const char *lowest) {
  return address >= (uint64_t)lowest && address < (uint64_t)lowest + PAGE_BYTES;
}

/* Whether the address lies under a stack, which a thread with too many private variables runs into. */
static int core_has_guard_at(const Core *core, uint64_t address) {
  if (core->loop_stack && is_in_guard(address, core->loop_stack - LOOP_STACK_BYTES - PAGE_BYTES)) return 1;
  for (uint32_t i = 0; i < core->stack_count; i++)
    if (is_in_guard(address, core->stacks[i] + (i % STACK_COLOURS) * COLOUR_BYTES - STACK_STRIDE)) return 1;
  return 0;
}

/* What the kernel did, for a message. */
static void fault_describe(const Core *core, int is_loop, char *text, size_t bytes) {
  uint64_t address = core->fault_address;
  if (core->fault_signal == SIGFPE)
    snprintf(text, bytes, "an integer division by zero, or whose result has no representation");
  else if (core->fault_signal == SIGILL || core->fault_signal == SIGTRAP)
    snprintf(text, bytes, "it reached code that the compiler took for unreachable, as after a loop without end");
  else if (core_has_guard_at(core, address))
    snprintf(text, bytes, "a thread's private variables need more than the %u KB of stack that it has", (is_loop ? LOOP_STACK_BYTES : STACK_BYTES) / 1024);
  else if (address == ~0ul)
    snprintf(text, bytes, "access to an address that no memory can have; METAL_INDUCTOR_CHECKS=bounds finds the line");
  else
    snprintf(text, bytes, "access to address 0x%lx, where the process has no memory, or none that may be written; METAL_INDUCTOR_CHECKS=bounds finds the line", address);
}
