// Sizes and strides of everything the ops return: the same for CUDA, CPU and Meta.
#pragma once

#include "ops.h"

namespace flashtri::op {

// Where the memory comes from. Straight from CUDA's allocator is about a microsecond a tensor cheaper than through the
// dispatcher, and right only below every dispatch key, where tensors are plain: inside the CUDA kernels.
enum class Memory { dispatcher, cuda_allocator };

// Uninitialised. `out` follows q's layout (see outputs.cpp); lse is contiguous fp32 [B, Hq, Sq]; row_stats fp32
// [2, B, Hq, Sq] with a mask or bias, else [0]; rng_state int64 [2] (seed, offset) with dropout, else [0].
ForwardResult empty_forward(const ForwardArgs& args, Memory memory = Memory::dispatcher);

// Uninitialised. dq, dk, dv follow the layouts of q, k, v; the others are contiguous, in their input's shape and dtype.
// A gradient that is not needed has shape [0].
BackwardResult empty_backward(const BackwardArgs& args, Memory memory = Memory::dispatcher);

// True where no query meets a key, so that there is nothing to launch.
bool has_no_scores(const ForwardArgs& args);

// With dropout, draws seed and offset from the default generator of the device, which torch.manual_seed sets and which
// a graph capture makes new in every replay.
void draw_rng_state(const ForwardArgs& args, const at::Tensor& rng_state);

// The results of rows that see no key: out 0, lse -inf or the head's sink, which alone is in the sum.
void fill_without_keys(const ForwardArgs& args, const ForwardResult& result);

}  // namespace flashtri::op
