# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False, embedsignature=True
"""The kernels, compiled. See `afterlog.records.kernels` for what each does and `afterlog.records.pure` for the same in plain Python.

Functions are named after the parts of the formats, which `afterlog.records.header`, `afterlog.records.batch` and
`afterlog.records.entry` draw. Conventions: `at` is where something is read or written, and the function returns the byte
behind it, or NULL where it does not fit before `end`. Loops run without the GIL and touch no Python object. Arguments
are checked before the loops, by the same functions as in the plain kernels; everything that is read out of the bytes
is checked in the loops.
"""

from libc.stdint cimport int16_t, int32_t, int64_t, intptr_t, uint8_t, uint32_t, uint64_t
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.string cimport memcmp, memcpy

import numpy as np

from afterlog.base.errors import InvalidRecord, RecordTooLarge
from afterlog.records import columns
from afterlog.records.columns import Checked, Decoded, Verified, Scan

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>

    /* CRC-32C: the Castagnoli polynomial, reflected. By table, eight bytes at a time, or by the CPU's instruction. */
    static uint32_t crc32c_tables[8][256];

    static void crc32c_make_tables(void) {
        for (uint32_t byte = 0; byte < 256; byte++) {
            uint32_t crc = byte;
            for (int bit = 0; bit < 8; bit++)
                crc = crc & 1 ? crc >> 1 ^ 0x82F63B78u : crc >> 1;
            crc32c_tables[0][byte] = crc;
        }
        for (int table = 1; table < 8; table++)
            for (uint32_t byte = 0; byte < 256; byte++) {
                uint32_t crc = crc32c_tables[table - 1][byte];
                crc32c_tables[table][byte] = crc >> 8 ^ crc32c_tables[0][crc & 255];
            }
    }

    static uint32_t crc32c_by_table(uint32_t crc, const uint8_t *at, int64_t size) {
        crc = ~crc;
        for (; size >= 8; at += 8, size -= 8) {
            crc ^= (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
            crc = crc32c_tables[7][crc & 255] ^ crc32c_tables[6][crc >> 8 & 255]
                ^ crc32c_tables[5][crc >> 16 & 255] ^ crc32c_tables[4][crc >> 24]
                ^ crc32c_tables[3][at[4]] ^ crc32c_tables[2][at[5]] ^ crc32c_tables[1][at[6]] ^ crc32c_tables[0][at[7]];
        }
        for (; size > 0; at++, size--)
            crc = crc >> 8 ^ crc32c_tables[0][(crc ^ *at) & 255];
        return ~crc;
    }

    #if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
    #if defined(__clang__) && __clang_major__ >= 14
    __attribute__((target("sse4.2,crc32")))  /* to it the instruction is a feature of its own */
    #else
    __attribute__((target("sse4.2")))
    #endif
    static uint32_t crc32c_by_instruction(uint32_t start, const uint8_t *at, int64_t size) {
        uint64_t crc = (uint32_t)~start;
        for (; size >= 8; at += 8, size -= 8) {
            uint64_t word;
            memcpy(&word, at, 8);
            crc = __builtin_ia32_crc32di(crc, word);
        }
        uint32_t low = (uint32_t)crc;
        if (size & 4) {
            uint32_t word;
            memcpy(&word, at, 4);
            low = __builtin_ia32_crc32si(low, word);
            at += 4;
        }
        for (size &= 3; size > 0; at++, size--)
            low = __builtin_ia32_crc32qi(low, *at);
        return ~low;
    }
    static int crc32c_has_instruction(void) { return __builtin_cpu_supports("sse4.2"); }
    #else
    #define crc32c_by_instruction crc32c_by_table
    static int crc32c_has_instruction(void) { return 0; }
    #endif

    static uint32_t (*crc32c_of)(uint32_t, const uint8_t *, int64_t) = crc32c_by_table;

    static void crc32c_choose(void) {
        crc32c_make_tables();
        if (crc32c_has_instruction())
            crc32c_of = crc32c_by_instruction;
    }

    /* Asks for the first cache lines of what is read soon: five of them hold most entries. Without the statement that
       does nothing GCC takes a function that only prefetches for one without effect, and leaves out its calls. */
    static void prefetch(const uint8_t *at, int lines) {
    #if defined(__GNUC__) || defined(__clang__)
        __asm__ volatile ("");
        for (int line = 0; line < lines; line++)
            __builtin_prefetch(at + 64 * line);
    #else
        (void)at, (void)lines;
    #endif
    }
    """
    void crc32c_choose()
    uint32_t crc32c_by_table(uint32_t crc, const uint8_t *at, int64_t size) noexcept nogil
    uint32_t crc32c_of(uint32_t crc, const uint8_t *at, int64_t size) noexcept nogil
    void prefetch(const uint8_t *at, int lines) noexcept nogil

crc32c_choose()

cdef int64_t INT64_MAX = 0x7FFFFFFFFFFFFFFF
cdef int64_t INT32_MAX = 0x7FFFFFFF

# Why an entry is not taken; afterlog.records.columns has the same.
cdef enum:
    OK, SHORT, MAGIC, LENGTH, HEADER_CRC, BODY_CRC, OFFSET, EPOCH, PREFIX, INDEX

# Why the records of a batch cannot be decoded; afterlog.records.columns has the same.
cdef enum:
    DECODED, VARINT, BOUNDS, OFFSET_DELTA, LEFT_OVER, COMPRESSED, PLACE, COUNT, DELIVER_AFTER

# The header of a record batch: where its fields start.
cdef enum:
    LENGTH_AT = 8
    LENGTH_END = 12
    LEADER_EPOCH_AT = 12
    MAGIC_AT = 16
    CRC_AT = 17
    ATTRIBUTES_AT = 21
    LAST_OFFSET_DELTA_AT = 23
    BASE_TIMESTAMP_AT = 27
    MAX_TIMESTAMP_AT = 35
    PRODUCER_ID_AT = 43
    PRODUCER_EPOCH_AT = 51
    BASE_SEQUENCE_AT = 53
    COUNT_AT = 57
    HEADER_BYTES = 61

cdef enum:
    CODEC_BITS = 0x07
    LOG_APPEND_TIME = 0x08
    RECORD_BYTES_MIN = 7
    RECORD_OVERHEAD_MAX = 64            # six varints, the attributes and our own header come to 57
    PREFIX_MAGIC = 0x0E02
    PREFIX_HEAD_BYTES = 6
    CRC_FIELD_BYTES = 6
    METADATA_OVERHEAD_MAX = 64          # the fields that the log writes itself come to 58 with the prefix's head
    METADATA_BYTES_MAX = 65536
    SCAN_COLUMNS = 9
    FIRST_RECORDS = 64                  # room for so many before it is known how large they are
    FIRST_BYTES = 16384
    PREFETCH_LINES = 5
    PREFETCH_DISTANCE = 8
    PLAIN_BITS = 0xFFFF                 # no codec, no control batch, no transaction, the producer's own timestamps
    TAKE_LINES = 2
    TAKE_DISTANCE = 16
    PREFETCH_GROUP = 64

cdef const uint8_t *DELIVER_AFTER_KEY = b"deliver-after"
cdef enum:
    DELIVER_AFTER_KEY_BYTES = 13
    DELIVER_AFTER_HEADER_BYTES = 23     # 1A 'deliver-after' 10 and eight bytes


# ---- numbers: big-endian, varint, zig-zag

cdef inline uint32_t load32(const uint8_t *at) noexcept nogil:
    return <uint32_t>at[0] << 24 | <uint32_t>at[1] << 16 | <uint32_t>at[2] << 8 | at[3]

cdef inline uint64_t load64(const uint8_t *at) noexcept nogil:
    return <uint64_t>load32(at) << 32 | load32(at + 4)

cdef inline uint8_t *put16(uint8_t *at, uint32_t value) noexcept nogil:
    at[0] = <uint8_t>(value >> 8)
    at[1] = <uint8_t>value
    return at + 2

cdef inline uint8_t *put32(uint8_t *at, uint32_t value) noexcept nogil:
    return put16(put16(at, value >> 16), value)

cdef inline uint8_t *put64(uint8_t *at, uint64_t value) noexcept nogil:
    return put32(put32(at, <uint32_t>(value >> 32)), <uint32_t>value)

cdef inline uint64_t zigzag(int64_t value) noexcept nogil:
    return <uint64_t>value << 1 ^ <uint64_t>(value >> 63)

cdef inline int varint_bytes(uint64_t value) noexcept nogil:
    cdef int size = 1
    while value > 0x7F:
        value >>= 7
        size += 1
    return size

cdef inline uint8_t *put_varint(uint8_t *at, uint64_t value) noexcept nogil:
    while value > 0x7F:
        at[0] = <uint8_t>(value | 0x80)
        at += 1
        value >>= 7
    at[0] = <uint8_t>value
    return at + 1

cdef inline const uint8_t *read_varint(const uint8_t *at, const uint8_t *end, int bits, uint64_t *value) noexcept nogil:
    cdef int shift = 0
    cdef uint8_t byte
    value[0] = 0
    while at < end and shift < bits:
        byte = at[0]
        at += 1
        if shift + 7 > bits and (byte & 0x7F) >> (bits - shift):
            return NULL
        value[0] |= <uint64_t>(byte & 0x7F) << shift
        if byte < 0x80:
            return at
        shift += 7
    return NULL

cdef inline const uint8_t *read_zigzag(const uint8_t *at, const uint8_t *end, int bits, int64_t *value) noexcept nogil:
    cdef uint64_t raw = 0
    at = read_varint(at, end, bits, &raw)
    value[0] = <int64_t>(raw >> 1) ^ -<int64_t>(raw & 1)
    return at


# ---- encode: columns to batches

cdef struct Items:
    # A ragged column. `data` is NULL where there is no such column, `valid` where no item is null.
    const int64_t *offsets
    const uint8_t *data
    const uint8_t *valid

cdef struct Slice:
    # Bytes of a record. A null has size -1.
    const uint8_t *data
    int64_t size

cdef inline Slice item_of(Items *column, int64_t item) noexcept nogil:
    cdef Slice part
    part.data = NULL
    part.size = -1
    if column.data != NULL and (column.valid == NULL or column.valid[item]):
        part.data = column.data + column.offsets[item]
        part.size = column.offsets[item + 1] - column.offsets[item]
    return part

cdef inline uint8_t *put_slice(uint8_t *at, Slice part) noexcept nogil:
    at = put_varint(at, zigzag(part.size))
    if part.size > 0:
        memcpy(at, part.data, part.size)
        at += part.size
    return at

cdef inline int64_t slice_bytes(Slice part) noexcept nogil:
    return varint_bytes(zigzag(part.size)) + (part.size if part.size > 0 else 0)

cdef inline const uint8_t *read_slice(const uint8_t *at, const uint8_t *end, Slice *part, int *reason) noexcept nogil:
    at = read_zigzag(at, end, 32, &part.size)
    if at == NULL:
        reason[0] = VARINT
        return NULL
    if part.size < -1 or part.size > end - at:
        reason[0] = BOUNDS
        return NULL
    part.data = at
    return at + (part.size if part.size > 0 else 0)

cdef struct Headers:
    int64_t count
    const uint8_t *first                # behind the count
    Slice deliver_after                 # of the last header of that name; data is NULL where there is none

cdef int read_headers(const uint8_t *at, const uint8_t *end, Headers *headers) noexcept nogil:
    # The section must fill [at, end). Returns a reason.
    cdef int reason = DECODED
    cdef int64_t header
    cdef Slice key, value
    headers.deliver_after.data = NULL
    at = read_zigzag(at, end, 32, &headers.count)
    if at == NULL:
        return VARINT
    if headers.count < 0:
        return BOUNDS
    headers.first = at
    for header in range(headers.count):
        at = read_slice(at, end, &key, &reason)
        if at == NULL:
            return reason
        if key.size < 0:
            return BOUNDS
        at = read_slice(at, end, &value, &reason)
        if at == NULL:
            return reason
        if key.size == DELIVER_AFTER_KEY_BYTES and memcmp(key.data, DELIVER_AFTER_KEY, DELIVER_AFTER_KEY_BYTES) == 0:
            headers.deliver_after = value
    return DECODED if at == end else LEFT_OVER

cdef int64_t header_section_bytes(Slice section, Headers *headers, int64_t deliver_after) noexcept nogil:
    cdef int64_t size = section.size if section.size > 0 else 1
    if deliver_after < 0:
        return size
    if section.size <= 0:
        return 1 + DELIVER_AFTER_HEADER_BYTES
    return section.data + section.size - headers.first + varint_bytes(zigzag(headers.count + 1)) + DELIVER_AFTER_HEADER_BYTES

cdef uint8_t *put_header_section(uint8_t *at, Slice section, Headers *headers, int64_t deliver_after) noexcept nogil:
    # The section as it is, an empty one as count 0, or with one header more.
    cdef int64_t rest
    if deliver_after < 0 and section.size > 0:
        memcpy(at, section.data, section.size)
        return at + section.size
    if deliver_after < 0:
        return put_varint(at, 0)
    if section.size <= 0:
        at = put_varint(at, zigzag(1))
    else:
        rest = section.data + section.size - headers.first
        at = put_varint(at, zigzag(headers.count + 1))
        memcpy(at, headers.first, rest)
        at += rest
    at = put_varint(at, zigzag(DELIVER_AFTER_KEY_BYTES))
    memcpy(at, DELIVER_AFTER_KEY, DELIVER_AFTER_KEY_BYTES)
    at = put_varint(at + DELIVER_AFTER_KEY_BYTES, zigzag(8))
    return put64(at, <uint64_t>deliver_after)

cdef void put_batch_header(
    uint8_t *at, int64_t base_offset, int64_t size, int64_t records, int64_t base_timestamp, int64_t max_timestamp
) noexcept nogil:
    put64(at, <uint64_t>base_offset)
    put32(at + LENGTH_AT, <uint32_t>(size - LENGTH_END))
    put32(at + LEADER_EPOCH_AT, 0)
    at[MAGIC_AT] = 2
    put16(at + ATTRIBUTES_AT, 0)
    put32(at + LAST_OFFSET_DELTA_AT, <uint32_t>(records - 1))
    put64(at + BASE_TIMESTAMP_AT, <uint64_t>base_timestamp)
    put64(at + MAX_TIMESTAMP_AT, <uint64_t>max_timestamp)
    put64(at + PRODUCER_ID_AT, <uint64_t>-1)
    put16(at + PRODUCER_EPOCH_AT, <uint32_t>-1)
    put32(at + BASE_SEQUENCE_AT, <uint32_t>-1)
    put32(at + COUNT_AT, <uint32_t>records)

cdef struct Producers:
    # Who sent each batch, three columns; NULL where nobody says.
    const int64_t *id
    const int64_t *epoch
    const int64_t *sequence

cdef inline void put_producer(uint8_t *at, int64_t id, int64_t epoch, int64_t sequence) noexcept nogil:
    put64(at + PRODUCER_ID_AT, <uint64_t>id)
    put16(at + PRODUCER_EPOCH_AT, <uint32_t>epoch)
    put32(at + BASE_SEQUENCE_AT, <uint32_t>sequence)

cdef inline void put_producer_of(uint8_t *at, Producers *producers, int64_t batch) noexcept nogil:
    # Into a header that was just made, before its CRCs.
    if producers.id != NULL:
        put_producer(at, producers.id[batch], producers.epoch[batch], producers.sequence[batch])

cdef void put_batch_crc(uint8_t *at, int64_t size) noexcept nogil:
    put32(at + CRC_AT, crc32c_of(0, at + ATTRIBUTES_AT, size - ATTRIBUTES_AT))

cdef struct Records:
    # The arguments of encode_batches.
    Items value
    Items key
    Items headers
    const int64_t *timestamp
    const int64_t *deliver_after        # NULL where no record has its own

cdef struct Encoded:
    # Where and why encoding stopped; reason is DECODED at the end.
    int64_t record
    int64_t batch
    int reason

cdef inline int64_t latest(Records *records, int64_t first, int64_t stop) noexcept nogil:
    # The deliver_after of a batch; -1 where it has none.
    cdef int64_t deliver_after = -1, record
    if records.deliver_after != NULL:
        for record in range(first, stop):
            deliver_after = max(deliver_after, records.deliver_after[record])
    return deliver_after

cdef uint8_t *put_batch(
    uint8_t *start,
    Records *records,
    int64_t first,
    int64_t stop,
    int64_t base_offset,
    int64_t batch_deliver_after,
    Encoded *encoded,
) noexcept nogil:
    # All but the CRC.
    cdef int64_t base_timestamp = records.timestamp[first]
    cdef int64_t max_timestamp = base_timestamp
    cdef int64_t record, size, own
    cdef uint64_t timestamp_delta, offset_delta
    cdef Slice key, value, section
    cdef Headers headers
    cdef uint8_t *at = start + HEADER_BYTES
    for record in range(first, stop):
        max_timestamp = max(max_timestamp, records.timestamp[record])
        timestamp_delta = zigzag(<int64_t>(<uint64_t>records.timestamp[record] - <uint64_t>base_timestamp))
        offset_delta = zigzag(record - first)
        key = item_of(&records.key, record)
        value = item_of(&records.value, record)
        section = item_of(&records.headers, record)
        if section.size > 0:
            encoded.reason = read_headers(section.data, section.data + section.size, &headers)
            if encoded.reason != DECODED:
                encoded.record = record
                return NULL
        own = -1
        if records.deliver_after != NULL and records.deliver_after[record] != batch_deliver_after:
            own = records.deliver_after[record]
        size = (
            1 + varint_bytes(timestamp_delta) + varint_bytes(offset_delta)
            + slice_bytes(key) + slice_bytes(value) + header_section_bytes(section, &headers, own)
        )
        if at - start + varint_bytes(zigzag(size)) + size - LENGTH_END > INT32_MAX:
            encoded.reason = COUNT
            return NULL
        at = put_varint(at, zigzag(size))
        at[0] = 0
        at = put_varint(at + 1, timestamp_delta)
        at = put_varint(at, offset_delta)
        at = put_slice(at, key)
        at = put_slice(at, value)
        at = put_header_section(at, section, &headers, own)
    put_batch_header(start, base_offset, at - start, stop - first, base_timestamp, max_timestamp)
    return at

cdef const int64_t *int64s_of(column) except? NULL:
    # Where a column starts that the caller keeps alive; NULL for None.
    cdef const int64_t[::1] view
    if column is None:
        return NULL
    view = column
    return &view[0]

cdef Items items_of(column, valid):
    cdef Items items
    cdef const int64_t[::1] offsets
    cdef const uint8_t[::1] data, flags
    items.offsets = NULL
    items.data = NULL
    items.valid = NULL
    if column is not None:
        offsets, data = column
        items.offsets = &offsets[0]
        items.data = &data[0]
        if valid is not None:
            flags = valid.view(np.uint8)
            items.valid = &flags[0]
    return items

cdef Records records_of(values, value_valid, keys, key_valid, headers, timestamps, deliver_after):
    cdef Records records
    records.value = items_of(values, value_valid)
    records.key = items_of(keys, key_valid)
    records.headers = items_of(headers, None)
    records.timestamp = int64s_of(timestamps)
    records.deliver_after = int64s_of(deliver_after)
    return records

cdef Producers producers_of(held):
    cdef Producers producers
    producers.id = producers.epoch = producers.sequence = NULL
    if held is not None:
        producers.id = int64s_of(held.producer_id)
        producers.epoch = int64s_of(held.epoch)
        producers.sequence = int64s_of(held.base_sequence)
    return producers

cdef int64_t batch_bytes_max(values, keys, headers, bounds) except -1:
    # Of all batches together.
    cdef int64_t first = bounds[0], stop = bounds[len(bounds) - 1]
    cdef int64_t size = (stop - first) * RECORD_OVERHEAD_MAX + (len(bounds) - 1) * HEADER_BYTES
    for column in (values, keys, headers):
        if column is not None:
            size += int(column[0][stop] - column[0][first])
    return size

cdef int refuse(Encoded *encoded) except -1:
    # Raise the error for what could not be encoded.
    if encoded.reason == COUNT:
        raise RecordTooLarge(f"batch {encoded.batch} is longer than 2^31-1 bytes")
    raise InvalidRecord(f"record {encoded.record}: malformed headers: {columns.REASONS[encoded.reason]}")

def encode_batches(values, value_valid, keys, key_valid, headers, timestamps, deliver_after, bounds, producers=None):
    columns.check_batch_columns(values, value_valid, keys, key_valid, headers, timestamps, deliver_after, bounds)
    columns.check_producers(producers, bounds)
    cdef Records records = records_of(values, value_valid, keys, key_valid, headers, timestamps, deliver_after)
    cdef Producers producer = producers_of(producers)
    cdef const int64_t[::1] bound = bounds
    out = np.empty(batch_bytes_max(values, keys, headers, bounds), np.uint8)
    positions = np.zeros(len(bound), np.int64)
    cdef uint8_t[::1] view = out
    cdef int64_t[::1] position = positions
    cdef uint8_t *start = &view[0]
    cdef uint8_t *at = start
    cdef Encoded encoded
    cdef int64_t batches = len(bound) - 1, index, due
    encoded.reason = DECODED
    with nogil:
        # A CRC waits until the next batch is written: its wide loads would stall behind the batch's own narrow stores.
        for index in range(batches):
            due = latest(&records, bound[index], bound[index + 1])
            at = put_batch(at, &records, bound[index], bound[index + 1], 0, due, &encoded)
            if at == NULL:
                encoded.batch = index
                break
            put_producer_of(start + position[index], &producer, index)
            position[index + 1] = at - start
            if index > 0:
                put_batch_crc(start + position[index - 1], position[index] - position[index - 1])
        if at != NULL and batches > 0:
            put_batch_crc(start + position[batches - 1], position[batches] - position[batches - 1])
    if encoded.reason != DECODED:
        refuse(&encoded)
    return out[: position[batches]], positions


# ---- stamp: batches to entries

cdef inline uint8_t *put_field(uint8_t *at, uint64_t number, uint64_t value) noexcept nogil:
    return put_varint(put_varint(at, number << 3), value)

cdef struct Stamp:
    # What entries of one append have in common.
    int64_t broker_timestamp
    const uint8_t *extra
    int64_t extra_bytes
    bint delayed

cdef uint8_t *put_prefix(uint8_t *start, Stamp *stamp, int64_t last_offset, int64_t asked) noexcept nogil:
    # All but the CRC. Returns where the batch starts.
    cdef uint8_t *at = start + PREFIX_HEAD_BYTES
    at = put_field(at, 1, <uint64_t>stamp.broker_timestamp)
    at = put_field(at, 2, <uint64_t>last_offset)
    if stamp.delayed:
        at = put_field(at, 16, <uint64_t>max(asked, stamp.broker_timestamp))
        if 0 <= asked < stamp.broker_timestamp:
            at = put_field(at, 18, <uint64_t>asked)
    memcpy(at, stamp.extra, stamp.extra_bytes)
    at += stamp.extra_bytes + CRC_FIELD_BYTES
    put16(start, PREFIX_MAGIC)
    put32(start + 2, <uint32_t>(at - start - PREFIX_HEAD_BYTES))
    return at

cdef void put_header_crc(uint8_t *start, uint8_t *header) noexcept nogil:
    cdef uint8_t *at = header - CRC_FIELD_BYTES
    cdef uint32_t crc = crc32c_of(crc32c_of(0, start, at - start), header, HEADER_BYTES)
    put16(at, 0x8D01)
    at[2] = <uint8_t>crc
    at[3] = <uint8_t>(crc >> 8)
    at[4] = <uint8_t>(crc >> 16)
    at[5] = <uint8_t>(crc >> 24)

cdef uint8_t *put_entry(
    uint8_t *start, const uint8_t *batch, int64_t batch_bytes, int64_t base_offset, int64_t asked, Stamp *stamp
) noexcept nogil:
    cdef int64_t last_offset = base_offset + <int32_t>load32(batch + LAST_OFFSET_DELTA_AT)
    cdef uint8_t *header = put_prefix(start, stamp, last_offset, asked)
    memcpy(header, batch, batch_bytes)
    put64(header, <uint64_t>base_offset)
    put32(header + LEADER_EPOCH_AT, 0)
    put_header_crc(start, header)
    return header + batch_bytes

def stamp_entries(data, positions, base_offset, broker_timestamp, asked, extra):
    columns.check_asked(data, positions, asked)
    columns.check_stamp(base_offset, broker_timestamp, extra)
    cdef const uint8_t[::1] view = data
    cdef const int64_t[::1] start = positions
    cdef const int64_t *wanted = int64s_of(asked)
    cdef bytes extra_data = bytes(extra)
    cdef Stamp stamp = Stamp(broker_timestamp, extra_data, len(extra_data), wanted != NULL)
    cdef int64_t batches = len(start) - 1
    out = np.empty(start[batches] - start[0] + batches * (METADATA_OVERHEAD_MAX + stamp.extra_bytes), np.uint8)
    entry_positions = np.zeros(batches + 1, np.int64)
    cdef uint8_t[::1] out_view = out
    cdef int64_t[::1] entry_position = entry_positions
    cdef uint8_t *at = &out_view[0]
    cdef const uint8_t *batch
    cdef int64_t offset = base_offset, index
    with nogil:
        for index in range(batches):
            batch = &view[start[index]]
            at = put_entry(
                at, batch, start[index + 1] - start[index], offset, wanted[index] if wanted != NULL else -1, &stamp
            )
            entry_position[index + 1] = at - &out_view[0]
            offset += <int64_t><int32_t>load32(batch + LAST_OFFSET_DELTA_AT) + 1
    return out[: entry_position[batches]], entry_positions


# ---- encode and stamp in one go: columns to entries

cdef struct Unfinished:
    # An entry that still lacks its CRCs.
    uint8_t *start
    uint8_t *header
    uint8_t *end

cdef inline void put_crcs(Unfinished entry) noexcept nogil:
    put_batch_crc(entry.header, entry.end - entry.header)
    put_header_crc(entry.start, entry.header)

def encode_entries(
    values, value_valid, keys, key_valid, headers, timestamps, deliver_after, bounds,
    base_offset, broker_timestamp, extra, producers=None,
):
    columns.check_batch_columns(values, value_valid, keys, key_valid, headers, timestamps, deliver_after, bounds)
    columns.check_stamp(base_offset, broker_timestamp, extra)
    columns.check_producers(producers, bounds)
    cdef Records records = records_of(values, value_valid, keys, key_valid, headers, timestamps, deliver_after)
    cdef Producers producer = producers_of(producers)
    cdef const int64_t[::1] bound = bounds
    cdef int64_t batches = len(bound) - 1
    cdef bytes extra_data = bytes(extra)
    cdef Stamp stamp = Stamp(broker_timestamp, extra_data, len(extra_data), deliver_after is not None)
    cdef int64_t prefixes_bytes = batches * (METADATA_OVERHEAD_MAX + stamp.extra_bytes)
    out = np.empty(batch_bytes_max(values, keys, headers, bounds) + prefixes_bytes, np.uint8)
    positions = np.zeros(batches + 1, np.int64)
    cdef uint8_t[::1] view = out
    cdef int64_t[::1] position = positions
    cdef Encoded encoded
    cdef Unfinished entry, before
    cdef int64_t offset = base_offset, index, due, count
    entry.end = &view[0]
    encoded.reason = DECODED
    with nogil:
        for index in range(batches):
            before = entry
            due = latest(&records, bound[index], bound[index + 1])
            count = bound[index + 1] - bound[index]
            entry.start = before.end
            entry.header = put_prefix(entry.start, &stamp, offset + count - 1, due)
            entry.end = put_batch(entry.header, &records, bound[index], bound[index + 1], offset, due, &encoded)
            if entry.end == NULL:
                encoded.batch = index
                break
            put_producer_of(entry.header, &producer, index)
            position[index + 1] = entry.end - &view[0]
            offset += count
            if index > 0:  # the CRCs wait, as in encode_batches
                put_crcs(before)
        if entry.end != NULL and batches > 0:
            put_crcs(entry)
    if encoded.reason != DECODED:
        refuse(&encoded)
    return out[: position[batches]], positions

cdef Items item_alone(const int64_t *bounds, data):
    # A column of one item: `bounds` are 0 and its size. A null is as if there was no such column.
    cdef Items items
    items.offsets = bounds
    items.data = NULL
    if data is not None:
        items.data = <const uint8_t *>PyBytes_AS_STRING(data)
    items.valid = NULL
    return items

def encode_single(
    bytes value, bytes key, bytes headers not None, timestamp, deliver_after, base_offset, broker_timestamp,
    producer=None, int attributes=0,
):
    columns.check_stamp(base_offset, broker_timestamp, b"")
    cdef int64_t[2] value_bounds = [0, len(value) if value is not None else 0]
    cdef int64_t[2] key_bounds = [0, len(key) if key is not None else 0]
    cdef int64_t[2] header_bounds = [0, len(headers)]
    cdef int64_t at_ms = timestamp, asked = deliver_after
    cdef Records record
    record.value = item_alone(value_bounds, value)
    record.key = item_alone(key_bounds, key)
    record.headers = item_alone(header_bounds, headers)
    record.timestamp = &at_ms
    record.deliver_after = &asked
    cdef Stamp stamp = Stamp(broker_timestamp, b"", 0, True)
    cdef int64_t size = METADATA_OVERHEAD_MAX + HEADER_BYTES + RECORD_OVERHEAD_MAX
    size += value_bounds[1] + key_bounds[1] + header_bounds[1]
    cdef bytes out = PyBytes_FromStringAndSize(NULL, size)
    cdef Unfinished entry
    cdef Encoded encoded
    encoded.reason = DECODED
    encoded.batch = 0
    entry.start = <uint8_t *>PyBytes_AS_STRING(out)
    entry.header = put_prefix(entry.start, &stamp, base_offset, asked)
    entry.end = put_batch(entry.header, &record, 0, 1, base_offset, asked, &encoded)
    if entry.end == NULL:
        refuse(&encoded)
    if producer is not None:
        put_producer(entry.header, producer[0], producer[1], producer[2])
    if attributes:
        put16(entry.header + ATTRIBUTES_AT, attributes)
    put_crcs(entry)
    return out[: entry.end - entry.start]


# ---- scan and check: entries to rows

cdef struct Entry:
    int64_t size
    int64_t batch_position
    int64_t batch_bytes
    int64_t offset
    int64_t records
    int64_t deliver_after
    int64_t asked                       # -1 where the stamping rule changed nothing
    int64_t broker_timestamp
    int64_t last_offset                 # as the metadata says; -1 where it says nothing
    int64_t max_timestamp
    int64_t attributes

cdef int read_metadata(const uint8_t *at, const uint8_t *end, Entry *entry) noexcept nogil:
    cdef uint64_t tag, number, wire_type, value
    while at < end:
        at = read_varint(at, end, 64, &tag)
        if at == NULL:
            return PREFIX
        number = tag >> 3
        wire_type = tag & 7
        value = 0
        if wire_type == 0 or wire_type == 2:
            at = read_varint(at, end, 64, &value)
            if at == NULL:
                return PREFIX
        if wire_type == 1:
            value = 8
        elif wire_type == 5:
            value = 4
        elif wire_type != 0 and wire_type != 2:
            return PREFIX
        if wire_type != 0:
            if value > <uint64_t>(end - at):
                return PREFIX
            at += value
        if number == 0 or number >= 1 << 29 or number == 17:
            return PREFIX
        if number == 1 or number == 2 or number == 16 or number == 18:
            if wire_type != 0 or value > <uint64_t>INT64_MAX:
                return PREFIX
            if number == 1:
                entry.broker_timestamp = <int64_t>value
            elif number == 2:
                entry.last_offset = <int64_t>value
            elif number == 16:
                entry.deliver_after = <int64_t>value
            else:
                entry.asked = <int64_t>value
    return OK

cdef int read_prefix(const uint8_t *start, const uint8_t *end, Entry *entry) noexcept nogil:
    cdef const uint8_t *header
    cdef const uint8_t *crc_field
    cdef int64_t metadata_bytes
    cdef uint32_t crc
    if end - start < PREFIX_HEAD_BYTES:
        return SHORT
    metadata_bytes = load32(start + 2)
    if metadata_bytes < CRC_FIELD_BYTES or metadata_bytes > METADATA_BYTES_MAX:
        return LENGTH
    if end - start < PREFIX_HEAD_BYTES + metadata_bytes + HEADER_BYTES:
        return SHORT
    header = start + PREFIX_HEAD_BYTES + metadata_bytes
    crc_field = header - CRC_FIELD_BYTES
    if crc_field[0] != 0x8D or crc_field[1] != 0x01:
        return PREFIX
    crc = crc_field[2] | <uint32_t>crc_field[3] << 8 | <uint32_t>crc_field[4] << 16 | <uint32_t>crc_field[5] << 24
    if crc != crc32c_of(crc32c_of(0, start, crc_field - start), header, HEADER_BYTES):
        return HEADER_CRC
    entry.batch_position += PREFIX_HEAD_BYTES + metadata_bytes
    return read_metadata(start + PREFIX_HEAD_BYTES, crc_field, entry)

cdef int read_entry(
    const uint8_t *data, int64_t position, int64_t end, bint check_body, bint any_epoch, Entry *entry
) noexcept nogil:
    # What is at `position`, or the code of its first fault.
    cdef const uint8_t *header
    cdef bint has_prefix
    cdef int fault
    cdef int64_t last_offset_delta
    if end - position < 2:
        return SHORT
    entry.batch_position = position
    entry.deliver_after = -1
    entry.asked = -1
    entry.broker_timestamp = -1
    entry.last_offset = -1
    has_prefix = data[position] == PREFIX_MAGIC >> 8 and data[position + 1] == (PREFIX_MAGIC & 0xFF)
    if has_prefix:
        fault = read_prefix(data + position, data + end, entry)
        if fault != OK:
            return fault
    if end - entry.batch_position < HEADER_BYTES:
        return SHORT
    header = data + entry.batch_position
    if header[MAGIC_AT] != 2:
        return MAGIC
    entry.batch_bytes = <int64_t><int32_t>load32(header + LENGTH_AT) + LENGTH_END
    last_offset_delta = <int32_t>load32(header + LAST_OFFSET_DELTA_AT)
    entry.records = <int32_t>load32(header + COUNT_AT)
    if entry.batch_bytes < HEADER_BYTES or entry.records <= 0 or entry.records != last_offset_delta + 1:
        return LENGTH
    if entry.batch_bytes > end - entry.batch_position:
        return SHORT
    entry.offset = <int64_t>load64(header)
    if entry.offset < 0 or entry.offset > INT64_MAX - last_offset_delta:
        return OFFSET
    if not (has_prefix or any_epoch) and load32(header + LEADER_EPOCH_AT) != 0:
        return EPOCH
    if entry.last_offset != -1 and entry.last_offset != entry.offset + last_offset_delta:
        return PREFIX
    if check_body and load32(header + CRC_AT) != crc32c_of(0, header + ATTRIBUTES_AT, entry.batch_bytes - ATTRIBUTES_AT):
        return BODY_CRC
    entry.size = entry.batch_position - position + entry.batch_bytes
    entry.max_timestamp = <int64_t>load64(header + MAX_TIMESTAMP_AT)
    entry.attributes = <int16_t>(load32(header + ATTRIBUTES_AT) >> 16)
    return OK

def scan_entries(buffer, start, end, next_offset, check_bodies, limit=-1, any_epoch=False):
    end = columns.scan_end(buffer, start, end)
    cdef const uint8_t[::1] view = buffer
    cdef const uint8_t *data = &view[0]
    cdef int64_t position = start, stop = end, next_one = next_offset, most = limit
    cdef int64_t found = 0, capacity
    cdef bint dense = next_one >= 0
    cdef uint64_t expected = <uint64_t>next_one     # 2^63 after the last offset that there can be
    cdef bint check_body = check_bodies, foreign = any_epoch
    cdef int fault = OK
    cdef Entry entry
    cdef int64_t[:, ::1] row
    rows = np.empty((SCAN_COLUMNS, 256), np.int64)
    while True:
        row = rows
        capacity = row.shape[1]
        with nogil:
            while position < stop and found != most and found < capacity:
                fault = read_entry(data, position, stop, check_body, foreign, &entry)
                if fault == OK and dense:
                    if <uint64_t>entry.offset != expected:
                        fault = OFFSET
                    expected += <uint64_t>entry.records
                if fault != OK:
                    break
                row[0, found] = position
                row[1, found] = entry.size
                row[2, found] = entry.batch_position
                row[3, found] = entry.offset
                row[4, found] = entry.records
                row[5, found] = entry.deliver_after
                row[6, found] = entry.broker_timestamp
                row[7, found] = entry.max_timestamp
                row[8, found] = entry.attributes
                found += 1
                position += entry.size
        if fault != OK or found < capacity:
            break
        more = 256 + int(found * ((stop - position) / (position - start)))   # entries are of a size, mostly
        rows = np.concatenate((rows, np.empty((SCAN_COLUMNS, more), np.int64)), axis=1)
    return Scan(*rows[:, :found], position, fault)

cdef class Buffers:
    # The addresses and sizes of some arrays, which it keeps alive.
    cdef tuple arrays
    cdef intptr_t[::1] addresses
    cdef int64_t[::1] sizes

    def __init__(self, buffers):
        cdef const uint8_t[::1] view
        self.arrays = tuple(buffers)
        self.addresses = np.zeros(len(self.arrays), np.intp)
        self.sizes = np.zeros(len(self.arrays), np.int64)
        for place, array in enumerate(self.arrays):
            view = array
            self.addresses[place] = <intptr_t>&view[0]
            self.sizes[place] = len(view)

cdef struct Places:
    # Where an index says that entries lie, and what it says of them.
    const intptr_t *addresses
    const int64_t *sizes
    const int32_t *which
    const int64_t *position
    const int64_t *offset
    const int64_t *records
    const int64_t *deliver_after        # NULL where the index does not say
    int64_t count

cdef Places places_of(Buffers held, which, positions, offsets, records, deliver_after):
    cdef const int32_t[::1] buffer = which
    cdef Places places
    places.addresses = &held.addresses[0]
    places.sizes = &held.sizes[0]
    places.which = &buffer[0]
    places.position = int64s_of(positions)
    places.offset = int64s_of(offsets)
    places.records = int64s_of(records)
    places.deliver_after = int64s_of(deliver_after)
    places.count = len(buffer)
    return places

cdef inline const uint8_t *buffer_of(Places *places, int64_t row) noexcept nogil:
    return <const uint8_t *>places.addresses[places.which[row]]

cdef inline bint lies_inside(Places *places, int64_t row) noexcept nogil:
    return 0 <= places.position[row] < places.sizes[places.which[row]]

cdef inline void prefetch_from(Places *places, int64_t row) noexcept nogil:
    # What comes behind `row`. Entries lie on pages of their own: the look-ups of these overlap where one line of each
    # of the next group is asked for at once.
    cdef int64_t ahead
    if row % PREFETCH_GROUP == 0:
        for ahead in range(row + PREFETCH_GROUP, min(row + 2 * PREFETCH_GROUP, places.count)):
            if lies_inside(places, ahead):
                prefetch(buffer_of(places, ahead) + places.position[ahead], 1)
    ahead = row + PREFETCH_DISTANCE
    if ahead < places.count and lies_inside(places, ahead):
        prefetch(buffer_of(places, ahead) + places.position[ahead], PREFETCH_LINES)

cdef int read_place(Places *places, int64_t row, Entry *entry) noexcept nogil:
    # The entry that lies there, or the code of its first fault.
    cdef int fault
    if not lies_inside(places, row):
        return INDEX
    fault = read_entry(
        buffer_of(places, row), places.position[row], places.sizes[places.which[row]], True, False, entry
    )
    if fault == OK and (
        entry.offset != places.offset[row]
        or entry.records != places.records[row]
        or (places.deliver_after != NULL and entry.deliver_after != places.deliver_after[row])
    ):
        return INDEX
    return fault

cdef inline int64_t asked_for(Entry *entry) noexcept nogil:
    return entry.deliver_after if entry.asked < 0 else entry.asked

def check_entries(buffers, which, positions, offsets, records, deliver_after):
    columns.check_entry_places(buffers, which, positions, offsets, records, deliver_after)
    cdef Buffers held = Buffers(buffers)
    cdef Places places = places_of(held, which, positions, offsets, records, deliver_after)
    found = np.empty((5, places.count), np.int64)
    cdef int64_t[:, ::1] column = found
    cdef int64_t row = 0
    cdef int fault = OK
    cdef Entry entry
    with nogil:
        while row < places.count:
            prefetch_from(&places, row)
            fault = read_place(&places, row, &entry)
            if fault != OK:
                break
            column[0, row] = entry.batch_position
            column[1, row] = entry.batch_bytes
            column[2, row] = entry.attributes
            column[3, row] = asked_for(&entry)
            column[4, row] = entry.broker_timestamp
            row += 1
    return Checked(*found[:, :row], fault, row)


# ---- decode: batches to columns

cdef struct Output:
    # The next free place of a ragged column.
    int64_t *offset
    uint8_t *valid                      # NULL where no item is null
    uint8_t *start
    uint8_t *at

cdef inline void put_item(Output *column, int64_t item, Slice part) noexcept nogil:
    if part.size > 0:
        memcpy(column.at, part.data, part.size)
        column.at += part.size
    if column.valid != NULL:
        column.valid[item] = part.size >= 0
    column.offset[item + 1] = column.at - column.start

cdef int parse_deliver_after(Slice text, int64_t *deliver_after) noexcept nogil:
    # Eight bytes are a big-endian int64, anything else decimal digits.
    cdef uint64_t number = 0
    cdef int64_t digit
    if text.size == 8:
        number = load64(text.data)
    elif text.size < 1 or text.size > 19:
        return DELIVER_AFTER
    else:
        for digit in range(text.size):
            if not c"0" <= text.data[digit] <= c"9":
                return DELIVER_AFTER
            number = number * 10 + text.data[digit] - c"0"
    if number > <uint64_t>INT64_MAX:
        return DELIVER_AFTER
    deliver_after[0] = <int64_t>number
    return DECODED

cdef struct Columns:
    Output key
    Output value
    Output headers
    int64_t *timestamp
    int64_t *deliver_after
    int64_t *broker_timestamp

cdef int read_record(
    const uint8_t *at,
    const uint8_t *end,
    int64_t delta,
    int64_t base_timestamp,
    int64_t batch_deliver_after,
    int64_t item,
    bint lenient,
    Columns *out,
) noexcept nogil:
    # The record must fill [at, end). Returns a reason.
    cdef int64_t timestamp_delta, offset_delta
    cdef int reason = DECODED
    cdef Slice key, value, section
    cdef Headers headers
    at = read_zigzag(at + 1, end, 64, &timestamp_delta)
    if at == NULL:
        return VARINT
    at = read_zigzag(at, end, 32, &offset_delta)
    if at == NULL:
        return VARINT
    if offset_delta != delta:
        return OFFSET_DELTA
    at = read_slice(at, end, &key, &reason)
    if at == NULL:
        return reason
    at = read_slice(at, end, &value, &reason)
    if at == NULL:
        return reason
    reason = read_headers(at, end, &headers)
    if reason != DECODED:
        return reason
    section.data = at
    section.size = end - at if headers.count else 0
    out.deliver_after[item] = batch_deliver_after
    if headers.deliver_after.data != NULL:
        reason = parse_deliver_after(headers.deliver_after, &out.deliver_after[item])
        if reason != DECODED and not lenient:
            return reason
    put_item(&out.key, item, key)
    put_item(&out.value, item, value)
    put_item(&out.headers, item, section)
    out.timestamp[item] = <int64_t>(<uint64_t>base_timestamp + <uint64_t>timestamp_delta)
    return DECODED

cdef int read_batch(
    const uint8_t *batch, int64_t size, int64_t records, int64_t item, int64_t batch_deliver_after,
    int64_t broker_timestamp, bint lenient, Columns *out
) noexcept nogil:
    cdef const uint8_t *at = batch + HEADER_BYTES
    cdef const uint8_t *end = batch + size
    cdef int64_t base_timestamp = <int64_t>load64(batch + BASE_TIMESTAMP_AT)
    cdef int64_t record_bytes, delta
    cdef int attributes = batch[ATTRIBUTES_AT + 1]
    cdef int reason
    if attributes & CODEC_BITS:
        return COMPRESSED
    for delta in range(records):
        at = read_zigzag(at, end, 32, &record_bytes)
        if at == NULL:
            return VARINT
        if record_bytes < 1 or record_bytes > end - at:
            return BOUNDS
        reason = read_record(
            at, at + record_bytes, delta, base_timestamp, batch_deliver_after, item + delta, lenient, out
        )
        if reason != DECODED:
            return reason
        if attributes & LOG_APPEND_TIME:
            out.timestamp[item + delta] = <int64_t>load64(batch + MAX_TIMESTAMP_AT)
        out.broker_timestamp[item + delta] = broker_timestamp
        at += record_bytes
    return DECODED if at == end else LEFT_OVER

cdef class Outputs:
    # Room for decoded records and their bytes. A record has at most as many bytes in a column as in its batch.
    cdef Columns columns
    cdef int64_t records_max, bytes_max
    cdef object numbers, valid, data

    def __init__(self, int64_t records_max, int64_t bytes_max):
        self.numbers = np.empty((6, records_max + 1), np.int64)
        self.valid = np.empty((2, records_max), np.uint8)
        self.data = np.empty((3, bytes_max), np.uint8)
        self.numbers[:3, 0] = 0
        self.point_into(0, 0, 0)

    cdef point_into(self, int64_t key_bytes, int64_t value_bytes, int64_t header_bytes):
        cdef int64_t[:, ::1] number = self.numbers
        cdef uint8_t[:, ::1] flag = self.valid, data = self.data
        self.columns.key = Output(&number[0, 0], &flag[0, 0], &data[0, 0], &data[0, 0] + key_bytes)
        self.columns.value = Output(&number[1, 0], &flag[1, 0], &data[1, 0], &data[1, 0] + value_bytes)
        self.columns.headers = Output(&number[2, 0], NULL, &data[2, 0], &data[2, 0] + header_bytes)
        self.columns.timestamp = &number[3, 0]
        self.columns.deliver_after = &number[4, 0]
        self.columns.broker_timestamp = &number[5, 0]
        self.records_max = flag.shape[1]
        self.bytes_max = data.shape[1]

    cdef grow(self, int64_t records_max, int64_t bytes_max):
        # To hold so much, or what is held already if that is more.
        cdef int64_t key_bytes = self.columns.key.at - self.columns.key.start
        cdef int64_t value_bytes = self.columns.value.at - self.columns.value.start
        cdef int64_t header_bytes = self.columns.headers.at - self.columns.headers.start
        self.numbers = wider(self.numbers, records_max + 1)
        self.valid = wider(self.valid, records_max)
        self.data = wider(self.data, bytes_max)
        self.point_into(key_bytes, value_bytes, header_bytes)

    cdef decoded(self, int64_t records):
        key, value, headers, timestamp, deliver_after, broker_timestamp = self.numbers
        key_data, value_data, header_data = self.data
        key_valid, value_valid = self.valid[:, :records].view(np.bool_)
        return Decoded(
            (key[: records + 1], key_data[: key[records]]),
            key_valid,
            (value[: records + 1], value_data[: value[records]]),
            value_valid,
            (headers[: records + 1], header_data[: headers[records]]),
            timestamp[:records],
            deliver_after[:records],
            broker_timestamp[:records],
        )

cdef wider(table, int64_t length):
    if length <= table.shape[1]:
        return table
    wide = np.empty((len(table), length), table.dtype)
    wide[:, : table.shape[1]] = table
    return wide

cdef inline bint holds(int64_t batch_bytes, int64_t records) noexcept nogil:
    # Whether a batch has bytes enough for so many records.
    return 0 <= records <= (batch_bytes - HEADER_BYTES) // RECORD_BYTES_MIN

def decode_records(buffers, which, batch_positions, batch_sizes, records, *, lenient=False):
    columns.check_places(buffers, which, (batch_positions, batch_sizes, records))
    cdef Buffers held = Buffers(buffers)
    cdef const intptr_t *addresses = &held.addresses[0]
    cdef const int32_t[::1] buffer = which
    cdef const int64_t[::1] position = batch_positions
    cdef const int64_t[::1] size = batch_sizes
    cdef const int64_t[::1] count = records
    cdef int64_t batches = len(buffer), batch, ahead, items = 0, data_bytes = 0
    for batch in range(batches):
        if position[batch] < 0 or size[batch] < HEADER_BYTES or size[batch] > held.sizes[buffer[batch]] - position[batch]:
            raise columns.undecodable(PLACE, batch)
        if not holds(size[batch], count[batch]):
            raise columns.undecodable(COUNT, batch)
        items += count[batch]
        data_bytes += size[batch] - HEADER_BYTES
    cdef Outputs out = Outputs(items, data_bytes)
    cdef int reason = DECODED
    cdef bint any_time = lenient
    items = 0
    with nogil:
        for batch in range(batches):
            ahead = batch + PREFETCH_DISTANCE
            if ahead < batches:
                prefetch(<const uint8_t *>addresses[buffer[ahead]] + position[ahead], PREFETCH_LINES)
            reason = read_batch(
                <const uint8_t *>addresses[buffer[batch]] + position[batch], size[batch], count[batch], items, -1, -1,
                any_time, &out.columns,
            )
            if reason != DECODED:
                break
            items += count[batch]
    if reason != DECODED:
        raise columns.undecodable(reason, batch)
    return out.decoded(items)


# ---- check and decode in one go: places in an index to columns

def read_records(buffers, which, positions, offsets, records, deliver_after, max_bytes):
    columns.check_entry_places(buffers, which, positions, offsets, records, deliver_after)
    cdef Buffers held = Buffers(buffers)
    cdef Places places = places_of(held, which, positions, offsets, records, deliver_after)
    cdef int64_t limit = max_bytes, row = 0, items = 0, data_bytes = 0, left
    cdef Outputs out = Outputs(FIRST_RECORDS, FIRST_BYTES)
    cdef int fault = OK, reason = DECODED
    cdef bint compressed = False, full = True
    cdef Entry entry
    while full:
        full = False
        with nogil:
            while row < places.count:
                prefetch_from(&places, row)
                fault = read_place(&places, row, &entry)
                if fault != OK:
                    break
                compressed = entry.attributes & CODEC_BITS != 0
                if compressed or (row > 0 and data_bytes + entry.batch_bytes > limit):
                    break
                if not holds(entry.batch_bytes, entry.records):
                    reason = COUNT
                    break
                full = items + entry.records > out.records_max or data_bytes + entry.batch_bytes > out.bytes_max
                if full:
                    break
                reason = read_batch(
                    buffer_of(&places, row) + entry.batch_position, entry.batch_bytes, entry.records, items,
                    asked_for(&entry), entry.broker_timestamp, False, &out.columns,
                )
                if reason != DECODED:
                    break
                items += entry.records
                data_bytes += entry.batch_bytes
                row += 1
        if full:  # entries are of a size, mostly
            left = min(places.count - row, (limit - data_bytes) // (data_bytes // row)) + 1 if row else 1
            out.grow(
                items + max(items * left // max(row, 1), entry.records),
                data_bytes + max(data_bytes * left // max(row, 1), entry.batch_bytes),
            )
    if reason != DECODED:
        raise columns.undecodable(reason, row)
    return Verified(out.decoded(items), fault, row, compressed)


def read_single(bytes data not None, offset, deliver_after, int64_t row=0, int64_t records=1):
    cdef const uint8_t *start = <const uint8_t *>PyBytes_AS_STRING(data)
    cdef const uint8_t *at
    cdef const uint8_t *end
    cdef int64_t record_bytes, timestamp_delta, offset_delta, timestamp, before
    cdef int reason = DECODED
    cdef Entry entry
    cdef Slice key, value, section
    cdef Headers headers
    if read_entry(start, 0, len(data), True, False, &entry) != OK:
        return None
    if entry.offset != <int64_t>offset or entry.deliver_after != <int64_t>deliver_after:
        return None
    if entry.records != records or not 0 <= row < records:
        return None
    if entry.attributes & PLAIN_BITS:
        return None
    at = start + entry.batch_position
    end = at + entry.batch_bytes
    timestamp = <int64_t>load64(at + BASE_TIMESTAMP_AT)
    at = read_zigzag(at + HEADER_BYTES, end, 32, &record_bytes)
    for before in range(row):
        if at == NULL or not 1 <= record_bytes <= end - at:
            return None
        at = read_zigzag(at + record_bytes, end, 32, &record_bytes)
    if at == NULL or not 1 <= record_bytes <= end - at:
        return None
    if row == records - 1 and record_bytes != end - at:
        return None
    end = at + record_bytes
    at = read_zigzag(at + 1, end, 64, &timestamp_delta)
    if at != NULL:
        at = read_zigzag(at, end, 32, &offset_delta)
    if at == NULL or offset_delta != row:
        return None
    at = read_slice(at, end, &key, &reason)
    if at != NULL:
        at = read_slice(at, end, &value, &reason)
    if at == NULL or read_headers(at, end, &headers) != DECODED or headers.deliver_after.data != NULL:
        return None
    section.data = at
    section.size = end - at if headers.count else 0
    timestamp = <int64_t>(<uint64_t>timestamp + <uint64_t>timestamp_delta)
    return bytes_of(key), bytes_of(value), bytes_of(section), timestamp, asked_for(&entry), entry.broker_timestamp

cdef bytes_of(Slice part):
    return None if part.size < 0 else PyBytes_FromStringAndSize(<const char *>part.data, part.size)


# ---- rows of columns

def take_items(items, rows):
    columns.check_items(items)
    cdef const int64_t[::1] offsets, row
    cdef const uint8_t[::1] data
    offsets, data = items
    row = rows
    starts = np.zeros(len(row) + 1, np.int64)
    cdef int64_t[::1] start = starts
    cdef int64_t count = len(row), held = len(offsets) - 1, size = len(data), index, at, bad = -1
    with nogil:
        for index in range(count):
            at = row[index]
            if not 0 <= at < held or not 0 <= offsets[at] <= offsets[at + 1] <= size:
                bad = index
                break
            start[index + 1] = start[index] + offsets[at + 1] - offsets[at]
    if bad >= 0:
        raise columns.no_item(row[bad], held)
    taken = np.empty(starts[count], np.uint8)
    cdef uint8_t[::1] view = taken
    cdef const uint8_t *source = &data[0]
    cdef uint8_t *out = &view[0]
    with nogil:
        for index in range(count):
            if index + TAKE_DISTANCE < count:
                prefetch(source + offsets[row[index + TAKE_DISTANCE]], TAKE_LINES)
            at = row[index]
            memcpy(out + start[index], source + offsets[at], offsets[at + 1] - offsets[at])
    return starts, taken


def spread_starts(deliver_after, spread_ms):
    columns.check_spread(spread_ms)
    cdef const int64_t[::1] due = deliver_after
    starts = np.empty(len(due), np.int64)
    cdef int64_t[::1] start = starts
    cdef int64_t spread = min(spread_ms, INT64_MAX), count = len(due), index, first = 0, batches = 0
    with nogil:
        for index in range(count):
            if index == 0 or (due[index] != -1 if first == -1 else due[index] - first > spread):
                first = due[index]
                start[batches] = index
                batches += 1
    return starts[:batches]


def crc32c(data, by_table):
    """CRC-32C of some bytes, so that tests reach both implementations."""
    cdef const uint8_t[::1] view = data
    return crc32c_by_table(0, &view[0], len(view)) if by_table else crc32c_of(0, &view[0], len(view))
