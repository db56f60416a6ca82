// Preloaded by the campaigns io and disk: makes the n-th call of one kind fail that touches a file below one folder, or
// the n-th allocation above a size. Before it is armed, every call passes: io's child calls failing_calls_arm, and of
// disk's ranks one is armed by HPCGNN_FAILING_CALL at its start.
//
// File calls are those on paths below the folder, and on descriptors that were opened there.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { WRITE, FSYNC, RENAME, OPEN, UNLINK, TRUNCATE, MKDIR, READ, CLOSE, ALLOCATE, RESERVE, NUM_KINDS };
enum { SHORT = -1 };

static char folder[PATH_MAX];
static int kind = -1, error_number, is_lasting;
static long wanted, *counted;      // a count of each kind, in memory that the parent process reads
static size_t smallest = (size_t)-1;

void failing_calls_arm(const char *path, int which, long n, int error, int lasts, size_t bytes,
                       long *count)
{
    snprintf(folder, sizeof folder, "%s", path);
    kind = which;
    wanted = n;
    counted = count;
    error_number = error;
    is_lasting = lasts;
    smallest = bytes;
}

// HPCGNN_FAILING_CALL="RANK KIND N ERROR LASTS COUNTS FOLDER": the rank's calls below the folder are counted in a file,
// NUM_KINDS longs long, and one of them fails.
__attribute__((constructor)) static void arm_by_environment(void)
{
    char counts[PATH_MAX], path[PATH_MAX];
    const char *words = getenv("HPCGNN_FAILING_CALL"), *rank = getenv("OMPI_COMM_WORLD_RANK");
    int wanted_rank, which, error, lasts;
    long n;
    if (rank == NULL)
        rank = getenv("PMI_RANK");
    if (words == NULL || rank == NULL)
        return;
    if (sscanf(words, "%d %d %ld %d %d %4095s %4095s", &wanted_rank, &which, &n, &error, &lasts, counts, path) != 7) {
        fprintf(stderr, "HPCGNN_FAILING_CALL can't be read: %s\n", words);
        abort();
    }
    if (atoi(rank) != wanted_rank)
        return;
    int file = open(counts, O_RDWR);
    void *shared = mmap(NULL, NUM_KINDS * sizeof(long), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (file < 0 || shared == MAP_FAILED) {
        perror(counts);
        abort();
    }
    failing_calls_arm(path, which, n, error, lasts, (size_t)-1, shared);
}

// Count a call; whether it is to fail.
static int is_due(int which)
{
    long number = __atomic_add_fetch(&counted[which], 1, __ATOMIC_RELAXED);
    if (which != kind)
        return 0;
    return is_lasting ? number >= wanted : number == wanted;
}

static int is_below(const char *path)
{
    char whole[PATH_MAX];
    if (kind < 0 || path == NULL)
        return 0;
    if (path[0] != '/') {
        if (getcwd(whole, sizeof whole) == NULL)
            return 0;
        size_t used = strlen(whole);
        snprintf(whole + used, sizeof whole - used, "/%s", path);
        path = whole;
    }
    return strncmp(path, folder, strlen(folder)) == 0;
}

static int is_ours(int descriptor)
{
    char link[64], path[PATH_MAX];
    if (kind < 0)
        return 0;
    int kept = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, sizeof path - 1);
    errno = kept;
    if (length < 0)
        return 0;
    path[length] = 0;
    return strncmp(path, folder, strlen(folder)) == 0;
}

#define NEXT(name) static __typeof__(name) *next; if (next == NULL) next = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)
#define FAIL(value) do { errno = error_number; return value; } while (0)

ssize_t write(int descriptor, const void *data, size_t size)
{
    NEXT(write);
    if (is_ours(descriptor) && is_due(WRITE)) {
        if (error_number == SHORT)
            return next(descriptor, data, size > 1 ? size / 2 : size);
        FAIL(-1);
    }
    return next(descriptor, data, size);
}

ssize_t pwrite64(int descriptor, const void *data, size_t size, off64_t offset)
{
    NEXT(pwrite64);
    if (is_ours(descriptor) && is_due(WRITE)) {
        if (error_number == SHORT)
            return next(descriptor, data, size > 1 ? size / 2 : size, offset);
        FAIL(-1);
    }
    return next(descriptor, data, size, offset);
}

ssize_t pwrite(int descriptor, const void *data, size_t size, off_t offset)
{
    return pwrite64(descriptor, data, size, offset);
}

ssize_t read(int descriptor, void *data, size_t size)
{
    NEXT(read);
    if (is_ours(descriptor) && is_due(READ))
        FAIL(-1);
    return next(descriptor, data, size);
}

ssize_t pread64(int descriptor, void *data, size_t size, off64_t offset)
{
    NEXT(pread64);
    if (is_ours(descriptor) && is_due(READ))
        FAIL(-1);
    return next(descriptor, data, size, offset);
}

ssize_t pread(int descriptor, void *data, size_t size, off_t offset)
{
    return pread64(descriptor, data, size, offset);
}

ssize_t preadv64(int descriptor, const struct iovec *parts, int count, off64_t offset)
{
    NEXT(preadv64);
    if (is_ours(descriptor) && is_due(READ)) {
        if (error_number == SHORT)
            return pread64(descriptor, parts->iov_base, parts->iov_len > 1 ? parts->iov_len / 2 : 1, offset);
        FAIL(-1);
    }
    return next(descriptor, parts, count, offset);
}

ssize_t preadv(int descriptor, const struct iovec *parts, int count, off_t offset)
{
    return preadv64(descriptor, parts, count, offset);
}

int posix_fallocate64(int descriptor, off64_t offset, off64_t size)
{
    NEXT(posix_fallocate64);
    if (is_ours(descriptor) && is_due(RESERVE))
        return error_number;
    return next(descriptor, offset, size);
}

int posix_fallocate(int descriptor, off_t offset, off_t size)
{
    return posix_fallocate64(descriptor, offset, size);
}

int sync_file_range(int descriptor, off64_t offset, off64_t size, unsigned flags)
{
    NEXT(sync_file_range);
    if (is_ours(descriptor) && is_due(FSYNC))
        FAIL(-1);
    return next(descriptor, offset, size, flags);
}

int fsync(int descriptor)
{
    NEXT(fsync);
    if (is_ours(descriptor) && is_due(FSYNC))
        FAIL(-1);
    return next(descriptor);
}

int fdatasync(int descriptor)
{
    NEXT(fdatasync);
    if (is_ours(descriptor) && is_due(FSYNC))
        FAIL(-1);
    return next(descriptor);
}

int ftruncate64(int descriptor, off64_t size)
{
    NEXT(ftruncate64);
    if (is_ours(descriptor) && is_due(TRUNCATE))
        FAIL(-1);
    return next(descriptor, size);
}

int ftruncate(int descriptor, off_t size)
{
    return ftruncate64(descriptor, size);
}

int truncate(const char *path, off_t size)
{
    NEXT(truncate);
    if (is_below(path) && is_due(TRUNCATE))
        FAIL(-1);
    return next(path, size);
}

int rename(const char *from, const char *to)
{
    NEXT(rename);
    if (is_below(to) && is_due(RENAME))
        FAIL(-1);
    return next(from, to);
}

int renameat(int old_folder, const char *from, int new_folder, const char *to)
{
    NEXT(renameat);
    if (is_below(to) && is_due(RENAME))
        FAIL(-1);
    return next(old_folder, from, new_folder, to);
}

int unlink(const char *path)
{
    NEXT(unlink);
    if (is_below(path) && is_due(UNLINK))
        FAIL(-1);
    return next(path);
}

int mkdir(const char *path, mode_t mode)
{
    NEXT(mkdir);
    if (is_below(path) && is_due(MKDIR))
        FAIL(-1);
    return next(path, mode);
}

int close(int descriptor)
{
    NEXT(close);
    if (is_ours(descriptor) && is_due(CLOSE)) {
        next(descriptor);
        FAIL(-1);
    }
    return next(descriptor);
}

static int opened(const char *path)
{
    return is_below(path) && is_due(OPEN);
}

int open64(const char *path, int flags, ...)
{
    NEXT(open64);
    va_list rest;
    va_start(rest, flags);
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;
    va_end(rest);
    if (opened(path))
        FAIL(-1);
    return next(path, flags, mode);
}

int open(const char *path, int flags, ...)
{
    va_list rest;
    va_start(rest, flags);
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;
    va_end(rest);
    return open64(path, flags, mode);
}

void *malloc(size_t size)
{
    NEXT(malloc);
    if (size >= smallest && is_due(ALLOCATE)) {
        errno = ENOMEM;
        return NULL;
    }
    return next(size);
}

void *realloc(void *old, size_t size)
{
    NEXT(realloc);
    if (size >= smallest && is_due(ALLOCATE)) {
        errno = ENOMEM;
        return NULL;
    }
    return next(old, size);
}

int posix_memalign(void **place, size_t alignment, size_t size)
{
    NEXT(posix_memalign);
    if (size >= smallest && is_due(ALLOCATE))
        return ENOMEM;
    return next(place, alignment, size);
}
