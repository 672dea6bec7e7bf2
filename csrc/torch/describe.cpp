#include "describe.h"

#include <ATen/Context.h>

#include "checks.h"

namespace flashtri::op {

namespace {

DType dtype_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kHalf:
      return DType::f16;
    case at::kBFloat16:
      return DType::bf16;
    case at::kFloat:
      return DType::f32;
    default:
      return DType::boolean;  // the checks let nothing else through
  }
}

}  // namespace

Tensor describe(const at::Tensor& tensor, const void* data) {
  Tensor described;
  described.data = const_cast<void*>(data);
  described.dtype = dtype_of(tensor.scalar_type());
  described.size.fill(1);
  const auto sizes = tensor.sizes(), strides = tensor.strides();
  for (size_t i = 0, offset = 4 - sizes.size(); i < sizes.size(); ++i) {
    described.size[offset + i] = sizes[i];
    described.stride[offset + i] = sizes[i] == 1 ? 0 : strides[i];
  }
  return described;
}

Tensor readable(const at::Tensor& tensor, at::Tensor& storage) {
  const Tensor described = describe_input(tensor);
  if (is_readable(described)) return described;
  storage = tensor.clone(at::MemoryFormat::Contiguous);
  return describe_input(storage);
}

void set_mask(Problem& problem, const ForwardArgs& args, at::Tensor& storage) {
  if (!args.has_mask()) return;
  storage = *args.attn_mask;
  problem.mask.dtype = dtype_of(storage.scalar_type());
  if (served_mask_dtype(problem) != problem.mask.dtype) {
    for (int64_t dim = 0; dim < storage.dim(); ++dim) {
      if (storage.stride(dim) == 0 && storage.size(dim) > 1) storage = storage.narrow(dim, 0, 1);
    }
    const bool is_boolean = storage.scalar_type() == at::kBool;
    storage = storage.to(at::kFloat);
    if (is_boolean) storage = storage.log();  // 0 where it was True, else -inf
    storage = storage.expand(args.attn_mask->sizes());
  }
  problem.mask = describe_input(storage);
}

void* dense(const at::Tensor& tensor, at::Tensor& storage) {
  const bool as_it_is = tensor.is_contiguous() && reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % 16 == 0;
  storage = as_it_is ? tensor : tensor.clone(at::MemoryFormat::Contiguous);
  return const_cast<void*>(storage.const_data_ptr());
}

void set_options(Problem& problem, const ForwardArgs& args) {
  problem.scale = static_cast<float>(scale_of(args));
  problem.is_causal = args.is_causal;
  problem.bottom_right = args.bottom_right;
  problem.window_left = window_of(args.window_left);
  problem.window_right = window_of(args.window_right);
  problem.softcap = static_cast<float>(args.softcap);
  problem.dropout_p = args.dropout_p;
  problem.has_sinks = args.has(args.sinks);
  problem.deterministic = at::globalContext().deterministicAlgorithms();
}

Tensor readable_bias(const ForwardArgs& args, at::Tensor& storage) {
  storage = args.relative_bias->to(at::kFloat);
  return describe_input(storage.unsqueeze(1));
}

Lengths::Lengths(const ForwardArgs& args) {
  if (Options::has(args.seqused_k)) seqused_k_ = args.seqused_k->contiguous();
  if (args.has_pages()) block_table_ = args.block_table->contiguous();
  if (!args.is_packed()) return;
  cu_seqlens_q_ = args.cu_seqlens_q->contiguous();
  cu_seqlens_k_ = args.cu_seqlens_k->contiguous();
  max_seqlen_q_ = args.max_seqlen_q->guard_int(__FILE__, __LINE__);
  max_seqlen_k_ = args.max_seqlen_k->guard_int(__FILE__, __LINE__);
}

void Lengths::describe(Problem& problem) const {
  problem.has_seqused_k = seqused_k_.defined();
  if (cu_seqlens_q_.defined()) {
    problem.sequences = cu_seqlens_q_.size(0) - 1;
    problem.max_seqlen_q = max_seqlen_q_;
    problem.max_seqlen_k = max_seqlen_k_;
  }
  if (!block_table_.defined()) return;
  problem.max_pages = block_table_.size(1);
  problem.table_stride_b = block_table_.size(1);
}

void Lengths::set_pointers(Arguments& args) const {
  const auto set = [&](Arg arg, const at::Tensor& tensor) {
    if (tensor.defined()) args.set(arg, const_cast<void*>(tensor.const_data_ptr()));
  };
  set(Arg::seqused_k, seqused_k_);
  set(Arg::block_table, block_table_);
  set(Arg::cu_seqlens_q, cu_seqlens_q_);
  set(Arg::cu_seqlens_k, cu_seqlens_k_);
}

}  // namespace flashtri::op
