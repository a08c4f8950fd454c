#include "blocks.h"

namespace mtplx {

namespace {

uint16_t half_at(const uint8_t *bytes) {
    uint16_t half;
    std::memcpy(&half, bytes, sizeof half);
    return half;
}

// 32 codes: low nibbles first, then high ones. `upper` has their fifth bits from the lowest on, or is NULL.
void read_codes(const uint8_t *nibbles, const uint8_t *upper, uint8_t *codes) {
    for (int k = 0; k < GROUP; k++) {
        codes[k] = nibbles[k % 16] >> k / 16 * 4 & 15;
        if (upper) codes[k] |= (upper[k / 8] >> k % 8 & 1) << 4;
    }
}

// 256 codes: two groups share 32 bytes of nibbles. `upper` has 32 bytes with a bit for each group, or is NULL.
void read_codes_k(const uint8_t *nibbles, const uint8_t *upper, uint8_t *codes) {
    for (int k = 0; k < SUPERBLOCK; k++) {
        const int g = k / GROUP, i = k % GROUP;
        codes[k] = nibbles[g / 2 * GROUP + i] >> g % 2 * 4 & 15;
        if (upper) codes[k] |= (upper[i] >> g & 1) << 4;
    }
}

// Eight scales and minima of 6 bits in 12 bytes: the first four have a byte each, whose two upper bits are those of the
// last four; the rest of these share a byte, the scale low.
void read_scales_k(const uint8_t *packed, Block &block) {
    for (int g = 0; g < 4; g++) {
        const uint8_t scale = packed[g], minimum = packed[g + 4], both = packed[g + 8];
        block.scales[g] = static_cast<int8_t>(scale & 63);
        block.minima[g] = static_cast<int8_t>(-(minimum & 63));
        block.scales[g + 4] = static_cast<int8_t>((both & 15) | scale >> 6 << 4);
        block.minima[g + 4] = static_cast<int8_t>(-(both >> 4 | minimum >> 6 << 4));
    }
}

// For each half of the weights 64 bytes of nibbles, low ones first; then for each 32 bytes of pairs of upper bits.
void read_q6_k(const uint8_t *bytes, Block &block) {
    for (int k = 0; k < SUPERBLOCK; k++) {
        const int half = k / 128, quarter = k % 128 / GROUP, i = k % GROUP;
        const int nibble = bytes[half * 64 + quarter % 2 * GROUP + i] >> quarter / 2 * 4 & 15;
        const int upper = bytes[128 + half * GROUP + i] >> quarter * 2 & 3;
        block.codes[k] = static_cast<uint8_t>(nibble | upper << 4);
    }
    std::memcpy(block.scales, bytes + 192, sizeof block.scales);
    block.scale = half_at(bytes + 208);
}

}  // namespace

Block read_block(int32_t format, const uint8_t *bytes) {
    Block block = {};
    if (format == MTPLX_Q6_K) {
        read_q6_k(bytes, block);
        return block;
    }
    const BlockFormat kind = block_format(format);
    block.scale = half_at(bytes);
    if (kind.has_minimum) block.minimum = half_at(bytes + 2);
    bytes += kind.has_minimum ? 4 : 2;
    if (format == MTPLX_Q8_0) {
        for (int k = 0; k < GROUP; k++) block.codes[k] = static_cast<uint8_t>(bytes[k] + kind.zero);
    } else if (kind.size == GROUP) {
        read_codes(bytes + (kind.bits == 5 ? 4 : 0), kind.bits == 5 ? bytes : nullptr, block.codes);
    } else {
        read_scales_k(bytes, block);
        const uint8_t *upper = bytes + 12;
        read_codes_k(upper + (kind.bits == 5 ? GROUP : 0), kind.bits == 5 ? upper : nullptr, block.codes);
    }
    return block;
}

}  // namespace mtplx
