// The ops on CPU tensors, in fp32, block by block of query rows.
//
// Formulas as in "FlashAttention-2" (Dao, 2023), algorithms 1 and 2, with the row's maximum and sum kept apart.
#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <limits>

#include "checks.h"
#include "cpu_blocks.h"
#include "lse_gradient.h"
#include "outputs.h"
#include "packed.h"
#include "sequences.h"

namespace flashtri::op {

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// Nothing below may be recorded for autograd, nor cast to half precision where a backward runs under autocast.
struct PlainOps {
  at::AutoDispatchBelowADInplaceOrView no_autograd;
  c10::impl::ExcludeDispatchKeyGuard no_autocast{c10::autocast_dispatch_keyset};
};

ForwardResult fwd_cpu(const ForwardArgs& args) {
  check_forward(args);
  const PlainOps guard;
  if (args.has_lengths()) return forward_by_sequence(args, fwd_cpu);
  ForwardResult result = empty_forward(args);
  auto& [out, lse, row_stats, rng_state] = result;
  draw_rng_state(args, rng_state);
  fill_without_keys(args, result);
  if (has_no_scores(args)) return result;

  const Blocks blocks(args, rng_state);
  const at::Tensor v = args.v.to(at::kFloat);
  at::Tensor sinks;  // [1, Hq, 1, 1]
  if (args.has(args.sinks)) sinks = args.sinks->to(at::kFloat).view({1, -1, 1, 1});
  blocks.for_each([&](const Block& block) {
    at::Tensor p = blocks.scores(blocks.fold(args.q, block), block);  // [B, Hk, G * rows, keys]
    at::Tensor max = p.amax(-1, /*keepdim=*/true);
    if (sinks.defined()) max = at::maximum(blocks.by_head(max, block), sinks).view(max.sizes());
    // A row without a finite key keeps its maximum of -inf for users, and takes 0 in the arithmetic: p = exp(-inf) = 0.
    const at::Tensor shift = max.masked_fill(max.eq(-kInf), 0.0);
    p.sub_(shift).exp_();
    at::Tensor sum = p.sum(-1, /*keepdim=*/true);
    if (sinks.defined()) blocks.by_head(sum, block).add_(sinks.sub(blocks.by_head(shift, block)).exp_());
    if (args.dropout_p > 0.0) p.mul_(blocks.dropout_factor(block));
    const at::Tensor rows = at::matmul(p, v.narrow(2, block.key, block.keys)).div_(sum.masked_fill(sum.eq(0.0), 1.0));
    out.narrow(2, block.row, block.rows).copy_(blocks.by_head(rows, block));
    lse.narrow(2, block.row, block.rows).copy_(blocks.by_head(max.add(sum.log()), block).squeeze(3));
    if (args.uses_row_stats()) {
      row_stats.select(0, 0).narrow(2, block.row, block.rows).copy_(blocks.by_head(max, block).squeeze(3));
      row_stats.select(0, 1).narrow(2, block.row, block.rows).copy_(blocks.by_head(sum, block).squeeze(3));
    }
  });
  return result;
}

// softmax(scores), recomputed in place. With a mask or a bias from the row's maximum and sum, because one LSE number
// cannot carry a row of finfo.min: it absorbs log(n), and P would sum to n.
at::Tensor probabilities(at::Tensor scores, const BackwardArgs& args, const Blocks& blocks, const Block& block) {
  const at::Tensor lse = blocks.fold(args.lse.unsqueeze(3), block);
  const at::Tensor dead = lse.eq(-kInf);  // rows without a visible finite key
  if (!args.uses_row_stats()) return scores.sub_(lse.masked_fill(dead, kInf)).exp_();
  const at::Tensor max = blocks.fold(args.row_stats.select(0, 0).unsqueeze(3), block);
  const at::Tensor sum = blocks.fold(args.row_stats.select(0, 1).unsqueeze(3), block);
  return scores.sub_(max.masked_fill(dead, kInf)).exp_().div_(sum.masked_fill(dead, 1.0));
}

BackwardResult bwd_cpu(const BackwardArgs& args) {
  check_backward(args);
  const PlainOps guard;
  if (args.has_lengths()) return backward_by_sequence(args, bwd_cpu);
  BackwardResult result = empty_backward(args);
  auto& [dq, dk, dv, dmask, dsinks, drelative_bias] = result;
  for (at::Tensor* gradient : {&dq, &dk, &dv, &dmask, &dsinks, &drelative_bias}) gradient->zero_();
  at::Tensor dlse;  // [B, Hq, Sq, 1]
  if (args.has_grad_lse()) dlse = grad_lse_of_seen_rows(args).unsqueeze(3);
  at::Tensor delta = args.grad_out.to(at::kFloat).mul(args.out).sum(-1, /*keepdim=*/true);
  if (dlse.defined()) delta.sub_(dlse);
  if (args.needs_dsinks()) dsinks.copy_(sinks_gradient(args, delta.squeeze(3)));
  if (has_no_scores(args)) return result;

  const bool needs_dq = args.output_mask[kQ], needs_dk = args.output_mask[kK], needs_dv = args.output_mask[kV];
  const bool is_constant = args.needs_dmask() && dmask_needs_no_scores(args);
  const bool needs_dmask = args.needs_dmask() && !is_constant, needs_drelative_bias = args.needs_drelative_bias();
  if (is_constant) fill_dmask_without_scores(args, dmask);

  const Blocks blocks(args, args.rng_state);
  const at::Tensor v = args.v.to(at::kFloat);
  at::Tensor dk_sum, dv_sum, dmask_sum, drelative_bias_sum;  // over all blocks, in fp32
  if (needs_dk) dk_sum = at::zeros_like(blocks.k());
  if (needs_dv) dv_sum = at::zeros_like(v);
  if (needs_dmask) dmask_sum = at::zeros(blocks.mask().sizes(), at::kFloat);
  if (needs_drelative_bias) drelative_bias_sum = at::zeros(args.relative_bias->sizes(), at::kFloat);

  blocks.for_each([&](const Block& block) {
    const at::Tensor q = blocks.fold(args.q, block), dout = blocks.fold(args.grad_out, block);
    const at::Tensor p = probabilities(blocks.scores(q, block), args, blocks, block);
    const at::Tensor factor = blocks.dropout_factor(block);
    if (needs_dv) {
      const at::Tensor dropped = factor.defined() ? p.mul(factor) : p;
      dv_sum.narrow(2, block.key, block.keys).add_(at::matmul(dropped.transpose(2, 3), dout));
    }
    if (!needs_dq && !needs_dk && !needs_dmask && !needs_drelative_bias) return;

    const at::Tensor dp = at::matmul(dout, v.narrow(2, block.key, block.keys).transpose(2, 3));
    if (factor.defined()) dp.mul_(factor);
    const at::Tensor ds = dp.sub_(blocks.fold(delta, block)).mul_(p);
    if (needs_dmask) {
      at::Tensor part = blocks.mask_part(dmask_sum, block);
      part.add_(blocks.by_head(ds, block).sum_to_size(part.sizes()));
    }
    if (needs_drelative_bias) blocks.add_to_drelative_bias(drelative_bias_sum, ds, block);
    if (!needs_dq && !needs_dk) return;

    blocks.through_softcap(ds, q, block);
    if (needs_dq) {
      const at::Tensor rows = at::matmul(ds, blocks.k().narrow(2, block.key, block.keys)).mul_(blocks.scale());
      dq.narrow(2, block.row, block.rows).copy_(blocks.by_head(rows, block));
    }
    if (needs_dk) {
      dk_sum.narrow(2, block.key, block.keys).add_(at::matmul(ds.transpose(2, 3), q), blocks.scale());
    }
  });

  if (needs_dk) dk.copy_(dk_sum);
  if (needs_dv) dv.copy_(dv_sum);
  if (needs_dmask) dmask.copy_(dmask_sum.view(dmask.sizes()));
  if (needs_drelative_bias) drelative_bias.copy_(drelative_bias_sum);
  return result;
}

}  // namespace

TORCH_LIBRARY_IMPL(flashtri, CPU, library) {
  register_fwd<fwd_of_packed<fwd_cpu>>(library);
  register_bwd<bwd_of_packed<bwd_cpu>>(library);
}

}  // namespace flashtri::op
