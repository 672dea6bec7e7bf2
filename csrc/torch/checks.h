// Every check of the ops' inputs. They run before anything is allocated or launched, on CUDA, CPU and Meta alike.
#pragma once

#include "ops.h"

namespace flashtri::op {

// Throws ValueError (a rule is broken), NotImplementedError (a valid request that is not supported) or RuntimeError
// (tensors on different devices, as torch itself).
void check_forward(const ForwardArgs& args);

// The same, and that the forward's results and the gradients have the shapes and dtypes that belong to q, k and v.
void check_backward(const BackwardArgs& args);

// A side of the window as the core takes it. Of concrete sizes: not for the Meta implementation.
int64_t window_of(const OptionalSymInt& window);
// That an input which requires a gradient can get one.
void check_differentiable(const ForwardArgs& args);

// Of seqused_k, block_table and what packed sequences go with; part of check_forward.
void check_lengths(const ForwardArgs& args);

// scale, or 1 / sqrt(head_dim).
double scale_of(const ForwardArgs& args);

}  // namespace flashtri::op
