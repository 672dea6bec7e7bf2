// The rules of seqused_k, block_table and packed sequences.
#include <c10/core/SymInt.h>

#include "checks.h"
#include "packed.h"

#define CHECK_SIZES(condition, ...) TORCH_CHECK_VALUE((condition).expect_true(__FILE__, __LINE__), __VA_ARGS__)

namespace flashtri::op {

namespace {

void check_int32(const char* name, const at::Tensor& tensor, int64_t rank, const char* sizes, const at::Tensor& q) {
  TORCH_CHECK_VALUE(tensor.scalar_type() == at::kInt, name, " must be int32; got ", tensor.scalar_type(),
                    "; cast it with .int()");
  TORCH_CHECK_VALUE(tensor.dim() == rank, name, " must be ", sizes, "; got sizes ", tensor.sym_sizes(), "; reshape it");
  TORCH_CHECK(tensor.device() == q.device(), "Expected all tensors to be on the same device: q is on ", q.device(),
              ", ", name, " on ", tensor.device(), "; move it with .to(device)");
}

void check_batch(const char* name, const at::Tensor& tensor, const at::Tensor& q) {
  CHECK_SIZES(tensor.sym_size(0).sym_eq(q.sym_size(0)), name, " must have a row for each of the ", q.sym_size(0),
              " sequences of q; got sizes ", tensor.sym_sizes());
}

}  // namespace

void check_packed(const ForwardArgs& args) {
  TORCH_CHECK_VALUE(Options::has(args.cu_seqlens_q) && Options::has(args.cu_seqlens_k),
                    "packed sequences need both cu_seqlens_q and cu_seqlens_k; got one of them; pass the other");
  TORCH_CHECK_VALUE(
      args.max_seqlen_q.has_value() && args.max_seqlen_k.has_value(),
      "packed sequences need max_seqlen_q and max_seqlen_k, the lengths of the longest, as they are on the "
      "device; got ",
      args.max_seqlen_q.has_value() || args.max_seqlen_k.has_value() ? "one of them" : "none",
      "; compute them once for all layers");
  for (const at::Tensor* tensor : {&args.q, &args.k, &args.v}) {
    TORCH_CHECK_VALUE(tensor->dim() == 3,
                      "with cu_seqlens_q, q, k and v must have 3 dimensions [total, heads, "
                      "head_dim]; got ",
                      tensor->dim(), " (sizes ", tensor->sym_sizes(), "); pack the sequences");
  }
  check_int32("cu_seqlens_q", *args.cu_seqlens_q, 1, "[sequences + 1]", args.q);
  check_int32("cu_seqlens_k", *args.cu_seqlens_k, 1, "[sequences + 1]", args.q);
  const c10::SymInt size = args.cu_seqlens_q->sym_size(0);
  CHECK_SIZES(size.sym_ge(1).sym_and(size.sym_eq(args.cu_seqlens_k->sym_size(0))),
              "cu_seqlens_q and cu_seqlens_k must ",
              "have one more entry than there are sequences, the first being 0; got ", size, " and ",
              args.cu_seqlens_k->sym_size(0), " entries");
  CHECK_SIZES(args.max_seqlen_q->sym_ge(0).sym_and(args.max_seqlen_k->sym_ge(0)),
              "max_seqlen_q and max_seqlen_k must be ", "at least 0; got ", *args.max_seqlen_q, " and ",
              *args.max_seqlen_k, "; pass the longest lengths");
}

void check_lengths(const ForwardArgs& args) {
  TORCH_CHECK_VALUE(args.is_packed() || !(args.max_seqlen_q.has_value() || args.max_seqlen_k.has_value()),
                    "max_seqlen_q and max_seqlen_k go with cu_seqlens_q and cu_seqlens_k; got no cu_seqlens_q; leave "
                    "them out");
  const char* given = args.is_packed() ? "cu_seqlens_q" : args.has_pages() ? "block_table" : "seqused_k";
  const auto refuse = [&](bool is_given, const char* name) {
    TORCH_CHECK_NOT_IMPLEMENTED(!is_given, name, " together with ", given,
                                " is not implemented; got both; leave one out");
  };
  refuse(args.dropout_p != 0.0, "dropout_p");
  refuse(Options::has(args.relative_bias), "relative_bias");
  refuse(args.is_packed() && Options::has(args.seqused_k), "seqused_k");
  refuse(args.is_packed() && args.has_pages(), "block_table");
  TORCH_CHECK_NOT_IMPLEMENTED(!args.has_mask(), "attn_mask together with ", given, " is not implemented; got both; ",
                              args.is_packed()   ? "leave it out: a sequence sees its own keys only"
                              : args.has_pages() ? "gather the pages into k and v first"
                                                 : "set the mask to False or -inf for keys that do not exist");
  if (Options::has(args.seqused_k)) {
    check_int32("seqused_k", *args.seqused_k, 1, "[batch]", args.q);
    check_batch("seqused_k", *args.seqused_k, args.q);
  }
  if (!args.has_pages()) return;
  check_int32("block_table", *args.block_table, 2, "[batch, max_pages]", args.q);
  check_batch("block_table", *args.block_table, args.q);
  constexpr int64_t kPageStep = 16;  // of the kernels
  CHECK_SIZES((args.k.sym_size(2) % kPageStep).sym_eq(0), "with a block_table, k and v are [num_blocks, heads, ",
              "page_size, head_dim] with a page_size that is a multiple of ", kPageStep, "; got k ", args.k.sym_sizes(),
              "; choose another page size");
}

void check_differentiable(const ForwardArgs& args) {
  TORCH_CHECK_NOT_IMPLEMENTED(!Options::has(args.seqused_k) && !args.has_pages(),
                              args.has_pages() ? "block_table" : "seqused_k", " has no gradient; got an input that ",
                              "requires one; call under torch.no_grad(), or detach q, k and v, or train with ",
                              args.has_pages() ? "contiguous k and v" : "a boolean attn_mask of the keys that exist");
}

}  // namespace flashtri::op
