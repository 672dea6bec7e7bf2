#include "lse_gradient.h"

#include <limits>

namespace flashtri::op {

at::Tensor grad_lse_of_seen_rows(const BackwardArgs& args) {
  return args.grad_lse->masked_fill(args.lse.eq(-std::numeric_limits<double>::infinity()), 0.0);
}

bool is_constant_along_keys(const at::Tensor& mask) { return mask.dim() == 0 || mask.size(-1) == 1; }

void fill_dmask_constant_along_keys(const BackwardArgs& args, const at::Tensor& dmask) {
  if (!args.has_grad_lse()) {
    dmask.zero_();
    return;
  }
  dmask.copy_(grad_lse_of_seen_rows(args).unsqueeze(3).sum_to_size(dmask.sizes()));
}

}  // namespace flashtri::op
