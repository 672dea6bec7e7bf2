// Sequences packed one after the other, seen by the backends as one batch of four-dimensional tensors.
#pragma once

#include <c10/core/SymInt.h>

#include "ops.h"

namespace flashtri::op {

// Throws where cu_seqlens_q, cu_seqlens_k, max_seqlen_q and max_seqlen_k do not fit together or to packed q, k and v.
void check_packed(const ForwardArgs& args);

// [total, H, D] as [1, H, total, D] and back; a [H, total] lse likewise. Views of the same memory.
inline at::Tensor as_batch(const at::Tensor& packed) { return packed.transpose(0, 1).unsqueeze(0); }
inline at::Tensor as_packed(const at::Tensor& batch) { return batch.squeeze(0).transpose(0, 1); }

// The backend's function, which sees packed tensors as one batch whose sequences cu_seqlens_q and cu_seqlens_k bound.
template <ForwardFunction function>
ForwardResult fwd_of_packed(const ForwardArgs& args) {
  if (!args.is_packed()) return function(args);
  check_packed(args);
  const at::Tensor q = as_batch(args.q), k = as_batch(args.k), v = as_batch(args.v);
  auto [out, lse, row_stats, rng_state] = function({args, q, k, v});
  return {as_packed(out), lse.squeeze(0), row_stats, rng_state};
}

template <BackwardFunction function>
BackwardResult bwd_of_packed(const BackwardArgs& args) {
  if (!args.is_packed()) return function(args);
  check_packed(args);
  TORCH_CHECK_VALUE(args.grad_out.dim() == 3 && args.out.dim() == 3 && args.lse.dim() == 2,
                    "grad_out and out of packed sequences have 3 dimensions, lse has 2; got ", args.grad_out.dim(),
                    ", ", args.out.dim(), " and ", args.lse.dim(), "; pass what belongs to this call");
  const at::Tensor q = as_batch(args.q), k = as_batch(args.k), v = as_batch(args.v), grad_out = as_batch(args.grad_out),
                   out = as_batch(args.out), lse = args.lse.unsqueeze(0);
  const OptionalTensor grad_lse = args.has_grad_lse() ? OptionalTensor(args.grad_lse->unsqueeze(0)) : std::nullopt;
  BackwardResult result =
      function({{args, q, k, v}, grad_out, grad_lse, out, lse, args.row_stats, args.rng_state, args.output_mask});
  if (args.output_mask[kQ]) std::get<kQ>(result) = as_packed(std::get<kQ>(result));
  if (args.output_mask[kK]) std::get<kK>(result) = as_packed(std::get<kK>(result));
  if (args.output_mask[kV]) std::get<kV>(result) = as_packed(std::get<kV>(result));
  return result;
}

}  // namespace flashtri::op
