// The rules of seqused_k and block_table.
#include <c10/core/SymInt.h>

#include "checks.h"

#define CHECK_SIZES(condition, ...) TORCH_CHECK_VALUE((condition).expect_true(__FILE__, __LINE__), __VA_ARGS__)

namespace flashtri::op {

namespace {

void check_int32(const char* name, const at::Tensor& tensor, int64_t rank, const char* sizes, const at::Tensor& q) {
  TORCH_CHECK_VALUE(tensor.scalar_type() == at::kInt, name, " must be int32; got ", tensor.scalar_type(),
                    "; cast it with .int()");
  TORCH_CHECK_VALUE(tensor.dim() == rank, name, " must be ", sizes, "; got sizes ", tensor.sym_sizes(), "; reshape it");
  TORCH_CHECK(tensor.device() == q.device(), "Expected all tensors to be on the same device: q is on ", q.device(),
              ", ", name, " on ", tensor.device(), "; move it with .to(device)");
  CHECK_SIZES(tensor.sym_size(0).sym_eq(q.sym_size(0)), name, " must have a row for each of the ", q.sym_size(0),
              " sequences of q; got sizes ", tensor.sym_sizes());
}

}  // namespace

void check_lengths(const ForwardArgs& args) {
  const char* given = args.has_pages() ? "block_table" : "seqused_k";
  const auto refuse = [&](bool is_given, const char* name) {
    TORCH_CHECK_NOT_IMPLEMENTED(!is_given, name, " together with ", given,
                                " is not implemented; got both; leave one out");
  };
  refuse(args.dropout_p != 0.0, "dropout_p");
  refuse(Options::has(args.relative_bias), "relative_bias");
  TORCH_CHECK_NOT_IMPLEMENTED(!args.has_mask(), "attn_mask together with ", given, " is not implemented; got both; ",
                              args.has_pages() ? "gather the pages into k and v first"
                                               : "set the mask to False or -inf for keys that do not exist");
  if (Options::has(args.seqused_k)) check_int32("seqused_k", *args.seqused_k, 1, "[batch]", args.q);
  if (!args.has_pages()) return;
  check_int32("block_table", *args.block_table, 2, "[batch, max_pages]", args.q);
  constexpr int64_t kPageStep = 16;  // of the kernels
  CHECK_SIZES((args.k.sym_size(2) % kPageStep).sym_eq(0), "with a block_table, k and v are [num_blocks, heads, ",
              "page_size, head_dim] with a page_size that is a multiple of ", kPageStep, "; got k ", args.k.sym_sizes(),
              "; choose another page size");
}

void check_differentiable(const ForwardArgs& args) {
  TORCH_CHECK_NOT_IMPLEMENTED(!args.has_lengths(), args.has_pages() ? "block_table" : "seqused_k",
                              " has no gradient; got an input that ",
                              "requires one; call under torch.no_grad(), or detach q, k and v, or train with ",
                              args.has_pages() ? "contiguous k and v" : "a boolean attn_mask of the keys that exist");
}

}  // namespace flashtri::op
