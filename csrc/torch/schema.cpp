// The schemas of both ops; nowhere else are they written.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>

#include "ops.h"

namespace flashtri::op {

namespace {

constexpr const char* kForward =
    "fwd(Tensor q, Tensor k, Tensor v, Tensor? attn_mask=None, float dropout_p=0.0, bool is_causal=False, *, "
    "float? scale=None, bool bottom_right=False) "
    "-> (Tensor out, Tensor lse, Tensor row_stats, Tensor rng_state)";

constexpr const char* kBackward =
    "bwd(Tensor grad_out, Tensor? grad_lse, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, Tensor row_stats, "
    "Tensor rng_state, Tensor? attn_mask=None, float dropout_p=0.0, bool is_causal=False, *, float? scale=None, "
    "bool bottom_right=False, bool[4] output_mask=[True, True, True, True]) "
    "-> (Tensor dq, Tensor dk, Tensor dv, Tensor dmask)";

}  // namespace

bool is_first_copy() {
  // Asked before the first definition of this copy, by whichever file's static initialiser comes first.
  static const bool first = !c10::Dispatcher::singleton().findSchema({"flashtri::fwd", ""}).has_value();
  return first;
}

ForwardResult call_fwd(const ForwardArgs& args) {
  static const auto handle =
      c10::Dispatcher::singleton().findSchemaOrThrow("flashtri::fwd", "").typed<ForwardSignature>();
  return handle.call(args.q, args.k, args.v, args.attn_mask, args.dropout_p, args.is_causal, args.scale,
                     args.bottom_right);
}

BackwardResult call_bwd(const BackwardArgs& args) {
  static const auto handle =
      c10::Dispatcher::singleton().findSchemaOrThrow("flashtri::bwd", "").typed<BackwardSignature>();
  return handle.call(args.grad_out, args.grad_lse, args.q, args.k, args.v, args.out, args.lse, args.row_stats,
                     args.rng_state, args.attn_mask, args.dropout_p, args.is_causal, args.scale, args.bottom_right,
                     args.output_mask);
}

// A fragment, because a second TORCH_LIBRARY of one namespace ends the process before any guard could run.
TORCH_LIBRARY_FRAGMENT(flashtri, library) {
  if (!is_first_copy()) return;
  library.def(kForward, {at::Tag::pt2_compliant_tag});
  library.def(kBackward, {at::Tag::pt2_compliant_tag});
}

}  // namespace flashtri::op
