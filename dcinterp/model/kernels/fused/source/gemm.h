// Small matrix products for tiles that sit in cache: C[m][n] (+)= alpha * sum_k A(m, k) B[k][n].
#pragma once

#include "simd.h"

namespace fused {

// MR rows by NV vectors of C in registers; A has strides for both its axes, B and C have rows of contiguous numbers.
// With NEXT, what follows B in memory is fetched meanwhile, and C: panels are read one after the other.
template <class T, int MR, int NV, bool NEXT>
inline void micro(long K, const T* A, long row, long col, const T* B, long ldb, T* C, long ldc, T alpha, bool add) {
    Vec<T> acc[MR][NV];
    for (int i = 0; i < MR; ++i)
        for (int n = 0; n < NV; ++n) acc[i][n] = Vec<T>{};
    if constexpr (NEXT)
        for (int i = 0; i < MR; ++i) __builtin_prefetch(C + i * ldc, 1);
    for (long k = 0; k < K; ++k, A += col, B += ldb) {
        Vec<T> b[NV];
        if constexpr (NEXT) __builtin_prefetch(B + K * ldb);
#pragma GCC unroll 2
        for (int n = 0; n < NV; ++n) b[n] = load(B + n * VL<T>);
#pragma GCC unroll 6
        for (int i = 0; i < MR; ++i) {
            const Vec<T> x = splat(A[i * row]);
#pragma GCC unroll 2
            for (int n = 0; n < NV; ++n) acc[i][n] += x * b[n];
        }
    }
    for (int i = 0; i < MR; ++i)
        for (int n = 0; n < NV; ++n) {
            T* c = C + i * ldc + n * VL<T>;
            store(c, add ? load(c) + acc[i][n] * alpha : acc[i][n] * alpha);
        }
}

template <class T, int NV, bool NEXT = false>
inline void column(long M, long K, const T* A, long row, long col, const T* B, long ldb, T* C, long ldc, T alpha,
                   bool add) {
    long m = 0;
    for (; m + 6 <= M; m += 6) micro<T, 6, NV, NEXT>(K, A + m * row, row, col, B, ldb, C + m * ldc, ldc, alpha, add);
    A += m * row, C += m * ldc;
    switch (M - m) {
        case 5: micro<T, 5, NV, NEXT>(K, A, row, col, B, ldb, C, ldc, alpha, add); break;
        case 4: micro<T, 4, NV, NEXT>(K, A, row, col, B, ldb, C, ldc, alpha, add); break;
        case 3: micro<T, 3, NV, NEXT>(K, A, row, col, B, ldb, C, ldc, alpha, add); break;
        case 2: micro<T, 2, NV, NEXT>(K, A, row, col, B, ldb, C, ldc, alpha, add); break;
        case 1: micro<T, 1, NV, NEXT>(K, A, row, col, B, ldb, C, ldc, alpha, add); break;
    }
}

// N must be a multiple of VL.
template <class T>
inline void gemm(long M, long N, long K, const T* A, long row, long col, const T* B, long ldb, T* C, long ldc, T alpha,
                 bool add) {
    long n = 0;
    for (; n + 2 * VL<T> <= N; n += 2 * VL<T>) column<T, 2>(M, K, A, row, col, B + n, ldb, C + n, ldc, alpha, add);
    if (n < N) column<T, 1>(M, K, A, row, col, B + n, ldb, C + n, ldc, alpha, add);
}

// The same with B in panels of 2 VL columns (the last may have VL), each with room for `room` rows.
template <class T>
inline void panel_gemm(long M, long N, long K, const T* A, long row, long col, const T* B, long room, T* C, long ldc,
                       T alpha, bool add) {
    constexpr long W = 2 * VL<T>;
    long n = 0;
    for (; n + W <= N; n += W) column<T, 2, true>(M, K, A, row, col, B + n * room, W, C + n, ldc, alpha, add);
    if (n < N) column<T, 1, true>(M, K, A, row, col, B + n * room, VL<T>, C + n, ldc, alpha, add);
}

}  // namespace fused
