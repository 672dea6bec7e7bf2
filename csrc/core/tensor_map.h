// TMA descriptors: what they can describe, and their encoding by the driver.
#pragma once

#include <cuda.h>

#include "plan.h"

namespace flashtri {

// After a descriptor the cubin takes the tensor's four sizes and four strides, which our kernels never read.
constexpr int kMapFollowers = 8;

// Why no TMA descriptor can describe one of the problem's tensors; null where all can be.
const char* map_refusal(const Problem& problem);

// Why none can describe the mask as it is; null where one can.
const char* mask_map_refusal(const Tensor& mask);

// The descriptor `map`, for this kernel, of a tensor whose pointer, sizes and strides are in `args`. What a copy takes
// from outside the tensor is zero; what it would write there is dropped.
CUtensorMap encode(Arg map, const Arguments& args, const Kernel& kernel, const Box& box);

}  // namespace flashtri
