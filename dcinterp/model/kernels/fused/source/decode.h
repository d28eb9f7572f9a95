// A few queries against a cache: every key is read once, where it lies, so nothing is packed but one block's weights.
//
// Threads share the blocks of keys: first the scores, Compose and exp of each block, then, with the denominators of
// whole rows known, the second Compose and the block's part of the output.
#pragma once

#include <vector>

#include "forward.h"

namespace fused {

template <class T> inline void dot_rows(const T* q, const View<T>& k, long b, long h, long first, long n, long d, T scale, T* to) {
    for (long s = 0; s < n; ++s) {
        const T* row = k.at(b, h, first + s);
        Vec<T> x{}, y{};
        long i = 0;
        for (; i + 2 * VL<T> <= d; i += 2 * VL<T>) {
            x += load(q + i) * load(row + i);
            y += load(q + i + VL<T>) * load(row + i + VL<T>);
        }
        if (i < d) x += load(q + i) * load(row + i);
        to[s] = scale * sum<T>(x + y);
    }
}

// Key-side weights that were packed before, of each batch entry [block][2 R H + H][Plan::block]; null for a stage whose
// weights are packed anew.
template <class T> struct Ready {
    T* stages[2] = {nullptr, nullptr};
    long blocks = 0;
};

// The keys of one query, block by block; `part` and `peaks` hold what the threads leave each other.
template <class T> struct Decoder {
    const Arguments<T>& a;
    const Plan<T>& p;
    const Ready<T>& ready;
    const Composer<T> pre, post;
    Buffer<T> part, peaks, totals, out;

    Decoder(const Arguments<T>& a, const Plan<T>& p, const Ready<T>& ready)
        : a(a), p(p), ready(ready), pre(a.pre), post(a.post), part(p.blocks * p.H * p.block), peaks(p.blocks * p.H),
          totals(p.blocks * p.H), out(p.blocks * p.H * p.d) {}

    long weights_size() const { return (p.channels[0] > p.channels[1] ? p.channels[0] : p.channels[1]) * p.block; }
    long scratch_size() const { return (2 * (a.pre.rank + a.post.rank) + 2 + p.H) * p.block; }

    // The key-side weights of block j. What is packed now is looked at.
    const T* packed(const Stage<T>& w, int stage, long b, long j, T* to) const {
        const long size = p.channels[stage] * p.block;
        if (ready.stages[stage]) return ready.stages[stage] + (b * ready.blocks + j) * size;
        pack_weights(p, w, b, j, to);
        if (!finite(to, size)) report(a);
        return to;
    }

    // Exponentials of block j against its own maximum.
    void scores(long b, long t, long j, const Sight& s, T* weights, T* scratch) const {
        const long first = j * p.block, n = s.high - first < p.block ? s.high - first : p.block;
        T* row = part + j * p.H * p.block;
        const Span<T> span(s, first, n);
        for (long h = 0; h < p.H; ++h) {
            dot_rows<T>(a.q.at(b, h, t), a.k, b, a.kv(h), first, n, p.d, T(a.scale), row + h * p.block);
            for (long l = n; l < up(n, VL<T>); ++l) row[h * p.block + l] = 0;
            // Of queries and keys that are not finite, no score is.
            if (!finite(row + h * p.block, n)) report(a);
        }
        if (a.pre.present) {
            const T* keys = packed(a.pre, 0, b, j, weights);
            pre.forward(row_with(p, a, a.pre, keys, b, t), row, row, span.v0, span.v1, scratch);
        }
        mask_scores(s, span, first, p.H, p.block, row);
        for (long h = 0; h < p.H; ++h) *(peaks + j * p.H + h) = -std::numeric_limits<T>::infinity(), *(totals + j * p.H + h) = 0;
        exponentiate(p, row, span, peaks + j * p.H, totals + j * p.H, static_cast<T*>(nullptr));
    }

    // The weights of a stage that no block brings.
    bool finite_beside(const Stage<T>& w, int stage, long b) const {
        if (ready.stages[stage]) return finite_queries(a, w, b);
        // Between what one query sees and what another does there may be blocks that nobody brings.
        if (a.queries > 1) return finite_queries(a, w, b) && finite_keys(a, w, b, 0, p.S);
        const Sight s = sight(a, b, 0);
        return finite_queries(a, w, b) && finite_keys(a, w, b, 0, s.low / p.block * p.block) &&
               finite_keys(a, w, b, s.high, p.S);
    }

    // The part of block j in the output, given factor[h] = exp(-maximum of the row) / denominator.
    void values(long b, long t, long j, const Sight& s, const T* top, const T* total, T* weights, T* scratch) const {
        const long first = j * p.block, n = s.high - first < p.block ? s.high - first : p.block;
        T* row = part + j * p.H * p.block;
        const Span<T> span(s, first, n);
        clear_outside(span, p.H, p.block, n, row);
        for (long h = 0; h < p.H; ++h) {
            const T factor = std::exp(*(peaks + j * p.H + h) - top[h]) / total[h];
            for (long v = span.v0; v < span.v1; v += VL<T>)
                store(row + h * p.block + v, load(row + h * p.block + v) * factor);
        }
        if (a.post.present) {
            const T* keys = packed(a.post, 1, b, j, weights);
            post.forward(row_with(p, a, a.post, keys, b, t), row, row, span.v0, span.v1, scratch);
        }
        for (long h = 0; h < p.H; ++h)
            gemm<T>(1, p.d, n, row + h * p.block, 0, 1, a.v.at(b, a.kv(h), first), a.v.t, out + (j * p.H + h) * p.d, p.d, T(1),
                    false);
    }

    // Called by every thread of a team.
    void run(long b, long t, T* weights, T* scratch, T* top, T* total) const {
        const Sight s = sight(a, b, t);
        const long j0 = s.low / p.block, j1 = (s.high + p.block - 1) / p.block;
#pragma omp for schedule(static)
        for (long j = j0; j < j1; ++j) scores(b, t, j, s, weights, scratch);
        for (long h = 0; h < p.H; ++h) {
            top[h] = -std::numeric_limits<T>::infinity(), total[h] = 0;
            for (long j = j0; j < j1; ++j) top[h] = *(peaks + j * p.H + h) > top[h] ? *(peaks + j * p.H + h) : top[h];
            for (long j = j0; j < j1; ++j) total[h] += *(totals + j * p.H + h) * std::exp(*(peaks + j * p.H + h) - top[h]);
        }
#pragma omp for schedule(static)
        for (long j = j0; j < j1; ++j) values(b, t, j, s, top, total, weights, scratch);
#pragma omp for schedule(static)
        for (long h = 0; h < p.H; ++h) {
            T* to = a.out.at(b, h, t);
            for (long i = 0; i < p.d; ++i) to[i] = *(out + (j0 * p.H + h) * p.d + i);
            for (long j = j0 + 1; j < j1; ++j)
                for (long i = 0; i < p.d; ++i) to[i] += *(out + (j * p.H + h) * p.d + i);
            // Values that were read are in the sum, if with weight 0; the others are looked at here.
            const bool first = a.kv(h) != a.kv(h - 1) || h == 0;  // of the heads that share these values
            if (!finite(to, p.d) || (first && (!finite(a.v, b, a.kv(h), 0, j0 * p.block, p.d) ||
                                               !finite(a.v, b, a.kv(h), s.high, p.S, p.d))))
                report(a);
        }
    }
};

template <class T> void decode(const Arguments<T>& a, const Ready<T>& ready = {}) {
    const Plan<T> p(a);
    const Decoder<T> decoder(a, p, ready);
    // Starting threads costs more than a short cache.
    const long threads = a.keys * a.heads * a.width < (1 << 17) ? 1 : a.threads;
#pragma omp parallel num_threads(threads)
    {
        Buffer<T> weights(decoder.weights_size()), scratch(decoder.scratch_size()), top(p.H), total(p.H);
#pragma omp for schedule(static)
        for (long b = 0; b < a.batch; ++b)
            if (!decoder.finite_beside(a.pre, 0, b) || !decoder.finite_beside(a.post, 1, b)) report(a);
        for (long i = 0; i < a.batch * a.queries; ++i)
            decoder.run(i / a.queries, i % a.queries, weights + 0, scratch + 0, top + 0, total + 0);
    }
}

}  // namespace fused
