/* Marks functions for Python besides the public interface. */
#ifndef PELTON_EXPORT_H
#define PELTON_EXPORT_H

#define EXPORT __attribute__((visibility("default")))

#endif
