// What the backends of the two ops share: the arguments as one struct, and how a backend registers itself.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <array>
#include <optional>
#include <tuple>

namespace flashtri::op {

struct ForwardArgs {
  const at::Tensor& q;                         // [B, Hq, Sq, D]
  const at::Tensor& k;                         // [B, Hk, Sk, D]
  const at::Tensor& v;                         // [B, Hk, Sk, Dv]
  const std::optional<at::Tensor>& attn_mask;  // broadcastable to [B, Hq, Sq, Sk]
  double dropout_p;
  bool is_causal;
  std::optional<double> scale;
  bool bottom_right;

  bool has_mask() const { return attn_mask.has_value() && attn_mask->defined(); }
};

struct BackwardArgs : ForwardArgs {
  const at::Tensor& grad_out;                 // [B, Hq, Sq, Dv]
  const std::optional<at::Tensor>& grad_lse;  // [B, Hq, Sq]
  const at::Tensor& out;                      // these four as the forward returned them
  const at::Tensor& lse;
  const at::Tensor& row_stats;
  const at::Tensor& rng_state;
  std::array<bool, 4> output_mask;  // which of dq, dk, dv, dmask are needed

  bool has_grad_lse() const { return grad_lse.has_value() && grad_lse->defined(); }
  // A boolean mask has no gradient, whatever was asked.
  bool needs_dmask() const { return output_mask[3] && has_mask() && attn_mask->scalar_type() != at::kBool; }
};

using ForwardResult = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;   // out, lse, row_stats, rng_state
using BackwardResult = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;  // dq, dk, dv, dmask

// The C++ signatures that the dispatcher checks against the schemas in schema.cpp.
using ForwardSignature = ForwardResult(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                       const std::optional<at::Tensor>&, double, bool, std::optional<double>, bool);
using BackwardSignature = BackwardResult(const at::Tensor&, const std::optional<at::Tensor>&, const at::Tensor&,
                                         const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                         const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, double,
                                         bool, std::optional<double>, bool, std::array<bool, 4>);

template <ForwardResult (*kernel)(const ForwardArgs&)>
ForwardResult unpack_fwd(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                         const std::optional<at::Tensor>& attn_mask, double dropout_p, bool is_causal,
                         std::optional<double> scale, bool bottom_right) {
  return kernel({q, k, v, attn_mask, dropout_p, is_causal, scale, bottom_right});
}

template <BackwardResult (*kernel)(const BackwardArgs&)>
BackwardResult unpack_bwd(const at::Tensor& grad_out, const std::optional<at::Tensor>& grad_lse, const at::Tensor& q,
                          const at::Tensor& k, const at::Tensor& v, const at::Tensor& out, const at::Tensor& lse,
                          const at::Tensor& row_stats, const at::Tensor& rng_state,
                          const std::optional<at::Tensor>& attn_mask, double dropout_p, bool is_causal,
                          std::optional<double> scale, bool bottom_right, std::array<bool, 4> output_mask) {
  return kernel({{q, k, v, attn_mask, dropout_p, is_causal, scale, bottom_right},
                 grad_out,
                 grad_lse,
                 out,
                 lse,
                 row_stats,
                 rng_state,
                 output_mask});
}

// Calls through the dispatcher, with whatever keys the calling thread has excluded.
ForwardResult call_fwd(const ForwardArgs& args);
BackwardResult call_bwd(const BackwardArgs& args);

// False in a second copy of this library: it then registers nothing, where TORCH_LIBRARY would end the process.
bool is_first_copy();

template <ForwardResult (*kernel)(const ForwardArgs&)>
void register_fwd(torch::Library& library) {
  if (is_first_copy()) library.impl("fwd", TORCH_FN(unpack_fwd<kernel>));
}

template <BackwardResult (*kernel)(const BackwardArgs&)>
void register_bwd(torch::Library& library) {
  if (is_first_copy()) library.impl("bwd", TORCH_FN(unpack_bwd<kernel>));
}

}  // namespace flashtri::op
