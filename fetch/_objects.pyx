# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""The same as `afterlog.fetch.objects`, compiled: a call of C for each slot, none of Python."""

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.object cimport Py_TYPE, PyObject, PyTypeObject, descrsetfunc
from libc.stdint cimport int64_t, uint8_t

from types import MemberDescriptorType

import numpy as np

from afterlog.fetch.objects import Same, Strings


def made(type cls, Py_ssize_t count, columns):
    cdef Py_ssize_t row
    cdef object nothing = ()
    cdef list rows = [None] * count
    for row in range(count):
        rows[row] = (<PyTypeObject *>cls).tp_new(cls, <PyObject *>nothing, NULL)
    for name, column in columns.items():
        slot = getattr(cls, name)
        if type(slot) is not MemberDescriptorType:
            raise TypeError(f"{cls.__name__}.{name} is no slot")
        if isinstance(column, np.ndarray):
            put_integers(rows, slot, column)
        elif isinstance(column, Strings):
            put_strings(rows, slot, column.offsets, column.data, column.valid)
        else:
            put_objects(rows, slot, [column.value] * count if isinstance(column, Same) else column)
    return rows


cdef int put_integers(list rows, slot, const int64_t[:] values) except -1:
    cdef descrsetfunc put = (<PyTypeObject *>Py_TYPE(slot)).tp_descr_set
    cdef Py_ssize_t row
    check(rows, len(values))
    for row in range(len(rows)):
        put(slot, rows[row], values[row])
    return 0


cdef int put_strings(list rows, slot, const int64_t[:] offsets, const uint8_t[::1] data, valid) except -1:
    cdef descrsetfunc put = (<PyTypeObject *>Py_TYPE(slot)).tp_descr_set
    cdef const uint8_t[:] is_valid = valid.view(np.uint8)
    cdef const char *text = <const char *>&data[0] if len(data) else NULL
    cdef int64_t start, end, size = len(data)
    cdef Py_ssize_t row
    check(rows, len(offsets) - 1)
    check(rows, len(is_valid))
    for row in range(len(rows)):
        if not is_valid[row]:
            put(slot, rows[row], None)
            continue
        start, end = offsets[row], offsets[row + 1]
        if not 0 <= start <= end <= size:
            raise ValueError(f"row {row} is {start} to {end} of {size} bytes")
        put(slot, rows[row], PyBytes_FromStringAndSize(text + start, end - start))
    return 0


cdef int put_objects(list rows, slot, list values) except -1:
    cdef descrsetfunc put = (<PyTypeObject *>Py_TYPE(slot)).tp_descr_set
    cdef Py_ssize_t row
    check(rows, len(values))
    for row in range(len(rows)):
        put(slot, rows[row], values[row])
    return 0


cdef int check(list rows, Py_ssize_t count) except -1:
    if len(rows) != count:
        raise ValueError(f"a column of {count} for {len(rows)} rows")
    return 0
