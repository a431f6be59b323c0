/* Any other POSIX system: one condition for all words that threads sleep on, no affinity, no control groups. */
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define POSIX_WORDS /* pool.c has them */
enum { HAS_CONTROL_GROUPS = 0 };

static inline int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

extern pthread_mutex_t word_lock;
extern pthread_cond_t word_changed;

static inline void word_wait(_Atomic uint32_t *word, uint32_t seen) {
    pthread_mutex_lock(&word_lock);
    if (atomic_load(word) == seen)
        pthread_cond_wait(&word_changed, &word_lock);
    pthread_mutex_unlock(&word_lock);
}

static inline void word_wake(_Atomic uint32_t *word, int sleepers) {
    (void)word, (void)sleepers;
    pthread_mutex_lock(&word_lock);
    pthread_cond_broadcast(&word_changed);
    pthread_mutex_unlock(&word_lock);
}

/* Another thread may have held the lock, and does not exist in the child. */
static inline void words_after_fork(void) {
    pthread_mutex_init(&word_lock, NULL);
    pthread_cond_init(&word_changed, NULL);
}

typedef struct {
    char unused;
} placement;

static inline placement placement_of_caller(void) { return (placement){0}; }
static inline void place_elsewhere(const placement *p, pthread_attr_t *attributes) { (void)p, (void)attributes; }
static inline void place_self(const placement *p) { (void)p; }

static inline int64_t cpus_here(void) {
    const int64_t count = sysconf(_SC_NPROCESSORS_ONLN);
    return count < 1 ? 1 : count;
}

static inline int64_t memory_here(void) { return (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE); }

static inline void *pages_map(size_t bytes) {
    void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return map == MAP_FAILED ? NULL : map;
}

static inline void pages_unmap(void *pages, size_t bytes) { munmap(pages, bytes); }
