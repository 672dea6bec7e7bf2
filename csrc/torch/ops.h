// What the backends of the two ops share: the arguments as one struct, and how a backend registers itself.
#pragma once

#include <torch/library.h>

#include <array>
#include <tuple>

#include "options.h"

namespace flashtri::op {

// The inputs that may have a gradient, in the order in which the backward returns them.
enum Input { kQ, kK, kV, kMask, kSinks, kRelativeBias, kInputs };
using Needs = std::array<bool, kInputs>;

struct ForwardArgs : Options {
  const at::Tensor& q;  // [B, Hq, Sq, D]; packed [total, Hq, D], which the backends see as [1, Hq, total, D]
  const at::Tensor& k;  // [B, Hk, Sk, D]; with a block_table [num_blocks, Hk, page_size, D]
  const at::Tensor& v;  // the same, with Dv

  // Keys of a sequence, at most.
  c10::SymInt seqlen_k() const { return has_pages() ? block_table->sym_size(1) * k.sym_size(2) : k.sym_size(2); }

  // By `Input`; undefined where there is none.
  std::array<const at::Tensor*, kInputs> inputs() const {
    static const at::Tensor none;
    const auto tensor = [](const OptionalTensor& option) { return option.has_value() ? &*option : &none; };
    return {&q, &k, &v, tensor(attn_mask), tensor(sinks), tensor(relative_bias)};
  }
};

struct BackwardArgs : ForwardArgs {
  const at::Tensor& grad_out;      // [B, Hq, Sq, Dv]
  const OptionalTensor& grad_lse;  // [B, Hq, Sq]
  const at::Tensor& out;           // these four as the forward returned them
  const at::Tensor& lse;
  const at::Tensor& row_stats;
  const at::Tensor& rng_state;
  Needs output_mask;  // which gradients are needed

  bool has_grad_lse() const { return has(grad_lse); }
  // A boolean mask has no gradient, whatever was asked.
  bool needs_dmask() const { return output_mask[kMask] && has_mask() && attn_mask->scalar_type() != at::kBool; }
  bool needs_dsinks() const { return output_mask[kSinks] && has(sinks); }
  bool needs_drelative_bias() const { return output_mask[kRelativeBias] && has(relative_bias); }
};

// out, lse, row_stats, rng_state
using ForwardResult = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
// By `Input`.
using BackwardResult = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

using ForwardFunction = ForwardResult (*)(const ForwardArgs&);
using BackwardFunction = BackwardResult (*)(const BackwardArgs&);

// The C++ signatures that the dispatcher checks against the schemas in schema.cpp.
template <typename... Types>
struct SignaturesOf {
  template <typename T>
  using Passed = std::conditional_t<is_tensor_option<T>, const T&, T>;

  template <ForwardFunction function>
  static ForwardResult fwd(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, Passed<Types>... options) {
    return function({{std::move(options)...}, q, k, v});
  }

  template <BackwardFunction function>
  static BackwardResult bwd(const at::Tensor& grad_out, const OptionalTensor& grad_lse, const at::Tensor& q,
                            const at::Tensor& k, const at::Tensor& v, const at::Tensor& out, const at::Tensor& lse,
                            const at::Tensor& row_stats, const at::Tensor& rng_state, Passed<Types>... options,
                            Needs output_mask) {
    return function(
        {{{std::move(options)...}, q, k, v}, grad_out, grad_lse, out, lse, row_stats, rng_state, output_mask});
  }
};
using Signatures = WithOptionTypes<SignaturesOf>::type;

// Calls through the dispatcher, with whatever keys the calling thread has excluded.
ForwardResult call_fwd(const ForwardArgs& args);
BackwardResult call_bwd(const BackwardArgs& args);

// False in a second copy of this library: it then registers nothing, where TORCH_LIBRARY would end the process.
bool is_first_copy();

template <ForwardFunction function>
void register_fwd(torch::Library& library) {
  if (is_first_copy()) library.impl("fwd", TORCH_FN(Signatures::fwd<function>));
}

template <BackwardFunction function>
void register_bwd(torch::Library& library) {
  if (is_first_copy()) library.impl("bwd", TORCH_FN(Signatures::bwd<function>));
}

}  // namespace flashtri::op
