/* Reads affinity and the quotas of control groups, as `pelton.system.share` does. */
#define _GNU_SOURCE
#include "share.h"

#include <fcntl.h>
#include <sched.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

/* A number of a file in a group; -1 where there is none, or "max". `rest`: what follows it. */
static int64_t number_in(const char *group, const char *name, char *text, size_t size, char **rest) {
    char path[PATH + 32];
    strcpy(path, group);
    strcat(strcat(path, "/"), name);
    if (!read_text(path, text, size))
        return -1;
    const int64_t n = strtoll(text, rest, 10);
    return *rest == text ? -1 : n;
}

/* Thousandths of a CPU that a group allows; -1 where it sets no limit. */
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

static int64_t least_of(const char *mount, const char *group, int64_t least) {
    char path[PATH];
    if (strlen(mount) + strlen(group) >= sizeof path)
        return least;
    strcat(strcpy(path, mount), group);
    for (char *end; (end = strrchr(path, '/')) && strlen(path) >= strlen(mount); *end = 0) {
        const int64_t own = quota_of(path);
        least = own > 0 && own < least ? own : least;
        if (strlen(path) == strlen(mount))
            break;
    }
    return least;
}

static bool names_cpu(const char *controllers, const char *end) {
    for (const char *at = controllers; at < end;) {
        const char *comma = memchr(at, ',', (size_t)(end - at));
        const char *stop = comma ? comma : end;
        if (stop - at == 3 && !memcmp(at, "cpu", 3))
            return true;
        at = stop + 1;
    }
    return false;
}

int64_t share_cores(void) {
    cpu_set_t set;
    int64_t cores = sched_getaffinity(0, sizeof set, &set) ? sysconf(_SC_NPROCESSORS_ONLN) : CPU_COUNT(&set);
    cores = cores < 1 ? 1000 : cores * 1000;
    char text[PATH];
    if (!read_text("/proc/self/cgroup", text, sizeof text))
        return cores;
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
            cores = least_of(mount, group, cores);
            cores = least_of(strcat(mount, "/unified"), group, cores);
        } else if (names_cpu(controllers, controllers + named)) {
            cores = least_of(strcat(mount, "/cpu"), group, cores);
            strcpy(mount, ROOT);
            strncat(strcat(mount, "/"), controllers, named);
            cores = least_of(mount, group, cores);
        }
    }
    return cores;
}
