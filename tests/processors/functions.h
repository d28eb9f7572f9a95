// What Python calls in the kernel, each with the address of its arguments.
#pragma once
#define BOTH(each, way) each(fused_##way##_float) each(fused_##way##_double)
#define FUNCTIONS(each) \
    BOTH(each, forward) BOTH(each, backward) BOTH(each, decode) BOTH(each, step) BOTH(each, weights) \
    BOTH(each, weights_back)
