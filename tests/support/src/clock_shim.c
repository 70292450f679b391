/* Adds an offset to the wall clock of the process that preloads this library,
 * and has it go faster or slower.
 *
 * The offset is a signed 64-bit number of microseconds at the start of the file
 * that LEASEHOLD_CLOCK_FILE names. Two more of them may follow: by how many
 * parts in a million the clock goes too fast, and since which true time, in
 * microseconds since 1970. What is missing is zero. The file is mapped, not read, so a step made
 * by another process holds from the next look at the clock on. Clocks that
 * count from the boot are left alone: they do not jump when somebody sets the
 * wall clock, and telling the two apart is what the tests are for. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *offset;

__attribute__((constructor)) static void map_offset(void) {
    const char *name = getenv("LEASEHOLD_CLOCK_FILE");
    int file = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    /* Behind the end of the file the page reads as zero. */
    void *page = mmap(NULL, 3 * sizeof *offset, PROT_READ, MAP_SHARED, file, 0);
    if (page != MAP_FAILED) offset = page;
    close(file);
}

int clock_gettime(clockid_t id, struct timespec *now) {
    int result = syscall(SYS_clock_gettime, id, now);
    if (result != 0 || !offset) return result;
    if (id != CLOCK_REALTIME && id != CLOCK_REALTIME_COARSE) return 0;
    int64_t micros = offset[0]; /* once: it may change at any time */
    int64_t rate = offset[1];
    if (rate) micros += (now->tv_sec * 1000000LL + now->tv_nsec / 1000 - offset[2]) * rate / 1000000;
    int64_t nanos = now->tv_nsec + micros % 1000000 * 1000;
    now->tv_sec += micros / 1000000 + (nanos < 0 ? -1 : nanos / 1000000000);
    now->tv_nsec = nanos < 0 ? nanos + 1000000000 : nanos % 1000000000;
    return 0;
}

int gettimeofday(struct timeval *now, void *zone) {
    struct timespec precise;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &precise) != 0) return -1;
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *out) {
    struct timespec precise;
    if (clock_gettime(CLOCK_REALTIME, &precise) != 0) return -1;
    if (out) *out = precise.tv_sec;
    return precise.tv_sec;
}
