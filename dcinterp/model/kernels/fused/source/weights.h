// The dynamic weights of the sides of a layer's stages, for all positions, and the way back.
//
//     [w1, w2] = gelu(x W_1) W_2;   w1 <- w1 / rms of w1 over the heads of a group;   wg = tanh(x W_g)
//
// The products with W_1 and W_g, which read x, are made outside: they are large matrix products. Here are the rest of
// the way, position by position, and its gradients.
#pragma once

#include <vector>

#include "activations.h"
#include "packing.h"
#include "threads.h"

namespace fused {

constexpr long MAX_SIDES = 4;

// One side of one stage: W_2 [group, I, I] with I = 2 R H / groups, null without a projection; the weights that come out,
// [row, rank, head] and [row, head], wg null without a gate; and gradients of them all.
template <class T> struct Side {
    const T* up;
    T *w1, *w2, *wg;
    const T *dw1, *dw2, *dwg;
    T* dup;
};

template <class T> struct Making {
    long rows, heads, rank, groups, threads, columns, count;
    const T* read;  // [row, columns]: of each side x W_1 and then x W_g, as far as it has them
    T* dread;
    Side<T> sides[MAX_SIDES];
};

// Sizes of one side, and the steps of its way.
template <class T> struct Maker {
    static constexpr long ROWS = 24;
    const long H, R, G, each, inner, wide;
    Maker(long heads, long rank, long groups)
        : H(heads), R(rank), G(groups), each(heads / groups), inner(2 * rank * each), wide(up(inner, VL<T>)) {}

    long columns(const Side<T>& s) const { return (s.up ? G * inner : 0) + (s.wg ? H : 0); }

    // W_2 of one group as rows of `wide` numbers, zero beyond the last; with `turned`, its transpose.
    void pad(const T* from, bool turned, T* to) const {
        for (long i = 0; i < inner; ++i, to += wide) {
            for (long o = 0; o < inner; ++o) to[o] = turned ? from[o * inner + i] : from[i * inner + o];
            for (long o = inner; o < wide; ++o) to[o] = 0;
        }
    }

    // Rows of `from`, `stride` apart, in rows of `wide`.
    void take(const T* from, long stride, long rows, T* to) const {
        for (long n = 0; n < rows; ++n, to += wide, from += stride) {
            std::memcpy(to, from, inner * sizeof(T));
            for (long i = inner; i < wide; ++i) to[i] = 0;
        }
    }

    void activate(const T* x, long rows, T* to) const {
        for (long i = 0; i < rows * wide; i += VL<T>) store(to + i, gelu<T>(load(x + i)));
    }

    // [row][wide] times W_2 (padded, rows of `wide`).
    void mix(const T* hidden, const T* up, long rows, T* both) const {
        gemm<T>(rows, wide, inner, hidden, wide, 1, up, wide, both, wide, T(1), false);
    }

    // 1 / the root mean square of w1 over the heads of a group.
    T scale(const T* x) const {
        T s = 0;
        for (long h = 0; h < each; ++h) s += x[h] * x[h];
        return 1 / std::sqrt(s / each + T(1e-6));
    }

    // The weights of group g from a row of `both` [2 R][each], to [rank][head].
    void share(const T* both, long g, T* w1, T* w2) const {
        for (long r = 0; r < R; ++r, both += each) {
            const T s = scale(both);
            const T* second = both + R * each;
            for (long h = 0; h < each; ++h) {
                w1[r * H + g * each + h] = both[h] * s;
                w2[r * H + g * each + h] = second[h];
            }
        }
    }

    // The gradient of that row, from those of the weights; `d` may be `both`.
    void share_back(const T* both, long g, const T* dw1, const T* dw2, T* d) const {
        for (long r = 0; r < R; ++r) {
            const T *x = both + r * each, *y1 = dw1 + r * H + g * each, *y2 = dw2 + r * H + g * each;
            const T s = scale(x);
            T dot = 0;
            for (long h = 0; h < each; ++h) dot += x[h] * y1[h];
            const T along = dot * s * s / each;
            for (long h = 0; h < each; ++h) {
                d[r * each + h] = s * (y1[h] - x[h] * along);
                d[(R + r) * each + h] = y2[h];
            }
        }
    }

    void gates(const T* x, T* to) const {
        long h = 0;
        for (; h + VL<T> <= H; h += VL<T>) store(to + h, hyperbolic_tangent(load(x + h)));
        if (h == H) return;
        T rest[VL<T>] = {};
        std::memcpy(rest, x + h, (H - h) * sizeof(T));
        store(rest, hyperbolic_tangent(load(rest)));
        std::memcpy(to + h, rest, (H - h) * sizeof(T));
    }
};

template <class T> void make_weights(const Making<T>& a) {
    const Maker<T> m(a.heads, a.rank, a.groups);
    const long tiles = (a.rows + m.ROWS - 1) / m.ROWS, square = m.G * m.inner * m.wide;
    Buffer<T> ups(a.count * square);
    for (long i = 0; i < a.count; ++i)
        for (long g = 0; a.sides[i].up && g < m.G; ++g)
            m.pad(a.sides[i].up + g * m.inner * m.inner, false, ups + i * square + g * m.inner * m.wide);
#pragma omp parallel num_threads(a.threads)
    {
        Buffer<T> hidden(m.ROWS * m.wide), both(m.ROWS * m.wide);
#pragma omp for schedule(static)
        for (long tile = 0; tile < tiles; ++tile) {
            const long n0 = tile * m.ROWS, rows = a.rows - n0 < m.ROWS ? a.rows - n0 : m.ROWS;
            const T* read = a.read + n0 * a.columns;
            for (long i = 0; i < a.count; ++i) {
                const Side<T>& s = a.sides[i];
                for (long g = 0; s.up && g < m.G; ++g) {
                    m.take(read + g * m.inner, a.columns, rows, hidden + 0);
                    m.activate(hidden + 0, rows, hidden + 0);
                    m.mix(hidden + 0, ups + i * square + g * m.inner * m.wide, rows, both + 0);
                    for (long n = 0; n < rows; ++n) {
                        const long at = (n0 + n) * m.R * m.H;
                        m.share(both + n * m.wide, g, s.w1 + at, s.w2 + at);
                    }
                }
                const T* gates = read + (s.up ? m.G * m.inner : 0);
                for (long n = 0; s.wg && n < rows; ++n) m.gates(gates + n * a.columns, s.wg + (n0 + n) * m.H);
                read += m.columns(s);
            }
        }
    }
}

// Gradients of `read` and of every W_2. Each thread sums the latter for its own rows, and they are added in a fixed
// order: the same inputs and number of threads give the same bits.
template <class T> void make_weights_back(const Making<T>& a) {
    const Maker<T> m(a.heads, a.rank, a.groups);
    const long tiles = (a.rows + m.ROWS - 1) / m.ROWS, one = m.inner * m.wide, square = m.G * one;
    Buffer<T> ups(a.count * square), turned(a.count * square);
    for (long i = 0; i < a.count; ++i)
        for (long g = 0; a.sides[i].up && g < m.G; ++g) {
            const T* from = a.sides[i].up + g * m.inner * m.inner;
            m.pad(from, false, ups + i * square + g * one);
            m.pad(from, true, turned + i * square + g * one);
        }
    std::vector<T*> sums(a.threads, nullptr);
#pragma omp parallel num_threads(a.threads)
    {
        Buffer<T> raw(m.ROWS * m.wide), hidden(m.ROWS * m.wide), both(m.ROWS * m.wide), mine(a.count * square);
        mine.zero(a.count * square);
        sums[omp_get_thread_num()] = mine + 0;
#pragma omp for schedule(static)
        for (long tile = 0; tile < tiles; ++tile) {
            const long n0 = tile * m.ROWS, rows = a.rows - n0 < m.ROWS ? a.rows - n0 : m.ROWS;
            const T* read = a.read + n0 * a.columns;
            T* dread = a.dread + n0 * a.columns;
            for (long i = 0; i < a.count; ++i) {
                const Side<T>& s = a.sides[i];
                for (long g = 0; s.up && g < m.G; ++g) {
                    m.take(read + g * m.inner, a.columns, rows, raw + 0);
                    m.activate(raw + 0, rows, hidden + 0);
                    m.mix(hidden + 0, ups + i * square + g * one, rows, both + 0);
                    for (long n = 0; n < rows; ++n) {
                        const long at = (n0 + n) * m.R * m.H;
                        m.share_back(both + n * m.wide, g, s.dw1 + at, s.dw2 + at, both + n * m.wide);
                    }
                    gemm<T>(m.inner, m.wide, rows, hidden + 0, 1, m.wide, both + 0, m.wide, mine + i * square + g * one,
                            m.wide, T(1), true);
                    m.mix(both + 0, turned + i * square + g * one, rows, hidden + 0);
                    for (long n = 0; n < rows; ++n) {
                        T *x = raw + n * m.wide, *d = hidden + n * m.wide;
                        for (long v = 0; v < m.wide; v += VL<T>) store(d + v, load(d + v) * gelu_slope<T>(load(x + v)));
                        std::memcpy(dread + n * a.columns + g * m.inner, d, m.inner * sizeof(T));
                    }
                }
                const long first = s.up ? m.G * m.inner : 0;
                for (long n = 0; s.wg && n < rows; ++n)
                    for (long h = 0; h < m.H; ++h) {
                        const T gate = s.wg[(n0 + n) * m.H + h];
                        dread[n * a.columns + first + h] = s.dwg[(n0 + n) * m.H + h] * (1 - gate * gate);
                    }
                read += m.columns(s), dread += m.columns(s);
            }
        }
#pragma omp for schedule(static)
        for (long i = 0; i < a.count; ++i)
            for (long row = 0; a.sides[i].up && row < m.G * m.inner; ++row)
                for (long o = 0; o < m.inner; ++o) {
                    T sum = 0;
                    for (T* of : sums)
                        if (of) sum += of[i * square + row * m.wide + o];
                    a.sides[i].dup[row * m.inner + o] = sum;
                }
    }
}

}  // namespace fused
