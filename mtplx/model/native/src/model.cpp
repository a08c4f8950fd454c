// A stack of decoder layers: one call computes a step. Each phase below shares its work among the threads and ends when
// all are done; a phase's pieces write apart from each other, so their order doesn't matter.
//
//     rows        embed; in a draft head: normalize | join with the trunk's hidden states
//     each layer  normalize | q, k, v by head, cache | attend | combine | o, add
//                 normalize | gate, up, silu | down, add
//                 (few rows are normalized by each thread for itself, and short attention is combined at once)
//     rows        normalize | output head for those that are wanted
#include <algorithm>
#include <initializer_list>
#include <new>

#include "argmax.h"
#include "attention.h"
#include "linear.h"
#include "pool.h"

namespace mtplx {

namespace {

typedef float HeadRow[MAX_HEAD_DIM];

constexpr int FEW_ROWS = 16;

bool fits(const mtplx_weight &weight, int32_t rows, int32_t cols) {
    return weight.data && weight.num_rows == rows && weight.num_cols == cols;
}

bool layer_fits(const mtplx_config &c, const mtplx_layer &layer) {
    const int32_t queries = c.num_heads * c.head_dim, keys = c.num_kv_heads * c.head_dim;
    return fits(layer.q, queries, c.hidden) && fits(layer.k, keys, c.hidden) && fits(layer.v, keys, c.hidden) &&
           fits(layer.o, c.hidden, queries) && fits(layer.gate, c.intermediate, c.hidden) &&
           fits(layer.up, c.intermediate, c.hidden) && fits(layer.down, c.hidden, c.intermediate) &&
           layer.attention_norm && layer.mlp_norm;
}

bool sizes_fit(const mtplx_config &c) {
    const bool has_layers = c.num_layers > 0 && c.hidden > 0 && c.hidden % GROUP == 0 && c.intermediate > 0 &&
                            c.intermediate % GROUP == 0 && c.layers && c.final_norm;
    const bool has_heads = c.num_kv_heads > 0 && c.num_heads > 0 && c.num_heads % c.num_kv_heads == 0 &&
                           c.head_dim > 0 && c.head_dim % PANEL == 0 && c.head_dim <= MAX_HEAD_DIM &&
                           c.num_heads * c.head_dim % GROUP == 0 && c.window >= 0;
    const bool has_positions = c.num_positions > 0 && c.rope_cos && c.rope_sin;
    const bool has_cache = c.num_cache_blocks > 0 && c.keys && c.values &&
                           (c.cache_dtype == MTPLX_CACHE_F32 || c.cache_dtype == MTPLX_CACHE_F16);
    return has_layers && has_heads && has_positions && has_cache;
}

int32_t check_config(const mtplx_config &c) {
    if (!sizes_fit(c)) return MTPLX_BAD_SHAPE;
    if (!c.embedding.data || c.embedding.num_cols != c.hidden) return MTPLX_BAD_SHAPE;
    if (c.head.data && !fits(c.head, c.vocab, c.hidden)) return MTPLX_BAD_SHAPE;
    if (c.eh_proj.data && !(fits(c.eh_proj, c.hidden, 2 * c.hidden) && c.enorm && c.hnorm && c.hidden_states))
        return MTPLX_BAD_SHAPE;
    for (int32_t i = 0; i < c.num_layers; i++) {
        const mtplx_layer &l = c.layers[i];
        if (!layer_fits(c, l)) return MTPLX_BAD_SHAPE;
        for (const mtplx_weight &w : {l.q, l.k, l.v, l.o, l.gate, l.up, l.down})
            if (!is_packable(w.format, w.num_rows, w.num_cols)) return MTPLX_BAD_FORMAT;
    }
    for (const mtplx_weight &w : {c.embedding, c.head, c.eh_proj})
        if (w.data && !is_packable(w.format, w.num_rows, w.num_cols)) return MTPLX_BAD_FORMAT;
    return MTPLX_OK;
}

// Asks for memory that is soon written, and that another thread or nobody has in its cache.
void claim(const float *from, int count) {
    for (int i = 0; i < count; i += 16) __builtin_prefetch(from + i, 1);
}

// x[i] and x[i + size / 2] are turned by the angle whose cosine and sine are given.
void rotate(float *x, int size, const float *cosines, const float *sines) {
    const int half = size / 2;
    for (int i = 0; i < half; i++) {
        const float a = x[i], b = x[i + half];
        x[i] = a * cosines[i] - b * sines[i];
        x[i + half] = b * cosines[i] + a * sines[i];
    }
}

}  // namespace

class Model {
public:
    Model(const mtplx_config &config, Pool &pool)
        : config_(config),
          layers_(config.layers, config.layers + config.num_layers),
          pool_(pool),
          largest_(pool.size()),
          normed_(pool.size(), Activations(config.hidden)),
          joined_(2 * config.hidden),
          attended_(config.num_heads * config.head_dim),
          gated_(config.intermediate),
          final_(config.hidden),
          scale_(attention_scale(config.attention_scale, config.head_dim)) {}

    int32_t step(const mtplx_step &step) {
        const int32_t status = check(step);
        if (status != MTPLX_OK || step.rows.num_tokens == 0) return status;
        reserve(step);
        pool_.run([&](Team &team) { run(team, step); });
        if (step.argmax)
            for (int32_t i = 0; i < step.num_wanted; i++) step.argmax[i] = argmax(i);
        return MTPLX_OK;
    }

private:
    int32_t check(const mtplx_step &step) const {
        const int32_t status = check_rows(step.rows, config_.num_cache_blocks);
        if (status != MTPLX_OK) return status;
        for (int32_t row = 0; row < step.rows.num_tokens; row++) {
            if (step.rows.positions[row] >= config_.num_positions) return MTPLX_BAD_POSITION;
            if (step.rows.positions[row] < first_position()) return MTPLX_BAD_POSITION;
            if (step.token_ids[row] < 0 || step.token_ids[row] >= config_.embedding.num_rows) return MTPLX_BAD_TOKEN;
        }
        if (step.num_wanted < 0 || (step.num_wanted && !(step.logits && config_.head.data))) return MTPLX_BAD_WANTED;
        for (int32_t i = 0; i < step.num_wanted; i++)
            if (step.wanted[i] < 0 || step.wanted[i] >= step.rows.num_tokens) return MTPLX_BAD_WANTED;
        return MTPLX_OK;
    }

    // Takes all memory that the step needs, so that nothing can fail once it has begun to write.
    void reserve(const mtplx_step &step) {
        const int32_t rows = step.rows.num_tokens;
        num_rows_ = rows;
        if (is_draft_head()) joined_.resize(rows);
        const size_t copies = rows <= FEW_ROWS ? normed_.size() : 1;
        for (size_t i = 0; i < copies; i++) normed_[i].resize(rows);
        attended_.resize(rows);
        gated_.resize(rows);
        final_.resize(step.num_wanted);
        for (std::vector<Largest> &of_thread : largest_) of_thread.assign(step.num_wanted, Largest());
        stream_.resize(std::max(stream_.size(), size_t(rows) * config_.hidden));
        queries_.resize(std::max(queries_.size(), size_t(rows) * attended_.size()));
        attention_.plan(step.rows, config_.num_heads, config_.num_kv_heads, config_.head_dim, config_.window,
                        pool_.size(), first_position());
    }

    void run(Team &team, const mtplx_step &step) {
        if (is_draft_head())
            join(team, step);
        else
            team.share(num_rows_, [&](int row) { unpack_row(config_.embedding, step.token_ids[row], stream(row)); });
        for (int i = 0; i < config_.num_layers; i++) run_layer(team, step.rows, layers_[i], cache_of(i));
        const int num_hidden = step.hidden || keeps_hidden() ? num_rows_ : 0;
        if (!num_hidden && !step.num_wanted) return;
        team.share(num_hidden + step.num_wanted, [&](int i) {
            if (i < num_hidden) return hand_out_hidden(step, i);
            i -= num_hidden;
            final_norm(step.wanted[i], final_.floats(i));
            if (!is_float(config_.head.format)) final_.quantize(i);
        });
        if (!step.num_wanted) return;
        std::vector<Largest> &largest = largest_[team.index()];
        multiply<false>(team, config_.head, final_, step.num_wanted, step.logits,
                        [&](int row, const float *logits, int begin, int count) {
                            largest[row].see(logits, begin, count);
                        });
    }

    // Of a wanted row, from what each thread has seen of it.
    int32_t argmax(int row) const {
        Largest whole;
        for (const std::vector<Largest> &of_thread : largest_) whole.join(of_thread[row]);
        return whole.index();
    }

    // The beginning of a draft head's rows, see mtplx_config.
    void join(Team &team, const mtplx_step &step) {
        const int size = config_.hidden;
        team.share(num_rows_, [&](int row) {
            float *to = joined_.floats(row);
            unpack_row(config_.embedding, step.token_ids[row], to);
            rms_norm(to, config_.enorm, config_.norm_eps, size, to);
            const float *hidden = step.inputs ? step.inputs + size_t(row) * size
                                              : hidden_state(step.rows, row, step.rows.positions[row] - 1);
            rms_norm(hidden, config_.hnorm, config_.norm_eps, size, to + size);
            if (!is_float(config_.eh_proj.format)) joined_.quantize(row);
        });
        multiply<false>(team, config_.eh_proj, joined_, num_rows_, stream_.data());
    }

    // Kept by cache slot for the draft head, and given to whoever asked.
    void hand_out_hidden(const mtplx_step &step, int row) {
        float *given = step.hidden ? step.hidden + size_t(row) * config_.hidden : nullptr;
        float *kept = keeps_hidden() ? hidden_state(step.rows, row, step.rows.positions[row]) : given;
        final_norm(row, kept);
        if (given && given != kept) std::memcpy(given, kept, config_.hidden * sizeof(float));
    }

    void final_norm(int row, float *to) {
        rms_norm(stream(row), config_.final_norm, config_.norm_eps, config_.hidden, to);
    }

    void run_layer(Team &team, const mtplx_rows &rows, const mtplx_layer &layer, const mtplx_cache &cache) {
        const Activations &normed = normalize(team, layer.attention_norm, {&layer.q, &layer.k, &layer.v});
        const int heads = config_.num_heads + 2 * config_.num_kv_heads;
        team.share(heads, [&](int head) { project_head(rows, layer, cache, normed, head); });
        const bool round = !is_float(layer.o.format), at_once = attention_.is_whole() && heads_together() == 1;
        team.share(attention_.num_tasks(), [&](int task) {
            attention_.run_task(task, cache, queries_.data());
            if (at_once) attention_.for_queries(task, [&](int row, int head) { combine(row, head, round); });
        });
        const int units = config_.num_heads / heads_together();
        if (!at_once) team.share(num_rows_ * units, [&](int i) { combine(i / units, i % units, round); });
        multiply<true>(team, layer.o, attended_, num_rows_, stream_.data());
        normalize(team, layer.mlp_norm, {&layer.gate, &layer.up});
        const int groups = gated_.num_groups();
        team.share(groups, [&](int group) { gate(layer, normed, group); });
        multiply<true>(team, layer.down, gated_, num_rows_, stream_.data());
    }

    // Returns the rows normalized for their readers. Of few rows every thread makes a copy for itself: that takes less
    // time than to wait for the others and to fetch what they made.
    const Activations &normalize(Team &team, const float *weight, std::initializer_list<const mtplx_weight *> readers) {
        bool round = false;
        for (const mtplx_weight *reader : readers) round |= !is_float(reader->format);
        const bool alone = num_rows_ <= FEW_ROWS;
        Activations &normed = normed_[alone ? team.index() : 0];
        const auto body = [&](int row) {
            rms_norm(stream(row), weight, config_.norm_eps, config_.hidden, normed.floats(row));
            if (round) normed.quantize(row);
        };
        if (alone)
            for (int row = 0; row < num_rows_; row++) body(row);
        else
            team.share(num_rows_, body);
        return normed;
    }

    // One head of q, k or v for all rows: projected, finished, and put where attention reads it.
    void project_head(const mtplx_rows &rows, const mtplx_layer &layer, const mtplx_cache &cache,
                      const Activations &normed, int index) {
        const int num_heads = config_.num_heads, num_kv_heads = config_.num_kv_heads;
        if (index < num_heads)
            return for_head_rows(layer.q, layer.q_bias, normed, index, [&](int row, float *query) {
                finish_head(rows, layer.q_norm, row, query);
                float *to = queries_.data() + (size_t(row) * num_heads + index) * config_.head_dim;
                for (int d = 0; d < config_.head_dim; d++) to[d] = query[d] * scale_;
            });
        index -= num_heads;
        if (index < num_kv_heads)
            return for_head_rows(layer.k, layer.k_bias, normed, index, [&](int row, float *key) {
                finish_head(rows, layer.k_norm, row, key);
                write_key(cache, block_of(rows, row), rows.positions[row] % BLOCK, index, key);
            });
        index -= num_kv_heads;
        for_head_rows(layer.v, layer.v_bias, normed, index, [&](int row, float *value) {
            write_value(cache, block_of(rows, row), rows.positions[row] % BLOCK, index, value);
        });
    }

    template <class Body>
    void for_head_rows(const mtplx_weight &weight, const float *bias, const Activations &normed, int head,
                       const Body &body) {
        const int size = config_.head_dim, first_panel = head * size / PANEL, panels = size / PANEL;
        for_tiles(num_rows_, [&](int first, int count) {
            HeadRow heads[TILE];
            for (int panel = 0; panel < panels; panel += 2) {
                PairOutput out[TILE];
                const int num_panels = std::min(2, panels - panel);
                multiply_panels(weight, first_panel + panel, num_panels, normed, first, count, out);
                for (int i = 0; i < count; i++)
                    std::memcpy(heads[i] + panel * PANEL, out[i], num_panels * PANEL * sizeof(float));
            }
            for (int i = 0; i < count; i++) {
                if (bias)
                    for (int d = 0; d < size; d++) heads[i][d] += bias[head * size + d];
                body(first + i, heads[i]);
            }
        });
    }

    void finish_head(const mtplx_rows &rows, const float *norm, int row, float *head) const {
        if (norm) rms_norm(head, norm, config_.norm_eps, config_.head_dim, head);
        const size_t angles = size_t(rows.positions[row]) * (config_.head_dim / 2);
        rotate(head, config_.head_dim, config_.rope_cos + angles, config_.rope_sin + angles);
    }

    // Combines as many heads of a row as fill whole groups.
    void combine(int row, int unit, bool round) {
        const int together = heads_together(), groups = together * config_.head_dim / GROUP;
        for (int head = unit * together; head < (unit + 1) * together; head++)
            attention_.combine(row, head, attended_.floats(row) + head * config_.head_dim);
        if (round) attended_.quantize(row, unit * groups, (unit + 1) * groups);
    }

    int heads_together() const { return config_.head_dim % GROUP ? 2 : 1; }

    // 32 elements of silu(gate) * up for all rows.
    void gate(const mtplx_layer &layer, const Activations &normed, int group) {
        for_tiles(num_rows_, [&](int first, int count) {
            PairOutput gates[TILE], ups[TILE];
            multiply_panels(layer.gate, group * 2, 2, normed, first, count, gates);
            multiply_panels(layer.up, group * 2, 2, normed, first, count, ups);
            for (int i = 0; i < count; i++) {
                float *to = gated_.floats(first + i) + group * GROUP;
                for (int d = 0; d < GROUP; d += LANES) {
                    const Floats x = load(gates[i] + d);
                    store(to + d, x / (exponential(-x) + splat(1.0f)) * load(ups[i] + d));
                }
                if (!is_float(layer.down.format)) gated_.quantize(first + i, group, group + 1);
            }
        });
    }

    // Writes the product to `to`, [num_rows][outputs], or adds it to what is there.
    template <bool ADDS>
    void multiply(Team &team, const mtplx_weight &weight, const Activations &input, int num_rows, float *to) {
        multiply<ADDS>(team, weight, input, num_rows, to, [](int, const float *, int, int) {});
    }

    // The same, and shows what it has written: see(row, values, index of the first, count), piece by piece.
    template <bool ADDS, class See>
    void multiply(Team &team, const mtplx_weight &weight, const Activations &input, int num_rows, float *to,
                  const See &see) {
        const int pairs = (num_panels(weight) + 1) / 2;
        team.share(pairs, [&](int pair) {
            const int begin = pair * 2 * PANEL, width = std::min(weight.num_rows - begin, 2 * PANEL);
            for_tiles(num_rows, [&](int first, int count) {
                float *places[TILE];
                for (int i = 0; i < count; i++) {
                    places[i] = to + size_t(first + i) * weight.num_rows + begin;
                    claim(places[i], width);
                }
                PairOutput out[TILE];
                multiply_panels(weight, pair * 2, (width + PANEL - 1) / PANEL, input, first, count, out);
                for (int i = 0; i < count; i++) {
                    for (int d = 0; d < width; d++) places[i][d] = ADDS ? places[i][d] + out[i][d] : out[i][d];
                    see(first + i, places[i], begin, width);
                }
            });
        });
    }

    mtplx_cache cache_of(int layer) const {
        const size_t elements = size_t(config_.num_cache_blocks) * config_.num_kv_heads * config_.head_dim * BLOCK;
        const size_t bytes = elements * layer * (config_.cache_dtype == MTPLX_CACHE_F32 ? 4 : 2);
        return {config_.cache_dtype, config_.num_cache_blocks, config_.num_kv_heads, config_.head_dim,
                static_cast<char *>(config_.keys) + bytes, static_cast<char *>(config_.values) + bytes};
    }

    bool is_draft_head() const { return config_.eh_proj.data; }
    int first_position() const { return is_draft_head() ? 1 : 0; }
    bool keeps_hidden() const { return config_.hidden_states && !is_draft_head(); }

    float *stream(int row) { return stream_.data() + size_t(row) * config_.hidden; }

    // The trunk's, of any position of the row's sequence.
    float *hidden_state(const mtplx_rows &rows, int row, int position) const {
        const size_t block = rows.block_ids[rows.block_begin[rows.sequence_of[row]] + position / BLOCK];
        return config_.hidden_states + (block * BLOCK + position % BLOCK) * config_.hidden;
    }

    const mtplx_config config_;
    const std::vector<mtplx_layer> layers_;
    Pool &pool_;
    int num_rows_ = 0;                            // of this step
    std::vector<float> stream_;                   // [N][hidden], what layers add to
    std::vector<float> queries_;                  // [N][num_heads][head_dim], scaled
    std::vector<std::vector<Largest>> largest_;   // by thread, of each wanted row
    std::vector<Activations> normed_;             // inputs of qkv and gate/up; by thread for few rows, else the first
    Activations joined_, attended_, gated_, final_;  // inputs of eh_proj; of o; of down; of the output head
    Attention attention_;
    const float scale_;
};

}  // namespace mtplx

struct mtplx_model : mtplx::Model {
    using Model::Model;
};

extern "C" int32_t mtplx_model_create(const mtplx_config *config, mtplx_pool *pool, mtplx_model **model) try {
    const int32_t status = mtplx::check_config(*config);
    if (status == MTPLX_OK) *model = new mtplx_model(*config, *pool);
    return status;
} catch (const std::bad_alloc &) {
    return MTPLX_NO_MEMORY;
}

extern "C" void mtplx_model_destroy(mtplx_model *model) { delete model; }

extern "C" int32_t mtplx_model_step(mtplx_model *model, const mtplx_step *step) try {
    return model->step(*step);
} catch (const std::bad_alloc &) {
    return MTPLX_NO_MEMORY;
}
