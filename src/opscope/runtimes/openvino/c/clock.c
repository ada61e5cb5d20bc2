/* Gives OpenVINO's performance counters nanoseconds, where they would keep whole microseconds.
 *
 * The CPU plugin reads std::chrono::system_clock around each node and keeps the difference in microseconds. A process
 * that loads this library first, for all to see, finds this clock in its place: it runs a thousand times as fast. */

#include <stdint.h>
#include <time.h>

static int64_t first, asked;

/* std::chrono::system_clock::now() of libstdc++, which counts nanoseconds. */
int64_t _ZNSt6chrono3_V212system_clock3nowEv(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  const int64_t ns = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
  if (__atomic_add_fetch(&asked, 1, __ATOMIC_RELAXED) == 1) first = ns;
  return (ns - first) * 1000;
}

/* How often it was read. */
int64_t opscope_asked(void) { return __atomic_load_n(&asked, __ATOMIC_RELAXED); }
