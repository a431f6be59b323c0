/* How many CPUs this process may use. */
#ifndef PELTON_SHARE_H
#define PELTON_SHARE_H

#include <stdint.h>

/* In thousandths: by its affinity, and by the quotas of its control groups (versions 1 and 2) and of their parents. */
int64_t share_cores(void);

#endif
