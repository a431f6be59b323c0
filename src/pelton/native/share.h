/* What of the machine this process may use. */
#ifndef PELTON_SHARE_H
#define PELTON_SHARE_H

#include <stdint.h>

/* CPUs, in thousandths: by its affinity, and by the quotas of its control groups (versions 1 and 2) and of their
 * parents. */
int64_t share_cores(void);

int64_t share_memory(void);         /* bytes: those of the machine, or what its control groups allow */
int64_t share_installed(void);      /* bytes of the machine */

#endif
