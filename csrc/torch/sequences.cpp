#include "sequences.h"

#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <vector>

#include "outputs.h"

namespace flashtri::op {

namespace {

// [1, Hk, keys, *] of one sequence, out of a batch or, with a table, out of pages.
at::Tensor keys_of(const at::Tensor& source, const OptionalTensor& table, int64_t sequence, int64_t keys) {
  if (!Options::has(table)) return source.narrow(0, sequence, 1).narrow(2, 0, keys);
  const int64_t page_size = source.size(2);
  const at::Tensor pages = table->select(0, sequence).narrow(0, 0, (keys + page_size - 1) / page_size);
  const at::Tensor gathered = source.index_select(0, pages).transpose(0, 1);  // [Hk, pages, page_size, *]
  return gathered.flatten(1, 2).narrow(1, 0, keys).unsqueeze(0);
}

// Where a sequence's rows and keys lie in packed tensors.
struct Extent {
  int64_t row, rows, key, keys;

  at::Tensor of_rows(const at::Tensor& tensor) const { return tensor.narrow(2, row, rows); }
  at::Tensor of_keys(const at::Tensor& tensor) const { return tensor.narrow(2, key, keys); }
};

std::vector<int64_t> bounds(const char* name, const at::Tensor& cu_seqlens, int64_t total) {
  const at::Tensor entries = cu_seqlens.to(at::kLong).contiguous();
  const auto* data = entries.const_data_ptr<int64_t>();
  std::vector<int64_t> found(data, data + entries.numel());
  TORCH_CHECK_VALUE(found.front() == 0 && found.back() == total && std::is_sorted(found.begin(), found.end()), name,
                    " must ascend from 0 to the ", total, " rows there are; got ", cu_seqlens, "; recompute it");
  return found;
}

std::vector<Extent> extents(const ForwardArgs& args) {
  const auto q = bounds("cu_seqlens_q", *args.cu_seqlens_q, args.q.size(2)),
             k = bounds("cu_seqlens_k", *args.cu_seqlens_k, args.k.size(2));
  std::vector<Extent> found;
  for (size_t i = 0; i + 1 < q.size(); ++i) found.push_back({q[i], q[i + 1] - q[i], k[i], k[i + 1] - k[i]});
  return found;
}

Options without_lengths(const ForwardArgs& args) {
  Options rest = args;
  for (OptionalTensor* option : {&rest.seqused_k, &rest.block_table, &rest.cu_seqlens_q, &rest.cu_seqlens_k}) {
    option->reset();
  }
  rest.max_seqlen_q.reset();
  rest.max_seqlen_k.reset();
  return rest;
}

}  // namespace

ForwardResult forward_by_sequence(const ForwardArgs& args, ForwardFunction dense) {
  ForwardResult result = empty_forward(args);
  const auto& [out, lse, row_stats, rng_state] = result;
  const Options rest = without_lengths(args);
  if (args.is_packed()) {
    for (const Extent& extent : extents(args)) {
      const at::Tensor q = extent.of_rows(args.q), k = extent.of_keys(args.k), v = extent.of_keys(args.v);
      const ForwardResult one = dense({rest, q, k, v});
      extent.of_rows(out).copy_(std::get<0>(one));
      extent.of_rows(lse).copy_(std::get<1>(one));
    }
    return result;
  }
  const int64_t seqlen_k = args.seqlen_k().guard_int(__FILE__, __LINE__);
  for (int64_t i = 0; i < args.q.size(0); ++i) {
    const int64_t used = Options::has(args.seqused_k) ? (*args.seqused_k)[i].item<int>() : seqlen_k;
    const int64_t keys = std::clamp<int64_t>(used, 0, seqlen_k);
    const at::Tensor q = args.q.narrow(0, i, 1), k = keys_of(args.k, args.block_table, i, keys),
                     v = keys_of(args.v, args.block_table, i, keys);
    const ForwardResult one = dense({rest, q, k, v});
    out.narrow(0, i, 1).copy_(std::get<0>(one));
    lse.narrow(0, i, 1).copy_(std::get<1>(one));
  }
  return result;
}

BackwardResult backward_by_sequence(const BackwardArgs& args, BackwardFunction dense) {
  BackwardResult result = empty_backward(args);
  auto& [dq, dk, dv, dmask, dsinks, drelative_bias] = result;
  Options rest = without_lengths(args);
  at::Tensor dsinks_sum;
  if (args.needs_dsinks()) {
    // In fp32, whatever their own dtype, as each sequence adds to their gradient.
    rest.sinks = args.sinks->to(at::kFloat);
    dsinks_sum = at::zeros_like(*rest.sinks);
  }
  for (const Extent& extent : extents(args)) {
    const at::Tensor q = extent.of_rows(args.q), k = extent.of_keys(args.k), v = extent.of_keys(args.v),
                     grad_out = extent.of_rows(args.grad_out), out = extent.of_rows(args.out),
                     lse = extent.of_rows(args.lse);
    const OptionalTensor grad_lse = args.has_grad_lse() ? OptionalTensor(extent.of_rows(*args.grad_lse)) : std::nullopt;
    const BackwardResult one =
        dense({{rest, q, k, v}, grad_out, grad_lse, out, lse, args.row_stats, args.rng_state, args.output_mask});
    if (args.output_mask[kQ]) extent.of_rows(dq).copy_(std::get<kQ>(one));
    if (args.output_mask[kK]) extent.of_keys(dk).copy_(std::get<kK>(one));
    if (args.output_mask[kV]) extent.of_keys(dv).copy_(std::get<kV>(one));
    if (args.needs_dsinks()) dsinks_sum.add_(std::get<kSinks>(one));
  }
  if (args.needs_dsinks()) dsinks.copy_(dsinks_sum);
  return result;
}

}  // namespace flashtri::op
