#pragma once

#include "ops.h"

namespace flashtri::op {

// Throws NotImplementedError where no compiled kernel could compute these gradients on q's device,
// so that training fails at its first forward call and not in the backward.
void check_cuda_backward(const ForwardArgs& args, const Needs& needs);

}  // namespace flashtri::op
