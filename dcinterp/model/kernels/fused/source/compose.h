// Composing one query's row of a key block over all heads, and its gradient. Rows are [head][BLOCK], keys contiguous.
//
//     out[h'] = c a[h'] + sum_r q2[r,h'] gq[r] + sum_r k2[r,h'] gk[r],   c = skip + qg[h'] + kg[h'],
//     gq[r] = sum_h q1[r,h] a[h],   gk[r] = sum_h k1[r,h] a[h]
//
// q* are numbers (they belong to the query), k* and kg are vectors over the keys of the block.
#pragma once

#include "arguments.h"
#include "gemm.h"

namespace fused {

constexpr long MAX_ROWS = 64;

// The weights of one stage for one query and one block of keys.
template <class T> struct Row {
    const T *q1, *q2, *qg;       // null where absent
    const T* k;                  // packed [2 R H + H][BLOCK]: k1, k2, kg
    const T* base;               // [H][H] or null
    long heads, rank, groups, skip, block;
    const T* k1(long r, long h) const { return k + (r * heads + h) * block; }
    const T* k2(long r, long h) const { return k + ((rank + r) * heads + h) * block; }
    const T* kg(long h) const { return k + (2 * rank * heads + h) * block; }
    long at(long r, long h) const { return r * heads + h; }
};

// gq[r][v] and gk[r][v] for the heads of one group; with `shared` from the second weights (the transposed map).
template <class T, int RC, bool QP, bool KP, int NV>
inline void gather(const Row<T>& w, long h0, long h1, const T* a, long v, T* gq, T* gk, const T* q, const T* k) {
    constexpr int R = RC ? RC : 1;
    const long end = RC ? R : w.rank, n = w.block;
    for (long r0 = 0; r0 < end; r0 += R) {
        Vec<T> sq[R][NV], sk[R][NV];
        for (int r = 0; r < R; ++r)
            for (int i = 0; i < NV; ++i) sq[r][i] = sk[r][i] = Vec<T>{};
        for (long h = h0; h < h1; ++h) {
#pragma GCC unroll 2
            for (int i = 0; i < NV; ++i) {
                const Vec<T> x = load(a + h * n + v + i * VL<T>);
#pragma GCC unroll 2
                for (int r = 0; r < R; ++r) {
                    if constexpr (QP) sq[r][i] += x * splat(q[w.at(r0 + r, h)]);
                    if constexpr (KP) sk[r][i] += x * load(k + w.at(r0 + r, h) * n + v + i * VL<T>);
                }
            }
        }
        for (int r = 0; r < R; ++r)
            for (int i = 0; i < NV; ++i) {
                if constexpr (QP) store(gq + (r0 + r) * n + v + i * VL<T>, sq[r][i]);
                if constexpr (KP) store(gk + (r0 + r) * n + v + i * VL<T>, sk[r][i]);
            }
    }
}

template <class T, int RC, bool QP, bool KP>
inline void gather_all(const Row<T>& w, long h0, long h1, const T* a, long v0, long v1, T* gq, T* gk, const T* q,
                       const T* k) {
    if constexpr (!QP && !KP) return;
    long v = v0;
    for (; v + 2 * VL<T> <= v1; v += 2 * VL<T>) gather<T, RC, QP, KP, 2>(w, h0, h1, a, v, gq, gk, q, k);
    if (v < v1) gather<T, RC, QP, KP, 1>(w, h0, h1, a, v, gq, gk, q, k);
}

// Some vectors of keys for the heads of one group; what is gathered stays in registers. out may be a.
template <class T, int R, bool QP, bool KP, int NV>
inline void compose_vectors(const Row<T>& w, long h0, long h1, const T* a, T* out, long v) {
    const long n = w.block;
    Vec<T> gq[R][NV], gk[R][NV];
    for (int r = 0; r < R; ++r)
        for (int i = 0; i < NV; ++i) gq[r][i] = gk[r][i] = Vec<T>{};
    if constexpr (QP || KP)
        for (long h = h0; h < h1; ++h)
#pragma GCC unroll 2
            for (int i = 0; i < NV; ++i) {
                const Vec<T> x = load(a + h * n + v + i * VL<T>);
#pragma GCC unroll 2
                for (int r = 0; r < R; ++r) {
                    if constexpr (QP) gq[r][i] += x * splat(w.q1[w.at(r, h)]);
                    if constexpr (KP) gk[r][i] += x * load(w.k1(r, h) + v + i * VL<T>);
                }
            }
    for (long h = h0; h < h1; ++h) {
        const Vec<T> c = splat<T>(T(w.skip) + (w.qg ? w.qg[h] : T(0)));
#pragma GCC unroll 2
        for (int i = 0; i < NV; ++i) {
            const long at = v + i * VL<T>;
            Vec<T> o = load(a + h * n + at) * (c + load(w.kg(h) + at));
#pragma GCC unroll 2
            for (int r = 0; r < R; ++r) {
                if constexpr (QP) o += gq[r][i] * splat(w.q2[w.at(r, h)]);
                if constexpr (KP) o += gk[r][i] * load(w.k2(r, h) + at);
            }
            store(out + h * n + at, o);
        }
    }
}

// out may be a. scratch: 2 R + H rows of BLOCK.
template <class T, int RC, bool QP, bool KP>
void compose_row(const Row<T>& row, const T* a, T* out, long v0, long v1, T* scratch) {
    const Row<T> w = row;
    const long n = w.block, R = RC ? RC : w.rank, each = w.heads / w.groups;
    T *gq = scratch, *gk = scratch + R * n, *copy = scratch + 2 * R * n;
    if (w.base) std::memcpy(copy, a, sizeof(T) * w.heads * n);
    for (long h0 = 0; h0 < w.heads; h0 += each) {
        if constexpr (RC != 0) {
            long v = v0;
            for (; v + 2 * VL<T> <= v1; v += 2 * VL<T>) compose_vectors<T, RC, QP, KP, 2>(w, h0, h0 + each, a, out, v);
            if (v < v1) compose_vectors<T, RC, QP, KP, 1>(w, h0, h0 + each, a, out, v);
            continue;
        }
        gather_all<T, RC, QP, KP>(w, h0, h0 + each, a, v0, v1, gq, gk, w.q1, w.k1(0, 0));
        for (long h = h0; h < h0 + each; ++h) {
            const Vec<T> c = splat<T>(T(w.skip) + (w.qg ? w.qg[h] : T(0)));
            for (long v = v0; v < v1; v += VL<T>) {
                Vec<T> o = load(a + h * n + v) * (c + load(w.kg(h) + v));
                for (long r = 0; r < R; ++r) {
                    if constexpr (QP) o += load(gq + r * n + v) * splat(w.q2[w.at(r, h)]);
                    if constexpr (KP) o += load(gk + r * n + v) * load(w.k2(r, h) + v);
                }
                store(out + h * n + v, o);
            }
        }
    }
    if (w.base)
        gemm<T>(w.heads, v1 - v0, w.heads, w.base, 1, w.heads, copy + v0, n, out + v0, n, T(1), true);
}

// Where the gradients of a stage's weights go: q* rows of this query, k packed as Row::k, base [H][H].
template <class T> struct RowGrad {
    T *q1, *q2, *qg, *k, *base;
};

// d holds the gradient of the composed row and receives that of a. With OUT, out also receives the composed row
// (it shares the gathered terms) and dot[h] grows by sum_s a[h] da[h]. scratch: 4 R + H rows of BLOCK.
template <class T, int RC, bool QP, bool KP, bool OUT>
void compose_row_backward(const Row<T>& row, const RowGrad<T>& grad, const T* a, T* d, T* out, T* dot, long v0, long v1,
                          T* scratch) {
    const Row<T> w = row;
    const RowGrad<T> g = grad;
    const long n = w.block, R = RC ? RC : w.rank, each = w.heads / w.groups, H = w.heads;
    T *gq = scratch, *gk = gq + R * n, *eq = gk + R * n, *ek = eq + R * n, *copy = ek + R * n;
    if (w.base) std::memcpy(copy, d, sizeof(T) * H * n);
    for (long h0 = 0; h0 < H; h0 += each) {
        gather_all<T, RC, QP, KP>(w, h0, h0 + each, a, v0, v1, gq, gk, w.q1, w.k1(0, 0));
        gather_all<T, RC, QP, KP>(w, h0, h0 + each, d, v0, v1, eq, ek, w.q2, w.k2(0, 0));
        for (long h = h0; h < h0 + each; ++h) {
            constexpr int N = RC ? RC : 1;
            Vec<T> s1[N], s2[N], sg{}, sd{};
            for (int r = 0; r < N; ++r) s1[r] = s2[r] = Vec<T>{};
            const Vec<T> c = splat<T>(T(w.skip) + (w.qg ? w.qg[h] : T(0)));
            if constexpr (RC == 0 && QP) {
                for (long r = 0; r < R; ++r) {
                    Vec<T> x1{}, x2{};
                    for (long v = v0; v < v1; v += VL<T>) {
                        x1 += load(a + h * n + v) * load(eq + r * n + v);
                        x2 += load(d + h * n + v) * load(gq + r * n + v);
                    }
                    g.q1[w.at(r, h)] += sum<T>(x1);
                    g.q2[w.at(r, h)] += sum<T>(x2);
                }
            }
            T* dkg = g.k + (2 * w.rank * H + h) * n;
            for (long v = v0; v < v1; v += VL<T>) {
                const Vec<T> x = load(a + h * n + v), y = load(d + h * n + v), xy = x * y;
                const Vec<T> gate = c + load(w.kg(h) + v);
                Vec<T> back = y * gate, o = x * gate;
                sg += xy;
                store(dkg + v, load(dkg + v) + xy);
#pragma GCC unroll 2
                for (long r = 0; r < R; ++r) {
                    if constexpr (QP) {
                        const Vec<T> e = load(eq + r * n + v), f = load(gq + r * n + v);
                        back += e * splat(w.q1[w.at(r, h)]);
                        if constexpr (OUT) o += f * splat(w.q2[w.at(r, h)]);
                        if constexpr (RC != 0) s1[r] += x * e, s2[r] += y * f;
                    }
                    if constexpr (KP) {
                        const Vec<T> e = load(ek + r * n + v), f = load(gk + r * n + v);
                        back += e * load(w.k1(r, h) + v);
                        if constexpr (OUT) o += f * load(w.k2(r, h) + v);
                        T *d1 = g.k + (r * H + h) * n + v, *d2 = g.k + ((R + r) * H + h) * n + v;
                        store(d1, load(d1) + x * e);
                        store(d2, load(d2) + y * f);
                    }
                }
                store(d + h * n + v, back);
                if constexpr (OUT) store(out + h * n + v, o), sd += x * back;
            }
            if (g.qg) g.qg[h] += sum<T>(sg);
            if constexpr (OUT)
                if (!w.base) dot[h] += sum<T>(sd);
            if constexpr (RC != 0 && QP)
                for (int r = 0; r < N; ++r) g.q1[w.at(r, h)] += sum<T>(s1[r]), g.q2[w.at(r, h)] += sum<T>(s2[r]);
        }
    }
    if (!w.base) return;
    gemm<T>(H, v1 - v0, H, w.base, H, 1, copy + v0, n, d + v0, n, T(1), true);
    if constexpr (OUT) gemm<T>(H, v1 - v0, H, w.base, 1, H, a + v0, n, out + v0, n, T(1), true);
    for (long h = 0; h < H; ++h) {
        Vec<T> sd{};
        for (long v = v0; v < v1; v += VL<T>) {
            const Vec<T> x = load(a + h * n + v);
            if constexpr (OUT) sd += x * load(d + h * n + v);
        }
        if constexpr (OUT) dot[h] += sum<T>(sd);
        for (long to = 0; to < H; ++to) {
            Vec<T> s{};
            for (long v = v0; v < v1; v += VL<T>) s += load(a + h * n + v) * load(copy + to * n + v);
            g.base[h * H + to] += sum<T>(s);
        }
    }
}

// Picks the instance for the branches that exist; rank 1 and 2 are unrolled.
template <class T> struct Composer {
    typedef void (*Forward)(const Row<T>&, const T*, T*, long, long, T*);
    typedef void (*Backward)(const Row<T>&, const RowGrad<T>&, const T*, T*, T*, T*, long, long, T*);
    Forward forward;
    Backward backward, backward_out;

    template <int RC, bool QP, bool KP> void set() {
        forward = compose_row<T, RC, QP, KP>;
        backward = compose_row_backward<T, RC, QP, KP, false>;
        backward_out = compose_row_backward<T, RC, QP, KP, true>;
    }
    template <bool QP, bool KP> void set_rank(long rank) {
        if (rank == 1) set<1, QP, KP>();
        else if (rank == 2) set<2, QP, KP>();
        else set<0, QP, KP>();
    }
    explicit Composer(const Stage<T>& s) {
        if (s.q1 && s.k1) set_rank<true, true>(s.rank);
        else if (s.q1) set_rank<true, false>(s.rank);
        else if (s.k1) set_rank<false, true>(s.rank);
        else set<1, false, false>();
    }
};

}  // namespace fused
