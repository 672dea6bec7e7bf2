// What the planner's files share.
#pragma once

#include "plan.h"

namespace flashtri {

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Throws PlanError where a grid has more programs than a launch can.
void add(Plan& plan, const Kernel& kernel, int64_t grid);

// plan_decode.cpp: few queries over many keys. The launch of a kernel of fwd_decode or fwd_paged, and of the merge.
void add_decode(Plan& plan, const Kernel& kernel, const Problem& problem, const Device& device);

// plan_hopper.cpp: what computes the whole forward or backward, where Hopper's own kernels serve; false where not.
bool add_hopper_forward(Plan& plan, const Problem& problem, const Device& device);
bool add_hopper_backward(Plan& plan, const Problem& problem, const Device& device);

// The first rule by which a kernel does not serve the problem's lengths: for fwd_decode and fwd_paged that the problem
// is theirs, for the others that all sequences are of one length. Null when it serves.
const char* length_refusal(const Kernel& kernel, const Problem& problem, const Device& device);

}  // namespace flashtri
