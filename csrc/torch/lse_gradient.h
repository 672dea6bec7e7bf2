// What the gradient of lse means for the backward, the same on CUDA and CPU.
#pragma once

#include "ops.h"

namespace flashtri::op {

// grad_lse with 0 in rows that see no key, whose lse is the constant -inf: what comes back through it, be it NaN, must
// not reach the other rows' keys. Needs has_grad_lse().
at::Tensor grad_lse_of_seen_rows(const BackwardArgs& args);

// True for a mask that adds the same number to all that a row's softmax sums, so keys alone and no sink. Its gradient
// needs no scores: the softmax does not change, so only lse passes it on, d lse / d mask = 1. Summed over keys instead,
// rounding errors would be all of it.
bool dmask_needs_no_scores(const ForwardArgs& args);

// That gradient, written to dmask: grad_lse summed over what the mask is broadcast over.
void fill_dmask_without_scores(const BackwardArgs& args, const at::Tensor& dmask);

// fp32 [Hq], the same bits on every run. delta: sum(out * grad_out) - grad_lse, fp32 [B, Hq, Sq]. A sink's share of its
// row is exp(sink - lse) and its value 0, so its score has the gradient -exp(sink - lse) * delta.
at::Tensor sinks_gradient(const BackwardArgs& args, const at::Tensor& delta);

}  // namespace flashtri::op
