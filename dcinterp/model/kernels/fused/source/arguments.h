// What Python hands over (mirrored by fused/arguments.py: every field is eight bytes), and who may look at whom.
#pragma once

#include "simd.h"

namespace fused {

// A [batch, head, pos, d] tensor with any strides but the last, which is 1.
template <class T> struct View {
    T* data;
    long b, h, t;
    T* at(long batch, long head, long pos) const { return data + batch * b + head * h + pos * t; }
};

// A key-side weight [batch, key, rank, head] (or without rank) with any strides: decoding reads it where it is cached.
// There lie, beside values that several heads share, the weights of one of these heads after those of another: a step of
// `part` from one to the next, and of `h` from `shared` of them to the next ones.
template <class T> struct KeyWeight {
    T* data;
    long b, s, r, h, shared, part;
    explicit operator bool() const { return data; }
    T* at(long batch, long key, long rank, long head) const {
        return data + batch * b + key * s + rank * r + head / shared * h + head % shared * part;
    }
};

// One Compose: weights [batch, pos, rank, head] and [batch, pos, head], null where there are none. Query-side weights
// and all gradients are contiguous.
template <class T> struct Stage {
    const T *q1, *q2, *qg, *base;
    KeyWeight<T> k1, k2, kg;
    T *dq1, *dq2, *dqg, *dbase, *dk1, *dk2, *dkg;
    long rank, groups, skip, present;
};

template <class T> struct Arguments {
    long batch, heads, kv_heads, queries, keys, width;
    long causal, window, mask_stride, threads, rows, block;
    double scale;
    const uint8_t* mask;  // [batch or 1, query, key]; null for none
    T* lse;               // [batch, head, query]: log of the softmax's denominator
    long* strange;        // becomes 1 where the inputs hold NaN or infinity (finite.h)
    View<T> q, k, v, out, dout, dq, dk, dv;
    Stage<T> pre, post;
    // Which head of the keys and values head h reads: as many consecutive heads share one.
    long kv(long h) const { return h / (heads / kv_heads); }
};

// Which keys one query sees. A query that sees none spreads its attention evenly over all, as softmax over equal
// numbers does in the reference; `blind` then stops the gradient.
struct Sight {
    long low, high;
    const uint8_t* row;
    bool blind;

    bool whole(long first, long last) const { return !row && low <= first && last <= high; }
    bool sees(long key) const { return key >= low && key < high && (!row || row[key]); }
};

template <class T> inline Sight sight(const Arguments<T>& a, long b, long t) {
    Sight s{0, a.keys, nullptr, false};
    if (a.causal) {
        const long end = t + a.keys - a.queries + 1;
        s.high = end < a.keys ? end : a.keys;
        if (a.window && end - a.window > 0) s.low = end - a.window;
    }
    if (a.mask) {
        s.row = a.mask + b * a.mask_stride + t * a.keys;
        while (s.low < s.high && !s.row[s.low]) ++s.low;
        while (s.high > s.low && !s.row[s.high - 1]) --s.high;
    }
    if (s.low >= s.high) s = {0, a.keys, nullptr, true};
    return s;
}

}  // namespace fused
