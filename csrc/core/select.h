// Which of the compiled kernels serves a problem, and why the others do not.
#pragma once

#include <string>

#include "plan.h"

namespace flashtri {

// The kernel of `function` for this problem with the least padding of head_dim. Throws PlanError with every candidate
// and the rule it fails.
const Kernel& select(Function function, const Problem& problem, const Device& device);

// As select, but null where none of the compiled kernels serves.
const Kernel* find(Function function, const Problem& problem, const Device& device);

// For tuning: from now on `find` takes this kernel of its function, and none of the architecture's own in its place.
// Null ends that. A problem it does not serve is refused.
void prefer(const Kernel* kernel);

// The first rule that keeps `kernel` from serving the problem, as "its dtype is f16, q is bf16"; empty when none does.
std::string refusal(const Kernel& kernel, const Problem& problem, const Device& device);

}  // namespace flashtri
