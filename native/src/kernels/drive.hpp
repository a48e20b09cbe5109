// The loops over activations and rows around one row times one tile, and the table of kernels of one instruction set.
// See simd.hpp for how this file is used.
#pragma once

#include "small.hpp"
#include "super.hpp"

namespace expertstream {
namespace {

constexpr uint64_t kScratch =
    288 * 1024;  // on the stack: activations of a pass and unpacked rows stay in the second-level cache
constexpr uint64_t kRowScratch = 24 * 1024;  // unpacked rows and a tile stay in the first-level cache
constexpr size_t kAhead = 4096;              // bytes: how early weights are asked for
constexpr uint32_t kFew = 2 * kTile;         // activations for which unpacking a row to memory does not pay
constexpr uint32_t kPackedRows = 16;         // that go through two tiles
constexpr uint32_t kMostRows = 8;            // unpacked at once

// One call's matrix and results.
struct Call {
    uint64_t cols;
    const uint8_t * w;
    size_t row_bytes;
    uint32_t rows;
    const uint8_t * const * x;
    float * const * out;
};

// The activations first to first + A - 1 times some rows, straight from the packed weights.
template <class Family, int A>
__attribute__((target(ES_TARGET), noinline)) void multiply_packed(const Call & call, uint32_t first,
                                                                  const typename Family::Tile * tile, uint32_t row,
                                                                  uint32_t rows) {
    for (uint32_t r = row; r < row + rows; ++r) {
        const size_t left = (call.rows - 1 - r) * call.row_bytes;
        float totals[A];
        Family::template packed<A>(call.cols, call.w + r * call.row_bytes, left < kAhead ? 0 : kAhead, tile, totals);
        ES_UNROLL
        for (int a = 0; a < A; ++a) call.out[first + static_cast<uint32_t>(a)][r] = totals[a];
    }
}

// The same for some rows that have been unpacked.
template <class Family, int A>
__attribute__((target(ES_TARGET), noinline)) void multiply_unpacked(const Call & call, uint32_t first,
                                                                    const typename Family::Tile * tile,
                                                                    const typename Family::Row * unpacked, uint32_t row,
                                                                    uint32_t rows) {
    const uint64_t groups = Family::groups(call.cols);
    for (uint32_t r = 0; r < rows; ++r) {
        float totals[A];
        Family::template unpacked<A>(call.cols, unpacked + r * groups, tile, totals);
        ES_UNROLL
        for (int a = 0; a < A; ++a) call.out[first + static_cast<uint32_t>(a)][row + r] = totals[a];
    }
}

// By the number of activations in a tile.
template <class Family>
struct Tables {
    using Tile = typename Family::Tile;
    using Packed = void (*)(const Call &, uint32_t first, const Tile *, uint32_t row, uint32_t rows);
    using Unpacked = void (*)(const Call &, uint32_t first, const Tile *, const typename Family::Row *, uint32_t row,
                              uint32_t rows);
    static constexpr Packed kPacked[kTile + 1] = {nullptr, multiply_packed<Family, 1>, multiply_packed<Family, 2>,
                                                  multiply_packed<Family, 3>, multiply_packed<Family, 4>};
    static constexpr Unpacked kUnpacked[kTile + 1] = {nullptr, multiply_unpacked<Family, 1>,
                                                      multiply_unpacked<Family, 2>, multiply_unpacked<Family, 3>,
                                                      multiply_unpacked<Family, 4>};
};

inline uint32_t least(uint64_t a, uint64_t b) { return static_cast<uint32_t>(a < b ? a : b); }

template <class Family>
__attribute__((target(ES_TARGET), noinline)) void unpack_rows(const Call & call, uint32_t row, uint32_t rows,
                                                              typename Family::Row * to) {
    for (uint32_t r = 0; r < rows; ++r)
        Family::unpack(call.cols, call.w + (row + r) * call.row_bytes, to + r * Family::groups(call.cols));
}

template <class Family>
__attribute__((target(ES_TARGET), noinline)) void take(const Call & call, uint32_t first, uint32_t count,
                                                       typename Family::Tile * tiles) {
    for (uint32_t a = 0; a < count; ++a)
        Family::take(call.cols, call.x[first + a], a % kTile, tiles + a / kTile * Family::groups(call.cols));
}

// `count` activations that are in `tiles`, few: every tile goes through some rows while these are in the cache.
template <class Family>
void multiply_few(const Call & call, uint32_t first, uint32_t count, const typename Family::Tile * tiles) {
    const uint32_t rows_at_once = count <= kTile ? call.rows : kPackedRows;
    for (uint32_t row = 0; row < call.rows; row += rows_at_once)
        for (uint32_t a = 0; a < count; a += kTile)
            Tables<Family>::kPacked[least(kTile, count - a)](call, first + a,
                                                             tiles + a / kTile * Family::groups(call.cols), row,
                                                             least(rows_at_once, call.rows - row));
}

// Many: a few rows are unpacked, then go through all tiles.
template <class Family>
void multiply_many(const Call & call, uint32_t first, uint32_t count, const typename Family::Tile * tiles,
                   typename Family::Row * unpacked, uint32_t rows_at_once) {
    const uint64_t groups = Family::groups(call.cols);
    for (uint32_t row = 0; row < call.rows; row += rows_at_once) {
        const uint32_t rows = least(rows_at_once, call.rows - row);
        unpack_rows<Family>(call, row, rows, unpacked);
        for (uint32_t a = 0; a < count; a += kTile)
            Tables<Family>::kUnpacked[least(kTile, count - a)](call, first + a, tiles + a / kTile * groups, unpacked,
                                                               row, rows);
    }
}

// The size of passes of at most `most` (whole tiles) that share `count` evenly.
inline uint32_t evenly(uint32_t count, uint32_t most) {
    const uint32_t passes = (count + most - 1) / most, each = passes == 0 ? 1 : (count + passes - 1) / passes;
    return (each + kTile - 1) / kTile * kTile;
}

template <class Family>
__attribute__((target(ES_TARGET))) void multiply(uint64_t cols, const uint8_t * w, size_t row_bytes, uint32_t rows,
                                                 const uint8_t * const * x, float * const * out, uint32_t count) {
    using Tile = typename Family::Tile;
    using Row = typename Family::Row;
    const Call call{cols, w, row_bytes, rows, x, out};
    const uint64_t groups = Family::groups(cols);
    const uint64_t row_size = groups * sizeof(Row), tile_size = groups * sizeof(Tile);
    const uint32_t rows_at_once =
        row_size == 0 || kRowScratch / row_size == 0 ? 1 : least(kMostRows, kRowScratch / row_size);
    const uint64_t rows_size = (rows_at_once * row_size + 63) / 64 * 64;
    if (rows_size + tile_size > kScratch)
        return reference_kernel(Family::Format::kType)(cols, w, row_bytes, rows, x, out, count);
    alignas(64) uint8_t scratch[kScratch];
    auto * unpacked = reinterpret_cast<Row *>(scratch);
    auto * tiles = reinterpret_cast<Tile *>(scratch + rows_size);
    const uint32_t at_once =
        evenly(count, least(4096, tile_size == 0 ? 1 : (kScratch - rows_size) / tile_size) * kTile);
    if (rows * row_bytes >= kAhead) fetch(w, kAhead, 0);
    for (uint32_t first = 0; first < count; first += at_once) {
        const uint32_t here = least(at_once, count - first);
        take<Family>(call, first, here, tiles);
        if (here <= kFew)
            multiply_few<Family>(call, first, here, tiles);
        else
            multiply_many<Family>(call, first, here, tiles, unpacked, rows_at_once);
    }
}

Multiply kernel_here(uint32_t type) {
    switch (type) {
        case kQ4_0: return multiply<Small<Q4_0>>;
        case kQ8_0: return multiply<Small<Q8_0>>;
        case kIQ4_NL: return multiply<Small<IQ4_NL>>;
        case kMXFP4: return multiply<Small<MXFP4>>;
        case kQ4_K: return multiply<Super<Q4_K>>;
        case kQ5_K: return multiply<Super<Q5_K>>;
        case kQ6_K: return multiply<Super<Q6_K>>;
        case kIQ4_XS: return multiply<Super<IQ4_XS>>;
        default: return nullptr;
    }
}

}  // namespace
}  // namespace expertstream
