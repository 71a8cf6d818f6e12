/* Context switch between stacks: saves the callee-saved registers, nothing else.
 *
 * No system call and no signal mask, unlike swapcontext. The floating-point control words are not saved: kernels never
 * change them.
 *
 * A function that ends in a call of one of these becomes a jump to it. Then the processor foresees where `ret` leads: lanes
 * come back to the place in the kernel that the last one left from. */

/* Saves this context and continues the other one, whose own call returns `result`. */
void *msl_switch(void **save_stack_pointer, void *to_stack_pointer, void *result);
/* Saves this context and enters `body` on an empty stack with this 16-byte aligned end; `body` must not return. */
void *msl_start(void **save_stack_pointer, void *stack_top, void (*body)(void));
/* Continues the other context; this one is lost. Declared as a function that returns, for the sake of the jump. */
void msl_leave(void *to_stack_pointer, void *result);

#ifdef __APPLE__
#define ASM_NAME(name) "_" #name
#else
#define ASM_NAME(name) #name
#endif
#define ASM_FUNCTION(name) ".p2align 4\n" ASM_NAME(name) ":\n"

#if defined(__x86_64__)
#define SAVE_CONTEXT \
  "  pushq %rbp\n  pushq %rbx\n  pushq %r12\n  pushq %r13\n  pushq %r14\n  pushq %r15\n" \
  "  movq %rsp, (%rdi)\n"
#define RESTORE_CONTEXT "  popq %r15\n  popq %r14\n  popq %r13\n  popq %r12\n  popq %rbx\n  popq %rbp\n  ret\n"
__asm__(".text\n"
        ASM_FUNCTION(msl_switch) SAVE_CONTEXT "  movq %rsi, %rsp\n  movq %rdx, %rax\n" RESTORE_CONTEXT
        ASM_FUNCTION(msl_start) SAVE_CONTEXT "  movq %rsi, %rsp\n  pushq $0\n  jmpq *%rdx\n"
        ASM_FUNCTION(msl_leave) "  movq %rdi, %rsp\n  movq %rsi, %rax\n" RESTORE_CONTEXT);
#elif defined(__aarch64__)
#define SAVE_CONTEXT \
  "  sub sp, sp, #160\n" \
  "  stp x19, x20, [sp, #0]\n  stp x21, x22, [sp, #16]\n  stp x23, x24, [sp, #32]\n" \
  "  stp x25, x26, [sp, #48]\n  stp x27, x28, [sp, #64]\n  stp x29, x30, [sp, #80]\n" \
  "  stp d8, d9, [sp, #96]\n  stp d10, d11, [sp, #112]\n  stp d12, d13, [sp, #128]\n  stp d14, d15, [sp, #144]\n" \
  "  mov x9, sp\n  str x9, [x0]\n"
#define RESTORE_CONTEXT \
  "  ldp x19, x20, [sp, #0]\n  ldp x21, x22, [sp, #16]\n  ldp x23, x24, [sp, #32]\n" \
  "  ldp x25, x26, [sp, #48]\n  ldp x27, x28, [sp, #64]\n  ldp x29, x30, [sp, #80]\n" \
  "  ldp d8, d9, [sp, #96]\n  ldp d10, d11, [sp, #112]\n  ldp d12, d13, [sp, #128]\n  ldp d14, d15, [sp, #144]\n" \
  "  add sp, sp, #160\n  ret\n"
__asm__(".text\n"
        ASM_FUNCTION(msl_switch) SAVE_CONTEXT "  mov sp, x1\n  mov x0, x2\n" RESTORE_CONTEXT
        ASM_FUNCTION(msl_start) SAVE_CONTEXT "  mov sp, x1\n  mov x29, #0\n  mov x30, #0\n  br x2\n"
        ASM_FUNCTION(msl_leave) "  mov sp, x0\n  mov x0, x1\n" RESTORE_CONTEXT);
#else
#error "the CPU runtime knows x86-64 and aarch64"
#endif
