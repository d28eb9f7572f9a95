// The functions that dynamic weights go through, by vectors: gelu (with the exact erf), its slope, and tanh.
#pragma once

#include "simd.h"

namespace fused {

// x p(x^2) / q(x^2), to some units in the last place; from 4 on float32 has no number between erf and 1.
inline Vec<float> error_function(Vec<float> x) {
    const Vec<float> s = x * x;
    Vec<float> p = s * -2.72614225801306e-10f + 2.77068142495902e-08f;
    p = p * s - 2.10102402082508e-06f;
    p = p * s - 5.69250639462346e-05f;
    p = p * s - 7.34990630326855e-04f;
    p = p * s - 2.95459980854025e-03f;
    p = p * s - 1.60960333262415e-02f;
    Vec<float> q = s * -1.45660718464996e-05f - 2.13374055278905e-04f;
    q = q * s - 1.68282697438203e-03f;
    q = q * s - 7.37332916720468e-03f;
    q = q * s - 1.42647390514189e-02f;
    const Vec<float> one = splat(1.f), near = x * p / q;
    return x >= 4.f ? one : x <= -4.f ? -one : near;
}
inline Vec<double> error_function(Vec<double> x) {
    for (int i = 0; i < VL<double>; ++i) x[i] = std::erf(x[i]);
    return x;
}

// The same for tanh, which is 1 in float32 from 7.9 on, and x below 0.0004.
inline Vec<float> hyperbolic_tangent(Vec<float> x) {
    const Vec<float> s = x * x;
    Vec<float> p = s * -2.76076847742355e-16f + 2.00018790482477e-13f;
    p = p * s - 8.60467152213735e-11f;
    p = p * s + 5.12229709037114e-08f;
    p = p * s + 1.48572235717979e-05f;
    p = p * s + 6.37261928875436e-04f;
    p = p * s + 4.89352455891786e-03f;
    Vec<float> q = s * 1.19825839466702e-06f + 1.18534705686654e-04f;
    q = q * s + 2.26843463243900e-03f;
    q = q * s + 4.89352518554385e-03f;
    const Vec<float> one = splat(1.f), near = s < 1.6e-7f ? x : x * p / q;
    return x >= 7.9f ? one : x <= -7.9f ? -one : near;
}
inline Vec<double> hyperbolic_tangent(Vec<double> x) {
    for (int i = 0; i < VL<double>; ++i) x[i] = std::tanh(x[i]);
    return x;
}

template <class T> inline Vec<T> gelu(Vec<T> x) {
    return x * T(0.5) * (T(1) + error_function(x * T(0.70710678118654752440)));
}
template <class T> inline Vec<T> gelu_slope(Vec<T> x) {
    const Vec<T> bell = exponential(x * x * T(-0.5)) * T(0.39894228040143267794);
    return T(0.5) * (T(1) + error_function(x * T(0.70710678118654752440))) + x * bell;
}

}  // namespace fused
