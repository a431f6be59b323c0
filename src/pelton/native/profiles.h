/* Profiles: one network, tuned for several sizes. An engine has one engine for each; a run uses the first one that
 * accepts the shapes of its inputs. */
#ifndef PELTON_PROFILES_H
#define PELTON_PROFILES_H

#include "chain.h"

/* True if the engines of a chain have the inputs and outputs of this engine. */
bool profiles_check(const chain *c, const pelton_engine *e, reason *why);

/* Creates the contexts of all profiles of a context's engine. */
bool profiles_begin(pelton_context *c, int threads, reason *why);
void profiles_end(pelton_context *c);

/* Selects the profile for inputs of these shapes, until the next selection; true for engines without profiles. */
bool profiles_choose(pelton_context *c, const int64_t *const *shapes, reason *why);
/* Runs the selected profile on the arrays of the context. */
bool profiles_run(pelton_context *c, reason *why);

#endif
