// A few tokens of one layer against its cache, from their queries, keys, values and normed input: the dynamic weights,
// the rotation, what the cache keeps of them, and attention, in one call. What decoding costs beside its large matrix
// products is the number of operations, so here are as few as can be.
#pragma once

#include "decode.h"
#include "weights.h"

namespace fused {

// What one side of a stage is made with: W_1 [G I, D], W_2 [G, I, I] and W_g [H, D], null where it has them not.
template <class T> struct Maps {
    const T *down, *up, *gate;
};

// Mirrored by fused/step.py: every field is eight bytes.
template <class T> struct Step {
    long batch, heads, kv_heads, queries, keys, width, causal, window, mask_stride, threads, block;
    const uint8_t* mask;
    long* strange;
    long d_model;
    const T* x;  // [batch, query, d_model], contiguous
    View<T> q, k, v;  // as projected
    const T *cos, *sin;  // [batch or 1, query, rotated], null without a rotation
    long rotated, cos_stride;
    // All keys and values, with places for the new ones. Values are followed by the key-side weights of the heads that
    // share them, head by head: of each stage w_k1, w_k2 and w_kg.
    View<T> all_keys, all_values;
    T* out;  // [batch, query, head, d]
    // The key-side weights as `Ready` has them, with places for the new ones; null for a stage without. Those of the first
    // `packed` keys are there, and were finite.
    T* ready[2];
    long ready_blocks, packed;
    struct {
        long present, rank, groups, skip;
        const T* base;
        Maps<T> query, key;
    } stages[2];
};

// to[i] = x . row i of w, for rows of d numbers.
template <class T, int M> inline void dots(const T* w, long d, const T* x, T* to) {
    Vec<T> s[M] = {};
    long i = 0;
    for (; i + VL<T> <= d; i += VL<T>) {
        const Vec<T> y = load(x + i);
#pragma GCC unroll 8
        for (int m = 0; m < M; ++m) s[m] += y * load(w + m * d + i);
    }
    for (int m = 0; m < M; ++m) {
        T rest = 0;
        for (long l = i; l < d; ++l) rest += x[l] * w[m * d + l];
        to[m] = sum<T>(s[m]) + rest;
    }
}

// One side of one stage while a step runs: what it reads of every token, and where its weights go.
template <class T> struct StepSide {
    static constexpr long CHUNK = 8;
    const Maps<T>* maps;
    Maker<T> maker;
    long columns, chunks;
    T* read;  // [token][columns]
    KeyWeight<T> w1, w2, wg;
    long first;  // position of the first token on the axis of the weights

    // Rows of W_1 and then of W_g, a chunk of them.
    void multiply(const Step<T>& s, long chunk) const {
        const long low = maps->down ? maker.G * maker.inner : 0;
        for (long o = chunk * CHUNK; o < columns && o < (chunk + 1) * CHUNK;) {
            const bool gate = o >= low;
            const T* w = gate ? maps->gate + (o - low) * s.d_model : maps->down + o * s.d_model;
            const long left = (gate ? columns : low) - o, end = (chunk + 1) * CHUNK - o;
            const bool whole = left >= CHUNK && end >= CHUNK;
            for (long n = 0; n < s.batch * s.queries; ++n) {
                const T* x = s.x + n * s.d_model;
                if (whole) dots<T, CHUNK>(w, s.d_model, x, read + n * columns + o);
                else dots<T, 1>(w, s.d_model, x, read + n * columns + o);
            }
            o += whole ? CHUNK : 1;
        }
    }

    // The weights of group g, and with the first the gates.
    void make(const Step<T>& s, long g, T* hidden, T* both, T* ups) const {
        const Maker<T>& m = maker;
        const long tokens = s.batch * s.queries, each = m.each;
        if (maps->down) {
            m.take(read + g * m.inner, columns, tokens, hidden);
            m.activate(hidden, tokens, hidden);
            const T* up = maps->up + g * m.inner * m.inner;
            if (m.wide != m.inner) m.pad(up, false, ups), up = ups;
            m.mix(hidden, up, tokens, both);
            for (long n = 0; n < tokens; ++n)
                for (long r = 0; r < m.R; ++r) {
                    const long b = n / s.queries, t = first + n % s.queries;
                    const T *x = both + n * m.wide + r * each, scale = m.scale(x);
                    for (long h = 0; h < each; ++h) {
                        *w1.at(b, t, r, g * each + h) = x[h] * scale;
                        *w2.at(b, t, r, g * each + h) = x[m.R * each + h];
                    }
                }
        }
        if (g || !maps->gate) return;
        for (long n = 0; n < tokens; ++n) {
            T* gates = read + n * columns + (maps->down ? m.G * m.inner : 0);
            m.gates(gates, gates);
            for (long h = 0; h < m.H; ++h) *wg.at(n / s.queries, first + n % s.queries, 0, h) = gates[h];
        }
    }
};

// Channels that turn with the position, and the others as they are.
template <class T> inline void rotate(const Step<T>& s, long b, long t, const T* from, T* to) {
    const long half = s.rotated / 2;
    const T *c = s.cos + b * s.cos_stride + t * s.rotated, *n = s.sin + b * s.cos_stride + t * s.rotated;
    for (long i = 0; i < half; ++i) {
        const T x = from[i], y = from[half + i];
        to[i] = x * c[i] - y * n[i];
        to[half + i] = y * c[half + i] + x * n[half + i];
    }
    for (long i = s.rotated; i < s.width; ++i) to[i] = from[i];
}

template <class T> struct Stepper {
    const Step<T>& s;
    Arguments<T> a{};
    Buffer<T> q;
    std::vector<Buffer<T>> held;
    std::vector<StepSide<T>> sides;
    long wide = 0, work = 0;

    explicit Stepper(const Step<T>& s) : s(s), q(s.batch * s.heads * s.queries * s.width) {
        a.batch = s.batch, a.heads = s.heads, a.kv_heads = s.kv_heads, a.queries = s.queries, a.keys = s.keys;
        a.width = s.width, a.causal = s.causal, a.window = s.window, a.mask_stride = s.mask_stride;
        a.threads = s.threads, a.rows = s.queries, a.block = s.block, a.mask = s.mask, a.strange = s.strange;
        a.scale = 1 / std::sqrt(double(s.width));
        a.k = s.all_keys, a.v = s.all_values;
        a.q = {q + 0, s.heads * s.queries * s.width, s.queries * s.width, s.width};
        a.out = {s.out, s.queries * s.heads * s.width, s.width, s.heads * s.width};
        long channels = 0;
        for (const auto& w : s.stages) {
            channels += (w.key.down ? 2 * w.rank : 0) + (w.key.gate ? 1 : 0);
        }
        T* next = s.all_values.data + s.width;
        held.reserve(16), sides.reserve(MAX_SIDES);
        Stage<T>* stages[2] = {&a.pre, &a.post};
        for (int i = 0; i < 2; ++i) {
            const auto& given = s.stages[i];
            Stage<T>& w = *stages[i];
            w.rank = given.rank, w.groups = given.groups, w.skip = given.skip, w.present = given.present;
            w.base = given.base;
            if (!w.present) continue;
            KeyWeight<T> q1 = query_weight(w.rank), q2 = query_weight(w.rank), qg = query_weight(1);
            if (given.query.down) w.q1 = q1.data, w.q2 = q2.data;
            if (given.query.gate) w.qg = qg.data;
            add(given.query, w, 0, q1, q2, qg);
            if (given.key.down) w.k1 = key_weight(next, channels), w.k2 = key_weight(next + w.rank, channels);
            if (given.key.down) next += 2 * w.rank;
            if (given.key.gate) w.kg = key_weight(next++, channels);
            add(given.key, w, s.keys - s.queries, w.k1, w.k2, w.kg);
        }
    }

    KeyWeight<T> query_weight(long rank) {
        held.emplace_back(s.batch * s.queries * rank * s.heads);
        return {held.back() + 0, s.queries * rank * s.heads, rank * s.heads, s.heads, 1, 1, 0};
    }
    KeyWeight<T> key_weight(T* data, long channels) const {
        const View<T>& v = s.all_values;
        return {data, v.b, v.t, 1, v.h, s.heads / s.kv_heads, channels};
    }
    void add(const Maps<T>& maps, const Stage<T>& w, long first, KeyWeight<T> w1, KeyWeight<T> w2, KeyWeight<T> wg) {
        if (!maps.down && !maps.gate) return;
        StepSide<T> side{&maps, Maker<T>(s.heads, w.rank, w.groups), 0, 0, nullptr, w1, w2, wg, first};
        side.columns = (maps.down ? w.groups * side.maker.inner : 0) + (maps.gate ? s.heads : 0);
        side.chunks = (side.columns + side.CHUNK - 1) / side.CHUNK;
        held.emplace_back(s.batch * s.queries * side.columns);
        side.read = held.back() + 0;
        if (side.maker.wide > wide) wide = side.maker.wide;
        work += s.batch * s.queries * side.columns * s.d_model;
        sides.push_back(side);
    }

    // Called by every thread of a team.
    void run() {
        Buffer<T> hidden(s.batch * s.queries * wide), both(s.batch * s.queries * wide), ups(wide * wide);
        share_out([](const StepSide<T>& side) { return side.chunks; },
                  [&](const StepSide<T>& side, long i) { side.multiply(s, i); });
#pragma omp for schedule(static)
        for (long i = 0; i < s.batch * s.heads * s.queries; ++i) {
            const long b = i / (s.heads * s.queries), h = i / s.queries % s.heads, t = i % s.queries;
            rotate(s, b, t, s.q.at(b, h, t), a.q.at(b, h, t));
            if (h >= s.kv_heads) continue;
            const long at = s.keys - s.queries + t;
            rotate(s, b, t, s.k.at(b, h, t), s.all_keys.at(b, h, at));
            std::memcpy(s.all_values.at(b, h, at), s.v.at(b, h, t), s.width * sizeof(T));
        }
        share_out([](const StepSide<T>& side) { return side.maker.G; },
                  [&](const StepSide<T>& side, long g) { side.make(s, g, hidden + 0, both + 0, ups + 0); });
    }

    // The parts of all sides, `count` of each, over the threads, which do not wait for one another.
    template <class Count, class Part> void share_out(Count count, Part part) const {
        long all = 0;
        for (const StepSide<T>& side : sides) all += count(side);
#pragma omp for schedule(static) nowait
        for (long i = 0; i < all; ++i) {
            long j = i, k = 0;
            while (j >= count(sides[k])) j -= count(sides[k++]);
            part(sides[k], j);
        }
    }
};

// Adds the key-side weights of the keys that `ready` lacks.
template <class T> void pack_new(const Step<T>& s, const Arguments<T>& a, const Stage<T>& w, int stage) {
    if (!s.ready[stage]) return;
    const Plan<T> p(a);
    const long size = p.channels[stage] * p.block;
    for (long b = 0; b < s.batch; ++b) {
        if (!finite_keys(a, w, b, s.packed, s.keys)) report(a);
        for (long from = s.packed; from < s.keys;) {
            const long j = from / p.block, at = from - j * p.block, n = p.size(j) - at;
            pack_keys(p, w, b, from, n, s.ready[stage] + (b * s.ready_blocks + j) * size + at);
            from += n;
        }
    }
}

template <class T> void step(const Step<T>& s) {
    Stepper<T> stepper(s);
    // As in `decode`: starting threads costs more than a little work.
    const long threads = stepper.work < (1 << 18) ? 1 : s.threads;
#pragma omp parallel num_threads(threads)
    stepper.run();
    pack_new(s, stepper.a, stepper.a.pre, 0);
    pack_new(s, stepper.a, stepper.a.post, 1);
    Ready<T> ready;
    for (int i = 0; i < 2; ++i) ready.stages[i] = s.ready[i];
    ready.blocks = s.ready_blocks;
    decode(stepper.a, ready);
}

}  // namespace fused
