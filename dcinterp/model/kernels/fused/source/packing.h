// Keys and key-side weights in the order in which the tiles read them, and one allocation at a time.
#pragma once

#include <cstdlib>
#include <memory>
#include <new>

#include "arguments.h"
#include "compose.h"

namespace fused {

inline long up(long n, long to) { return (n + to - 1) / to * to; }

template <class T> struct Buffer {
    struct Free {
        void operator()(T* p) const { std::free(p); }
    };
    std::unique_ptr<T, Free> data;
    explicit Buffer(long n = 0) {
        if (n <= 0) return;
        void* p = std::aligned_alloc(64, up(n * sizeof(T), 64));
        if (!p) throw std::bad_alloc();
        data.reset(static_cast<T*>(p));
    }
    void zero(long n) { std::memset(data.get(), 0, n * sizeof(T)); }
    T* operator+(long n) const { return data.get() + n; }
};

// The sizes that everything else follows from.
template <class T> struct Plan {
    static constexpr long PANEL = 2 * VL<T>;
    long H, G, S, d, rows, block, blocks, panels, row_stride, channels[2];  // G heads of keys and values
    explicit Plan(const Arguments<T>& a)
        : H(a.heads), G(a.kv_heads), S(a.keys), d(a.width), rows(a.rows), block(a.block), blocks((S + block - 1) / block),
          panels((S + PANEL - 1) / PANEL), row_stride(H * block + VL<T>),
          channels{2 * a.pre.rank * H + H, 2 * a.post.rank * H + H} {}
    long size(long j) const { return S - j * block < block ? S - j * block : block; }
    long tile() const { return blocks * rows * row_stride; }
    long packed_keys() const { return G * panels * PANEL * d; }
    long packed_rows() const { return G * blocks * block * d; }
    long packed_weights(int stage) const { return blocks * channels[stage] * block; }
};

// [key, d] of one head as panels [d][PANEL], zero beyond the last key.
template <class T> inline void pack_panels(const Plan<T>& p, const View<T>& x, long b, long h, T* to) {
    constexpr long N = Plan<T>::PANEL;
    T* panel = to + h * p.panels * N * p.d;
    for (long s0 = 0; s0 < p.S; s0 += N, panel += N * p.d) {
        const long n = p.S - s0 < N ? p.S - s0 : N;
        if (n < N) std::memset(panel, 0, sizeof(T) * N * p.d);
        for (long l = 0; l < n; ++l) {
            const T* row = x.at(b, h, s0 + l);
            for (long i = 0; i < p.d; ++i) panel[i * N + l] = row[i];
        }
    }
}

// n rows of [pos, d] of one head as panels [row][PANEL] with room for `room` rows: as they stand they may lie a page
// apart, all in one set of the first-level cache.
template <class T>
inline void pack_rows(const Plan<T>& p, const View<T>& x, long b, long h, long first, long n, long room, T* to) {
    constexpr long N = Plan<T>::PANEL;
    for (long l = 0; l < n; ++l) {
        const T* row = x.at(b, h, first + l);
        for (long i = 0; i < p.d; i += N) {
            const long wide = p.d - i < N ? p.d - i : N;
            for (long c = 0; c < wide; c += VL<T>) store(to + i * room + l * wide + c, load(row + i + c));
        }
    }
}

// One head of a key-side weight with all its ranks, a row of the block for each.
template <class T>
inline void pack_weight(const KeyWeight<T>& w, long b, long h, long first, long n, long ranks, long row, T* to) {
    const T* from = w.at(b, first, 0, h);
    for (long l = 0; l < n; ++l, from += w.s)
        for (long r = 0; r < ranks; ++r) to[r * row + l] = from[r * w.r];
}

// Key-side weights of n keys of one block, [2 R H + H][block].
template <class T> inline void pack_keys(const Plan<T>& p, const Stage<T>& w, long b, long first, long n, T* to) {
    const long H = p.H, R = w.rank, inner = R * H * p.block, row = H * p.block;
    // Head by head: in a cache its weights lie side by side.
    for (long h = 0; h < H; ++h, to += p.block) {
        if (w.k1) {
            pack_weight(w.k1, b, h, first, n, R, row, to);
            pack_weight(w.k2, b, h, first, n, R, row, to + inner);
        }
        if (w.kg) pack_weight(w.kg, b, h, first, n, 1, row, to + 2 * inner);
    }
}

// Those of a whole block, zero beyond the last key and for branches that do not exist.
template <class T> inline void pack_weights(const Plan<T>& p, const Stage<T>& w, long b, long j, T* to) {
    const long n = p.size(j);
    if (n < p.block || !w.k1 || !w.kg) std::memset(to, 0, sizeof(T) * (2 * w.rank + 1) * p.H * p.block);
    pack_keys(p, w, b, j * p.block, n, to);
}

// The same way back, for gradients.
template <class T> inline void unpack_weights(const Plan<T>& p, const Stage<T>& w, long b, long j, const T* from) {
    const long H = p.H, R = w.rank, n = p.size(j), first = b * p.S + j * p.block;
    for (long l = 0; l < n; ++l) {
        if (w.dk1)
            for (long c = 0; c < R * H; ++c) {
                w.dk1[(first + l) * R * H + c] = from[c * p.block + l];
                w.dk2[(first + l) * R * H + c] = from[(R * H + c) * p.block + l];
            }
        if (w.dkg)
            for (long h = 0; h < H; ++h) w.dkg[(first + l) * H + h] = from[(2 * R * H + h) * p.block + l];
    }
}

// Everything about the keys of one batch entry that tiles share.
template <class T> struct Packed {
    Buffer<T> keys, values, rows, pre, post;  // rows: of the values, or of the keys on the way back
    Packed(const Arguments<T>& a, const Plan<T>& p, bool backward)
        : keys(a.batch * p.packed_keys()), values(backward ? a.batch * p.packed_keys() : 0),
          rows(a.batch * p.packed_rows()), pre(a.pre.present ? a.batch * p.packed_weights(0) : 0),
          post(a.post.present ? a.batch * p.packed_weights(1) : 0) {
#pragma omp parallel num_threads(a.threads)
        {
#pragma omp for schedule(static) nowait
            for (long i = 0; i < a.batch * p.G; ++i) {
                const long b = i / p.G, h = i % p.G;
                pack_panels(p, a.k, b, h, keys + b * p.packed_keys());
                if (backward) pack_panels(p, a.v, b, h, values + b * p.packed_keys());
                for (long j = 0; j < p.blocks; ++j)
                    pack_rows(p, backward ? a.k : a.v, b, h, j * p.block, p.size(j), p.block, rows_of(p, b, j, h));
            }
#pragma omp for schedule(static)
            for (long i = 0; i < a.batch * p.blocks; ++i) {
                const long b = i / p.blocks, j = i % p.blocks;
                if (a.pre.present) pack_weights(p, a.pre, b, j, pre + i * p.channels[0] * p.block);
                if (a.post.present) pack_weights(p, a.post, b, j, post + i * p.channels[1] * p.block);
            }
        }
    }

    // Those of block j and one head of keys and values.
    T* rows_of(const Plan<T>& p, long b, long j, long h) const {
        return rows + (b * p.packed_rows() + (j * p.G + h) * p.block * p.d);
    }
};

// The weights of a stage for query t and a packed key block.
template <class T>
inline Row<T> row_with(const Plan<T>& p, const Arguments<T>& a, const Stage<T>& w, const T* block, long b, long t) {
    const long at = b * a.queries + t, inner = w.rank * p.H;
    return {w.q1 ? w.q1 + at * inner : nullptr,
            w.q2 ? w.q2 + at * inner : nullptr,
            w.qg ? w.qg + at * p.H : nullptr,
            block,
            w.base,
            p.H,
            w.rank,
            w.groups,
            w.skip,
            p.block};
}

// The same for block j of all packed ones.
template <class T>
inline Row<T> row_of(const Plan<T>& p, const Arguments<T>& a, const Stage<T>& w, const T* packed, long b, long t,
                     long j) {
    return row_with(p, a, w, packed + (b * p.blocks + j) * (2 * w.rank + 1) * p.H * p.block, b, t);
}

}  // namespace fused
