/* The threads of the process, and the seats by which idle ones join a run. */
#ifndef PELTON_POOL_H
#define PELTON_POOL_H

#include "platform.h"

enum { MAX_THREADS = 256, SPIN_NS = 50000 };

typedef struct program program;

/* The place where workers join the runs of one program. Its memory is reused, never freed: a late worker may read it
 * safely; its pointers are valid only after the worker has joined. */
typedef struct seat {
    _Alignas(LINE) _Atomic uint64_t state;      /* epoch:32 | stepwise:1 | open:1 | joined:30 */
    _Atomic uint32_t limit;                     /* workers that may join */
    program *program;
    struct seat *next;                          /* in the list of unused seats */
    idx generation;                             /* of the process: a fork leaves workers behind */
    int entry;                                  /* in the directory of open runs, -1 for none */
    _Alignas(LINE) _Atomic uint64_t slots[MAX_THREADS / 64];   /* one bit per participant; bit 0 is the caller's */
} seat;

/* One run of a program: every counter of the program carries the epoch, so a worker of an older run can claim
 * nothing. */
typedef struct {
    uint32_t epoch;
    bool stepwise;
} run;

seat *seat_take(program *p, idx threads);       /* NULL: out of memory */
void seat_give(seat *s);                        /* waits for stragglers */

bool seat_adopt(seat *s);                       /* true after a fork: its workers stayed in the parent */
run seat_open(seat *s, bool stepwise);          /* announces a run and wakes workers */
uint32_t seat_epoch(const seat *s);             /* of the latest run */
void seat_close(seat *s);                       /* no more workers join; those inside leave by themselves */

void pool_cores(idx milli);                     /* cores this process may use, in thousandths */
void pool_rouse(idx threads);                   /* wakes the workers ahead of a measurement */
bool pool_fits(idx threads);                    /* true if each of these threads has a core */
void pool_enter(void);                          /* counts a thread as busy … */
void pool_leave(void);                          /* … until it leaves */
bool pool_crowded(void);                        /* true if they outnumber the cores */

/* A worker's part in a run; in program.c. */
void program_assist(program *p, run r, idx slot);

#endif
