// Short vectors of the machine, through the compiler's vector extension: no intrinsics, so that any processor will do.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#ifndef VECTOR_BYTES
#if defined(__AVX512F__)
#define VECTOR_BYTES 64
#else
#define VECTOR_BYTES 32
#endif
#endif

namespace fused {

template <class T> struct Simd;
template <> struct Simd<float> {
    typedef float V __attribute__((vector_size(VECTOR_BYTES)));
    typedef float Memory __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(float))));
    typedef int32_t I __attribute__((vector_size(VECTOR_BYTES)));
};
template <> struct Simd<double> {
    typedef double V __attribute__((vector_size(VECTOR_BYTES)));
    typedef double Memory __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(double))));
    typedef int64_t I __attribute__((vector_size(VECTOR_BYTES)));
};
template <class T> using Vec = typename Simd<T>::V;
template <class T> using Int = typename Simd<T>::I;
template <class T> constexpr long VL = VECTOR_BYTES / sizeof(T);

// Not by memcpy: the compiler would then read all sizes and addresses anew, as bytes may be anything.
template <class T> inline Vec<T> load(const T* p) { return *reinterpret_cast<const typename Simd<T>::Memory*>(p); }
template <class T> inline void store(T* p, Vec<T> v) { *reinterpret_cast<typename Simd<T>::Memory*>(p) = v; }
template <class T> inline Vec<T> splat(T x) { return x - Vec<T>{}; }

// Halves are joined as shorter vectors: a loop over lanes would be one long chain.
template <class T, int BYTES, class Join> inline T fold(const T* p, Join join) {
    if constexpr (BYTES == 2 * sizeof(T)) return join(p[0], p[1]);
    else {
        typedef T H __attribute__((vector_size(BYTES / 2)));
        constexpr int N = BYTES / 2 / sizeof(T);
        H a, b;
        std::memcpy(&a, p, sizeof a);
        std::memcpy(&b, p + N, sizeof b);
        a = join(a, b);
        T half[N];
        std::memcpy(half, &a, sizeof a);
        return fold<T, BYTES / 2>(half, join);
    }
}
template <class T> inline T sum(Vec<T> v) {
    return fold<T, VECTOR_BYTES>(reinterpret_cast<const T*>(&v), [](auto a, auto b) { return a + b; });
}
template <class T> inline T largest(Vec<T> v) {
    return fold<T, VECTOR_BYTES>(reinterpret_cast<const T*>(&v), [](auto a, auto b) { return a > b ? a : b; });
}

// exp(x) for x <= 88, 0 for x < -87.3: relative error 1e-7 (Cephes' polynomial).
inline Vec<float> exponential(Vec<float> x) {
    typedef Int<float> I;
    const float least = -87.3f, shift = 12582912.f;
    const I under = x < least;
    x = under ? splat(least) : x;
    Vec<float> n = x * 1.44269504088896341f + shift;
    // 2^n as a number to multiply with, so that NaN stays NaN.
    const I power = (reinterpret_cast<I>(n) << 23) + 0x3f800000;
    n -= shift;
    const Vec<float> r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    Vec<float> p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.f;
    p *= reinterpret_cast<Vec<float>>(power);
    return under ? Vec<float>{} : p;
}
inline Vec<double> exponential(Vec<double> x) {
    for (int i = 0; i < VL<double>; ++i) x[i] = std::exp(x[i]);
    return x;
}

}  // namespace fused
