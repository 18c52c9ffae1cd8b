# cython: language_level=3, embedsignature=True
"""A mapping that its disk cannot kill. See `afterlog.base.files`, which says what it promises, and docs/decisions/0030.

Who touches a mapped page that cannot be read (a bad sector, a file that was cut) gets SIGBUS, wherever that is: in a
kernel, in numpy, in zlib. The handler here puts a page of zeros in its place and counts it, and the instruction goes on.
Faults anywhere else go to whoever had the signal before.

A handler may not take a lock, so what it reads is a list that only grows: of its rows those in use have a size. Rows are
changed under the GIL; the size is written last, and taken back first.
"""

from libc.stdint cimport int64_t

cdef extern from *:
    """
    #include <errno.h>
    #include <signal.h>
    #include <stdint.h>
    #include <stdlib.h>
    #include <sys/mman.h>
    #include <unistd.h>

    #ifndef MAP_ANONYMOUS
    #define MAP_ANONYMOUS MAP_ANON
    #endif

    /* Behind so many lost pages of one mapping all the rest is given up: each splits the mapping, and their number is
       bounded for a process. */
    #define LOST_PAGES_MAX 1024

    typedef struct row {
        struct row *next;
        struct row *next_free;
        char *start;
        size_t size;         /* whole pages; 0: not in use */
        int64_t lost_pages;
        int64_t first_lost;  /* byte */
    } row;

    static row *rows = NULL;
    static row *free_rows = NULL;
    static uintptr_t page_bytes = 0;
    static struct sigaction former;
    static volatile sig_atomic_t passed_on = 0;

    static int lose(char *address) {
        for (row *each = __atomic_load_n(&rows, __ATOMIC_ACQUIRE); each != NULL; each = each->next) {
            size_t size = __atomic_load_n(&each->size, __ATOMIC_ACQUIRE);
            char *start = __atomic_load_n(&each->start, __ATOMIC_RELAXED);
            if (size == 0 || address < start || address >= start + size)
                continue;
            char *page = (char *)((uintptr_t)address & ~(page_bytes - 1));
            int64_t lost = __atomic_add_fetch(&each->lost_pages, 1, __ATOMIC_RELAXED);
            size_t given_up = lost < LOST_PAGES_MAX ? page_bytes : (size_t)(start + size - page);
            int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
            if (mmap(page, given_up, PROT_READ, flags, -1, 0) == MAP_FAILED)
                return 0;
            int64_t at = page - start, first = __atomic_load_n(&each->first_lost, __ATOMIC_RELAXED);
            while ((first < 0 || at < first) &&
                   !__atomic_compare_exchange_n(&each->first_lost, &first, at, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
            }
            return 1;
        }
        return 0;
    }

    static void pass_on(int number, siginfo_t *info, void *context) {
        struct sigaction fatal;
        int again = passed_on;  /* one that puts this handler back, and raises: no third time */
        passed_on = 1;
        if (!again && (former.sa_flags & SA_SIGINFO) && former.sa_sigaction != NULL) {
            former.sa_sigaction(number, info, context);
        } else if (!again && former.sa_handler != SIG_DFL && former.sa_handler != SIG_IGN) {
            former.sa_handler(number);
        } else {
            fatal.sa_handler = SIG_DFL;
            fatal.sa_flags = 0;
            sigemptyset(&fatal.sa_mask);
            sigaction(number, &fatal, NULL);
            if (info->si_code <= 0)  /* sent by somebody: no instruction raises it again */
                raise(number);
        }
        passed_on = 0;
    }

    static void on_bus_error(int number, siginfo_t *info, void *context) {
        int saved = errno;
        if (info->si_code <= 0 || !lose((char *)info->si_addr))
            pass_on(number, info, context);
        errno = saved;
    }

    /* Also where somebody else has taken the signal since: whatever was there comes behind this. */
    static int be_handler(void) {
        struct sigaction now, ours;
        if (sigaction(SIGBUS, NULL, &now) != 0)
            return -1;
        if ((now.sa_flags & SA_SIGINFO) && now.sa_sigaction == on_bus_error)
            return 0;
        former = now;
        ours.sa_sigaction = on_bus_error;
        ours.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
        sigemptyset(&ours.sa_mask);
        return sigaction(SIGBUS, &ours, NULL);
    }

    static row *map_guarded(int descriptor, size_t size) {
        page_bytes = (uintptr_t)sysconf(_SC_PAGESIZE);
        if (be_handler() != 0)
            return NULL;
        row *mine = free_rows;
        if (mine == NULL) {
            mine = calloc(1, sizeof(row));
            if (mine == NULL) {
                errno = ENOMEM;
                return NULL;
            }
            mine->next = rows;
            __atomic_store_n(&rows, mine, __ATOMIC_RELEASE);
        } else {
            free_rows = mine->next_free;
        }
        char *start = mmap(NULL, size, PROT_READ, MAP_SHARED, descriptor, 0);
        if (start == MAP_FAILED) {
            mine->next_free = free_rows;
            free_rows = mine;
            return NULL;
        }
        mine->lost_pages = 0;
        mine->first_lost = -1;
        __atomic_store_n(&mine->start, start, __ATOMIC_RELAXED);
        __atomic_store_n(&mine->size, (size + page_bytes - 1) & ~(page_bytes - 1), __ATOMIC_RELEASE);
        return mine;
    }

    static void unmap_guarded(row *mine) {
        size_t size = mine->size;
        __atomic_store_n(&mine->size, 0, __ATOMIC_RELEASE);
        munmap(mine->start, size);
        mine->next_free = free_rows;
        free_rows = mine;
    }

    """
    ctypedef struct row:
        char *start
        int64_t lost_pages
        int64_t first_lost
    row *map_guarded(int descriptor, size_t size)
    void unmap_guarded(row *mine)

from cpython.buffer cimport PyBuffer_FillInfo
from cpython.exc cimport PyErr_SetFromErrno


cdef class Mapping:
    """The first bytes of a file, read-only, as a buffer. It is unmapped when nobody has it any more."""

    cdef row *_row
    cdef size_t _size

    def __cinit__(self, int descriptor, size_t size):
        self._size = size
        self._row = map_guarded(descriptor, size)
        if self._row is NULL:
            PyErr_SetFromErrno(OSError)

    def __dealloc__(self):
        if self._row is not NULL:
            unmap_guarded(self._row)

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self._row.start, <Py_ssize_t>self._size, 1, flags)

    @property
    def lost_pages(self):
        return self._row.lost_pages

    @property
    def first_lost(self):
        return self._row.first_lost

