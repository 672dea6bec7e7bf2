#include "plan_mask.h"

#include "tensor_map.h"

namespace flashtri {

Tensor collapsed(const Tensor& mask) {
  Tensor made = mask;
  for (int dim = 0; dim < 4; ++dim) {
    if (made.stride[dim] == 0) made.size[dim] = 1;
  }
  return made;
}

bool is_of_keys(const Tensor& mask) {
  const Tensor own = collapsed(mask);
  return own && own.size[2] == 1 && own.size[3] > 1;
}

bool reads_scores(Function function) {
  return function != Function::bwd_delta && function != Function::bwd_terms && function != Function::bwd_dq_cast &&
         function != Function::fwd_combine;
}

bool reads_mask_dtype(const Kernel& kernel, const Problem& problem) {
  if (!reads_scores(kernel.function)) return true;
  return kernel.mask == DType::keys ? bool(problem.mask) : kernel.mask == problem.mask.dtype;
}

const char* mask_refusal(const Kernel& kernel, const Problem& problem) {
  if (kernel.mask == DType::keys && !is_of_keys(problem.mask))
    return "it reads masks that are the same for every query";
  if (kernel.function != Function::fwd_hopper_mask || kernel.mask == DType::keys) return nullptr;
  if (is_of_keys(problem.mask)) return "a mask that is the same for every query is read as a vector";
  return mask_map_refusal(collapsed(problem.mask));
}

int64_t prepare_mask_keys(Plan& plan, const Problem& problem, const Kernel& reader) {
  const Tensor mask = collapsed(problem.mask);
  const int64_t vectors = mask.size[0] * mask.size[1];
  const int64_t blocks = (problem.k.size[2] + reader.block_n - 1) / reader.block_n;
  plan.mask_bias_elements = vectors * blocks * reader.block_n;
  plan.mask_table_elements = vectors * 4 * (blocks + 1);
  return vectors;
}

}  // namespace flashtri
