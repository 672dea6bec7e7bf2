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

// True where no query meets a key, so that there is nothing to launch.
bool has_no_scores(const ForwardArgs& args);

// The results of rows that see no key: out 0, lse -inf, maximum -inf, sum 0.
void fill_without_keys(const ForwardResult& result);

// True for a mask that adds the same number to all keys of a row. Its gradient needs no scores: the softmax does not
// change, so only lse passes it on, d lse / d mask = 1. Computing it as a sum over keys would leave a sum of rounding
// errors.
bool is_constant_along_keys(const at::Tensor& mask);

// That gradient: grad_lse of the rows that see a key, summed over what the mask is broadcast over. Written to dmask.
void fill_dmask_constant_along_keys(const BackwardArgs& args, const at::Tensor& dmask);

}  // namespace flashtri::op
