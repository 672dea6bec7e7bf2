#include "registry.h"

namespace flashtri {
namespace {

constexpr ArgInfo kArgs[] = {
#define FLASHTRI_ARG(name, type, divisor) {#name, ArgType::type, divisor},
#include "arguments.def"
#undef FLASHTRI_ARG
};

}  // namespace

const ArgInfo& arg_info(Arg arg) { return kArgs[static_cast<size_t>(arg)]; }

const char* function_name(Function function) {
  switch (function) {
    case Function::fwd:
      return "fwd";
    case Function::bwd_delta:
      return "bwd_delta";
    case Function::bwd_dkdv:
      return "bwd_dkdv";
    case Function::bwd_dq:
      return "bwd_dq";
    case Function::bwd_dmask:
      return "bwd_dmask";
    case Function::bwd_dbias:
      return "bwd_dbias";
    case Function::fwd_decode:
      return "fwd_decode";
    case Function::fwd_paged:
      return "fwd_paged";
    case Function::fwd_combine:
      return "fwd_combine";
    case Function::mask_keys:
      return "mask_keys";
    case Function::bwd_terms:
      return "bwd_terms";
    case Function::bwd_dq_cast:
      return "bwd_dq_cast";
    case Function::fwd_hopper:
      return "fwd_hopper";
    case Function::fwd_hopper_mask:
      return "fwd_hopper_mask";
    case Function::bwd_hopper:
      return "bwd_hopper";
  }
  return "unknown";
}

}  // namespace flashtri
