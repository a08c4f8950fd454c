// The codes of one group: 32 k of each of a panel's 16 rows, in lines of 64 bytes. Byte 4 * row + i of a line has to do
// with that row and with k % 4 = i:
//
//     8 bits, 8 lines     line j holds k = 4j + i
//     4 bits, 4 lines     line j holds k = 4j + i in the low nibble, k = 16 + 4j + i in the high one
//     5 bits, 4 + 1       the low nibbles likewise, then in bit j of the fifth line the upper bit of k = 4j + i
//     6 bits, 4 + 2       then the two upper bits of k = 4j + i: bits 2j and 2j + 1 of the fifth line for k < 16, with
//                         j - 4 in place of j of the sixth line for the others
//
// A line of bytes is what one 64-byte vector instruction takes: four k for each of sixteen rows.
#pragma once

#include "simd.h"

namespace mtplx {

constexpr int LINE = 4 * PANEL;

constexpr size_t group_bytes(int bits) { return size_t(bits) * LINE; }

// Line j of eight, k = 4j .. 4j + 3 of each row, as bytes; of the PARTS vectors of this build that it takes, one.
template <int BITS>
inline Ints line_of(const uint8_t *group, int j, int part = 0) {
    const uint8_t *piece = group + part * sizeof(Ints);
    if constexpr (BITS == 8) return load<Ints>(piece + j * LINE);
    const Ints nibbles = load<Ints>(piece + j % 4 * LINE) >> (j < 4 ? 0 : 4) & 0x0f0f0f0f;
    if constexpr (BITS == 4) return nibbles;
    constexpr int UPPER = BITS - 4;
    const Ints upper = load<Ints>(piece + (4 + j * UPPER / 8) * LINE);
    const int shift = 4 - j * UPPER % 8;
    return nibbles | ((shift > 0 ? upper << shift : upper >> -shift) & (UPPER == 1 ? 0x10101010 : 0x30303030));
}

// Writes the codes of one row into lines that are zero in its place.
inline void put_codes(int bits, const uint8_t *codes, int row, uint8_t *group) {
    for (int k = 0; k < GROUP; k++) {
        uint8_t *byte = group + row * 4 + k % 4;
        const int j = k / 4, upper = bits - 4;
        if (bits == 8) {
            byte[j * LINE] = codes[k];
            continue;
        }
        byte[j % 4 * LINE] |= static_cast<uint8_t>((codes[k] & 15) << (j < 4 ? 0 : 4));
        if (upper) byte[(4 + j * upper / 8) * LINE] |= static_cast<uint8_t>(codes[k] >> 4 << j * upper % 8);
    }
}

inline int32_t code_at(int bits, const uint8_t *group, int row, int k) {
    const uint8_t *byte = group + row * 4 + k % 4;
    const int j = k / 4, upper = bits - 4;
    if (bits == 8) return byte[j * LINE];
    const int32_t nibble = byte[j % 4 * LINE] >> (j < 4 ? 0 : 4) & 15;
    if (!upper) return nibble;
    return nibble | (byte[(4 + j * upper / 8) * LINE] >> j * upper % 8 & ((1 << upper) - 1)) << 4;
}

}  // namespace mtplx
