/* This process's share of the machine. */
#ifndef PELTON_SHARE_H
#define PELTON_SHARE_H

#include <stdint.h>

/* CPUs, in thousandths: by its affinity, and by the quotas of its control groups (versions 1 and 2) and their
 * parents. */
int64_t share_cores(void);

int64_t share_memory(void);         /* bytes of the machine, or the limit of its control groups */
int64_t share_installed(void);      /* bytes of the machine */

#endif
