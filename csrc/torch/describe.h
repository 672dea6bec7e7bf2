// Torch tensors and options as the planner's Problem.
#pragma once

#include "core/plan.h"
#include "ops.h"

namespace flashtri::op {

// Fewer dimensions than four, as a mask may have, are taken as the last ones.
Tensor describe(const at::Tensor& tensor, const void* data);
inline Tensor describe_input(const at::Tensor& tensor) { return describe(tensor, tensor.const_data_ptr()); }
inline Tensor describe_output(const at::Tensor& tensor) { return describe(tensor, tensor.mutable_data_ptr()); }

// An input as the kernels can read it: itself, or a copy that `storage` keeps alive. The allocator hands the copy's
// memory to later work of the same stream only, so it may go when this call returns.
Tensor readable(const at::Tensor& tensor, at::Tensor& storage);

// The same for lse, row_stats and grad_lse, which are read as flat fp32 arrays.
void* dense(const at::Tensor& tensor, at::Tensor& storage);

// Everything but the tensors.
void set_options(Problem& problem, const ForwardArgs& args);

// Describes the mask as the kernels read it; the options are set. Converted, it keeps its own size: what is expanded
// stays so.
void set_mask(Problem& problem, const ForwardArgs& args, at::Tensor& storage);

// The relative bias as fp32, which the kernels read along diagonals: it is short.
Tensor readable_bias(const ForwardArgs& args, at::Tensor& storage);

// Lengths of the sequences as the kernels read them: contiguous rows.
class Lengths {
 public:
  explicit Lengths(const ForwardArgs& args);
  void describe(Problem& problem) const;
  void set_pointers(Arguments& args) const;

 private:
  at::Tensor seqused_k_, block_table_, cu_seqlens_q_, cu_seqlens_k_;
  int64_t max_seqlen_q_ = 0, max_seqlen_k_ = 0;
};

}  // namespace flashtri::op
