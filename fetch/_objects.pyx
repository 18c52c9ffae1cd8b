# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""The same as `afterlog.fetch.objects`, compiled: a call of C for each slot, none of Python."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport Py_TYPE, PyObject, PyTypeObject, descrsetfunc
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcmp

from types import MemberDescriptorType

import numpy as np

from afterlog.fetch.objects import Sections, Same, Strings
from afterlog.records.batch import DELIVER_AFTER, decode_own_headers

cdef bytes OWN = DELIVER_AFTER.encode()


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
        elif isinstance(column, Sections):
            put_objects(rows, slot, sections_of(column.offsets, column.data))
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


def sections_of(const int64_t[:] offsets, const uint8_t[::1] data):
    cdef const uint8_t *text = &data[0] if len(data) else NULL
    cdef int64_t start, end, size = len(data)
    cdef Py_ssize_t row, count = max(len(offsets) - 1, 0)
    cdef list found = [None] * count
    for row in range(count):
        start, end = offsets[row], offsets[row + 1]
        if not 0 <= start <= end <= size:
            raise ValueError(f"row {row} is {start} to {end} of {size} bytes")
        found[row] = decoded(text + start, end - start)
    return found


def section_of(bytes section):
    return decoded(<const uint8_t *>PyBytes_AS_STRING(section), PyBytes_GET_SIZE(section))


cdef object decoded(const uint8_t *text, int64_t size):
    """Whatever is not as `encode_headers` makes it is for the plain way, which says why."""
    cdef int64_t position = 0, count = 0, length = 0, key = 0, key_size = 0
    cdef list found
    if size == 0:
        return ()
    position = zigzag(text, 0, size, &count)
    if position < 0 or count < 0:
        return plainly(text, size)
    found = []
    while count > 0:
        key = zigzag(text, position, size, &key_size)
        if key < 0 or not 0 <= key_size <= size - key:
            return plainly(text, size)
        position = zigzag(text, key + key_size, size, &length)
        if position < 0 or not -1 <= length <= size - position:
            return plainly(text, size)
        if key_size != len(OWN) or memcmp(text + key, PyBytes_AS_STRING(OWN), key_size):
            found.append((
                PyUnicode_DecodeUTF8(<const char *>text + key, key_size, "surrogateescape"),
                None if length < 0 else PyBytes_FromStringAndSize(<const char *>text + position, length),
            ))
        position += max(length, 0)
        count -= 1
    return tuple(found) if position == size else plainly(text, size)


cdef object plainly(const uint8_t *text, int64_t size):
    return decode_own_headers(PyBytes_FromStringAndSize(<const char *>text, size))


cdef int64_t zigzag(const uint8_t *text, int64_t position, int64_t size, int64_t *number) noexcept:
    """The position behind a number of 32 bits; -1: there is none."""
    cdef uint64_t value = 0
    cdef int place
    for place in range(5):
        if position + place >= size:
            return -1
        value |= <uint64_t>(text[position + place] & 0x7F) << (7 * place)
        if text[position + place] < 0x80:
            if value >> 32:
                return -1
            number[0] = <int64_t>(value >> 1) ^ -<int64_t>(value & 1)
            return position + place + 1
    return -1


cdef int check(list rows, Py_ssize_t count) except -1:
    if len(rows) != count:
        raise ValueError(f"a column of {count} for {len(rows)} rows")
    return 0
