/* Everything this runtime takes from the operating system, declared by hand.
 *
 * The runtime is compiled on the user's machine by a clang that ships without system headers, so no #include is possible.
 * All functions below live in libc, which the process has already loaded. Types are 64-bit (x86-64 and aarch64 only). */

typedef unsigned char uint8_t;
typedef unsigned int uint32_t;
typedef int int32_t;
typedef long int64_t;
typedef unsigned long uint64_t;
typedef unsigned long size_t;
typedef unsigned long uintptr_t;
#define NULL ((void *)0)

void *malloc(size_t bytes);
void *calloc(size_t count, size_t bytes);
void *realloc(void *block, size_t bytes);
void free(void *block);
void *memset(void *to, int value, size_t bytes);
void *memcpy(void *to, const void *from, size_t bytes);
int memcmp(const void *a, const void *b, size_t bytes);
char *strdup(const char *text);
int snprintf(char *to, size_t bytes, const char *format, ...);

void *mmap(void *address, size_t bytes, int protection, int flags, int file, long offset);
int mprotect(void *address, size_t bytes, int protection);
enum { PROT_NONE = 0, PROT_READ = 1, PROT_WRITE = 2, MAP_PRIVATE = 2 };
#ifdef __APPLE__
enum { MAP_ANONYMOUS = 0x1000, MAP_NORESERVE = 0x40, CLOCK_MONOTONIC = 6, SIG_SETMASK = 3 };
enum { SIGILL = 4, SIGTRAP = 5, SIGFPE = 8, SIGBUS = 10, SIGSEGV = 11 };
#else
enum { MAP_ANONYMOUS = 0x20, MAP_NORESERVE = 0x4000, CLOCK_MONOTONIC = 1, SIG_SETMASK = 2 };
enum { SIGILL = 4, SIGTRAP = 5, SIGBUS = 7, SIGFPE = 8, SIGSEGV = 11 };
#endif

struct timespec { long seconds, nanoseconds; };
int sched_yield(void);
int clock_gettime(int clock, struct timespec *now);

/* A handler takes one or three arguments; the flags say which. */
enum { SI_USER = 0, SI_KERNEL = 128 };
#define SIG_DFL NULL
#define SIG_IGN ((void *)1)
#ifdef __APPLE__
enum { SA_ONSTACK = 1, SA_NODEFER = 0x10, SA_SIGINFO = 0x40 };
typedef struct { void *handler; uint32_t mask; int flags; } SignalAction;
typedef struct { int signal, error, code, process; uint32_t user; int status; void *address; } SignalInfo;
typedef struct { void *base; size_t bytes; int flags; } SignalStack;
#else
enum { SA_SIGINFO = 4, SA_ONSTACK = 0x08000000, SA_NODEFER = 0x40000000 };
typedef struct { void *handler; uint64_t mask[16]; int flags; void *restorer; } SignalAction;
typedef struct { int signal, error, code, unused; void *address; } SignalInfo;
typedef struct { void *base; int flags; size_t bytes; } SignalStack;
#endif
int sigaction(int signal, const SignalAction *action, SignalAction *previous);
int sigaltstack(const SignalStack *stack, SignalStack *previous);
int raise(int signal);

/* Larger than every libc's own (glibc and musl: at most 48 bytes, Darwin: 64), always set up by the init functions. */
typedef struct { uint64_t opaque[16]; } pthread_mutex_t;
typedef struct { uint64_t opaque[16]; } pthread_cond_t;
typedef struct { uint64_t opaque[16]; } sigset_t;
typedef uintptr_t pthread_t;
int pthread_create(pthread_t *thread, const void *attributes, void *(*body)(void *), void *argument);
int pthread_detach(pthread_t thread);
int pthread_sigmask(int how, const sigset_t *set, sigset_t *old);
int pthread_mutex_init(pthread_mutex_t *mutex, const void *attributes);
int pthread_mutex_lock(pthread_mutex_t *mutex);
int pthread_mutex_unlock(pthread_mutex_t *mutex);
int pthread_cond_init(pthread_cond_t *condition, const void *attributes);
int pthread_cond_wait(pthread_cond_t *condition, pthread_mutex_t *mutex);
int pthread_cond_signal(pthread_cond_t *condition);
int pthread_cond_broadcast(pthread_cond_t *condition);

#define EXPORT __attribute__((visibility("default")))
#define INLINE static inline __attribute__((always_inline))

INLINE uint64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.seconds * 1000000000ul + (uint64_t)now.nanoseconds;
}

INLINE void cpu_relax(void) {
#ifdef __x86_64__
  __asm__ volatile("pause");
#else
  __asm__ volatile("yield");
#endif
}

/* Spins while `waiting`, at most `ns`. Now and then the core is offered to others: on a busy machine the awaited thread may
 * need the very core that spins. */
#define SPIN_WHILE(waiting, ns)                                                    \
  for (uint64_t spin_stop = now_ns() + (ns), spin_count = 0; (waiting);) {         \
    cpu_relax();                                                                   \
    if (++spin_count & 31) continue;                                               \
    if (now_ns() > spin_stop) break;                                               \
    sched_yield();                                                                 \
  }
