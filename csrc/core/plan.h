// plan(problem, device) -> which kernels, which grids, which argument values, which scratch. Pure: it needs no GPU.
#pragma once

#include <array>
#include <string>

#include "registry.h"

namespace flashtri {

union ArgValue {
  void* pointer;
  int64_t i64;
  int32_t i32;
  float f32;
};

// Values for every argument, shared by all launches of a plan; each kernel takes the ones its signature names.
struct Arguments {
  std::array<ArgValue, static_cast<size_t>(Arg::count)> value{};
  std::array<bool, static_cast<size_t>(Arg::count)> is_set{};

  void set(Arg arg, void* pointer) { slot(arg).pointer = pointer; }
  void set_i64(Arg arg, int64_t number) { slot(arg).i64 = number; }
  void set_i32(Arg arg, int32_t number) { slot(arg).i32 = number; }
  void set_f32(Arg arg, float number) { slot(arg).f32 = number; }
  const ArgValue& operator[](Arg arg) const { return value[static_cast<size_t>(arg)]; }
  bool has(Arg arg) const { return is_set[static_cast<size_t>(arg)]; }

 private:
  ArgValue& slot(Arg arg) {
    is_set[static_cast<size_t>(arg)] = true;
    return value[static_cast<size_t>(arg)];
  }
};

struct Launch {
  const Kernel* kernel = nullptr;
  unsigned grid = 0;  // one-dimensional: programs
};

struct Plan {
  Arguments args;  // tensors' pointers are set from the problem; scratch, lse, row_stats, seqused_k and block_table are
                   // the caller's
  std::array<Launch, 6> launches{};  // in order
  int num_launches = 0;

  // fp32 elements of scratch the caller allocates and sets as the Arg of the same name before launching.
  int64_t partial_out_elements = 0;  // of fwd_decode and fwd_paged; both 0 where they write out and lse themselves
  int64_t partial_lse_elements = 0;
  int64_t delta_elements = 0;
  int64_t row_terms_elements = 0;
  int64_t dq_acc_elements = 0;
  int64_t dmask_elements = 0;  // splits * the mask's own elements
  int dmask_splits = 0;
  // Of Arg::dbias likewise: [splits, bias heads, 2, distances]. The first half moved on by dbias_block and
  // the second add up to the gradient, which begins at dbias_offset.
  std::array<int64_t, 4> dbias_size{};
  int64_t dbias_block = 0, dbias_offset = 0;
  // fp32 and i32 elements of the scratch set as Arg::mask_bias and Arg::mask_table.
  int64_t mask_bias_elements = 0;
  int64_t mask_table_elements = 0;
};

// True where the kernels can read the tensor as it is: last stride 1, 16-byte alignment of data and rows. The op copies
// a q, k, v or dout that is not.
bool is_readable(const Tensor& tensor);

// What the kernels read the problem's mask as: fp32 with softcap or dropout, and for the 16-bit dtype that is not q's.
// The op converts it first, in the mask's own size.
DType served_mask_dtype(const Problem& problem);

// The problem with its relative bias in the mask's place: one number for every pair of row and key, read along
// diagonals by strides of opposite sign.
Problem as_kernels_see(const Problem& problem);

// Throws PlanError; a problem with nothing to compute (an empty tensor) gives a plan without launches.
Plan plan(const Problem& problem, const Device& device);

// For people: each function the problem needs, the kernel taken, and for every other kernel the first rule it fails.
std::string explain(const Problem& problem, const Device& device);

}  // namespace flashtri
