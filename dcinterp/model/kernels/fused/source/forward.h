// Forward pass of one tile: some queries, all heads, all keys that they see.
//
// First sweep over key blocks: scores, Compose, mask, exp against the running maximum, kept in the tile.
// Second sweep: normalise, Compose, times values. The tile is written once and read once.
#pragma once

#include "finite.h"
#include "packing.h"

namespace fused {

// Which vectors of a block one query touches: [v0, v1) multiples of VL, empty when it sees nothing there.
template <class T> struct Span {
    long v0, v1;
    bool whole;
    Span(const Sight& s, long first, long n) {
        const long low = s.low - first, high = s.high - first;
        v0 = low <= 0 ? 0 : low >= n ? n : low / VL<T> * VL<T>;
        v1 = high <= 0 ? 0 : up(high < n ? high : n, VL<T>);
        if (high <= 0 || low >= n) v0 = v1 = 0;
        whole = s.whole(first + v0, first + v1) && !s.blind;
    }
};

// Lanes that the query does not see become `value`.
template <class T>
inline void hide(const Sight& s, const Span<T>& span, long first, long heads, long block, T* row, T value, bool all) {
    for (long l = span.v0; l < span.v1; ++l)
        if (all || !s.sees(first + l))
            for (long h = 0; h < heads; ++h) row[h * block + l] = value;
}

// A query that sees nothing attends evenly: its composed scores all count as zero.
template <class T> inline void mask_scores(const Sight& s, const Span<T>& span, long first, long heads, long block, T* row) {
    if (span.whole) return;
    if (s.blind) hide(s, span, first, heads, block, row, T(0), true);
    hide(s, span, first, heads, block, row, -std::numeric_limits<T>::infinity(), false);
}

template <class T> inline void clear_outside(const Span<T>& span, long heads, long block, long n, T* row) {
    const long end = up(n, VL<T>);
    for (long h = 0; h < heads; ++h) {
        for (long l = 0; l < span.v0; ++l) row[h * block + l] = 0;
        for (long l = span.v1; l < end; ++l) row[h * block + l] = 0;
    }
}

// A(t, h, s) of a tile and a block: alpha * x y^T with x [t][d] and packed y.
template <class T>
inline void outer(const Arguments<T>& a, const Plan<T>& p, const View<T>& x, const T* packed, long b, long t0,
                  long rows, long j, long n, T alpha, T* to) {
    constexpr long N = Plan<T>::PANEL;
    for (long h = 0; h < p.H; ++h) {
        const T* panel = packed + b * p.packed_keys() + (a.kv(h) * p.panels + j * p.block / N) * N * p.d;
        for (long s = 0; s < n; s += N, panel += N * p.d)
            column<T, 2, true>(rows, p.d, x.at(b, h, t0), x.t, 1, panel, N, to + h * p.block + s, p.row_stride, alpha,
                               false);
    }
}

// A block's scores become exponentials against the running maximum `top`; `total` follows, `peaks` keeps the maximum.
template <class T>
inline void exponentiate(const Plan<T>& p, T* row, const Span<T>& span, T* top, T* total, T* peaks) {
    for (long h = 0; h < p.H; ++h) {
        T* x = row + h * p.block;
        Vec<T> best = load(x + span.v0);
        for (long v = span.v0 + VL<T>; v < span.v1; v += VL<T>) {
            const Vec<T> y = load(x + v);
            best = y > best ? y : best;
        }
        const T peak = largest<T>(best), before = top[h];
        const T now = peak > before ? peak : before;
        if (peaks) peaks[h] = now;
        // Nothing seen so far: exponentials are 0 then, or NaN where a score is.
        const T from = now == -std::numeric_limits<T>::infinity() ? T(0) : now;
        Vec<T> s{};
        for (long v = span.v0; v < span.v1; v += VL<T>) {
            const Vec<T> e = exponential(load(x + v) - from);
            store(x + v, e);
            s += e;
        }
        total[h] = (now == before ? total[h] : total[h] * std::exp(before - now)) + sum<T>(s);
        top[h] = now;
    }
}

template <class T> struct ForwardTile {
    const Arguments<T>& a;
    const Plan<T>& p;
    const Packed<T>& packed;
    const Composer<T> pre, post;
    Buffer<T> tile, peaks, top, total, scratch;

    ForwardTile(const Arguments<T>& a, const Plan<T>& p, const Packed<T>& packed)
        : a(a), p(p), packed(packed), pre(a.pre), post(a.post), tile(p.tile()), peaks(p.blocks * p.rows * p.H),
          top(p.rows * p.H), total(p.rows * p.H),
          scratch((2 * (a.pre.rank + a.post.rank) + 2 + p.H) * p.block) {}

    void run(long b, long t0) {
        const long rows = a.queries - t0 < p.rows ? a.queries - t0 : p.rows;
        Sight sights[MAX_ROWS];
        long low = p.S, high = 0;
        for (long t = 0; t < rows; ++t) {
            sights[t] = sight(a, b, t0 + t);
            if (sights[t].low < low) low = sights[t].low;
            if (sights[t].high > high) high = sights[t].high;
        }
        const long j0 = low / p.block, j1 = (high + p.block - 1) / p.block;
        for (long i = 0; i < rows * p.H; ++i) *(top + i) = -std::numeric_limits<T>::infinity(), *(total + i) = 0;
        for (long j = j0; j < j1; ++j) {
            const long first = j * p.block, n = high - first < p.block ? high - first : p.block;
            outer(a, p, a.q, packed.keys + 0, b, t0, rows, j, n, T(a.scale), tile + (j - j0) * p.rows * p.row_stride);
            for (long t = 0; t < rows; ++t) {
                const Span<T> span(sights[t], first, n);
                T* row = tile + ((j - j0) * p.rows + t) * p.row_stride;
                if (span.v0 == span.v1) continue;
                if (a.pre.present)
                    pre.forward(row_of(p, a, a.pre, packed.pre + 0, b, t0 + t, j), row, row, span.v0, span.v1,
                                scratch + 0);
                mask_scores(sights[t], span, first, p.H, p.block, row);
                exponentiate(p, row, span, top + t * p.H, total + t * p.H, peaks + ((j - j0) * p.rows + t) * p.H);
            }
        }
        for (long t = 0; t < rows; ++t)
            for (long h = 0; h < p.H; ++h)
                a.lse[(b * p.H + h) * a.queries + t0 + t] = *(top + t * p.H + h) + std::log(*(total + t * p.H + h));
        for (long j = j0; j < j1; ++j) {
            const long first = j * p.block, n = high - first < p.block ? high - first : p.block;
            for (long t = 0; t < rows; ++t) weights(b, t0, t, j, j0, n, sights[t]);
            for (long h = 0; h < p.H; ++h)
                panel_gemm<T>(rows, p.d, n, tile + (j - j0) * p.rows * p.row_stride + h * p.block, p.row_stride, 1,
                              packed.rows_of(p, b, j, a.kv(h)), p.block, a.out.at(b, h, t0), a.out.t, T(1), j > j0);
        }
    }

  private:
    // The composed weights of one query and block, in place of its exponentials.
    void weights(long b, long t0, long t, long j, long j0, long n, const Sight& s) const {
        const Span<T> span(s, j * p.block, n);
        T* row = tile + ((j - j0) * p.rows + t) * p.row_stride;
        clear_outside(span, p.H, p.block, n, row);
        if (span.v0 == span.v1) return;
        const T* peak = peaks + ((j - j0) * p.rows + t) * p.H;
        for (long h = 0; h < p.H; ++h) {
            const T top = *(this->top + t * p.H + h), total = *(this->total + t * p.H + h);
            const T factor = (peak[h] == top ? T(1) : std::exp(peak[h] - top)) / total;
            for (long v = span.v0; v < span.v1; v += VL<T>) store(row + h * p.block + v, load(row + h * p.block + v) * factor);
        }
        if (a.post.present)
            post.forward(row_of(p, a, a.post, packed.post + 0, b, t0 + t, j), row, row, span.v0, span.v1, scratch + 0);
    }
};

template <class T> void forward(const Arguments<T>& a) {
    look(a);
    const Plan<T> p(a);
    const Packed<T> packed(a, p, false);
    const long tiles = (a.queries + p.rows - 1) / p.rows;
#pragma omp parallel num_threads(a.threads)
    {
        ForwardTile<T> tile(a, p, packed);
        // The longest first: under a causal mask the last queries see most.
#pragma omp for schedule(dynamic, 1)
        for (long i = 0; i < a.batch * tiles; ++i) tile.run(i % a.batch, (tiles - 1 - i / a.batch) * p.rows);
    }
}

}  // namespace fused
