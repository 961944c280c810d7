/* The compiled part of a walk over record batches: headers, checksums, and what an archive must know of plain ones.

   It knows nothing of Python, so that the fuzzer (tests/headwater_core/segments/compiled_walk_fuzzer.c) runs it alone under
   the address sanitizer. segments/batch_walk.py is the reference: what this passes, that would have passed, and the caller
   finds the same numbers. Wherever a batch is not plain, or not sound, the walk stops before it and the reference goes
   on. The layout of a batch: docs/formats/kafka-log.md. */

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define HEADER_BYTES 61
#define LENGTH_FROM 12 /* batch_length counts what follows it */
#define CRC_FROM 21    /* the CRC covers everything after itself */
#define LENGTH_MIN (HEADER_BYTES - LENGTH_FROM)
#define OFFSET_MAX (INT64_MAX - 1) /* so that the next offset is still an int64 */

#define LOG_APPEND_TIME 0x08
#define TRANSACTIONAL 0x10
#define CONTROL 0x20
#define DELETE_HORIZON 0x40

#define PRODUCERS_MAX 256 /* of one stretch; the walk stops before the batch of one more */
#define SLOTS 1024        /* a power of two, at least twice as many */

typedef struct {
    int64_t id;
    int64_t at;                /* where its last batch begins */
    int64_t first_transaction; /* base offset of its first transactional batch; -1 for none */
} Producer;

/* What the walk passed: whole, sound batches in buffer[from:at]. */
typedef struct {
    int64_t at;
    int64_t last_offset; /* in: of the batch before; -1 at the start */
    int32_t epoch;       /* in: of the batch before; -1 at the start */
    int64_t batches;     /* how many were passed */
    int64_t records;     /* user data, as headers count them */
    int64_t offsets;     /* how many offsets hold a record of any kind */
    int64_t earliest_ms; /* smallest time of user data; INT64_MAX for none */
    int64_t latest_ms;   /* largest; INT64_MIN for none */
    int64_t first_gap;  /* first offset that no batch covers; -1 for none */
    int producer_count;
    Producer producers[PRODUCERS_MAX];
} Stretch;

/* -- big-endian fields --------------------------------------------------------------------------------------------- */

static inline uint32_t get_u32(const uint8_t *bytes)
{
    return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
}

static inline int32_t get_i32(const uint8_t *bytes)
{
    return (int32_t)get_u32(bytes);
}

static inline int64_t get_i64(const uint8_t *bytes)
{
    return (int64_t)((uint64_t)get_u32(bytes) << 32 | get_u32(bytes + 4));
}

static inline void put_u32(uint8_t *bytes, uint32_t value)
{
    for (int byte = 0; byte < 4; byte++)
        bytes[byte] = (uint8_t)(value >> 8 * (3 - byte));
}

/* -- CRC-32C (Castagnoli, reflected, 0x82f63b78) ------------------------------------------------------------------- */

static uint32_t crc_table[8][256]; /* [n][b]: byte b, with n zero bytes after it */

static void make_crc_table(void)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? crc >> 1 ^ 0x82f63b78u : crc >> 1;
        crc_table[0][byte] = crc;
    }
    for (uint32_t byte = 0; byte < 256; byte++)
        for (int zeros = 1; zeros < 8; zeros++)
            crc_table[zeros][byte] = crc_table[zeros - 1][byte] >> 8 ^ crc_table[0][crc_table[zeros - 1][byte] & 255];
}

/* Of what `before` is the checksum of, 0 for nothing, and these bytes. */
static uint32_t crc32c_portable(uint32_t before, const uint8_t *bytes, size_t count)
{
    uint32_t crc = ~before;
    for (; count >= 8; bytes += 8, count -= 8)
        crc = crc_table[7][bytes[0] ^ (crc & 255)] ^ crc_table[6][bytes[1] ^ (crc >> 8 & 255)]
            ^ crc_table[5][bytes[2] ^ (crc >> 16 & 255)] ^ crc_table[4][bytes[3] ^ crc >> 24] ^ crc_table[3][bytes[4]]
            ^ crc_table[2][bytes[5]] ^ crc_table[1][bytes[6]] ^ crc_table[0][bytes[7]];
    for (; count; bytes++, count--)
        crc = crc >> 8 ^ crc_table[0][(crc ^ *bytes) & 255];
    return ~crc;
}

#if defined(__x86_64__) && defined(__GNUC__)

/* Three streams at once, because the instruction takes three cycles and one can begin in each; `after` moves the CRC of
   a stream past the zeros that stand for the streams after it. */
#define STREAM_BYTES 1024
static uint32_t after[4][256]; /* [n][b]: what byte n of a CRC becomes past STREAM_BYTES zeros */

static void make_after(void)
{
    for (int part = 0; part < 4; part++)
        for (uint32_t byte = 0; byte < 256; byte++) {
            uint32_t crc = byte << 8 * part;
            for (int zeros = 0; zeros < STREAM_BYTES; zeros++)
                crc = crc >> 8 ^ crc_table[0][crc & 255];
            after[part][byte] = crc;
        }
}

static inline uint64_t past(uint64_t crc)
{
    return after[0][crc & 255] ^ after[1][crc >> 8 & 255] ^ after[2][crc >> 16 & 255] ^ after[3][crc >> 24 & 255];
}

static inline uint64_t word(const uint8_t *bytes)
{
    uint64_t value;
    memcpy(&value, bytes, sizeof value);
    return value;
}

__attribute__((target("sse4.2"))) static uint32_t crc32c_sse42(uint32_t before, const uint8_t *bytes, size_t count)
{
    uint64_t crc = (uint32_t)~before;
    for (; count >= 3 * STREAM_BYTES; bytes += 3 * STREAM_BYTES, count -= 3 * STREAM_BYTES) {
        uint64_t second = 0, third = 0;
        for (const uint8_t *at = bytes; at < bytes + STREAM_BYTES; at += 8) {
            crc = __builtin_ia32_crc32di(crc, word(at));
            second = __builtin_ia32_crc32di(second, word(at + STREAM_BYTES));
            third = __builtin_ia32_crc32di(third, word(at + 2 * STREAM_BYTES));
        }
        crc = past(past(crc) ^ second) ^ third;
    }
    for (; count >= 8; bytes += 8, count -= 8)
        crc = __builtin_ia32_crc32di(crc, word(bytes));
    for (; count; bytes++, count--)
        crc = __builtin_ia32_crc32qi((uint32_t)crc, *bytes);
    return ~(uint32_t)crc;
}

#endif

static uint32_t (*crc32c)(uint32_t, const uint8_t *, size_t) = crc32c_portable;

static void prepare_crc32c(void)
{
    make_crc_table();
#if defined(__x86_64__) && defined(__GNUC__)
    make_after();
    if (__builtin_cpu_supports("sse4.2"))
        crc32c = crc32c_sse42;
#endif
}

/* Whether a header can follow a batch with this last offset and leader epoch. */
static int is_possible(const uint8_t *batch, int64_t last_offset, int32_t last_epoch)
{
    int64_t base = get_i64(batch);
    int32_t delta = get_i32(batch + 23), records = get_i32(batch + 57);
    return batch[16] == 2 && get_i32(batch + 8) >= LENGTH_MIN && base > last_offset && delta >= 0 && delta <= OFFSET_MAX - base
           && get_i32(batch + 12) >= last_epoch && records >= 0 && records <= (int64_t)delta + 1;
}

/* -- the walk ------------------------------------------------------------------------------------------------------ */

/* The row of a producer, a new one if it has none; NULL when there is no room. `slots` holds row numbers, -1 for none. */
static Producer *find_producer(Stretch *stretch, int16_t *slots, int64_t id)
{
    uint64_t slot = (uint64_t)id * 0x9e3779b97f4a7c15u >> 54; /* ten bits: SLOTS */
    while (slots[slot] >= 0) {
        Producer *found = &stretch->producers[slots[slot]];
        if (found->id == id)
            return found;
        slot = (slot + 1) & (SLOTS - 1);
    }
    if (stretch->producer_count == PRODUCERS_MAX)
        return NULL;
    slots[slot] = (int16_t)stretch->producer_count;
    Producer *made = &stretch->producers[stretch->producer_count++];
    made->id = id;
    made->first_transaction = -1;
    return made;
}

/* Pass the batches in buffer[stretch->at:end] that begin before `point` and end before `end_offset`, and stop before the first
   that does not, or does not fit, or is not sound. With `collect` the walk stops before control batches and new leader
   epochs too, and counts; without, it only verifies. */
static void walk_batches(Stretch *stretch, const uint8_t *buffer, int64_t end, int64_t point, int64_t end_offset, int collect)
{
    int16_t slots[SLOTS];
    stretch->batches = stretch->records = stretch->offsets = 0;
    stretch->earliest_ms = INT64_MAX;
    stretch->latest_ms = INT64_MIN;
    stretch->first_gap = -1;
    stretch->producer_count = 0;
    if (collect)
        memset(slots, -1, sizeof slots);
    while (stretch->at < point && end - stretch->at >= HEADER_BYTES) {
        const uint8_t *batch = buffer + stretch->at;
        int64_t base = get_i64(batch), length = get_i32(batch + 8);
        int32_t epoch = get_i32(batch + 12), delta = get_i32(batch + 23), records = get_i32(batch + 57);
        int attributes = batch[22]; /* the low byte holds all flags */
        if (!is_possible(batch, stretch->last_offset, stretch->epoch) || length > end - stretch->at - LENGTH_FROM
            || base + delta >= end_offset)
            return;
        if (collect && (attributes & CONTROL || epoch != stretch->epoch))
            return;
        if (crc32c(0, batch + CRC_FROM, (size_t)(LENGTH_FROM + length - CRC_FROM)) != get_u32(batch + 17))
            return;
        if (collect) {
            int64_t producer_id = get_i64(batch + 43);
            if (producer_id >= 0) {
                Producer *producer = find_producer(stretch, slots, producer_id);
                if (producer == NULL)
                    return;
                producer->at = stretch->at;
                if (attributes & TRANSACTIONAL && producer->first_transaction < 0)
                    producer->first_transaction = base;
            }
            if (base != stretch->last_offset + 1 && stretch->first_gap < 0)
                stretch->first_gap = stretch->last_offset + 1;
            stretch->offsets += records;
            stretch->records += records;
            int64_t latest_ms = get_i64(batch + 35);
            if (records && latest_ms >= 0) {
                int64_t first_ms = attributes & (LOG_APPEND_TIME | DELETE_HORIZON) ? latest_ms : get_i64(batch + 27);
                if (latest_ms > stretch->latest_ms)
                    stretch->latest_ms = latest_ms;
                if (first_ms >= 0 && first_ms < stretch->earliest_ms)
                    stretch->earliest_ms = first_ms;
            }
        }
        stretch->last_offset = base + delta;
        stretch->epoch = epoch;
        stretch->at += LENGTH_FROM + length;
        stretch->batches++;
    }
}

/* -- a segment in pieces ------------------------------------------------------------------------------------------- */

#define EPOCHS_MAX 256          /* of one run; the pass stops before the batch of one more */
#define RELATIVE_MAX 0x7fffffff /* what an index can describe */
#define OFFSET_ENTRY 8
#define TIME_ENTRY 12

typedef struct {
    uint8_t *bytes;
    size_t size, room;
} Bytes;

/* What is known in a pass over all batches of one segment, of which the bytes come in pieces, and Kafka's indexes of them; recovery/indexes.py is the
   reference of those. Offsets in an index are relative to the segment's base. */
typedef struct {
    int64_t base_offset, interval_bytes;
    int64_t position;                 /* where the batch begins that is awaited */
    int64_t left;                     /* how many bytes of it come after its header */
    uint32_t crc;                     /* of what has come */
    int32_t header_bytes;             /* how many have come */
    uint8_t header[HEADER_BYTES];
    int64_t first_offset;             /* -1 before the first batch, as what follows */
    int64_t last_offset;
    int64_t last_position;
    int64_t records;                  /* user data, as headers count them */
    int64_t newest_ms, newest_offset; /* largest time, and the relative last offset of the first batch that has it */
    int64_t indexed_to;               /* where the batch begins that the last index entry names */
    int64_t indexed_ms;               /* in the last entry of the time index */
    int32_t epochs[EPOCHS_MAX];
    int epoch_count;
    Bytes offsets, times;
} Segment;

static void begin_segment(Segment *segment, int64_t base_offset, int64_t interval_bytes)
{
    memset(segment, 0, sizeof *segment);
    segment->base_offset = base_offset;
    segment->interval_bytes = interval_bytes;
    segment->first_offset = segment->last_offset = segment->newest_ms = segment->indexed_ms = -1;
}

static void end_segment(Segment *segment)
{
    free(segment->offsets.bytes);
    free(segment->times.bytes);
}

/* `count` more bytes at the end, no more than there can be room for; NULL without memory. */
static uint8_t *extend(Bytes *to, size_t count)
{
    if (to->room - to->size < count) {
        size_t room = to->room ? 2 * to->room : 4096;
        uint8_t *bytes = realloc(to->bytes, room);
        if (bytes == NULL)
            return NULL;
        to->bytes = bytes;
        to->room = room;
    }
    to->size += count;
    return to->bytes + to->size - count;
}

static int add_time(Segment *segment)
{
    if (segment->newest_ms <= segment->indexed_ms)
        return 1;
    uint8_t *entry = extend(&segment->times, TIME_ENTRY);
    if (entry == NULL)
        return 0;
    put_u32(entry, (uint32_t)((uint64_t)segment->newest_ms >> 32));
    put_u32(entry + 4, (uint32_t)segment->newest_ms);
    put_u32(entry + 8, (uint32_t)segment->newest_offset);
    segment->indexed_ms = segment->newest_ms;
    return 1;
}

/* The batch at `position` is whole and sound. */
static int add_batch(Segment *segment)
{
    const uint8_t *batch = segment->header;
    int64_t last_offset = get_i64(batch) + get_i32(batch + 23), relative = last_offset - segment->base_offset;
    int64_t latest_ms = get_i64(batch + 35);
    int32_t epoch = get_i32(batch + 12);
    if (!segment->epoch_count || epoch != segment->epochs[segment->epoch_count - 1]) {
        if (segment->epoch_count == EPOCHS_MAX)
            return 0;
        segment->epochs[segment->epoch_count++] = epoch;
    }
    if (segment->first_offset < 0)
        segment->first_offset = get_i64(batch);
    segment->last_offset = last_offset;
    segment->last_position = segment->position;
    if (!(batch[22] & CONTROL))
        segment->records += get_i32(batch + 57);
    if (latest_ms > segment->newest_ms) {
        segment->newest_ms = latest_ms;
        segment->newest_offset = relative;
    }
    if (segment->position - segment->indexed_to <= segment->interval_bytes || relative > RELATIVE_MAX || segment->position > RELATIVE_MAX)
        return 1;
    uint8_t *entry = extend(&segment->offsets, OFFSET_ENTRY);
    if (entry == NULL)
        return 0;
    put_u32(entry, (uint32_t)relative);
    put_u32(entry + 4, (uint32_t)segment->position);
    segment->indexed_to = segment->position;
    return add_time(segment);
}

/* Go on with these bytes. Returns 0 before a batch that is not sound, or is below the base offset: then nothing can follow. */
static int pass_piece(Segment *segment, const uint8_t *piece, int64_t size)
{
    while (size > 0) {
        if (segment->header_bytes < HEADER_BYTES) {
            int64_t count = HEADER_BYTES - segment->header_bytes < size ? HEADER_BYTES - segment->header_bytes : size;
            memcpy(segment->header + segment->header_bytes, piece, (size_t)count);
            segment->header_bytes += (int32_t)count;
            piece += count;
            size -= count;
            if (segment->header_bytes < HEADER_BYTES)
                return 1;
            int32_t epoch = segment->epoch_count ? segment->epochs[segment->epoch_count - 1] : -1;
            if (!is_possible(segment->header, segment->last_offset, epoch) || get_i64(segment->header) < segment->base_offset)
                return 0;
            segment->left = (int64_t)get_i32(segment->header + 8) - LENGTH_MIN;
            segment->crc = crc32c(0, segment->header + CRC_FROM, HEADER_BYTES - CRC_FROM);
        }
        int64_t count = segment->left < size ? segment->left : size;
        segment->crc = crc32c(segment->crc, piece, (size_t)count);
        segment->left -= count;
        piece += count;
        size -= count;
        if (segment->left)
            return 1;
        if (segment->crc != get_u32(segment->header + 17) || !add_batch(segment))
            return 0;
        segment->position += LENGTH_FROM + (int64_t)get_i32(segment->header + 8);
        segment->header_bytes = 0;
    }
    return 1;
}

/* -- frames -------------------------------------------------------------------------------------------------------- */

/* Copies whole batches out of their frames, uint32 length and batch, as far as they lie in frames[*at:end] and fit to[*to_at:to_end];
   returns how many. A frame that is not as long as the batch in it says stops it. With `first_id` >= 0 a uint64 id follows each length,
   which must count up from it. layouts/frame_stream.py is the reference. */
static int64_t take_framed(const uint8_t *frames, int64_t *at, int64_t end, uint8_t *to, int64_t *to_at, int64_t to_end, int64_t first_id)
{
    int64_t count = 0, frame_bytes = first_id < 0 ? 4 : 12;
    while (end - *at >= frame_bytes + LENGTH_FROM) {
        int64_t size = get_u32(frames + *at);
        if (size != (int64_t)get_i32(frames + *at + frame_bytes + LENGTH_FROM - 4) + LENGTH_FROM || size < HEADER_BYTES
            || size > end - *at - frame_bytes || size > to_end - *to_at)
            break;
        if (first_id >= 0 && (uint64_t)get_i64(frames + *at + 4) != (uint64_t)first_id + (uint64_t)count)
            break;
        memcpy(to + *to_at, frames + *at + frame_bytes, (size_t)size);
        *at += frame_bytes + size;
        *to_at += size;
        count++;
    }
    return count;
}

/* The lengths of the batches that begin in run[*at:end], each with all of its header's length there; the last one may reach further.
   Returns how many; *at is where the walk ended: after the last of them, or before one that is too short to be a batch. */
static int64_t batch_lengths_of(const uint8_t *run, int64_t *at, int64_t end, int32_t *lengths, int64_t most)
{
    int64_t count = 0;
    while (count < most && end - *at >= LENGTH_FROM) {
        int32_t length = get_i32(run + *at + LENGTH_FROM - 4);
        if (length < LENGTH_MIN || length > INT32_MAX - LENGTH_FROM)
            break;
        lengths[count++] = length + LENGTH_FROM;
        *at += (int64_t)length + LENGTH_FROM;
    }
    return count;
}

/* Copies run[:size], of which `lead` bytes continue a batch, with a frame before each of the batches; returns how many bytes that makes,
   or -1 where `to` has no room for them, or the lengths are not of these bytes. With `first_id` >= 0 frames have ids that count up from it. */
static int64_t put_framed(const uint8_t *run, int64_t size, int64_t lead, const int32_t *lengths, int64_t count, uint8_t *to, int64_t room,
                          int64_t first_id)
{
    int64_t frame_bytes = first_id < 0 ? 4 : 12;
    if (lead < 0 || lead > size || count < 0 || size + frame_bytes * count > room)
        return -1;
    memcpy(to, run, (size_t)lead);
    int64_t at = lead, filled = lead;
    for (int64_t number = 0; number < count; number++) {
        uint32_t length = (uint32_t)lengths[number];
        int64_t here = (int64_t)length < size - at ? (int64_t)length : size - at;
        if (here <= 0)
            return -1;
        put_u32(to + filled, length);
        for (int byte = 0; first_id >= 0 && byte < 8; byte++)
            to[filled + 4 + byte] = (uint8_t)(((uint64_t)first_id + (uint64_t)number) >> 8 * (7 - byte));
        memcpy(to + filled + frame_bytes, run + at, (size_t)here);
        filled += frame_bytes + here;
        at += here;
    }
    return at == size ? filled : -1;
}
