/* Preloaded, it sets the clock of the day of a process by as many seconds as the file CLOCK_FILE says, which may change.
   Sleeps and monotonic clocks stay as they are: libfaketime 0.9.10 breaks time.sleep of Python 3.11. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>

static int (*of_host)(clockid_t, struct timespec *);
static volatile long *set_by;

__attribute__((constructor)) static void begin(void) {
    of_host = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    set_by = mmap(NULL, sizeof(long), PROT_READ, MAP_SHARED, open(getenv("CLOCK_FILE"), O_RDONLY | O_CLOEXEC), 0);
}

int clock_gettime(clockid_t clock, struct timespec *found) {
    if (!set_by) begin();
    int failed = of_host(clock, found);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) found->tv_sec += *set_by;
    return failed;
}

int gettimeofday(struct timeval *restrict found, void *restrict zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    found->tv_sec = now.tv_sec;
    found->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *found) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (found) *found = now.tv_sec;
    return now.tv_sec;
}
