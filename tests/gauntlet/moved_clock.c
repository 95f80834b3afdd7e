/* Preloaded into redis-server: adds to its wall clock the nanoseconds that the file $MOVED_CLOCK
   holds, which another process may change at any time. Monotonic clocks stay as they are. It calls
   the kernel by itself, because looking up the functions that it replaces would allocate memory
   before the server's allocator is ready. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *offset;

__attribute__((constructor)) static void map_offset(void) {
  int file = open(getenv("MOVED_CLOCK"), O_RDONLY);
  offset = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
  if (file < 0 || offset == MAP_FAILED) _exit(1);
  close(file);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
  long failed = syscall(SYS_clock_gettime, clock, now);
  if (failed || !offset || (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE)) return (int)failed;
  int64_t moved = now->tv_sec * INT64_C(1000000000) + now->tv_nsec + *offset;
  now->tv_sec = moved / INT64_C(1000000000);
  now->tv_nsec = moved % INT64_C(1000000000);
  return 0;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  (void)zone;
  struct timespec moved;
  clock_gettime(CLOCK_REALTIME, &moved);
  now->tv_sec = moved.tv_sec;
  now->tv_usec = moved.tv_nsec / 1000;
  return 0;
}

time_t time(time_t *seconds) {
  struct timespec moved;
  clock_gettime(CLOCK_REALTIME, &moved);
  if (seconds) *seconds = moved.tv_sec;
  return moved.tv_sec;
}
