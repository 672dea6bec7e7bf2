#pragma once

#include "ops.h"

namespace flashtri::op {

// Throws NotImplementedError where no compiled kernel could compute these gradients (of q, k, v, mask) on q's device,
// so that training fails at its first forward call and not in the backward.
void check_cuda_backward(const ForwardArgs& args, const std::array<bool, 4>& needs);

}  // namespace flashtri::op
