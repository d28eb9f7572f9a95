// Whether the inputs hold NaN or infinity. Where they do, the equation is evaluated term by term elsewhere: the kernel
// leaves hidden keys out and merges terms, so that its NaN would appear in other places.
#pragma once

#include "arguments.h"

namespace fused {

// x - x is 0 for finite numbers, and NaN for all others.
template <class T> inline bool finite(const T* x, long n) {
    Vec<T> bad[2] = {};
    long i = 0;
    for (; i + 2 * VL<T> <= n; i += 2 * VL<T>) {
        const Vec<T> y = load(x + i), z = load(x + i + VL<T>);
        bad[0] += y - y;
        bad[1] += z - z;
    }
    T rest = 0;
    for (; i < n; ++i) rest += x[i] - x[i];
    return sum<T>(bad[0] + bad[1]) + rest == 0;
}

// One head of a [batch, head, pos, d] tensor, positions first to last.
template <class T> inline bool finite(const View<T>& x, long b, long h, long first, long last, long d) {
    bool good = true;
    for (long t = first; t < last; ++t) good &= finite(x.at(b, h, t), d);
    return good;
}

template <class T> inline bool finite(const KeyWeight<T>& w, long b, long first, long last, long ranks, long heads) {
    if (!w) return true;
    bool bad = false;
    for (long h = 0; h < heads; ++h)
        for (long s = first; s < last; ++s) {
            const T* x = w.at(b, s, 0, h);
            for (long r = 0; r < ranks; ++r, x += w.r) bad |= !(*x - *x == 0);
        }
    return !bad;
}

// The weights of a stage that belong to the queries of batch entry b, and to no position.
template <class T> inline bool finite_queries(const Arguments<T>& a, const Stage<T>& w, long b) {
    const long H = a.heads, inner = a.queries * w.rank * H;
    return (!w.q1 || (finite(w.q1 + b * inner, inner) && finite(w.q2 + b * inner, inner))) &&
           (!w.qg || finite(w.qg + b * a.queries * H, a.queries * H)) && (!w.base || finite(w.base, H * H));
}

// Those that belong to its keys, first to last.
template <class T> inline bool finite_keys(const Arguments<T>& a, const Stage<T>& w, long b, long first, long last) {
    return finite(w.k1, b, first, last, w.rank, a.heads) && finite(w.k2, b, first, last, w.rank, a.heads) &&
           finite(w.kg, b, first, last, 1, a.heads);
}

template <class T> inline bool finite(const Arguments<T>& a, const Stage<T>& w, long b) {
    return finite_queries(a, w, b) && finite_keys(a, w, b, 0, a.keys);
}

// Called by threads side by side; nobody reads it before they are done.
template <class T> inline void report(const Arguments<T>& a) { __atomic_store_n(a.strange, 1L, __ATOMIC_RELAXED); }

template <class T> inline void look(const Arguments<T>& a) {
#pragma omp parallel for schedule(static) num_threads(a.threads)
    for (long i = 0; i < a.batch * (a.heads + 1); ++i) {
        const long b = i / (a.heads + 1), h = i % (a.heads + 1);
        const bool good = h == a.heads ? finite(a, a.pre, b) && finite(a, a.post, b)
                                       : finite(a.q, b, h, 0, a.queries, a.width) &&
                                             (h >= a.kv_heads || (finite(a.k, b, h, 0, a.keys, a.width) &&
                                                                  finite(a.v, b, h, 0, a.keys, a.width)));
        if (!good) report(a);
    }
}

}  // namespace fused
