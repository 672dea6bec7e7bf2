// Sizes and strides of everything the ops return: the same for CUDA, CPU and Meta.
#pragma once

#include "ops.h"

namespace flashtri::op {

// Uninitialised. `out` follows q's layout (see outputs.cpp); lse is contiguous fp32 [B, Hq, Sq]; row_stats fp32
// [2, B, Hq, Sq] with a mask, else [0]; rng_state int64 [0].
ForwardResult empty_forward(const ForwardArgs& args);

// Uninitialised. dq, dk, dv follow the layouts of q, k, v; dmask is contiguous in the mask's own shape and dtype.
// A gradient that is not needed has shape [0].
BackwardResult empty_backward(const BackwardArgs& args);

}  // namespace flashtri::op
