/* A wall clock that the suite moves while a process runs. Preloaded into the process (LD_PRELOAD), it adds an offset to the system's
 * wall clock and to what the C library derives from it. Every other clock stays as it is.
 *
 * The offset, in nanoseconds, is the first eight bytes of the file that LEASE_WALL_CLOCK names. Whoever may write there moves the clock.
 *
 * The kernel is asked itself: that needs no search for the functions that these stand for. Not reached is code that asks the kernel without
 * the C library, and a wait until an instant of the wall clock still ends by the real one. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

_Static_assert(sizeof(time_t) == 8 && sizeof(long) == 8, "the kernel's time must be that of the C library");

static const int64_t BILLION = 1000000000;

/* NULL until the file is open, and where there is none: then the clock is the real one. */
static const int64_t *offset_ns;

__attribute__((constructor)) static void open_offset(void) {
    const char *path = getenv("LEASE_WALL_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *page = mmap(NULL, sizeof *offset_ns, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (page != MAP_FAILED) offset_ns = page;
}

static void move(struct timespec *now) {
    if (!offset_ns) return;
    int64_t ahead = __atomic_load_n(offset_ns, __ATOMIC_RELAXED);
    int64_t seconds = ahead / BILLION, nanos = now->tv_nsec + ahead % BILLION;
    if (nanos < 0) { nanos += BILLION; seconds -= 1; }
    if (nanos >= BILLION) { nanos -= BILLION; seconds += 1; }
    now->tv_sec += seconds;
    now->tv_nsec = nanos;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = (int)syscall(SYS_clock_gettime, clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE || clock == CLOCK_TAI)) move(now);
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec precise;
    if (zone) memset(zone, 0, sizeof(struct timezone));
    if (clock_gettime(CLOCK_REALTIME, &precise)) return -1;
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *now) {
    struct timespec precise;
    time_t seconds = clock_gettime(CLOCK_REALTIME, &precise) ? (time_t)-1 : precise.tv_sec;
    if (now) *now = seconds;
    return seconds;
}
