/* Loaded into a process by LD_PRELOAD: counts the system calls that write under one folder, and at a chosen one
 * kills the process or makes the call fail. The counter lies in a file that all processes of a command share.
 *
 * Syncing is counted but not done: SIGKILL loses nothing that the kernel has, and a sync costs milliseconds.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { COUNT, KILL, KILL_ONE, FULL, BROKEN, INTERRUPTED, SHORT }; /* `KINDS` in faults.py */
enum { WRITE = 1, CREATE = 2, SYNC = 4, CUT = 8, RENAME = 16, REMOVE = 32, FOLDER = 64 };

struct control {
    int64_t kind, at, count, fired;
    char call[16];
    char path[480];
};

static struct control *control;
static char root[PATH_MAX];
static size_t root_length;

void faults_attach(const char *file, const char *folder) {
    int handle = syscall(SYS_openat, AT_FDCWD, file, O_RDWR | O_CLOEXEC, 0);
    if (handle < 0) return;
    void *memory = mmap(NULL, sizeof(struct control), PROT_READ | PROT_WRITE, MAP_SHARED, handle, 0);
    syscall(SYS_close, handle);
    if (memory == MAP_FAILED) return;
    snprintf(root, sizeof root, "%s", folder);
    root_length = strlen(root);
    control = memory;
}

__attribute__((constructor)) static void begin(void) {
    const char *file = getenv("FAULTS_CONTROL"), *folder = getenv("FAULTS_ROOT");
    if (file && folder) faults_attach(file, folder);
}

static int under_root(const char *path) {
    return strncmp(path, root, root_length) == 0 && (path[root_length] == '/' || path[root_length] == 0);
}

static int of_handle(int handle, char *path) {
    char link[40];
    snprintf(link, sizeof link, "/proc/self/fd/%d", handle);
    ssize_t length = syscall(SYS_readlinkat, AT_FDCWD, link, path, PATH_MAX - 1);
    path[length > 0 ? length : 0] = 0;
    return under_root(path);
}

static int of_name(int folder, const char *name, char *path) {
    if (name[0] == '/') {
        snprintf(path, PATH_MAX, "%s", name);
    } else {
        char base[PATH_MAX / 2];
        if (folder == AT_FDCWD) {
            if (syscall(SYS_getcwd, base, sizeof base) < 0) return 0;
        } else {
            char whole[PATH_MAX];
            of_handle(folder, whole);
            snprintf(base, sizeof base, "%.*s", (int)sizeof base - 1, whole);
        }
        snprintf(path, PATH_MAX, "%s/%.*s", base, PATH_MAX / 2 - 2, name);
    }
    return under_root(path);
}

static int concerns(int64_t kind, int sort) {
    switch (kind) {
    case FULL: return sort & (WRITE | CREATE | FOLDER);
    case INTERRUPTED: return sort & (WRITE | CREATE | SYNC | CUT);
    case SHORT: return sort & WRITE;
    default: return 1;
    }
}

/* 0: do the call. Otherwise the error number, or -1 for a short write. */
static int fault(int sort, const char *call, const char *path) {
    int64_t number = __atomic_add_fetch(&control->count, 1, __ATOMIC_SEQ_CST), kind = control->kind;
    if (kind == COUNT || number < control->at || !concerns(kind, sort)) return 0;
    int64_t none = 0;
    int first = __atomic_compare_exchange_n(&control->fired, &none, number, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    if (first) {
        snprintf(control->call, sizeof control->call, "%s", call);
        snprintf(control->path, sizeof control->path, "%.*s", (int)sizeof control->path - 1, path);
    } else if (kind != FULL) { /* a full disk stays full */
        return 0;
    }
    switch (kind) {
    case KILL: syscall(SYS_kill, 0, SIGKILL); for (;;) pause();
    case KILL_ONE: syscall(SYS_kill, syscall(SYS_getpid), SIGKILL); for (;;) pause();
    case FULL: return ENOSPC;
    case BROKEN: return EIO;
    case INTERRUPTED: return EINTR;
    default: return -1;
    }
}

#define FAIL(error) do { errno = (error); return -1; } while (0)

static int on_handle(int handle, int sort, const char *call) {
    char path[PATH_MAX];
    int saved = errno, result = control && of_handle(handle, path) ? fault(sort, call, path) : 0;
    errno = saved;
    return result;
}

static int on_name(int folder, const char *name, int sort, const char *call) {
    char path[PATH_MAX];
    int saved = errno, result = control && of_name(folder, name, path) ? fault(sort, call, path) : 0;
    errno = saved;
    return result;
}

ssize_t write(int handle, const void *data, size_t size) {
    int error = on_handle(handle, WRITE, "write");
    if (error > 0) FAIL(error);
    return syscall(SYS_write, handle, data, error < 0 && size > 1 ? size / 2 : size);
}

ssize_t pwrite64(int handle, const void *data, size_t size, off64_t offset) {
    int error = on_handle(handle, WRITE, "pwrite");
    if (error > 0) FAIL(error);
    return syscall(SYS_pwrite64, handle, data, error < 0 && size > 1 ? size / 2 : size, offset);
}

ssize_t pwrite(int handle, const void *data, size_t size, off_t offset) {
    return pwrite64(handle, data, size, offset);
}

ssize_t writev(int handle, const struct iovec *parts, int count) {
    int error = on_handle(handle, WRITE, "writev");
    if (error > 0) FAIL(error);
    if (error < 0) return syscall(SYS_write, handle, parts[0].iov_base, (parts[0].iov_len + 1) / 2);
    return syscall(SYS_writev, handle, parts, count);
}

static int opened(int folder, const char *name, int flags, mode_t mode) {
    int error = flags & O_CREAT ? on_name(folder, name, CREATE, "open") : 0;
    if (error > 0) FAIL(error);
    return syscall(SYS_openat, folder, name, flags, mode);
}

#define MODE(flags, mode)                                                                                          \
    mode_t mode = 0;                                                                                               \
    if ((flags) & (O_CREAT | O_TMPFILE)) {                                                                         \
        va_list rest;                                                                                              \
        va_start(rest, flags);                                                                                     \
        mode = va_arg(rest, mode_t);                                                                               \
        va_end(rest);                                                                                              \
    }

int open(const char *name, int flags, ...) { MODE(flags, mode) return opened(AT_FDCWD, name, flags, mode); }
int open64(const char *name, int flags, ...) { MODE(flags, mode) return opened(AT_FDCWD, name, flags, mode); }
int openat(int folder, const char *name, int flags, ...) { MODE(flags, mode) return opened(folder, name, flags, mode); }
int openat64(int folder, const char *name, int flags, ...) { MODE(flags, mode) return opened(folder, name, flags, mode); }

static int synced(int handle, const char *call) {
    int error = on_handle(handle, SYNC, call);
    if (error > 0) FAIL(error);
    return 0;
}

int fsync(int handle) { return synced(handle, "fsync"); }
int fdatasync(int handle) { return synced(handle, "fdatasync"); }
void sync(void) {}

int ftruncate64(int handle, off64_t size) {
    int error = on_handle(handle, CUT, "ftruncate");
    if (error > 0) FAIL(error);
    return syscall(SYS_ftruncate, handle, size);
}
int ftruncate(int handle, off_t size) { return ftruncate64(handle, size); }

int renameat2(int from_folder, const char *from, int to_folder, const char *to, unsigned flags) {
    int error = on_name(to_folder, to, RENAME, "rename");
    if (error > 0) FAIL(error);
    return syscall(SYS_renameat2, from_folder, from, to_folder, to, flags);
}
int rename(const char *from, const char *to) { return renameat2(AT_FDCWD, from, AT_FDCWD, to, 0); }
int renameat(int from_folder, const char *from, int to_folder, const char *to) {
    return renameat2(from_folder, from, to_folder, to, 0);
}

int unlinkat(int folder, const char *name, int flags) {
    int error = on_name(folder, name, REMOVE, flags & AT_REMOVEDIR ? "rmdir" : "unlink");
    if (error > 0) FAIL(error);
    return syscall(SYS_unlinkat, folder, name, flags);
}
int unlink(const char *name) { return unlinkat(AT_FDCWD, name, 0); }
int rmdir(const char *name) { return unlinkat(AT_FDCWD, name, AT_REMOVEDIR); }

int mkdirat(int folder, const char *name, mode_t mode) {
    int error = on_name(folder, name, FOLDER, "mkdir");
    if (error > 0) FAIL(error);
    return syscall(SYS_mkdirat, folder, name, mode);
}
int mkdir(const char *name, mode_t mode) { return mkdirat(AT_FDCWD, name, mode); }
