// The ops on CPU tensors, in fp32, block by block of query rows: the whole score matrix never exists.
//
// Formulas as in "FlashAttention-2" (Dao, 2023), algorithms 1 and 2, with the row's maximum and sum kept apart.
#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <limits>

#include "checks.h"
#include "lse_gradient.h"
#include "outputs.h"

namespace flashtri::op {

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr int64_t kBlockElements = 1 << 21;  // scores alive at a time: 8 MiB of fp32, about a last-level cache

// Nothing below may be recorded for autograd, nor cast to half precision where a backward runs under autocast.
struct PlainOps {
  at::AutoDispatchBelowADInplaceOrView no_autograd;
  c10::impl::ExcludeDispatchKeyGuard no_autocast{c10::autocast_dispatch_keyset};
};

// Query rows [first, first + rows), which see keys [0, keys).
struct Block {
  int64_t first, rows, keys;
};

// The problem seen block by block. Query heads that share a key head are folded into the rows of one matrix product, so
// block matrices are [B, Hk, G * rows, *] and, seen by head, [B, Hq, rows, *].
class Blocks {
 public:
  explicit Blocks(const ForwardArgs& args)
      : args_(args),
        batch_(args.q.size(0)),
        heads_q_(args.q.size(1)),
        heads_k_(args.k.size(1)),
        seqlen_q_(args.q.size(2)),
        seqlen_k_(args.k.size(2)),
        band_hi_(!args.is_causal     ? seqlen_k_
                 : args.bottom_right ? seqlen_k_ - seqlen_q_
                                     : 0),
        scale_(scale_of(args)),
        k_(args.k.to(at::kFloat)) {
    if (!args.has_mask()) return;
    mask_ = *args.attn_mask;
    while (mask_.dim() < 4) mask_ = mask_.unsqueeze(0);
  }

  template <typename Function>
  void for_each(const Function& function) const {
    const int64_t per_row = std::max<int64_t>(batch_ * heads_q_ * seqlen_k_, 1);
    const int64_t step = std::max<int64_t>(kBlockElements / per_row, 16);
    for (int64_t first = 0; first < seqlen_q_; first += step) {
      const int64_t rows = std::min(step, seqlen_q_ - first);
      const int64_t keys = std::clamp<int64_t>(first + rows + band_hi_, 0, seqlen_k_);
      function(Block{first, rows, keys});
    }
  }

  const at::Tensor& k() const { return k_; }
  double scale() const { return scale_; }

  // The rows of a [B, Hq, Sq, X] tensor, as fp32 [B, Hk, G * rows, X].
  at::Tensor fold(const at::Tensor& tensor, const Block& block) const {
    return tensor.narrow(2, block.first, block.rows)
        .to(at::kFloat)
        .reshape({batch_, heads_k_, heads_q_ / heads_k_ * block.rows, tensor.size(3)});
  }

  at::Tensor by_head(const at::Tensor& folded, const Block& block) const {
    return folded.view({batch_, heads_q_, block.rows, folded.size(3)});
  }

  // scale * q k^T + mask, -inf where not visible. q: folded rows. Returns [B, Hk, G * rows, keys].
  at::Tensor scores(const at::Tensor& q, const Block& block) const {
    at::Tensor folded = at::matmul(q, k_.narrow(2, 0, block.keys).transpose(2, 3)).mul_(scale_);
    at::Tensor scores = by_head(folded, block);
    if (mask_.defined()) {
      const at::Tensor mask = mask_part(mask_, block);
      mask_.scalar_type() == at::kBool ? scores.masked_fill_(mask.logical_not(), -kInf) : scores.add_(mask);
    }
    if (block.first + band_hi_ + 1 < block.keys) {  // the first row does not see all of the block's keys
      const at::Tensor last = at::arange(block.first, block.first + block.rows, at::kLong).add_(band_hi_);
      scores.masked_fill_(at::arange(block.keys, at::kLong).gt(last.unsqueeze(1)), -kInf);
    }
    return folded;
  }

  // The part of a mask, or of its gradient, that a block reads: all of a broadcast dimension.
  at::Tensor mask_part(const at::Tensor& mask, const Block& block) const {
    const at::Tensor rows = mask.size(2) == 1 ? mask : mask.narrow(2, block.first, block.rows);
    return mask.size(3) == 1 ? rows : rows.narrow(3, 0, block.keys);
  }

  const at::Tensor& mask() const { return mask_; }

 private:
  const ForwardArgs& args_;
  int64_t batch_, heads_q_, heads_k_, seqlen_q_, seqlen_k_;
  int64_t band_hi_;  // row i sees key j only where j <= i + band_hi
  double scale_;
  at::Tensor k_;     // fp32
  at::Tensor mask_;  // [B or 1, Hq or 1, Sq or 1, Sk or 1], or undefined
};

ForwardResult fwd_cpu(const ForwardArgs& args) {
  check_forward(args);
  const PlainOps guard;
  ForwardResult result = empty_forward(args);
  auto& [out, lse, row_stats, rng_state] = result;
  fill_without_keys(result);
  if (has_no_scores(args)) return result;

  const Blocks blocks(args);
  const at::Tensor v = args.v.to(at::kFloat);
  blocks.for_each([&](const Block& block) {
    if (block.keys == 0) return;
    at::Tensor p = blocks.scores(blocks.fold(args.q, block), block);  // [B, Hk, G * rows, keys]
    const at::Tensor max = p.amax(-1, /*keepdim=*/true);
    // A row without a finite key keeps its maximum of -inf for users, and takes 0 in the arithmetic: p = exp(-inf) = 0.
    p.sub_(max.masked_fill(max.eq(-kInf), 0.0)).exp_();
    const at::Tensor sum = p.sum(-1, /*keepdim=*/true);
    const at::Tensor rows = at::matmul(p, v.narrow(2, 0, block.keys)).div_(sum.masked_fill(sum.eq(0.0), 1.0));
    out.narrow(2, block.first, block.rows).copy_(blocks.by_head(rows, block));
    lse.narrow(2, block.first, block.rows).copy_(blocks.by_head(max.add(sum.log()), block).squeeze(3));
    if (args.has_mask()) {
      row_stats.select(0, 0).narrow(2, block.first, block.rows).copy_(blocks.by_head(max, block).squeeze(3));
      row_stats.select(0, 1).narrow(2, block.first, block.rows).copy_(blocks.by_head(sum, block).squeeze(3));
    }
  });
  return result;
}

// softmax(scores), recomputed in place. With a mask from the row's maximum and sum, because one LSE number cannot carry
// a row of finfo.min: it absorbs log(n), and P would sum to n.
at::Tensor probabilities(at::Tensor scores, const BackwardArgs& args, const Blocks& blocks, const Block& block) {
  const at::Tensor lse = blocks.fold(args.lse.unsqueeze(3), block);
  const at::Tensor dead = lse.eq(-kInf);  // rows without a visible finite key
  if (!args.has_mask()) return scores.sub_(lse.masked_fill(dead, kInf)).exp_();
  const at::Tensor max = blocks.fold(args.row_stats.select(0, 0).unsqueeze(3), block);
  const at::Tensor sum = blocks.fold(args.row_stats.select(0, 1).unsqueeze(3), block);
  return scores.sub_(max.masked_fill(dead, kInf)).exp_().div_(sum.masked_fill(dead, 1.0));
}

BackwardResult bwd_cpu(const BackwardArgs& args) {
  check_backward(args);
  const PlainOps guard;
  BackwardResult result = empty_backward(args);
  auto& [dq, dk, dv, dmask, dsinks, drelative_bias] = result;
  const bool needs_dq = args.output_mask[kQ], needs_dk = args.output_mask[kK], needs_dv = args.output_mask[kV];
  const bool is_constant = args.needs_dmask() && is_constant_along_keys(*args.attn_mask);
  const bool needs_dmask = args.needs_dmask() && !is_constant;
  for (at::Tensor* gradient : {&dq, &dk, &dv, &dmask, &dsinks, &drelative_bias}) gradient->zero_();
  if (has_no_scores(args)) return result;
  if (is_constant) fill_dmask_constant_along_keys(args, dmask);

  const Blocks blocks(args);
  const at::Tensor v = args.v.to(at::kFloat);
  at::Tensor dlse;  // [B, Hq, Sq, 1]
  if (args.has_grad_lse()) dlse = grad_lse_of_seen_rows(args).unsqueeze(3);
  at::Tensor dk_sum, dv_sum, dmask_sum;  // over all blocks, in fp32
  if (needs_dk) dk_sum = at::zeros_like(blocks.k());
  if (needs_dv) dv_sum = at::zeros_like(v);
  if (needs_dmask) dmask_sum = at::zeros(blocks.mask().sizes(), at::kFloat);

  blocks.for_each([&](const Block& block) {
    if (block.keys == 0) return;
    const at::Tensor q = blocks.fold(args.q, block), dout = blocks.fold(args.grad_out, block);
    const at::Tensor p = probabilities(blocks.scores(q, block), args, blocks, block);
    if (needs_dv) dv_sum.narrow(2, 0, block.keys).add_(at::matmul(p.transpose(2, 3), dout));
    if (!needs_dq && !needs_dk && !needs_dmask) return;

    at::Tensor delta = dout.mul(blocks.fold(args.out, block)).sum(-1, /*keepdim=*/true);
    if (dlse.defined()) delta.sub_(blocks.fold(dlse, block));
    const at::Tensor dp = at::matmul(dout, v.narrow(2, 0, block.keys).transpose(2, 3));
    const at::Tensor ds = dp.sub_(delta).mul_(p);
    if (needs_dmask) {
      at::Tensor part = blocks.mask_part(dmask_sum, block);
      part.add_(blocks.by_head(ds, block).sum_to_size(part.sizes()));
    }
    if (needs_dq) {
      const at::Tensor rows = at::matmul(ds, blocks.k().narrow(2, 0, block.keys)).mul_(blocks.scale());
      dq.narrow(2, block.first, block.rows).copy_(blocks.by_head(rows, block));
    }
    if (needs_dk) dk_sum.narrow(2, 0, block.keys).add_(at::matmul(ds.transpose(2, 3), q), blocks.scale());
  });

  if (needs_dk) dk.copy_(dk_sum);
  if (needs_dv) dv.copy_(dv_sum);
  if (needs_dmask) dmask.copy_(dmask_sum.view(dmask.sizes()));
  return result;
}

}  // namespace

TORCH_LIBRARY_IMPL(flashtri, CPU, library) {
  register_fwd<fwd_cpu>(library);
  register_bwd<bwd_cpu>(library);
}

}  // namespace flashtri::op
