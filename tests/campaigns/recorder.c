/* The calls of a process that change what is below one folder, in order and with their bytes: tests/campaigns/recorder.py.
 *
 *     gcc -shared -fPIC -o recorder.so recorder.c        LD_PRELOAD=recorder.so
 *     recorder_begin("/tmp/x", "/tmp/x.trace")           from now on; again: another folder, another trace
 *     recorder_mark(bytes, size)                         something that the process did or promised at this point
 *     recorder_end()
 *
 * One lock is held over a call and the line about it, so what the trace says is the order that the disk saw. A call that
 * failed is not in it. A record of the trace, in the machine's own byte order:
 *
 *     call u8 | descriptor i32 | number i64 | size u32 | size of the other u32 | bytes or path | other path
 *
 * Only absolute paths are looked at, and no descriptor that was duplicated. What is missed, such as a write through a
 * mapping or a system call that does not go through libc, makes a folder that is not what the trace says: who reads the
 * trace compares them.
 */

#define _GNU_SOURCE
#undef _FILE_OFFSET_BITS
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#define DESCRIPTORS 65536

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char root[PATH_MAX];
static size_t root_size;
static int trace = -1;
static char below[DESCRIPTORS];

static void put(const void *bytes, size_t size) {
    while (size) {
        ssize_t written = syscall(SYS_write, trace, bytes, size);
        if (written < 0) abort();
        bytes = (const char *)bytes + written;
        size -= written;
    }
}

static void say(char call, int32_t descriptor, int64_t number, const void *bytes, uint32_t size, const char *other) {
    uint32_t other_size = other ? strlen(other) : 0;
    put(&call, 1);
    put(&descriptor, 4);
    put(&number, 8);
    put(&size, 4);
    put(&other_size, 4);
    put(bytes, size);
    put(other, other_size);
}

static int is_below(const char *path) {
    return trace >= 0 && !strncmp(path, root, root_size) && (!path[root_size] || path[root_size] == '/');
}

static int is_open(int descriptor) {
    return trace >= 0 && descriptor >= 0 && descriptor < DESCRIPTORS && below[descriptor];
}

void recorder_begin(const char *folder, const char *file) {
    pthread_mutex_lock(&lock);
    strncpy(root, folder, PATH_MAX - 1);
    root_size = strlen(root);
    memset(below, 0, sizeof below);
    trace = syscall(SYS_openat, AT_FDCWD, file, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (trace < 0) abort();
    pthread_mutex_unlock(&lock);
}

void recorder_mark(const char *bytes, size_t size) {
    pthread_mutex_lock(&lock);
    say('M', -1, 0, bytes, size, NULL);
    pthread_mutex_unlock(&lock);
}

void recorder_end(void) {
    pthread_mutex_lock(&lock);
    syscall(SYS_close, trace);
    trace = -1;
    pthread_mutex_unlock(&lock);
}

/* Names. */

static int opened(int folder, const char *path, int flags, mode_t mode) {
    pthread_mutex_lock(&lock);
    int descriptor = syscall(SYS_openat, folder, path, flags, mode);
    if (descriptor >= 0 && descriptor < DESCRIPTORS && (below[descriptor] = is_below(path)))
        say('o', descriptor, flags & O_TRUNC, path, strlen(path), NULL);
    pthread_mutex_unlock(&lock);
    return descriptor;
}

#define OPEN(name, folder, ...) \
    int name(__VA_ARGS__ const char *path, int flags, ...) { \
        va_list more; \
        va_start(more, flags); \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0; \
        va_end(more); \
        return opened(folder, path, flags, mode); \
    }
#define NOTHING
#define FOLDER int folder,
OPEN(open, AT_FDCWD, NOTHING)
OPEN(open64, AT_FDCWD, NOTHING)
OPEN(openat, folder, FOLDER)
OPEN(openat64, folder, FOLDER)
int creat(const char *path, mode_t mode) { return opened(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode); }
int creat64(const char *path, mode_t mode) { return creat(path, mode); }

int close(int descriptor) {
    static int (*real)(int);
    if (!real) real = (int (*)(int))dlsym(RTLD_NEXT, "close");
    pthread_mutex_lock(&lock);
    if (is_open(descriptor)) {
        say('c', descriptor, 0, NULL, 0, NULL);
        below[descriptor] = 0;
    }
    int answer = real(descriptor);
    pthread_mutex_unlock(&lock);
    return answer;
}

/* The call `name`, said as `call` of one path, or of two, if it did not fail. */
#define NAMED(call, name, path, other, parameters, types, arguments) \
    int name parameters { \
        static int (*real) types; \
        if (!real) real = (int (*) types)dlsym(RTLD_NEXT, #name); \
        pthread_mutex_lock(&lock); \
        int answer = real arguments; \
        if (!answer && is_below(path)) say(call, -1, 0, path, strlen(path), other); \
        pthread_mutex_unlock(&lock); \
        return answer; \
    }
NAMED('r', rename, a, b, (const char *a, const char *b), (const char *, const char *), (a, b))
NAMED('r', renameat, a, b, (int f, const char *a, int g, const char *b), (int, const char *, int, const char *),
      (f, a, g, b))
NAMED('r', renameat2, a, b, (int f, const char *a, int g, const char *b, unsigned u),
      (int, const char *, int, const char *, unsigned), (f, a, g, b, u))
NAMED('l', link, a, b, (const char *a, const char *b), (const char *, const char *), (a, b))
NAMED('l', linkat, a, b, (int f, const char *a, int g, const char *b, int u),
      (int, const char *, int, const char *, int), (f, a, g, b, u))
NAMED('u', unlink, a, NULL, (const char *a), (const char *), (a))
NAMED('u', unlinkat, a, NULL, (int f, const char *a, int u), (int, const char *, int), (f, a, u))
NAMED('u', rmdir, a, NULL, (const char *a), (const char *), (a))
NAMED('u', remove, a, NULL, (const char *a), (const char *), (a))
NAMED('m', mkdir, a, NULL, (const char *a, mode_t m), (const char *, mode_t), (a, m))
NAMED('m', mkdirat, a, NULL, (int f, const char *a, mode_t m), (int, const char *, mode_t), (f, a, m))
NAMED('?', symlink, b, "symlink", (const char *a, const char *b), (const char *, const char *), (a, b))
NAMED('?', truncate, a, "truncate", (const char *a, off_t n), (const char *, off_t), (a, n))

/* Bytes. */

static void wrote(int descriptor, int64_t position, const struct iovec *parts, int count, ssize_t written) {
    char *joined = malloc(written);
    size_t size = 0;
    for (int each = 0; each < count && size < (size_t)written; each++) {
        size_t left = written - size, some = parts[each].iov_len < left ? parts[each].iov_len : left;
        memcpy(joined + size, parts[each].iov_base, some);
        size += some;
    }
    say('w', descriptor, position, joined, size, NULL);
    free(joined);
}

static ssize_t write_at(int descriptor, const struct iovec *parts, int count, int64_t position) {
    int is_ours = is_open(descriptor), is_positioned = position >= 0;
    if (is_ours) pthread_mutex_lock(&lock);
    ssize_t written = is_positioned ? syscall(SYS_pwritev, descriptor, parts, count, position, 0)
                                    : syscall(SYS_writev, descriptor, parts, count);
    if (is_ours) {
        if (written > 0)
            wrote(descriptor, is_positioned ? position : lseek(descriptor, 0, SEEK_CUR) - written, parts, count, written);
        pthread_mutex_unlock(&lock);
    }
    return written;
}

#define ONE struct iovec one = {(void *)bytes, size}
ssize_t write(int d, const void *bytes, size_t size) { ONE; return write_at(d, &one, 1, -1); }
ssize_t writev(int d, const struct iovec *parts, int count) { return write_at(d, parts, count, -1); }
ssize_t pwrite(int d, const void *bytes, size_t size, off_t at) { ONE; return write_at(d, &one, 1, at); }
ssize_t pwrite64(int d, const void *bytes, size_t size, off64_t at) { ONE; return write_at(d, &one, 1, at); }
ssize_t pwritev(int d, const struct iovec *parts, int count, off_t at) { return write_at(d, parts, count, at); }
ssize_t pwritev64(int d, const struct iovec *parts, int count, off64_t at) { return write_at(d, parts, count, at); }

/* The call `name` of a descriptor, if it did not fail. */
#define DESCRIBED(call, type, name, descriptor, number, said, parameters, types, arguments) \
    type name parameters { \
        static type (*real) types; \
        if (!real) real = (type (*) types)dlsym(RTLD_NEXT, #name); \
        int is_ours = is_open(descriptor); \
        if (is_ours) pthread_mutex_lock(&lock); \
        type answer = real arguments; \
        if (is_ours) { \
            if (answer >= 0) say(call, descriptor, number, NULL, 0, said); \
            pthread_mutex_unlock(&lock); \
        } \
        return answer; \
    }
DESCRIBED('s', int, fsync, d, 0, NULL, (int d), (int), (d))
DESCRIBED('s', int, fdatasync, d, 0, NULL, (int d), (int), (d))
DESCRIBED('t', int, ftruncate, d, size, NULL, (int d, off_t size), (int, off_t), (d, size))
DESCRIBED('t', int, ftruncate64, d, size, NULL, (int d, off64_t size), (int, off64_t), (d, size))
DESCRIBED('?', int, fallocate, d, 0, "fallocate", (int d, int m, off_t a, off_t n), (int, int, off_t, off_t),
          (d, m, a, n))
DESCRIBED('?', int, fallocate64, d, 0, "fallocate", (int d, int m, off64_t a, off64_t n), (int, int, off64_t, off64_t),
          (d, m, a, n))
DESCRIBED('?', ssize_t, sendfile, d, 0, "sendfile", (int d, int f, off_t *at, size_t n), (int, int, off_t *, size_t),
          (d, f, at, n))
DESCRIBED('?', ssize_t, sendfile64, d, 0, "sendfile", (int d, int f, off64_t *at, size_t n),
          (int, int, off64_t *, size_t), (d, f, at, n))
DESCRIBED('?', ssize_t, copy_file_range, d, 0, "copy_file_range",
          (int f, off64_t *a, int d, off64_t *b, size_t n, unsigned u), (int, off64_t *, int, off64_t *, size_t, unsigned),
          (f, a, d, b, n, u))
/* posix_fallocate is told by the size of the folder's files; sync_file_range promises nothing. */
