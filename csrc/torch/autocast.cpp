// Autocast: q, k and v are cast to the autocast dtype; the others keep theirs, since the ops take them to fp32 anyway.
#include <ATen/autocast_mode.h>

#include "ops.h"

namespace flashtri::op {

namespace {

template <c10::DeviceType device>
ForwardResult fwd_autocast(const ForwardArgs& args) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const auto dtype = at::autocast::get_autocast_dtype(device);
  const auto cast = [&](const at::Tensor& tensor) { return at::autocast::cached_cast(dtype, tensor, device); };
  const at::Tensor q = cast(args.q), k = cast(args.k), v = cast(args.v);
  return call_fwd({args, q, k, v});
}

}  // namespace

// bwd needs none: its inputs have the dtypes that the forward saved.
TORCH_LIBRARY_IMPL(flashtri, AutocastCPU, library) { register_fwd<fwd_autocast<c10::DeviceType::CPU>>(library); }

TORCH_LIBRARY_IMPL(flashtri, AutocastCUDA, library) { register_fwd<fwd_autocast<c10::DeviceType::CUDA>>(library); }

}  // namespace flashtri::op
