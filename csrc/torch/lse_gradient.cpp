#include "lse_gradient.h"

#include <limits>

namespace flashtri::op {

at::Tensor grad_lse_of_seen_rows(const BackwardArgs& args) {
  return args.grad_lse->masked_fill(args.lse.eq(-std::numeric_limits<double>::infinity()), 0.0);
}

bool dmask_needs_no_scores(const ForwardArgs& args) {
  return args.has_mask() && !args.has(args.sinks) && (args.attn_mask->dim() == 0 || args.attn_mask->size(-1) == 1);
}

at::Tensor sinks_gradient(const BackwardArgs& args, const at::Tensor& delta) {
  const at::Tensor share = args.sinks->to(at::kFloat).unsqueeze(1).sub(args.lse).exp_();
  // A sink of -inf in a row without keys: NaN, for no share at all.
  return share.nan_to_num_(0.0).mul_(delta).sum(at::IntArrayRef{0, 2}).neg_();
}

void fill_dmask_without_scores(const BackwardArgs& args, const at::Tensor& dmask) {
  if (!args.has_grad_lse()) {
    dmask.zero_();
    return;
  }
  dmask.copy_(grad_lse_of_seen_rows(args).unsqueeze(3).sum_to_size(dmask.sizes()));
}

}  // namespace flashtri::op
