/* A clock that tells how often it was read. Preloaded into a process whose instructions are counted: what was executed
 * since the last read is cut off before each call of opscope_clock_read, by Callgrind or by the word that marks it in
 * QEMU's log. So the times in a trace are numbers of reads, and what happened between two of them is known to the
 * instruction. A read is one millisecond, since XNNPACK keeps whole microseconds. */
#define _GNU_SOURCE
#include <time.h>

static long long reads;

__attribute__((noinline)) long long opscope_clock_read(void) {
#ifdef __aarch64__
  __asm__ volatile("hint #127"); /* does nothing, and stands nowhere else */
#endif
  return reads++;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
  (void)clock;
  const long long milliseconds = opscope_clock_read();
  now->tv_sec = milliseconds / 1000;
  now->tv_nsec = milliseconds % 1000 * 1000000;
  return 0;
}
