// The planner's choices in words.
#include "plan.h"
#include "select.h"

namespace flashtri {
namespace {

// These are ways of one step of the op.
bool same_task(Function a, Function b) {
  const auto task = [](Function f) {
    const bool is_forward = f == Function::fwd_hopper || f == Function::fwd_hopper_mask || f == Function::fwd_decode ||
                            f == Function::fwd_paged;
    return is_forward ? Function::fwd : f == Function::bwd_hopper ? Function::bwd_dkdv : f;
  };
  return task(a) == task(b);
}

}  // namespace

std::string explain(const Problem& problem, const Device& device) {
  const Plan made = plan(problem, device);
  std::string text;
  if (made.num_launches == 0) text = "nothing to compute: no kernel is launched\n";
  for (int i = 0; i < made.num_launches; ++i) {
    const Kernel& taken = *made.launches[i].kernel;
    text += std::string(function_name(taken.function)) + ": " + taken.name + ", " +
            std::to_string(made.launches[i].grid) + " programs of " + std::to_string(taken.num_warps) +
            " warps, tiles of " + std::to_string(taken.block_m) + " queries x " + std::to_string(taken.block_n) +
            " keys, head_dim padded to " + std::to_string(taken.block_d) + "\n";
    for (const Kernel& other : kernels()) {
      if (!same_task(other.function, taken.function) || &other == &taken) continue;
      const std::string reason = refusal(other, as_kernels_see(problem), device);
      text += std::string("  not ") + other.name + ": " +
              (!reason.empty()                    ? reason
               : other.function != taken.function ? "another way serves, which comes first"
               : other.arch != taken.arch         ? "a closer architecture is compiled in"
               : other.block_d == taken.block_d   ? "another tile of the same size of head comes first"
                                                  : "it pads head_dim more") +
              "\n";
    }
  }
  return text;
}

}  // namespace flashtri
