#include "checks.h"

#include <c10/core/SymInt.h>

#include <cmath>

#include "core/band.h"
#include "core/problem.h"

// The condition may hold symbols: torch.compile then records it as a guard, torch.export as an assertion.
#define CHECK_SIZES(condition, ...) TORCH_CHECK_VALUE((condition).expect_true(__FILE__, __LINE__), __VA_ARGS__)

namespace flashtri::op {

namespace {

void check_device(const char* name, const at::Tensor& tensor, const at::Tensor& q) {
  TORCH_CHECK(tensor.device() == q.device(), "Expected all tensors to be on the same device: q is on ", q.device(),
              ", ", name, " on ", tensor.device(), "; move one of them with .to(device)");
}

void check_tensor(const char* name, const at::Tensor& tensor, const at::Tensor& q) {
  TORCH_CHECK_VALUE(tensor.dim() == 4, name, " must have 4 dimensions [batch, heads, sequence, head_dim]; got ",
                    tensor.dim(), " (sizes ", tensor.sym_sizes(), "); add the missing ones with unsqueeze");
  const auto dtype = tensor.scalar_type();
  TORCH_CHECK_NOT_IMPLEMENTED(dtype == at::kHalf || dtype == at::kBFloat16, name, " must be float16 or bfloat16; got ",
                              dtype, "; cast it with .to(torch.bfloat16)");
  TORCH_CHECK_VALUE(dtype == q.scalar_type(), name, " must have the dtype of q, ", q.scalar_type(), "; got ", dtype,
                    "; cast one of them");
  check_device(name, tensor, q);
}

void check_head_dim(const char* name, const c10::SymInt& head_dim) {
  TORCH_CHECK_NOT_IMPLEMENTED(head_dim.sym_ge(kHeadDimStep)
                                  .sym_and(head_dim.sym_le(kMaxHeadDim))
                                  .sym_and((head_dim % kHeadDimStep).sym_eq(0))
                                  .expect_true(__FILE__, __LINE__),
                              "the last dimension of ", name, " must be a multiple of ", kHeadDimStep, " from ",
                              kHeadDimStep, " to ", kMaxHeadDim, "; got ", head_dim,
                              "; pad it with zeros (torch.nn.functional.pad) and pass `scale` explicitly");
}

void check_sizes(const ForwardArgs& args) {
  const auto q = args.q.sym_sizes(), k = args.k.sym_sizes(), v = args.v.sym_sizes();
  check_head_dim("q", q[3]);
  check_head_dim("v", v[3]);
  CHECK_SIZES(q[3].sym_eq(k[3]), "q and k must have the same head_dim; got q ", q, " and k ", k);
  if (args.has_pages()) {
    CHECK_SIZES(k[0].sym_eq(v[0]), "k and v must have the same number of pages; got k ", k, " and v ", v);
  } else {
    CHECK_SIZES(q[0].sym_eq(k[0]).sym_and(q[0].sym_eq(v[0])), "q, k and v must have the same batch size; got q ", q,
                ", k ", k, ", v ", v, "; expand the smaller ones, which costs no copy");
  }
  CHECK_SIZES(k[1].sym_eq(v[1]), "k and v must have the same number of heads; got k ", k, " and v ", v);
  CHECK_SIZES(k[2].sym_eq(v[2]), "k and v must have the same sequence length; got k ", k, " and v ", v);
  // Equality first: it is what most models have, and it leaves no division by a symbol in an exported program.
  const bool same_heads = TORCH_GUARD_OR_FALSE(q[1].sym_eq(k[1]));
  if (!same_heads) {
    CHECK_SIZES(k[1].sym_gt(0), "q has ", q[1], " heads but k has none; give k and v at least one head");
    CHECK_SIZES((q[1] % k[1]).sym_eq(0), "the heads of q must be a multiple of the heads of k and v; got ", q[1],
                " and ", k[1], "; repeat or drop key heads so that each serves the same number of query heads");
  }
}

void check_mask(const ForwardArgs& args) {
  const at::Tensor& mask = *args.attn_mask;
  const auto dtype = mask.scalar_type();
  TORCH_CHECK_NOT_IMPLEMENTED(
      dtype == at::kBool || dtype == at::kHalf || dtype == at::kBFloat16 || dtype == at::kFloat,
      "attn_mask must be bool (True attends), float16, bfloat16 or float32 (added to the scores); got ", dtype,
      "; convert it with .bool() or .float()");
  check_device("attn_mask", mask, args.q);
  const auto sizes = mask.sym_sizes();
  const int64_t rank = mask.dim();
  TORCH_CHECK_VALUE(rank <= 4, "attn_mask must have at most 4 dimensions; got ", rank, " (sizes ", sizes,
                    "); drop the leading ones");
  const auto target = [&](int64_t dim) -> const c10::SymInt& {
    return dim < 3 ? args.q.sym_sizes()[dim] : args.k.sym_sizes()[2];
  };
  for (int64_t i = 0; i < rank; ++i) {
    const int64_t dim = 4 - rank + i;
    CHECK_SIZES(sizes[i].sym_eq(target(dim)).sym_or(sizes[i].sym_eq(1)),
                "attn_mask must broadcast to [batch, heads, "
                "query, key] = [",
                target(0), ", ", target(1), ", ", target(2), ", ", target(3), "]; got sizes ", sizes,
                ", where dimension ", i, " should be ", target(dim), " or 1");
  }
}

void check_window(const char* name, const OptionalSymInt& window) {
  if (!window.has_value()) return;
  CHECK_SIZES(window->sym_ge(0), name, " must be >= 0 keys; got ", *window, "; pass None for no limit");
}

void check_sinks(const ForwardArgs& args) {
  const at::Tensor& sinks = *args.sinks;
  const auto dtype = sinks.scalar_type();
  check_device("sinks", sinks, args.q);
  TORCH_CHECK_VALUE(dtype == at::kFloat || dtype == args.q.scalar_type(),
                    "sinks must be float32 or have the dtype of q, ", args.q.scalar_type(), "; got ", dtype,
                    "; cast them");
  TORCH_CHECK_VALUE(sinks.dim() == 1, "sinks must have one dimension, the heads of q; got sizes ", sinks.sym_sizes(),
                    "; flatten them");
  CHECK_SIZES(sinks.sym_size(0).sym_eq(args.q.sym_size(1)), "sinks must have one logit for each of q's ",
              args.q.sym_size(1), " heads; got ", sinks.sym_size(0), "; expand them");
}

void check_relative_bias(const ForwardArgs& args) {
  const at::Tensor& bias = *args.relative_bias;
  const auto dtype = bias.scalar_type();
  check_device("relative_bias", bias, args.q);
  TORCH_CHECK_VALUE(!args.has_mask(),
                    "attn_mask and relative_bias cannot be given together; got an attn_mask of sizes ",
                    args.attn_mask->sym_sizes(),
                    "; add the bias into a floating attn_mask, or leave out padded keys by seqused_k or cu_seqlens_k");
  TORCH_CHECK_NOT_IMPLEMENTED(dtype == at::kFloat || dtype == at::kHalf || dtype == at::kBFloat16,
                              "relative_bias must be float16, bfloat16 or float32; got ", dtype,
                              "; convert it with .float()");
  const c10::SymInt length = args.q.sym_size(2) + args.k.sym_size(2) - 1;
  TORCH_CHECK_VALUE(bias.dim() == 2,
                    "relative_bias must have two dimensions [heads of q or 1, Sq + Sk - 1]; got sizes ",
                    bias.sym_sizes(), "; reshape it");
  CHECK_SIZES(bias.sym_size(1).sym_eq(length).sym_or(args.k.sym_size(2).sym_eq(0)).sym_or(args.q.sym_size(2).sym_eq(0)),
              "relative_bias must have Sq + Sk - 1 = ", length, " columns, one for each distance; got ",
              bias.sym_size(1), "; its index for query i and key j is j - i + Sq - 1");
  CHECK_SIZES(bias.sym_size(0).sym_eq(args.q.sym_size(1)).sym_or(bias.sym_size(0).sym_eq(1)),
              "relative_bias must have one row for each of q's ", args.q.sym_size(1), " heads, or one row; got ",
              bias.sym_size(0), "; expand it");
}

void check_result(const char* name, const at::Tensor& tensor, const at::Tensor& q, at::ScalarType dtype,
                  c10::SymIntArrayRef sizes) {
  TORCH_CHECK_VALUE(tensor.scalar_type() == dtype, name, " must be ", dtype, "; got ", tensor.scalar_type(),
                    "; pass what the forward returned");
  TORCH_CHECK(tensor.device() == q.device(), "Expected all tensors to be on the same device: q is on ", q.device(),
              ", ", name, " on ", tensor.device());
  const auto actual = tensor.sym_sizes();
  bool same = actual.size() == sizes.size();
  for (size_t i = 0; same && i < sizes.size(); ++i) same = actual[i].sym_eq(sizes[i]).expect_true(__FILE__, __LINE__);
  TORCH_CHECK_VALUE(same, name, " must have sizes ", sizes, "; got ", actual, "; pass what belongs to this call");
}

}  // namespace

void check_forward(const ForwardArgs& args) {
  check_tensor("q", args.q, args.q);
  check_tensor("k", args.k, args.q);
  check_tensor("v", args.v, args.q);
  check_sizes(args);
  if (args.has_mask()) check_mask(args);
  TORCH_CHECK_VALUE(args.dropout_p >= 0.0 && args.dropout_p < 1.0, "dropout_p must be in [0, 1); got ", args.dropout_p,
                    "; pass 0.0 for no dropout");
  if (args.has_lengths() || args.max_seqlen_q.has_value() || args.max_seqlen_k.has_value()) check_lengths(args);
  TORCH_CHECK_VALUE(!args.scale.has_value() || (std::isfinite(*args.scale) && *args.scale >= 0.0),
                    "scale must be finite and >= 0; got ", args.scale.value_or(0.0), "; negate q for a negative scale");
  TORCH_CHECK_VALUE(
      args.is_causal || args.window_left.has_value() || args.window_right.has_value() || !args.bottom_right,
      "bottom_right aligns the diagonal of causality or of a window and needs is_causal=True or a window; "
      "got is_causal=False; set is_causal or drop bottom_right");
  check_window("window_left", args.window_left);
  check_window("window_right", args.window_right);
  TORCH_CHECK_VALUE(std::isfinite(args.softcap) && args.softcap >= 0.0, "softcap must be finite and >= 0; got ",
                    args.softcap, "; pass 0.0 for none");
  if (args.has(args.sinks)) check_sinks(args);
  if (args.has(args.relative_bias)) check_relative_bias(args);
}

void check_backward(const BackwardArgs& args) {
  check_forward(args);
  check_differentiable(args);
  const auto q = args.q.sym_sizes();
  const std::array<c10::SymInt, 4> out{q[0], q[1], q[2], args.v.sym_size(3)};
  const std::array<c10::SymInt, 4> stats{2, q[0], q[1], q[2]};
  check_result("grad_out", args.grad_out, args.q, args.q.scalar_type(), out);
  check_result("out", args.out, args.q, args.q.scalar_type(), out);
  check_result("lse", args.lse, args.q, at::kFloat, q.slice(0, 3));
  if (args.dropout_p > 0.0) check_result("rng_state", args.rng_state, args.q, at::kLong, {c10::SymInt(2)});
  if (args.has_grad_lse()) check_result("grad_lse", *args.grad_lse, args.q, at::kFloat, q.slice(0, 3));
  if (args.uses_row_stats()) check_result("row_stats", args.row_stats, args.q, at::kFloat, stats);
}

int64_t window_of(const OptionalSymInt& window) {
  return window.has_value() ? window->guard_int(__FILE__, __LINE__) : kNoWindow;
}

double scale_of(const ForwardArgs& args) {
  return args.scale.has_value() ? *args.scale : 1.0 / std::sqrt(static_cast<double>(args.q.size(3)));
}

}  // namespace flashtri::op
