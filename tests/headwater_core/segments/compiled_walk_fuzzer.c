/* Throws damaged batches at compiled_walk.h. Built with the address and undefined-behaviour sanitizers by test_stretch.py:

       compiled_walk_fuzzer FILE SEED ROUNDS

   FILE holds sound batches. Each round walks a damaged copy, in memory that ends where the copy ends, and checks what must
   hold of any answer; the sanitizers check the rest. */

#include <stdio.h>
#include <stdlib.h>

#include "compiled_walk.h"

static uint64_t state;

static uint64_t next_random(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static int64_t below(int64_t limit)
{
    return limit > 0 ? (int64_t)(next_random() % (uint64_t)limit) : 0;
}

static void must(int holds, const char *what)
{
    if (!holds) {
        fprintf(stderr, "does not hold: %s\n", what);
        exit(1);
    }
}

static void put_random_field(uint8_t *batch)
{
    static const int places[][2] = {{0, 8}, {8, 4}, {12, 4}, {16, 1}, {21, 2}, {23, 4}, {27, 8}, {35, 8}, {43, 8}, {57, 4}};
    static const uint64_t edges[] = {0, 1, 48, 49, 60, 61, 0x7fffffff, 0x80000000, 0x7fffffffffffffff, 0x8000000000000000, 0xffffffffffffffff};
    const int *place = places[below(10)];
    uint64_t value = below(2) ? edges[below(11)] : next_random();
    for (int byte = 0; byte < place[1]; byte++)
        batch[place[0] + byte] = (uint8_t)(value >> 8 * (place[1] - 1 - byte));
}

/* Give the batch at `at` the checksum that its bytes deserve, as a hostile writer would. */
static void sign(uint8_t *bytes, int64_t size, int64_t at)
{
    if (size - at < HEADER_BYTES)
        return;
    int64_t length = get_i32(bytes + at + 8);
    if (length < LENGTH_MIN || length > size - at - LENGTH_FROM)
        return;
    uint32_t crc = crc32c_portable(0, bytes + at + CRC_FROM, (size_t)(LENGTH_FROM + length - CRC_FROM));
    for (int byte = 0; byte < 4; byte++)
        bytes[at + 17 + byte] = (uint8_t)(crc >> 8 * (3 - byte));
}

/* The whole of it in pieces, each in memory of its own: as many batches pass as in one walk. */
static void check_pieces(const uint8_t *bytes, int64_t size)
{
    Stretch stretch;
    stretch.at = 0;
    stretch.last_offset = stretch.epoch = -1;
    walk_batches(&stretch, bytes, size, INT64_MAX, INT64_MAX, 0);
    Segment segment;
    int64_t base_offset = below(2) ? 0 : below(4) ? below(30) : below(INT64_MAX);
    begin_segment(&segment, base_offset, below(2) ? below(300) : INT64_MAX);
    int is_sound = 1;
    for (int64_t at = 0, count; at < size; at += count) {
        count = 1 + below(below(4) ? 100 : size - at);
        if (count > size - at)
            count = size - at;
        uint8_t *piece = malloc((size_t)count);
        must(piece != NULL, "there is memory");
        memcpy(piece, bytes + at, (size_t)count);
        is_sound = is_sound && pass_piece(&segment, piece, count);
        free(piece);
    }
    int is_below = stretch.at > 0 && get_i64(bytes) < base_offset; /* offsets rise: the first is the one */
    must(segment.position == (is_below ? 0 : stretch.at), "as many batches pass in pieces");
    must(segment.last_offset == (is_below ? -1 : stretch.last_offset), "and they are the same");
    must(segment.offsets.size / OFFSET_ENTRY * OFFSET_ENTRY == segment.offsets.size, "index entries are whole");
    must(add_time(&segment), "there is memory");
    must(segment.times.size <= (segment.offsets.size / OFFSET_ENTRY + 1) * TIME_ENTRY, "a time for each entry, and one at the end");
    end_segment(&segment);
}

static void check_round(const uint8_t *sound, int64_t size)
{
    int64_t cut = below(4) ? size : below(size + 1);
    uint8_t *copy = malloc(cut ? (size_t)cut : 1);
    must(copy != NULL, "there is memory");
    memcpy(copy, sound, (size_t)cut);
    int64_t starts[4096], count = 0;
    for (int64_t at = 0; cut - at >= HEADER_BYTES && count < 4096; at += LENGTH_FROM + get_i32(sound + at + 8))
        starts[count++] = at;
    for (int64_t damage = below(4); damage > 0 && count; damage--) {
        int64_t at = starts[below(count)];
        put_random_field(copy + at);
        if (below(3))
            sign(copy, cut, at);
    }
    if (cut && !below(3))
        copy[below(cut)] ^= (uint8_t)(1 << below(8));

    Stretch stretch;
    int64_t from = count && below(3) ? starts[below(count)] : below(cut + 1);
    int64_t end = below(3) ? cut : from + below(cut - from + 1);
    stretch.at = from;
    stretch.last_offset = below(2) ? -1 : below(OFFSET_MAX);
    stretch.epoch = below(2) ? -1 : (int32_t)next_random();
    int64_t last_offset = stretch.last_offset, end_offset = below(2) ? INT64_MAX : below(1 << 20);
    walk_batches(&stretch, copy, end, below(2) ? INT64_MAX : below(end + 1), end_offset, (int)below(2));
    must(stretch.at >= from && stretch.at <= end, "the walk ends in the buffer");
    must(stretch.last_offset >= last_offset && stretch.last_offset <= OFFSET_MAX, "offsets rise, and fit");
    must(stretch.at == from || stretch.last_offset < end_offset, "nothing at the end offset is passed");
    must(stretch.producer_count <= PRODUCERS_MAX, "producers have a bound");
    for (int row = 0; row < stretch.producer_count; row++)
        must(stretch.producers[row].at >= from && stretch.producers[row].at < stretch.at, "a producer's batch was passed");
    int64_t first = below(end + 1), bytes = below(end - first + 1);
    uint32_t before = below(2) ? 0 : (uint32_t)next_random();
    must(crc32c(before, copy + first, (size_t)bytes) == crc32c_portable(before, copy + first, (size_t)bytes), "both checksums are one");
    check_pieces(copy, cut);
    free(copy);
}

/* Frames around sound batches, damaged and cut, into a run of any size. */
static void check_frames(const uint8_t *sound, int64_t size)
{
    uint8_t *frames = malloc((size_t)size * 2 + 16);
    must(frames != NULL, "there is memory");
    int64_t filled = 0, first_id = below(2) ? below(INT64_MAX) : -1, id = first_id, frame_bytes = first_id < 0 ? 4 : 12;
    for (int64_t at = 0; size - at >= HEADER_BYTES && below(50);) {
        int64_t length = LENGTH_FROM + get_i32(sound + at + 8);
        if (length < HEADER_BYTES || length > size - at)
            break;
        for (int byte = 0; byte < 4; byte++)
            frames[filled++] = (uint8_t)((uint64_t)length >> 8 * (3 - byte));
        for (int byte = 0; first_id >= 0 && byte < 8; byte++)
            frames[filled++] = (uint8_t)((uint64_t)id >> 8 * (7 - byte));
        id++;
        memcpy(frames + filled, sound + at, (size_t)length);
        filled += length;
        at += length;
    }
    for (int64_t damage = below(3); damage > 0 && filled; damage--)
        frames[below(filled)] ^= (uint8_t)(1 << below(8));
    int64_t end = below(3) ? filled : below(filled + 1), room = below(2) ? filled : below(filled + 1);
    uint8_t *copy = malloc(end ? (size_t)end : 1), *run = malloc(room ? (size_t)room : 1);
    must(copy != NULL && run != NULL, "there is memory");
    memcpy(copy, frames, (size_t)end);
    int64_t from = below(3) ? 0 : below(end + 1), at = from, taken = 0;
    int64_t count = take_framed(copy, &at, end, run, &taken, room, first_id);
    must(at >= from && at <= end && taken >= 0 && taken <= room, "it ends in both buffers");
    must(at - from == taken + frame_bytes * count, "each batch had a frame");
    free(frames);

    int32_t lengths[64];
    int64_t begun = below(taken + 1), ended = begun, most = below(65);
    int64_t found = batch_lengths_of(run, &ended, taken, lengths, most);
    must(found >= 0 && found <= most && ended >= begun, "lengths are counted");
    int64_t cut = ended < taken ? ended : taken, into_bytes = cut - begun + frame_bytes * found - (below(4) ? 0 : below(9));
    uint8_t *into = malloc(into_bytes > 0 ? (size_t)into_bytes : 1);
    must(into != NULL, "there is memory");
    int64_t filled_bytes = put_framed(run + begun, cut - begun, below(4) ? 0 : below(cut - begun + 2), lengths, found, into, into_bytes, first_id);
    must(filled_bytes < 0 || filled_bytes <= into_bytes, "frames stay in their buffer");
    free(into);
    free(copy);
    free(run);
}

int main(int argc, char **argv)
{
    must(argc == 4, "FILE SEED ROUNDS are given");
    FILE *file = fopen(argv[1], "rb");
    must(file != NULL, "FILE can be opened");
    static uint8_t sound[1 << 20];
    int64_t size = (int64_t)fread(sound, 1, sizeof sound, file);
    fclose(file);
    prepare_crc32c();
    state = strtoull(argv[2], NULL, 10) * 0x9e3779b97f4a7c15u + 1;
    for (long rounds = strtol(argv[3], NULL, 10); rounds > 0; rounds--) {
        check_round(sound, size);
        check_frames(sound, size);
    }
    return 0;
}
