/* Linux: futexes, affinity, huge pages. */
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { HAS_CONTROL_GROUPS = 1 };

static inline int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

static inline void word_wait(_Atomic uint32_t *word, uint32_t seen) {
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static inline void word_wake(_Atomic uint32_t *word, int sleepers) {
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, sleepers, NULL, NULL, 0);
}

static inline void words_after_fork(void) {}

typedef struct {
    cpu_set_t cpus;
    bool known;
} placement;

static inline placement placement_of_caller(void) {
    placement p = {0};
    p.known = !sched_getaffinity(0, sizeof p.cpus, &p.cpus);
    return p;
}

/* On its creator's CPU a thread may have to wait for milliseconds. */
static inline void place_elsewhere(const placement *p, pthread_attr_t *attributes) {
#ifdef __GLIBC__ /* musl cannot set it before a thread begins */
    cpu_set_t others = p->cpus;
    CPU_CLR(sched_getcpu(), &others);
    if (p->known && CPU_COUNT(&others))
        pthread_attr_setaffinity_np(attributes, sizeof others, &others);
#endif
    (void)p, (void)attributes;
}

static inline void place_self(const placement *p) {
    if (p->known)
        sched_setaffinity(0, sizeof p->cpus, &p->cpus);
    prctl(PR_SET_NAME, "pelton");
}

static inline int64_t cpus_here(void) {
    const placement p = placement_of_caller();
    const int64_t count = p.known ? CPU_COUNT(&p.cpus) : sysconf(_SC_NPROCESSORS_ONLN);
    return count < 1 ? 1 : count;
}

static inline int64_t memory_here(void) { return (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGE_SIZE); }

#if defined(__aarch64__)
enum { PAGE = 64 << 10 }; /* of some kernels; others have 4 or 16 KiB */
#else
enum { PAGE = 4 << 10 };
#endif

static inline size_t pages_round(size_t bytes) { return (bytes + PAGE - 1) / PAGE * PAGE; }

static inline void *pages_map(size_t bytes) {
    enum { HUGE_PAGE = 2 << 20 };
    const size_t slack = bytes >= HUGE_PAGE ? HUGE_PAGE : 0, whole = pages_round(bytes);
    char *map = (char *)mmap(NULL, whole + slack, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED || !slack)
        return map == MAP_FAILED ? NULL : map;
    const size_t before = -(uintptr_t)map % HUGE_PAGE;
    if (before)
        munmap(map, before);
    if (slack > before)
        munmap(map + before + whole, slack - before);
    madvise(map + before, bytes, MADV_HUGEPAGE);
    return map + before;
}

static inline void pages_unmap(void *pages, size_t bytes) { munmap(pages, pages_round(bytes)); }
