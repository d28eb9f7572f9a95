// The entry points that Python calls, for REAL = float or double; everything else is in the headers beside this file.
#include "backward.h"
#include "decode.h"
#include "forward.h"
#include "step.h"
#include "weights.h"

#define JOIN(a, b) a##b
#define NAME(a, b) JOIN(a, b)

extern "C" {
void NAME(fused_forward_, REAL)(const fused::Arguments<REAL>* a) { fused::forward(*a); }
void NAME(fused_decode_, REAL)(const fused::Arguments<REAL>* a) { fused::decode(*a); }
void NAME(fused_backward_, REAL)(const fused::Arguments<REAL>* a) { fused::backward(*a); }
void NAME(fused_step_, REAL)(const fused::Step<REAL>* s) { fused::step(*s); }
void NAME(fused_weights_, REAL)(const fused::Making<REAL>* a) { fused::make_weights(*a); }
void NAME(fused_weights_back_, REAL)(const fused::Making<REAL>* a) { fused::make_weights_back(*a); }
// Weak: both precisions define them, alike.
__attribute__((weak)) long fused_lanes() { return VECTOR_BYTES / 4; }
__attribute__((weak)) long fused_argument_bytes() {
    return sizeof(fused::Arguments<float>) + sizeof(fused::Step<float>) + sizeof(fused::Making<float>);
}
}
