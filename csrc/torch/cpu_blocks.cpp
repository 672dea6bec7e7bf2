#include "cpu_blocks.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>

#include <limits>

#include "checks.h"
#include "core/problem.h"
#include "philox.h"

namespace flashtri::op {

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

}  // namespace

Blocks::Blocks(const ForwardArgs& args, const at::Tensor& rng_state)
    : args_(args),
      rng_state_(rng_state),
      batch_(args.q.size(0)),
      heads_q_(args.q.size(1)),
      heads_k_(args.k.size(1)),
      seqlen_q_(args.q.size(2)),
      seqlen_k_(args.k.size(2)),
      band_(band_of(seqlen_q_, seqlen_k_, args.is_causal, args.bottom_right, window_of(args.window_left),
                    window_of(args.window_right))),
      scale_(scale_of(args)),
      k_(args.k.to(at::kFloat)) {
  if (args.has_mask()) mask_ = *args.attn_mask;
  while (mask_.defined() && mask_.dim() < 4) mask_ = mask_.unsqueeze(0);
  if (args.has(args.relative_bias)) relative_bias_ = args.relative_bias->to(at::kFloat);
}

at::Tensor Blocks::fold(const at::Tensor& tensor, const Block& block) const {
  return tensor.narrow(2, block.row, block.rows)
      .to(at::kFloat)
      .reshape({batch_, heads_k_, heads_q_ / heads_k_ * block.rows, tensor.size(3)});
}

at::Tensor Blocks::by_head(const at::Tensor& folded, const Block& block) const {
  return folded.view({batch_, heads_q_, block.rows, folded.size(3)});
}

at::Tensor Blocks::scores(const at::Tensor& q, const Block& block) const {
  at::Tensor folded = args_.softcap > 0.0
                          ? capped(q, block).mul_(args_.softcap)
                          : at::matmul(q, k_.narrow(2, block.key, block.keys).transpose(2, 3)).mul_(scale_);
  at::Tensor scores = by_head(folded, block);
  if (mask_.defined()) {
    const at::Tensor mask = mask_part(mask_, block);
    mask_.scalar_type() == at::kBool ? scores.masked_fill_(mask.logical_not(), -kInf) : scores.add_(mask);
  }
  if (relative_bias_.defined()) {
    // Row i reads keys' biases from index key - i + Sq - 1 on, so that the last row of the block begins first.
    const int64_t first = block.key - (block.row + block.rows - 1) + seqlen_q_ - 1;
    const at::Tensor seen = relative_bias_.narrow(1, first, block.rows + block.keys - 1);
    scores.add_(seen.unfold(1, block.keys, 1).flip(1));
  }
  const at::Tensor rows = at::arange(block.row, block.row + block.rows, at::kLong).unsqueeze(1);
  const at::Tensor keys = at::arange(block.key, block.key + block.keys, at::kLong);
  if (block.row + band_.hi + 1 < block.key + block.keys) {  // the first row does not see all of the block's keys
    scores.masked_fill_(keys.gt(rows.add(band_.hi)), -kInf);
  }
  if (block.row + block.rows - 1 + band_.lo > block.key) {  // nor does the last one
    scores.masked_fill_(keys.lt(rows.add(band_.lo)), -kInf);
  }
  return folded;
}

at::Tensor Blocks::capped(const at::Tensor& q, const Block& block) const {
  return at::matmul(q, k_.narrow(2, block.key, block.keys).transpose(2, 3)).mul_(scale_ / args_.softcap).tanh_();
}

void Blocks::through_softcap(const at::Tensor& ds, const at::Tensor& q, const Block& block) const {
  if (args_.softcap > 0.0) ds.mul_(capped(q, block).square_().neg_().add_(1.0));
}

at::Tensor Blocks::dropout_factor(const Block& block) const {
  if (args_.dropout_p == 0.0) return {};
  const at::Tensor kept = at::empty({batch_, heads_q_, block.rows, block.keys}, at::kBool);
  const int32_t threshold = dropout_threshold(args_.dropout_p);
  const int64_t* rng_state = rng_state_.const_data_ptr<int64_t>();
  bool* next = kept.mutable_data_ptr<bool>();
  for (int64_t head = 0; head < batch_ * heads_q_; ++head) {
    for (int64_t row = 0; row < block.rows; ++row, next += block.keys) {
      fill_kept(rng_state, threshold, head, block.row + row, block.key, block.keys, next);
    }
  }
  return kept.to(at::kFloat)
      .div_(1.0 - args_.dropout_p)
      .view({batch_, heads_k_, heads_q_ / heads_k_ * block.rows, block.keys});
}

at::Tensor Blocks::mask_part(const at::Tensor& mask, const Block& block) const {
  const at::Tensor rows = mask.size(2) == 1 ? mask : mask.narrow(2, block.row, block.rows);
  return mask.size(3) == 1 ? rows : rows.narrow(3, block.key, block.keys);
}

void Blocks::add_to_drelative_bias(const at::Tensor& drelative_bias, const at::Tensor& ds, const Block& block) const {
  const at::Tensor rows = at::arange(block.row, block.row + block.rows, at::kLong).unsqueeze(1);
  const at::Tensor keys = at::arange(block.key, block.key + block.keys, at::kLong);
  const at::Tensor index = keys.sub(rows).add_(seqlen_q_ - 1).flatten();
  const at::Tensor by_bias =
      by_head(ds, block).sum(0, /*keepdim=*/true).sum_to_size({1, drelative_bias.size(0), block.rows, block.keys});
  drelative_bias.index_add_(1, index, by_bias.view({drelative_bias.size(0), -1}));
}

}  // namespace flashtri::op
