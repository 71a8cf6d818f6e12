/* Integer divisions that have no result: by zero, and of the smallest number by -1.
 *
 * On a GPU they give some value and no exception, and kernels rely on it where a lane's result is not used. x86 traps.
 * Here the handler completes the instruction: the quotient is the dividend's low half, the remainder zero. For the
 * smallest number by -1 that is what wraps; x / 0 is x and x % 0 is 0. ARM's divisions do not trap, x / 0 is 0 there. */

#if defined(__x86_64__) && defined(__linux__)
/* Where the kernel and each libc keep registers, in words from the beginning of the context. */
enum { CONTEXT_RDX = 17, CONTEXT_RAX = 18, CONTEXT_RIP = 21 };

/* Bytes of the operand that follows an opcode: ModRM, SIB, displacement. */
static uint32_t operand_bytes(const uint8_t *modrm) {
  uint32_t mode = modrm[0] >> 6, base = modrm[0] & 7, bytes = 1;
  if (mode == 3) return bytes;
  if (base == 4) {
    bytes++;
    base = modrm[1] & 7;
    return bytes + (mode == 1 ? 1 : mode == 2 || base == 5 ? 4 : 0);
  }
  return bytes + (mode == 1 ? 1 : mode == 2 || base == 5 ? 4 : 0);
}

/* Completes a division that trapped; 0 where something else did. */
static int division_complete(void *context) {
  uint64_t *words = context;
  const uint8_t *code = (const uint8_t *)words[CONTEXT_RIP];
  while (*code == 0x66 || *code == 0x2e || *code == 0x3e || *code == 0x64 || *code == 0x65) code++;
  if ((*code & 0xf0) == 0x40) code++;
  if ((*code != 0xf6 && *code != 0xf7) || (code[1] & 0x30) != 0x30) return 0;
  if (*code == 0xf6) words[CONTEXT_RAX] &= ~0xff00ull;
  else words[CONTEXT_RDX] = 0;
  words[CONTEXT_RIP] = (uint64_t)(code + 1 + operand_bytes(code + 1));
  return 1;
}
#else
static int division_complete(void *context) {
  (void)context;
  return 0;
}
#endif
