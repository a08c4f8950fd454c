// Checks a build without Python: for machines that only an emulator stands for. Exit status 0 if all is well.
//
// The same claims as test_native_kernels.py in short: linears against double precision, rows and chunks alone with the
// same bits as together.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "mtplx_native.h"

namespace {

std::mt19937 generator(1);
int failures = 0;

void expect(bool holds, const char *claim, int detail) {
    if (holds) return;
    std::printf("FAILED: %s (%d)\n", claim, detail);
    failures++;
}

std::vector<float> random_floats(size_t count) {
    std::normal_distribution<float> normal;
    std::vector<float> floats(count);
    for (float &value : floats) value = normal(generator);
    return floats;
}

// Blocks of any bits, with float16 scales and minima between 0.0078 and 0.031.
std::vector<uint8_t> random_blocks(int format, size_t groups) {
    if (format == MTPLX_F32) {
        const std::vector<float> floats = random_floats(groups * 32);
        std::vector<uint8_t> bytes(floats.size() * 4);
        std::memcpy(bytes.data(), floats.data(), bytes.size());
        return bytes;
    }
    const size_t size = format == MTPLX_F16 ? 64 : format == MTPLX_Q4_0 ? 18 : format == MTPLX_Q4_1 ? 20 : 34;
    std::vector<uint8_t> bytes(groups * size);
    for (uint8_t &byte : bytes) byte = static_cast<uint8_t>(generator());
    const size_t halves = format == MTPLX_F16 ? 32 : format == MTPLX_Q4_1 ? 2 : 1;
    for (size_t g = 0; g < groups; g++)
        for (size_t i = 0; i < halves; i++) bytes[g * size + 2 * i + 1] = 0x20 | (bytes[g * size + 2 * i + 1] & 7);
    return bytes;
}

// x as the int8 codes of the block formats stand for it.
double rounded(const float *group, int k) {
    float largest = 0;
    for (int i = 0; i < 32; i++) largest = std::fmax(largest, std::fabs(group[i]));
    return std::nearbyintf(group[k] * (127.0f / largest)) * double(largest / 127.0f);
}

void check_linear(mtplx_pool *one, mtplx_pool *two, int format) {
    const int outputs = 43, inputs = 96, rows = 21;
    const std::vector<uint8_t> blocks = random_blocks(format, size_t(outputs) * inputs / 32);
    std::vector<uint8_t> packed(mtplx_packed_bytes(format, outputs, inputs));
    expect(mtplx_pack(format, outputs, inputs, nullptr, blocks.data(), packed.data()) == MTPLX_OK, "packs", format);
    const mtplx_weight weight = {format, outputs, inputs, 0, packed.data()};
    std::vector<int32_t> ids(outputs);
    for (int i = 0; i < outputs; i++) ids[i] = i;
    std::vector<float> values(size_t(outputs) * inputs), y(size_t(rows) * outputs), alone(outputs);
    mtplx_unpack_rows(&weight, ids.data(), outputs, values.data());
    const std::vector<float> x = random_floats(size_t(rows) * inputs);
    mtplx_linear(two, &weight, nullptr, x.data(), rows, y.data());
    for (int row = 0; row < rows; row++) {
        for (int n = 0; n < outputs; n++) {
            double sum = 0, size = 0;
            for (int k = 0; k < inputs; k++) {
                const float *group = &x[size_t(row) * inputs + k / 32 * 32];
                const double input = format == MTPLX_F32 || format == MTPLX_F16 ? group[k % 32] : rounded(group, k % 32);
                sum += input * values[size_t(n) * inputs + k];
                size += std::fabs(input * values[size_t(n) * inputs + k]);
            }
            expect(std::fabs(sum - y[size_t(row) * outputs + n]) <= 2e-6 * size, "agrees with double precision", format);
        }
        mtplx_linear(one, &weight, nullptr, &x[size_t(row) * inputs], 1, alone.data());
        expect(!std::memcmp(alone.data(), &y[size_t(row) * outputs], outputs * sizeof(float)), "is the same alone", format);
    }
}

void check_attention(mtplx_pool *one, mtplx_pool *two, int dtype) {
    const int tokens = 300, heads = 6, kv_heads = 2, size = 80, blocks = 19;
    std::vector<char> memory(size_t(2) * blocks * kv_heads * size * 16 * 4);
    const mtplx_cache cache = {dtype, blocks, kv_heads, size, memory.data(), memory.data() + memory.size() / 2};
    std::vector<int32_t> positions(tokens), zeros(tokens), table(blocks);
    for (int i = 0; i < tokens; i++) positions[i] = i;
    for (int i = 0; i < blocks; i++) table[i] = (i * 7) % blocks;
    const int32_t begin[] = {0, blocks};
    const mtplx_rows all = {tokens, 1, positions.data(), zeros.data(), begin, table.data()};
    const std::vector<float> keys = random_floats(size_t(tokens) * kv_heads * size), values = random_floats(keys.size());
    const std::vector<float> queries = random_floats(size_t(tokens) * heads * size);
    std::vector<float> out(queries.size()), alone(size_t(heads) * size);
    expect(mtplx_cache_write(two, &cache, &all, keys.data(), values.data()) == MTPLX_OK, "writes", dtype);
    expect(mtplx_attention(two, &cache, &all, heads, 0, 0, queries.data(), out.data()) == MTPLX_OK, "attends", dtype);
    for (int token = 0; token < tokens; token += 13) {
        const mtplx_rows row = {1, 1, &positions[token], zeros.data(), begin, table.data()};
        mtplx_attention(one, &cache, &row, heads, 0, 0, &queries[token * alone.size()], alone.data());
        expect(!std::memcmp(alone.data(), &out[token * alone.size()], alone.size() * sizeof(float)), "same alone", token);
        for (int head = 0; head < heads; head++) {
            const float *query = &queries[(size_t(token) * heads + head) * size];
            double sum = 0, value = 0;
            for (int key = 0; key <= token; key++) {
                const size_t at = (size_t(key) * kv_heads + head / 3) * size;
                double score = 0;
                for (int d = 0; d < size; d++) score += double(query[d]) * keys[at + d];
                sum += std::exp(score / std::sqrt(double(size)));
                value += std::exp(score / std::sqrt(double(size))) * values[at];
            }
            expect(std::fabs(value / sum - alone[head * size]) < (dtype == MTPLX_CACHE_F32 ? 1e-5 : 5e-3), "attends right", token);
        }
    }
}

}  // namespace

int main() {
    mtplx_pool *one = mtplx_pool_create(1), *two = mtplx_pool_create(2);
    for (int format : {MTPLX_F32, MTPLX_F16, MTPLX_Q4_0, MTPLX_Q4_1, MTPLX_Q8_0}) check_linear(one, two, format);
    for (int dtype : {MTPLX_CACHE_F32, MTPLX_CACHE_F16}) check_attention(one, two, dtype);
    mtplx_pool_destroy(two);
    mtplx_pool_destroy(one);
    std::printf("%s build: %s\n", mtplx_build_name(), failures ? "broken" : "all checks hold");
    return failures ? 1 : 0;
}
