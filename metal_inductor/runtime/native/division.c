/* Integer divisions that have no result: by zero, and of the smallest number by -1.
 *
 * On a GPU they give some value and no exception, and kernels rely on it where a lane's result is not used. x86 traps.
 * Here the handler completes the instruction: x / 0 is 0 and x % 0 is x, as on ARM, whose divisions do not trap; the
 * smallest number by -1 is itself, as sums wrap. */

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

/* Quotient and remainder of `bytes` bytes; what lies above 16-bit results stays. */
static void put_results(uint64_t *words, uint32_t bytes, uint64_t quotient, uint64_t remainder) {
  uint64_t kept = bytes == 2 ? ~0xffffull : 0;
  words[CONTEXT_RAX] = (words[CONTEXT_RAX] & kept) | quotient;
  words[CONTEXT_RDX] = (words[CONTEXT_RDX] & kept) | remainder;
}

/* Completes a division that trapped; 0 where something else did. */
static int division_complete(void *context) {
  uint64_t *words = context;
  const uint8_t *code = (const uint8_t *)words[CONTEXT_RIP];
  uint32_t bytes = 4;
  for (; *code == 0x66 || *code == 0x2e || *code == 0x3e || *code == 0x64 || *code == 0x65; code++)
    if (*code == 0x66) bytes = 2;
  if ((*code & 0xf0) == 0x40 && (*code++ & 8)) bytes = 8;
  if ((*code != 0xf6 && *code != 0xf7) || (code[1] & 0x30) != 0x30) return 0;
  uint64_t mask = bytes == 8 ? ~0ull : (1ull << 8 * bytes) - 1, dividend = words[CONTEXT_RAX] & mask;
  int is_signed = (code[1] & 8) != 0;
  if (*code == 0xf6) words[CONTEXT_RAX] = (words[CONTEXT_RAX] & ~0xffffull) | (words[CONTEXT_RAX] & 0xff) << 8;
  else if (is_signed && dividend == mask / 2 + 1) put_results(words, bytes, dividend, 0);
  else put_results(words, bytes, 0, dividend);
  words[CONTEXT_RIP] = (uint64_t)(code + 1 + operand_bytes(code + 1));
  return 1;
}
#else
static int division_complete(void *context) {
  (void)context;
  return 0;
}
#endif
