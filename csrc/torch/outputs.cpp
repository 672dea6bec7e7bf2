#include "outputs.h"

#include <ATen/EmptyTensor.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/SymInt.h>

#include <limits>

namespace flashtri::op {

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

struct CudaMemory {
  c10::Allocator* allocator = at::detail::getCUDAHooks().getCUDADeviceAllocator();
  c10::DispatchKeySet keys{c10::DispatchKey::CUDA};
};

at::Tensor empty_contiguous(c10::SymIntArrayRef sizes, const at::TensorOptions& options, Memory memory) {
  if (memory == Memory::dispatcher) return at::empty_symint(sizes, options);
  const CudaMemory cuda;
  return at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(sizes), cuda.allocator, cuda.keys,
                                   c10::typeMetaToScalarType(options.dtype()), std::nullopt);
}

at::Tensor empty_vector(const at::TensorOptions& options, Memory memory) {
  return empty_contiguous({c10::SymInt(0)}, options, memory);
}

// [B, H, S, last_dim], dense. The memory order is [B, S, H, last_dim] where the source's heads lie closer together than
// its rows, so that a model which keeps [B, S, H, D] and transposes gets the same back, and reshapes it without a copy.
at::Tensor empty_in_layout_of(const at::Tensor& source, const c10::SymInt& last_dim, Memory memory) {
  const auto size = source.sym_sizes();
  const auto stride = source.sym_strides();
  const std::array<c10::SymInt, 4> sizes{size[0], size[1], size[2], last_dim};
  const c10::SymInt heads = size[1].max(1), rows = size[2].max(1);  // as torch's own strides of empty tensors
  const bool heads_first = TORCH_GUARD_OR_FALSE(stride[1].sym_lt(stride[2]));
  const std::array<c10::SymInt, 4> strides{heads * rows * last_dim, heads_first ? last_dim : rows * last_dim,
                                           heads_first ? heads * last_dim : last_dim, 1};
  if (memory == Memory::dispatcher) return at::empty_strided_symint(sizes, strides, source.options());
  const CudaMemory cuda;
  return at::detail::empty_strided_generic(C10_AS_INTARRAYREF_SLOW(sizes), C10_AS_INTARRAYREF_SLOW(strides),
                                           cuda.allocator, cuda.keys, source.scalar_type());
}

}  // namespace

ForwardResult empty_forward(const ForwardArgs& args, Memory memory) {
  const auto size = args.q.sym_sizes();
  const auto fp32 = args.q.options().dtype(at::kFloat);
  return {empty_in_layout_of(args.q, args.v.sym_size(3), memory),
          empty_contiguous({size[0], size[1], size[2]}, fp32, memory),
          args.uses_row_stats() ? empty_contiguous({2, size[0], size[1], size[2]}, fp32, memory)
                                : empty_vector(fp32, memory),
          empty_contiguous({args.dropout_p > 0.0 ? 2 : 0}, args.q.options().dtype(at::kLong), memory)};
}

BackwardResult empty_backward(const BackwardArgs& args, Memory memory) {
  const auto gradient = [&](const at::Tensor& source, bool needed) {
    return needed ? empty_in_layout_of(source, source.sym_size(3), memory) : empty_vector(source.options(), memory);
  };
  // Contiguous, of the option's own shape and dtype.
  const auto gradient_of_option = [&](const OptionalTensor& option, bool needed) {
    if (needed) return empty_contiguous(option->sym_sizes(), option->options(), memory);
    return empty_vector((Options::has(option) ? *option : args.q).options(), memory);
  };
  return {gradient(args.q, args.output_mask[kQ]),
          gradient(args.k, args.output_mask[kK]),
          gradient(args.v, args.output_mask[kV]),
          gradient_of_option(args.attn_mask, args.needs_dmask()),
          gradient_of_option(args.sinks, args.needs_dsinks()),
          gradient_of_option(args.relative_bias, args.needs_drelative_bias())};
}

bool has_no_scores(const ForwardArgs& args) {
  const auto is_empty = [](const OptionalSymInt& longest) {
    return longest.has_value() && longest->guard_int(__FILE__, __LINE__) == 0;
  };
  if (args.is_packed() &&
      (args.cu_seqlens_q->size(0) == 1 || is_empty(args.max_seqlen_q) || is_empty(args.max_seqlen_k))) {
    return true;
  }
  return args.q.numel() == 0 || args.k.numel() == 0 || args.seqlen_k().guard_int(__FILE__, __LINE__) == 0;
}

void draw_rng_state(const ForwardArgs& args, const at::Tensor& rng_state) {
  if (args.dropout_p > 0.0) rng_state.random_();
}

void fill_without_keys(const ForwardArgs& args, const ForwardResult& result) {
  const auto& [out, lse, row_stats, rng_state] = result;
  out.zero_();
  if (Options::has(args.sinks)) {
    lse.copy_(args.sinks->unsqueeze(1));
  } else {
    lse.fill_(-kInf);
  }
  if (row_stats.numel() == 0) return;
  row_stats.select(0, 0).copy_(lse);
  row_stats.select(0, 1).copy_(lse.ne(-kInf));
}

}  // namespace flashtri::op
