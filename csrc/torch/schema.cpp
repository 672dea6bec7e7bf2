// The schemas of both ops, made from options.def; nowhere else are they written.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>

#include "ops.h"

namespace flashtri::op {

namespace {

// The schema's names of the types in options.def.
#define FLASHTRI_SCHEMA_OptionalTensor "Tensor?"
#define FLASHTRI_SCHEMA_OptionalDouble "float?"
#define FLASHTRI_SCHEMA_OptionalSymInt "SymInt?"
#define FLASHTRI_SCHEMA_double "float"
#define FLASHTRI_SCHEMA_bool "bool"

const std::string kOptions =
#define FLASHTRI_KEYWORDS ", *"
#define FLASHTRI_OPTION(type, name, initial) ", " FLASHTRI_SCHEMA_##type " " #name "=" #initial
#include "options.def"
    ;

const std::string kForward =
    "fwd(Tensor q, Tensor k, Tensor v" + kOptions + ") -> (Tensor out, Tensor lse, Tensor row_stats, Tensor rng_state)";

const std::string kBackward =
    "bwd(Tensor grad_out, Tensor? grad_lse, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, Tensor row_stats, "
    "Tensor rng_state" +
    kOptions +
    ", bool[6] output_mask=[True, True, True, True, True, True]) "
    "-> (Tensor dq, Tensor dk, Tensor dv, Tensor dmask, Tensor dsinks, Tensor drelative_bias)";

// Any function will do to name the signatures of all.
using ForwardSignature = decltype(Signatures::fwd<call_fwd>);
using BackwardSignature = decltype(Signatures::bwd<call_bwd>);

}  // namespace

bool is_first_copy() {
  // Asked before the first definition of this copy, by whichever file's static initialiser comes first.
  static const bool first = !c10::Dispatcher::singleton().findSchema({"flashtri::fwd", ""}).has_value();
  return first;
}

ForwardResult call_fwd(const ForwardArgs& args) {
  static const auto handle =
      c10::Dispatcher::singleton().findSchemaOrThrow("flashtri::fwd", "").typed<ForwardSignature>();
  return apply_options(args, [&](const auto&... option) { return handle.call(args.q, args.k, args.v, option...); });
}

BackwardResult call_bwd(const BackwardArgs& args) {
  static const auto handle =
      c10::Dispatcher::singleton().findSchemaOrThrow("flashtri::bwd", "").typed<BackwardSignature>();
  return apply_options(args, [&](const auto&... option) {
    return handle.call(args.grad_out, args.grad_lse, args.q, args.k, args.v, args.out, args.lse, args.row_stats,
                       args.rng_state, option..., args.output_mask);
  });
}

// A fragment, because a second TORCH_LIBRARY of one namespace ends the process before any guard could run.
TORCH_LIBRARY_FRAGMENT(flashtri, library) {
  if (!is_first_copy()) return;
  // Seeded: with dropout a compiler must not run it a second time to save memory.
  library.def(kForward.c_str(), {at::Tag::pt2_compliant_tag, at::Tag::nondeterministic_seeded});
  library.def(kBackward.c_str(), {at::Tag::pt2_compliant_tag});
}

}  // namespace flashtri::op
