# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False, embedsignature=True
"""The packed chunk, compiled. See `afterlog.index.packing` for what it promises, `afterlog.index.packed_chunk` for the form.

The loops run without the GIL and touch no Python object. Sums are of uint64, and of values below 2^33: a chunk has at
most 2^16 entries, so none wraps around.
"""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

import numpy as np

from afterlog.index import packed_chunk

cdef extern from *:
    """
    #if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
    #error "words are read as they lie: without this module the plain implementation serves"
    #endif

    static int bit_length(uint64_t value) {
        int bits = 0;
        for (; value; value >>= 1)
            bits++;
        return bits;
    }
    """
    int bit_length(uint64_t value) noexcept nogil

cdef enum:
    BLOCK = 128
    ENTRIES_MAX = 65536
    WIDTH_MAX = 32
    BLOCK_BYTES_MAX = 2048
    HEAD_BYTES = 24
    TABLE_COLUMNS = 6
    DIGIT_BITS = 11

# The columns of the block table.
cdef enum:
    GAP_MIN, TIME_MIN, RECORDS_MIN, POSITION_START, POSITION_RISE, WIDTHS

# Why a chunk is refused.
cdef enum:
    OK, FORM, RANGE

cdef uint64_t UINT32_MAX = 0xFFFFFFFF
cdef uint64_t INT64_MAX = 0x7FFFFFFFFFFFFFFF

assert (BLOCK, ENTRIES_MAX, WIDTH_MAX) == (packed_chunk.BLOCK, packed_chunk.ENTRIES_MAX, packed_chunk.WIDTH_MAX)
assert (HEAD_BYTES, TABLE_COLUMNS) == (packed_chunk.HEAD.size, packed_chunk.TABLE_COLUMNS)


def pack(const int64_t[::1] deliver_after not None, const uint32_t[:, ::1] details not None):
    cdef int64_t entries = deliver_after.shape[0], size
    if details.shape[0] != 3 or details.shape[1] != entries:
        raise ValueError("the columns are not of one length")
    if not 1 <= entries <= ENTRIES_MAX:
        return None
    cdef int64_t blocks = (entries + BLOCK - 1) // BLOCK
    cdef uint64_t[::1] sorting = np.empty(2 * entries, np.uint64)
    cdef uint32_t[:, ::1] columns = np.empty((5, entries), np.uint32)
    table = np.empty((TABLE_COLUMNS, blocks), np.uint32)
    cdef uint32_t[:, ::1] rows = table
    cdef uint64_t unit = 1
    with nogil:
        size = measure(&deliver_after[0], details, entries, &sorting[0], columns, rows, &unit)
    if size < 0:
        return None
    chunk = np.empty(HEAD_BYTES + 4 * TABLE_COLUMNS * blocks + size, np.uint8)
    chunk[:HEAD_BYTES] = np.frombuffer(packed_chunk.HEAD.pack(deliver_after[0], unit, columns[4, 0]), np.uint8)
    chunk[HEAD_BYTES : HEAD_BYTES + 4 * TABLE_COLUMNS * blocks] = table.reshape(-1).view(np.uint8)
    cdef uint8_t[::1] out = chunk
    if size:
        with nogil:
            write_blocks(columns, rows, entries, &out[out.shape[0] - size])
    return chunk


def unpack(const uint8_t[::1] data not None, int64_t entries):
    cdef int64_t blocks = (entries + BLOCK - 1) // BLOCK
    if not 1 <= entries <= ENTRIES_MAX or data.shape[0] < HEAD_BYTES + 4 * TABLE_COLUMNS * blocks:
        raise ValueError(packed_chunk.FORM)
    deliver_after, details = np.empty(entries, np.int64), np.empty((3, entries), np.uint32)
    cdef int64_t[::1] dues = deliver_after
    cdef uint32_t[:, ::1] out = details
    cdef uint32_t[:, ::1] table = np.empty((TABLE_COLUMNS, blocks), np.uint32)
    cdef uint32_t[:, ::1] columns = np.empty((4, entries), np.uint32)
    cdef uint64_t[::1] sorting = np.empty(2 * entries, np.uint64)
    cdef int fault
    with nogil:
        fault = read_chunk(&data[0], data.shape[0], entries, table, columns, &sorting[0], &dues[0], out)
    if fault:
        raise ValueError(packed_chunk.FORM if fault == FORM else packed_chunk.RANGE)
    return deliver_after, details


cdef uint64_t *sort_rows(const uint32_t *keys, int64_t entries, uint64_t *sorting) noexcept nogil:
    """The rows in the order of their keys, stably, each as key << 16 | row; NULL where they are in order already."""
    cdef uint64_t *one = sorting
    cdef uint64_t *other = sorting + entries
    cdef uint32_t starts[1 << DIGIT_BITS]
    cdef uint32_t low = keys[0], high = keys[0], count, total
    cdef int bits, passes, digit_bits, shift, turn
    cdef int64_t row
    cdef uint64_t digit
    cdef bint ordered = True
    for row in range(1, entries):
        ordered &= keys[row - 1] <= keys[row]
        low = min(low, keys[row])
        high = max(high, keys[row])
    if ordered:
        return NULL
    for row in range(entries):
        one[row] = <uint64_t>(keys[row] - low) << 16 | <uint64_t>row
    bits = bit_length(high - low)
    passes = (bits + DIGIT_BITS - 1) // DIGIT_BITS
    digit_bits = (bits + passes - 1) // passes
    for turn in range(passes):
        shift = 16 + turn * digit_bits
        memset(starts, 0, sizeof(uint32_t) << digit_bits)
        for row in range(entries):
            starts[one[row] >> shift & ((1 << digit_bits) - 1)] += 1
        total = 0
        for row in range(1 << digit_bits):
            count = starts[row]
            starts[row] = total
            total += count
        for row in range(entries):
            digit = one[row] >> shift & ((1 << digit_bits) - 1)
            other[starts[digit]] = one[row]
            starts[digit] += 1
        one, other = other, one
    return one


cdef int block_count(int64_t entries, int64_t block) noexcept nogil:
    return <int>min(entries - block * BLOCK, BLOCK)


cdef uint64_t slope_of(uint64_t rise, uint64_t distance) noexcept nogil:
    return (rise << 32) // distance if distance else 0


# Packing.

cdef int64_t measure(
    const int64_t *deliver_after, const uint32_t[:, ::1] details, int64_t entries, uint64_t *sorting,
    uint32_t[:, ::1] columns, uint32_t[:, ::1] table, uint64_t *unit,
) noexcept nogil:
    """Fill columns (gap, time, position, records, offset; in offset order) and table; bytes of the bits, -1 if not to be packed."""
    cdef uint64_t *rows = sort_rows(&details[0, 0], entries, sorting)
    cdef uint64_t time, end
    cdef int64_t row, source, block, size = 0
    unit[0] = unit_of(deliver_after, entries)
    end = details[0, <int64_t>(rows[0] & 0xFFFF) if rows else 0]
    for row in range(entries):
        source = <int64_t>(rows[row] & 0xFFFF) if rows else row
        time = <uint64_t>(deliver_after[source] - deliver_after[0])
        if unit[0] > 1:
            time //= unit[0]
        if details[0, source] < end or details[2, source] == 0 or time > UINT32_MAX:
            return -1
        columns[0, row] = <uint32_t>(details[0, source] - end)
        columns[1, row] = <uint32_t>time
        columns[2, row] = details[1, source]
        columns[3, row] = details[2, source]
        columns[4, row] = details[0, source]
        end = <uint64_t>details[0, source] + details[2, source]
    for block in range(table.shape[1]):
        size += measure_block(columns, table, block, block_count(entries, block))
    return size


cdef uint64_t unit_of(const int64_t *deliver_after, int64_t entries) noexcept nogil:
    """The largest number that divides every distance from the first; 1 where there are none."""
    cdef uint64_t unit = 0, one, other
    cdef int64_t row
    for row in range(1, entries):
        if unit == 1:
            break
        one, other = <uint64_t>(deliver_after[row] - deliver_after[0]), unit
        while other:
            one, other = other, one % other
        unit = one
    return unit if unit else 1


cdef int64_t measure_block(uint32_t[:, ::1] columns, uint32_t[:, ::1] table, int64_t block, int count) noexcept nogil:
    """Fill the block's row of the table, and leave in its columns what goes into the bits; the bytes of these."""
    cdef int64_t first = block * BLOCK, size = 0
    cdef uint32_t low[4]
    cdef uint32_t *values
    cdef uint32_t bits_set, widths = 0
    cdef int row, column, width
    table[POSITION_START, block] = columns[2, first]
    table[POSITION_RISE, block] = drifts_of(&columns[2, first], &columns[4, first], count)
    for column in range(4):
        values = &columns[column, first]
        low[column] = 0 if column == 2 else values[0]
        for row in range(1, count):
            low[column] = min(low[column], values[row])
        bits_set = 0
        for row in range(count):
            values[row] -= low[column]
            bits_set |= values[row]
        width = bit_length(bits_set)
        widths |= <uint32_t>width << 8 * column
        size += (count * width + 7) // 8
    table[GAP_MIN, block] = low[0]
    table[TIME_MIN, block] = low[1]
    table[RECORDS_MIN, block] = low[3]
    table[WIDTHS, block] = widths
    return size


cdef uint32_t drifts_of(uint32_t *position, const uint32_t *offset, int count) noexcept nogil:
    """Turn positions into drifts; the rise of the line."""
    cdef uint32_t rise = 0, off_line, before = position[0], drift
    cdef uint64_t slope
    cdef int row
    if position[count - 1] > position[0]:
        rise = position[count - 1] - position[0]
    slope = slope_of(rise, offset[count - 1] - offset[0])
    for row in range(count):
        off_line = position[row] - <uint32_t>(slope * (offset[row] - offset[0]) >> 32)
        drift = off_line - before
        position[row] = drift << 1 ^ (<uint32_t>0 - (drift >> 31))
        before = off_line
    return rise


cdef void write_blocks(uint32_t[:, ::1] columns, uint32_t[:, ::1] table, int64_t entries, uint8_t *at) noexcept nogil:
    cdef int64_t block
    cdef int column, width
    for block in range(table.shape[1]):
        for column in range(4):
            width = table[WIDTHS, block] >> 8 * column & 0xFF
            at = write_bits(&columns[column, block * BLOCK], block_count(entries, block), width, at)


cdef uint8_t *write_bits(const uint32_t *values, int count, int width, uint8_t *at) noexcept nogil:
    cdef uint64_t word = 0
    cdef int filled = 0, row
    for row in range(count):
        word |= <uint64_t>values[row] << filled
        filled += width
        if filled >= 32:
            memcpy(at, &word, 4)
            at += 4
            word >>= 32
            filled -= 32
    memcpy(at, &word, (filled + 7) // 8)
    return at + (filled + 7) // 8


# Unpacking.

cdef int read_chunk(
    const uint8_t *data, int64_t size, int64_t entries, uint32_t[:, ::1] table, uint32_t[:, ::1] columns,
    uint64_t *sorting, int64_t *deliver_after, uint32_t[:, ::1] out,
) noexcept nogil:
    cdef int64_t table_bytes = 4 * TABLE_COLUMNS * table.shape[1]
    cdef int64_t at = HEAD_BYTES + table_bytes, needed = 0, block
    cdef uint64_t end, time_max = 0, unit, earliest
    cdef uint32_t first_offset
    cdef int fault = OK
    memcpy(&table[0, 0], data + HEAD_BYTES, table_bytes)
    for block in range(table.shape[1]):
        needed += block_bytes(table[WIDTHS, block], block_count(entries, block))
    if needed != size - at:
        return FORM
    memcpy(&earliest, data, 8)
    memcpy(&unit, data + 8, 8)
    memcpy(&first_offset, data + 16, 4)
    end = first_offset
    for block in range(table.shape[1]):
        at += read_block(data + at, table, columns, block, block_count(entries, block), &end, &time_max, &fault)
    if fault or earliest > INT64_MAX or not 1 <= unit <= INT64_MAX or time_max > (INT64_MAX - earliest) // unit:
        return RANGE
    order(columns, entries, sorting, earliest, unit, deliver_after, out)
    return OK


cdef int64_t block_bytes(uint32_t widths, int count) noexcept nogil:
    """Bytes of the bits of a block; more than any chunk has where a width is too large."""
    cdef int64_t size = 0
    cdef int column
    for column in range(4):
        if (widths >> 8 * column & 0xFF) > WIDTH_MAX:
            return <int64_t>1 << 40
        size += (count * (widths >> 8 * column & 0xFF) + 7) // 8
    return size


cdef int64_t read_block(
    const uint8_t *data, uint32_t[:, ::1] table, uint32_t[:, ::1] columns, int64_t block, int count,
    uint64_t *end, uint64_t *time_max, int *fault,
) noexcept nogil:
    """Fill columns (time, offset, position, records; in offset order) from a block; the bytes of its bits."""
    cdef int64_t first = block * BLOCK
    cdef uint32_t gaps[BLOCK]
    cdef uint32_t times[BLOCK]
    cdef uint32_t drifts[BLOCK]
    cdef uint32_t records[BLOCK]
    cdef uint64_t offset[BLOCK]
    # A copy with eight bytes behind it, so that words may be read wherever a value begins.
    cdef uint8_t bits[BLOCK_BYTES_MAX + 8]
    cdef uint32_t widths = table[WIDTHS, block], drifted = table[POSITION_START, block]
    cdef int64_t size = block_bytes(widths, count), at = 0
    cdef uint64_t gap_min = table[GAP_MIN, block], time_min = table[TIME_MIN, block]
    cdef uint64_t records_min = table[RECORDS_MIN, block], slope, taken, time
    cdef int row
    memcpy(bits, data, size)
    memset(bits + size, 0, 8)
    at += read_bits(bits + at, widths & 0xFF, count, gaps)
    at += read_bits(bits + at, widths >> 8 & 0xFF, count, times)
    at += read_bits(bits + at, widths >> 16 & 0xFF, count, drifts)
    read_bits(bits + at, widths >> 24, count, records)
    for row in range(count):
        offset[row] = end[0] + gap_min + gaps[row]
        taken = records_min + records[row]
        end[0] = offset[row] + taken
        time = time_min + times[row]
        if taken - 1 >= UINT32_MAX or time > UINT32_MAX:
            fault[0] = RANGE
        if time > time_max[0]:
            time_max[0] = time
        columns[0, first + row] = <uint32_t>time
        columns[1, first + row] = <uint32_t>offset[row]
        columns[3, first + row] = <uint32_t>taken
    if offset[count - 1] > UINT32_MAX:
        fault[0] = RANGE
    slope = slope_of(table[POSITION_RISE, block], offset[count - 1] - offset[0])
    for row in range(count):
        drifted += drifts[row] >> 1 ^ (<uint32_t>0 - (drifts[row] & 1))
        columns[2, first + row] = drifted + <uint32_t>(slope * (offset[row] - offset[0]) >> 32)
    return size


cdef int64_t read_bits(const uint8_t *data, int width, int count, uint32_t *values) noexcept nogil:
    """Unpack `count` values of `width` bits; the bytes that they take. Eight more may be read."""
    cdef uint64_t word, mask = (<uint64_t>1 << width) - 1
    cdef int row, bit = 0
    if width == 0:
        memset(values, 0, count * sizeof(uint32_t))
        return 0
    for row in range(count):
        memcpy(&word, data + (bit >> 3), 8)
        values[row] = <uint32_t>(word >> (bit & 7) & mask)
        bit += width
    return (bit + 7) // 8


cdef void order(
    uint32_t[:, ::1] columns, int64_t entries, uint64_t *sorting, uint64_t earliest, uint64_t unit,
    int64_t *deliver_after, uint32_t[:, ::1] out,
) noexcept nogil:
    """From offset order to delivery order."""
    cdef uint64_t *rows = sort_rows(&columns[0, 0], entries, sorting)
    cdef int64_t row, source
    for row in range(entries):
        source = <int64_t>(rows[row] & 0xFFFF) if rows else row
        deliver_after[row] = <int64_t>(earliest + unit * columns[0, source])
        out[0, row] = columns[1, source]
        out[1, row] = columns[2, source]
        out[2, row] = columns[3, source]
