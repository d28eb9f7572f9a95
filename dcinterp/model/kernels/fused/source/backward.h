// Backward pass of one tile, from the inputs and the softmax's denominators alone.
//
// First sweep over key blocks: scores, Compose and weights again; the gradient of the composed weights; through the
// second Compose; the gradient of the values. Second sweep: through the softmax (which needs sums over whole rows),
// through the first Compose, to queries and keys.
//
// Sums over queries go to buffers that one thread owns and are added in a fixed order: the same inputs and number of
// threads give the same bits.
#pragma once

#include <vector>

#include "forward.h"
#include "threads.h"

namespace fused {

// Gradients that sum over queries, of one batch entry; and of the static maps, over the whole batch.
template <class T> struct Sums {
    const Plan<T>& p;
    Buffer<T> dk, dv, pre, post, base;
    explicit Sums(const Plan<T>& p)
        : p(p), dk(p.G * p.S * p.d), dv(p.G * p.S * p.d), pre(p.packed_weights(0)), post(p.packed_weights(1)),
          base(2 * p.H * p.H) {
        base.zero(2 * p.H * p.H);
    }
    void clear() {
        dk.zero(p.G * p.S * p.d);
        dv.zero(p.G * p.S * p.d);
        pre.zero(p.packed_weights(0));
        post.zero(p.packed_weights(1));
    }
};

template <class T> struct BackwardTile {
    const Arguments<T>& a;
    const Plan<T>& p;
    const Packed<T>& packed;
    const Composer<T> pre, post;
    Buffer<T> raw, attended, gradient, composed, dot, scratch, spare, queries, grads;

    BackwardTile(const Arguments<T>& a, const Plan<T>& p, const Packed<T>& packed)
        : a(a), p(p), packed(packed), pre(a.pre), post(a.post), raw(a.pre.present ? p.tile() : 0), attended(p.tile()),
          gradient(p.tile()), composed(p.rows * p.row_stride), dot(p.rows * p.H),
          scratch((4 * (a.pre.rank + a.post.rank) + 4 + p.H) * p.block),
          spare((2 * (a.pre.rank + a.post.rank) + 1) * p.H), queries(p.H * p.rows * p.d),
          grads(p.H * p.rows * p.d) {}

    void run(long b, long t0, Sums<T>& sums) {
        const long rows = a.queries - t0 < p.rows ? a.queries - t0 : p.rows;
        Sight sights[MAX_ROWS];
        long low = p.S, high = 0;
        for (long t = 0; t < rows; ++t) {
            sights[t] = sight(a, b, t0 + t);
            if (sights[t].low < low) low = sights[t].low;
            if (sights[t].high > high) high = sights[t].high;
            clear_row(a.pre, b, t0 + t);
            clear_row(a.post, b, t0 + t);
        }
        dot.zero(p.rows * p.H);
        for (long h = 0; h < p.H; ++h) {
            pack_rows(p, a.q, b, h, t0, rows, p.rows, queries + h * p.rows * p.d);
            pack_rows(p, a.dout, b, h, t0, rows, p.rows, grads + h * p.rows * p.d);
        }
        const long j0 = low / p.block, j1 = (high + p.block - 1) / p.block;
        for (long j = j0; j < j1; ++j) {
            const long first = j * p.block, n = high - first < p.block ? high - first : p.block;
            const long at = (j - j0) * p.rows * p.row_stride;
            outer(a, p, a.q, packed.keys + 0, b, t0, rows, j, n, T(a.scale), (a.pre.present ? raw : attended) + at);
            outer(a, p, a.dout, packed.values + 0, b, t0, rows, j, n, T(1), gradient + at);
            for (long t = 0; t < rows; ++t) through_post(b, t0, t, j, at + t * p.row_stride, n, sights[t], sums);
            const T* weights = a.post.present ? composed + 0 : attended + at;
            for (long h = 0; h < p.H; ++h)
                panel_gemm<T>(n, p.d, rows, weights + h * p.block, 1, p.row_stride, grads + h * p.rows * p.d, p.rows,
                              sums.dv + (a.kv(h) * p.S + first) * p.d, p.d, T(1), true);
        }
        for (long j = j0; j < j1; ++j) {
            const long first = j * p.block, n = high - first < p.block ? high - first : p.block;
            const long at = (j - j0) * p.rows * p.row_stride;
            for (long t = 0; t < rows; ++t) through_pre(b, t0, t, j, at + t * p.row_stride, n, sights[t], sums);
            for (long h = 0; h < p.H; ++h) {
                const T* g = gradient + at + h * p.block;
                panel_gemm<T>(rows, p.d, n, g, p.row_stride, 1, packed.rows_of(p, b, j, a.kv(h)), p.block,
                              a.dq.at(b, h, t0), a.dq.t, T(a.scale), j > j0);
                panel_gemm<T>(n, p.d, rows, g, 1, p.row_stride, queries + h * p.rows * p.d, p.rows,
                              sums.dk + (a.kv(h) * p.S + first) * p.d, p.d, T(a.scale), true);
            }
        }
    }

  private:
    void clear_row(const Stage<T>& w, long b, long t) const {
        const long at = b * a.queries + t, inner = w.rank * p.H;
        if (w.dq1) std::memset(w.dq1 + at * inner, 0, inner * sizeof(T));
        if (w.dq2) std::memset(w.dq2 + at * inner, 0, inner * sizeof(T));
        if (w.dqg) std::memset(w.dqg + at * p.H, 0, p.H * sizeof(T));
    }

    RowGrad<T> grads_of(const Stage<T>& w, long b, long t, T* keys, T* base) const {
        const long at = b * a.queries + t, inner = w.rank * p.H;
        return {w.dq1 ? w.dq1 + at * inner : spare + 0, w.dq2 ? w.dq2 + at * inner : spare + inner,
                w.dqg ? w.dqg + at * p.H : nullptr, keys, base};
    }

    void through_post(long b, long t0, long t, long j, long at, long n, const Sight& s, Sums<T>& sums) const {
        const Span<T> span(s, j * p.block, n);
        T *row = attended + at, *d = gradient + at, *out = composed + t * p.row_stride;
        T* clear = a.post.present ? out : row;
        if (span.v0 == span.v1) return clear_outside(span, p.H, p.block, n, clear);
        if (a.pre.present)
            pre.forward(row_of(p, a, a.pre, packed.pre + 0, b, t0 + t, j), raw + at, row, span.v0, span.v1,
                        scratch + 0);
        mask_scores(s, span, j * p.block, p.H, p.block, row);
        for (long h = 0; h < p.H; ++h) {
            const T lse = a.lse[(b * p.H + h) * a.queries + t0 + t];
            for (long v = span.v0; v < span.v1; v += VL<T>)
                store(row + h * p.block + v, exponential(load(row + h * p.block + v) - lse));
        }
        clear_outside(span, p.H, p.block, n, clear);
        if (a.post.present) {
            T* keys = sums.post + j * p.channels[1] * p.block;
            post.backward_out(row_of(p, a, a.post, packed.post + 0, b, t0 + t, j),
                              grads_of(a.post, b, t0 + t, keys, sums.base + p.H * p.H), row, d, out, dot + t * p.H,
                              span.v0, span.v1, scratch + 0);
            return;
        }
        for (long h = 0; h < p.H; ++h) {
            Vec<T> x{};
            for (long v = span.v0; v < span.v1; v += VL<T>)
                x += load(row + h * p.block + v) * load(d + h * p.block + v);
            *(dot + t * p.H + h) += sum<T>(x);
        }
    }

    void through_pre(long b, long t0, long t, long j, long at, long n, const Sight& s, Sums<T>& sums) const {
        const Span<T> span(s, j * p.block, n);
        T *row = attended + at, *d = gradient + at;
        clear_outside(span, p.H, p.block, n, d);
        if (span.v0 == span.v1) return;
        for (long h = 0; h < p.H; ++h) {
            const T inner = *(dot + t * p.H + h);
            for (long v = span.v0; v < span.v1; v += VL<T>) {
                T* x = d + h * p.block + v;
                store(x, s.blind ? Vec<T>{} : load(row + h * p.block + v) * (load(x) - inner));
            }
        }
        if (!a.pre.present) return;
        T* keys = sums.pre + j * p.channels[0] * p.block;
        pre.backward(row_of(p, a, a.pre, packed.pre + 0, b, t0 + t, j),
                     grads_of(a.pre, b, t0 + t, keys, sums.base + 0), raw + at, d, nullptr, nullptr, span.v0, span.v1,
                     scratch + 0);
    }
};

// Adds what the threads have for one head of keys and values of batch entry b, and for one block of its key-side weights.
template <class T> void finish_head(const Arguments<T>& a, const Plan<T>& p, long b, long h, Sums<T>** sums, int n) {
    for (long s = 0; s < p.S; ++s) {
        const long at = (h * p.S + s) * p.d;
        T *dk = a.dk.at(b, h, s), *dv = a.dv.at(b, h, s);
        for (long i = 0; i < p.d; ++i) {
            T k = 0, v = 0;
            for (int m = 0; m < n; ++m) k += *(sums[m]->dk + at + i), v += *(sums[m]->dv + at + i);
            dk[i] = k, dv[i] = v;
        }
    }
}

template <class T> void finish_block(const Arguments<T>& a, const Plan<T>& p, long b, long j, Sums<T>** sums, int n) {
    const long pre = p.channels[0] * p.block, post = p.channels[1] * p.block;
    for (int m = 1; m < n; ++m) {
        for (long i = j * pre; i < (j + 1) * pre; ++i) *(sums[0]->pre + i) += *(sums[m]->pre + i);
        for (long i = j * post; i < (j + 1) * post; ++i) *(sums[0]->post + i) += *(sums[m]->post + i);
    }
    unpack_weights(p, a.pre, b, j, sums[0]->pre + j * pre);
    unpack_weights(p, a.post, b, j, sums[0]->post + j * post);
}

template <class T> void backward(const Arguments<T>& a) {
    const Plan<T> p(a);
    const Packed<T> packed(a, p, true);
    const long tiles = (a.queries + p.rows - 1) / p.rows;
    std::vector<Sums<T>*> sums(a.threads, nullptr);
    int workers = 1;
#pragma omp parallel num_threads(a.threads)
    {
        const int me = omp_get_thread_num();
        Sums<T> mine(p);
        BackwardTile<T> tile(a, p, packed);
        sums[me] = &mine;
#pragma omp barrier
#pragma omp single
        workers = omp_get_num_threads();
        if (a.batch % workers == 0 || a.batch >= 4 * workers) {
#pragma omp for schedule(static, 1)
            for (long b = 0; b < a.batch; ++b) {
                mine.clear();
                for (long i = tiles - 1; i >= 0; --i) tile.run(b, i * p.rows, mine);
                for (long h = 0; h < p.G; ++h) finish_head(a, p, b, h, &sums[me], 1);
                for (long j = 0; j < p.blocks; ++j) finish_block(a, p, b, j, &sums[me], 1);
            }
        } else {
            for (long b = 0; b < a.batch; ++b) {
                mine.clear();
                // Back and forth over the threads, so that each gets long and short tiles alike.
                for (long i = 0; i < tiles; ++i) {
                    const long turn = i % workers, owner = i / workers % 2 ? workers - 1 - turn : turn;
                    if (owner == me) tile.run(b, (tiles - 1 - i) * p.rows, mine);
                }
#pragma omp barrier
#pragma omp for schedule(static) nowait
                for (long h = 0; h < p.G; ++h) finish_head(a, p, b, h, sums.data(), workers);
#pragma omp for schedule(static)
                for (long j = 0; j < p.blocks; ++j) finish_block(a, p, b, j, sums.data(), workers);
            }
        }
#pragma omp barrier
#pragma omp single
        for (long i = 0; i < p.H * p.H; ++i)
            for (int m = 0; m < workers; ++m) {
                if (a.pre.dbase) a.pre.dbase[i] += *(sums[m]->base + i);
                if (a.post.dbase) a.post.dbase[i] += *(sums[m]->base + p.H * p.H + i);
            }
    }
}

}  // namespace fused
