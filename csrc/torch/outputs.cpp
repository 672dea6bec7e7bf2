#include "outputs.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/SymInt.h>

#include <limits>

namespace flashtri::op {

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// [B, H, S, last_dim], dense. The memory order is [B, S, H, last_dim] where the source's heads lie closer together than
// its rows, so that a model which keeps [B, S, H, D] and transposes gets the same back, and reshapes it without a copy.
at::Tensor empty_in_layout_of(const at::Tensor& source, const c10::SymInt& last_dim) {
  const auto size = source.sym_sizes();
  const auto stride = source.sym_strides();
  const std::array<c10::SymInt, 4> sizes{size[0], size[1], size[2], last_dim};
  const c10::SymInt heads = size[1].max(1), rows = size[2].max(1);  // as torch's own strides of empty tensors
  const bool heads_first = TORCH_GUARD_OR_FALSE(stride[1].sym_lt(stride[2]));
  const std::array<c10::SymInt, 4> strides{heads * rows * last_dim, heads_first ? last_dim : rows * last_dim,
                                           heads_first ? heads * last_dim : last_dim, 1};
  return at::empty_strided_symint(sizes, strides, source.options());
}

at::Tensor empty_vector(const at::TensorOptions& options) { return at::empty({0}, options); }

}  // namespace

ForwardResult empty_forward(const ForwardArgs& args) {
  const auto size = args.q.sym_sizes();
  const auto fp32 = args.q.options().dtype(at::kFloat);
  return {empty_in_layout_of(args.q, args.v.sym_size(3)), at::empty_symint({size[0], size[1], size[2]}, fp32),
          args.has_mask() ? at::empty_symint({2, size[0], size[1], size[2]}, fp32) : empty_vector(fp32),
          empty_vector(args.q.options().dtype(at::kLong))};
}

BackwardResult empty_backward(const BackwardArgs& args) {
  const auto gradient = [](const at::Tensor& source, bool needed) {
    return needed ? empty_in_layout_of(source, source.sym_size(3)) : empty_vector(source.options());
  };
  return {gradient(args.q, args.output_mask[0]), gradient(args.k, args.output_mask[1]),
          gradient(args.v, args.output_mask[2]),
          args.needs_dmask() ? at::empty_symint(args.attn_mask->sym_sizes(), args.attn_mask->options())
                             : empty_vector((args.has_mask() ? *args.attn_mask : args.q).options())};
}

bool has_no_scores(const ForwardArgs& args) { return args.q.numel() == 0 || args.k.size(2) == 0; }

void fill_without_keys(const ForwardResult& result) {
  const auto& [out, lse, row_stats, rng_state] = result;
  out.zero_();
  lse.fill_(-kInf);
  if (row_stats.numel() == 0) return;
  row_stats.select(0, 0).fill_(-kInf);
  row_stats.select(0, 1).zero_();
}

}  // namespace flashtri::op
