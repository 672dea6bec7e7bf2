// What the planner knows of masks.
#pragma once

#include "plan.h"

namespace flashtri {

// The mask with size 1 wherever it is expanded by a stride of 0. Not for its gradient, which has the expanded sizes.
Tensor collapsed(const Tensor& mask);

// True for a mask that is the same for every query, which mask_keys reads once for all of them.
bool is_of_keys(const Tensor& mask);

// False for the passes that read neither scores nor mask, so that one kernel serves every mask.
bool reads_scores(Function function);

// False for a kernel that was compiled for another mask than the problem's.
bool reads_mask_dtype(const Kernel& kernel, const Problem& problem);

// Why such a kernel cannot read the problem's mask nevertheless; null when it can.
const char* mask_refusal(const Kernel& kernel, const Problem& problem);

// Sets the scratch that mask_keys fills for `reader`, and returns mask_keys' grid.
int64_t prepare_mask_keys(Plan& plan, const Problem& problem, const Kernel& reader);

}  // namespace flashtri
