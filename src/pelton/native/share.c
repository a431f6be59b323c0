/* Reads affinity and the limits of control groups, as `pelton.system.share` does. */
#define _GNU_SOURCE
#include "share.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "platform.h"

enum { PATH = 4096 };
static const char ROOT[] = "/sys/fs/cgroup";

static bool read_text(const char *path, char *text, size_t size) {
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    const ssize_t n = file < 0 ? -1 : read(file, text, size - 1);
    if (file >= 0)
        close(file);
    text[n < 0 ? 0 : n] = 0;
    return n > 0;
}

/* Reads the number in a group's file; -1 if it is missing, or "max". `rest`: the text after it. */
static int64_t number_in(const char *group, const char *name, char *text, size_t size, char **rest) {
    char path[PATH + 32];
    strcpy(path, group);
    strcat(strcat(path, "/"), name);
    if (!read_text(path, text, size))
        return -1;
    const int64_t n = strtoll(text, rest, 10);
    return *rest == text ? -1 : n;
}

/* Returns the thousandths of a CPU that a group allows; -1 without a limit. */
static int64_t quota_of(const char *group) {
    char text[64], *rest;
    int64_t quota = number_in(group, "cpu.max", text, sizeof text, &rest);
    int64_t period = quota < 0 ? -1 : strtoll(rest, NULL, 10);
    if (quota < 0) {
        quota = number_in(group, "cpu.cfs_quota_us", text, sizeof text, &rest);
        period = number_in(group, "cpu.cfs_period_us", text, sizeof text, &rest);
    }
    return quota > 0 && period > 0 ? quota * 1000 / period : -1;
}

/* Returns the bytes of memory that a group allows; -1 without a limit. */
static int64_t memory_of(const char *group) {
    char text[64], *rest;
    const int64_t limit = number_in(group, "memory.max", text, sizeof text, &rest);
    return limit < 0 ? number_in(group, "memory.limit_in_bytes", text, sizeof text, &rest) : limit;
}

typedef int64_t limit_of(const char *group);

/* Returns the smallest limit of a group and its parents. */
static int64_t least_of(const char *mount, const char *group, limit_of *limit, int64_t least) {
    char path[PATH];
    if (strlen(mount) + strlen(group) >= sizeof path)
        return least;
    strcat(strcpy(path, mount), group);
    for (char *end; (end = strrchr(path, '/')) && strlen(path) >= strlen(mount); *end = 0) {
        const int64_t own = limit(path);
        least = own > 0 && own < least ? own : least;
        if (strlen(path) == strlen(mount))
            break;
    }
    return least;
}

static bool is_among(const char *controllers, const char *end, const char *name) {
    for (const char *at = controllers; at < end;) {
        const char *comma = memchr(at, ',', (size_t)(end - at));
        const char *stop = comma ? comma : end;
        if ((size_t)(stop - at) == strlen(name) && !memcmp(at, name, strlen(name)))
            return true;
        at = stop + 1;
    }
    return false;
}

/* Returns the smallest limit of a kind among the control groups of this process. */
static int64_t least_of_all(const char *controller, limit_of *limit, int64_t least) {
    char text[PATH];
    if (!HAS_CONTROL_GROUPS || !read_text("/proc/self/cgroup", text, sizeof text))
        return least;
    for (char *line = text, *next; line && *line; line = next) {
        next = strchr(line, '\n');
        if (next)
            *next++ = 0;
        char *controllers = strchr(line, ':'), *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group)
            continue;
        controllers++;
        const size_t named = (size_t)(group++ - controllers);
        char mount[PATH];
        strcpy(mount, ROOT);
        if (!named) {
            least = least_of(mount, group, limit, least);
            least = least_of(strcat(mount, "/unified"), group, limit, least);
        } else if (is_among(controllers, controllers + named, controller)) {
            least = least_of(strcat(strcat(mount, "/"), controller), group, limit, least);
            strcpy(mount, ROOT);
            strncat(strcat(mount, "/"), controllers, named);
            least = least_of(mount, group, limit, least);
        }
    }
    return least;
}

int64_t share_cores(void) { return least_of_all("cpu", quota_of, cpus_here() * 1000); }
int64_t share_installed(void) { return memory_here(); }
int64_t share_memory(void) { return least_of_all("memory", memory_of, memory_here()); }
