// Checks a build without Python: for machines that only an emulator stands for. Exit status 0 if all is well.
//
// What the tests in Python claim, in short: linears against double precision, rows and chunks alone with the same bits
// as together, the token that the noise of all would draw. `write FILE` and `compare FILE` hold the logits of a small
// model's steps against another build's.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <random>
#include <vector>

#include "blocks.h"

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
std::vector<uint8_t> random_blocks(int format, size_t weights) {
    if (format == MTPLX_F32) {
        const std::vector<float> floats = random_floats(weights);
        std::vector<uint8_t> bytes(floats.size() * 4);
        std::memcpy(bytes.data(), floats.data(), bytes.size());
        return bytes;
    }
    const bool is_half = format == MTPLX_F16;
    const mtplx::BlockFormat kind = is_half ? mtplx::BlockFormat{2, 1, 0, 0, false, 0} : mtplx::block_format(format);
    std::vector<uint8_t> bytes(weights / kind.size * kind.bytes);
    for (uint8_t &byte : bytes) byte = static_cast<uint8_t>(generator());
    const size_t first = format == MTPLX_Q6_K ? 208 : 0, last = kind.has_minimum ? 2 : first;
    for (size_t block = 0; block < bytes.size(); block += kind.bytes)
        for (size_t at = first; at <= last; at += 2) bytes[block + at + 1] = 0x20 | (bytes[block + at + 1] & 7);
    return bytes;
}

// x as the int8 codes of the block formats stand for it.
double rounded(const float *group, int k) {
    float largest = 0;
    for (int i = 0; i < 32; i++) largest = std::fmax(largest, std::fabs(group[i]));
    return std::nearbyintf(group[k] * (127.0f / largest)) * double(largest / 127.0f);
}

void check_linear(mtplx_pool *one, mtplx_pool *two, int format) {
    const int outputs = 43, rows = 21, inputs = mtplx::block_format(format).size == mtplx::SUPERBLOCK ? 768 : 96;
    const std::vector<uint8_t> blocks = random_blocks(format, size_t(outputs) * inputs);
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

// The noise of one id, from its definition.
double noise(uint32_t id, uint64_t seed, uint32_t position, uint32_t choice) {
    uint32_t a = id / 2, b = position, c = choice, d = 0;
    for (uint32_t round = 0; round < 10; round++) {
        const uint64_t p = uint64_t(0xd2511f53) * a, q = uint64_t(0xcd9e8d57) * c;
        a = uint32_t(q >> 32) ^ b ^ (uint32_t(seed) + round * 0x9e3779b9);
        b = uint32_t(q);
        c = uint32_t(p >> 32) ^ d ^ (uint32_t(seed >> 32) + round * 0xbb67ae85);
        d = uint32_t(p);
    }
    const uint64_t bits = id % 2 ? uint64_t(c) << 20 | d >> 12 : uint64_t(a) << 20 | b >> 12;
    return -std::log(-std::log((double(bits) + 0.5) * 0x1p-52));
}

void check_draw() {
    const int vocab = 1003;
    const uint64_t seed = 1ull << 40 | 5;
    std::vector<int32_t> ids(vocab);
    std::vector<uint64_t> bits(vocab);
    for (uint32_t position = 0; position < 50; position++) {
        const std::vector<float> logits = random_floats(vocab);
        std::vector<double> scores(logits.begin(), logits.end());
        const double largest = *std::max_element(scores.begin(), scores.end());
        std::vector<double> values(vocab);
        for (int id = 0; id < vocab; id++) {
            scores[id] = (scores[id] - largest) * (position % 5);
            values[id] = scores[id] + noise(id, seed, position, 3);
        }
        const int best = int(std::max_element(values.begin(), values.end()) - values.begin());
        int count = mtplx_draw_candidates(scores.data(), vocab, nullptr, seed, position, 3, ids.data(), bits.data());
        expect(std::count(ids.begin(), ids.begin() + count, best) == 1, "draws", int(position));
        std::vector<int32_t> some;  // of the vocabulary, the likeliest among them
        std::vector<double> some_scores;
        for (int id = 0; id < vocab; id++) {
            if (id % 3 == 0 && scores[id] < 0 && id != best) continue;
            some.push_back(id);
            some_scores.push_back(scores[id]);
        }
        count = mtplx_draw_candidates(some_scores.data(), int(some.size()), some.data(), seed, position, 3, ids.data(),
                                      bits.data());
        const bool has_best =
            std::any_of(ids.begin(), ids.begin() + count, [&](int place) { return some[place] == best; });
        expect(has_best, "draws among some", int(position));
    }
}

// A model of two layers with random weights, and the memory of all it points at.
class SmallModel {
public:
    explicit SmallModel(mtplx_pool *pool)
        : cosines_(POSITIONS * HALF), sines_(POSITIONS * HALF), cache_(2 * 2 * BLOCKS * 16 * 32) {
        for (int i = 0; i < POSITIONS * HALF; i++) {
            const double angle = i / HALF * std::pow(10000.0, -double(i % HALF) / HALF);
            cosines_[i] = float(std::cos(angle));
            sines_[i] = float(std::sin(angle));
        }
        mtplx_layer layers[2] = {};
        for (mtplx_layer &layer : layers) {
            layer.q = matrix(MTPLX_Q8_0, 96, HIDDEN), layer.k = matrix(MTPLX_Q4_1, 32, HIDDEN);
            layer.v = matrix(MTPLX_F32, 32, HIDDEN), layer.o = matrix(MTPLX_F16, HIDDEN, 96);
            layer.gate = matrix(MTPLX_Q4_0, 256, HIDDEN), layer.up = matrix(MTPLX_Q5_1, 256, HIDDEN);
            layer.down = matrix(MTPLX_Q6_K, HIDDEN, 256);
            layer.attention_norm = vector(HIDDEN), layer.mlp_norm = vector(HIDDEN), layer.q_bias = vector(96);
            layer.k_norm = vector(32);
        }
        mtplx_config config = {};
        config.num_layers = 2, config.hidden = HIDDEN, config.intermediate = 256, config.vocab = VOCAB;
        config.num_heads = 3, config.num_kv_heads = 1, config.head_dim = 32;
        config.cache_dtype = MTPLX_CACHE_F16, config.num_cache_blocks = BLOCKS, config.num_positions = POSITIONS;
        config.norm_eps = 1e-5f, config.layers = layers, config.final_norm = vector(HIDDEN);
        config.embedding = config.head = matrix(MTPLX_Q8_0, VOCAB, HIDDEN);
        config.rope_cos = cosines_.data(), config.rope_sin = sines_.data();
        config.keys = cache_.data(), config.values = cache_.data() + cache_.size() / 2;
        expect(mtplx_model_create(&config, pool, &model_) == MTPLX_OK, "makes a model", 0);
    }

    ~SmallModel() { mtplx_model_destroy(model_); }

    // Logits [count][VOCAB] of positions first .. first + count - 1 of one sequence, token 7 * position % VOCAB each.
    std::vector<float> step(int first, int count) {
        std::vector<int32_t> positions(count), zeros(count), tokens(count), wanted(count);
        for (int i = 0; i < count; i++) positions[i] = first + i, tokens[i] = (first + i) * 7 % VOCAB, wanted[i] = i;
        const int32_t begin[] = {0, BLOCKS}, table[] = {2, 0, 1};
        std::vector<float> logits(size_t(count) * VOCAB);
        mtplx_step step = {};
        step.rows = {count, 1, positions.data(), zeros.data(), begin, table};
        step.num_wanted = count, step.wanted = wanted.data();
        step.token_ids = tokens.data(), step.logits = logits.data();
        expect(mtplx_model_step(model_, &step) == MTPLX_OK, "steps", count);
        return logits;
    }

    static constexpr int HIDDEN = 64, VOCAB = 70, BLOCKS = 3, POSITIONS = 16 * BLOCKS, HALF = 16;

private:
    mtplx_weight matrix(int format, int outputs, int inputs) {
        const std::vector<uint8_t> blocks = random_blocks(format, size_t(outputs) * inputs);
        matrices_.emplace_back(mtplx_packed_bytes(format, outputs, inputs));
        mtplx_pack(format, outputs, inputs, nullptr, blocks.data(), matrices_.back().data());
        return {format, outputs, inputs, 0, matrices_.back().data()};
    }

    const float *vector(int size) {
        vectors_.push_back(random_floats(size));
        return vectors_.back().data();
    }

    std::vector<std::vector<uint8_t>> matrices_;
    std::vector<std::vector<float>> vectors_;
    std::vector<float> cosines_, sines_;
    std::vector<uint16_t> cache_;
    mtplx_model *model_ = nullptr;
};

// A prompt in one step has the bits of the same prompt token by token. Returns its logits.
std::vector<float> check_steps(mtplx_pool *one, mtplx_pool *two) {
    const std::mt19937 before = generator;
    SmallModel together(two);
    generator = before;
    SmallModel alone(one);
    const std::vector<float> logits = together.step(0, SmallModel::POSITIONS);
    for (int position = 0; position < SmallModel::POSITIONS; position++) {
        const float *row = &logits[size_t(position) * SmallModel::VOCAB];
        const std::vector<float> same = alone.step(position, 1);
        expect(!std::memcmp(same.data(), row, same.size() * sizeof(float)), "is the same token by token", position);
        for (float logit : same) expect(std::isfinite(logit), "is finite", position);
    }
    return logits;
}

// Builds round in different places, so they agree to a part in ten thousand of the largest logit.
void compare(const std::vector<float> &logits, const char *path) {
    std::vector<float> other(logits.size());
    std::ifstream file(path, std::ios::binary);
    file.read(reinterpret_cast<char *>(other.data()), std::streamsize(other.size() * sizeof(float)));
    expect(bool(file), "finds the other build's logits", 0);
    float largest = 0, difference = 0;
    for (size_t i = 0; i < logits.size(); i++) {
        largest = std::max(largest, std::fabs(other[i]));
        difference = std::max(difference, std::fabs(logits[i] - other[i]));
    }
    std::printf("logits up to %g differ from the other build's by %g\n", largest, difference);
    expect(difference <= 1e-4f * largest, "agrees with the other build", 0);
}

}  // namespace

int main(int argc, char **argv) {
    mtplx_pool *one = mtplx_pool_create(1), *two = mtplx_pool_create(2);
    for (int format : {MTPLX_F32, MTPLX_F16, MTPLX_Q4_0, MTPLX_Q4_1, MTPLX_Q5_0, MTPLX_Q5_1, MTPLX_Q8_0, MTPLX_Q4_K,
                       MTPLX_Q5_K, MTPLX_Q6_K})
        check_linear(one, two, format);
    for (int dtype : {MTPLX_CACHE_F32, MTPLX_CACHE_F16}) check_attention(one, two, dtype);
    check_draw();
    const std::vector<float> logits = check_steps(one, two);
    if (argc == 3 && !std::strcmp(argv[1], "write"))
        std::ofstream(argv[2], std::ios::binary)
            .write(reinterpret_cast<const char *>(logits.data()), std::streamsize(logits.size() * sizeof(float)));
    if (argc == 3 && !std::strcmp(argv[1], "compare")) compare(logits, argv[2]);
    mtplx_pool_destroy(two);
    mtplx_pool_destroy(one);
    std::printf("%s build: %s\n", mtplx_build_name(), failures ? "broken" : "all checks hold");
    return failures ? 1 : 0;
}
