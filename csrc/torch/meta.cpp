// Shapes without data, for torch.compile, torch.export and FakeTensor: what the devices check and allocate, and no
// more.
#include "checks.h"
#include "outputs.h"
#include "packed.h"

namespace flashtri::op {

namespace {

ForwardResult fwd_meta(const ForwardArgs& args) {
  check_forward(args);
  return empty_forward(args);
}

BackwardResult bwd_meta(const BackwardArgs& args) {
  check_backward(args);
  return empty_backward(args);
}

}  // namespace

TORCH_LIBRARY_IMPL(flashtri, Meta, library) {
  register_fwd<fwd_of_packed<fwd_meta>>(library);
  register_bwd<bwd_of_packed<bwd_meta>>(library);
}

}  // namespace flashtri::op
