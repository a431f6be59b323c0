/* Formats texts without a C library: %s a text, %d an int64_t. */
#ifndef PELTON_SAY_H
#define PELTON_SAY_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

static inline void say_all(char *to, size_t size, const char *format, va_list given) {
    char *const end = to + size - 1;
    for (; *format && to < end; format++) {
        if (*format != '%') {
            *to++ = *format;
            continue;
        }
        if (*++format == 's') {
            for (const char *s = va_arg(given, const char *); *s && to < end; s++)
                *to++ = *s;
        } else {
            int64_t n = va_arg(given, int64_t);
            uint64_t left = n < 0 ? -(uint64_t)n : (uint64_t)n;
            char digits[20];
            int count = 0;
            do
                digits[count++] = (char)('0' + left % 10);
            while (left /= 10);
            if (n < 0 && to < end)
                *to++ = '-';
            while (count && to < end)
                *to++ = digits[--count];
        }
    }
    *to = 0;
}

#endif
