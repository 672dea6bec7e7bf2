// The kernels compiled into this library, written by `python -m aot` as a table over embedded cubins.
#pragma once

#include <cstddef>
#include <cstdint>

#include "problem.h"

namespace flashtri {

enum class Arg : uint8_t {
#define FLASHTRI_ARG(name, type, divisor) name,
#include "arguments.def"
#undef FLASHTRI_ARG
  count
};

enum class ArgType : uint8_t { element_ptr, mask_ptr, f32_ptr, i32_ptr, i64_ptr, i32, i64, f32, tensor_map };

struct ArgInfo {
  const char* name;
  ArgType type;
  int divisor;
  bool is_pointer() const { return type <= ArgType::i64_ptr; }
};
const ArgInfo& arg_info(Arg arg);

// The Triton functions in triton_src/, by their own names.
enum class Function : uint8_t {
  fwd,
  bwd_delta,
  bwd_dkdv,
  bwd_dq,
  bwd_dmask,
  bwd_dbias,
  fwd_decode,
  fwd_paged,
  fwd_combine,
  bwd_terms,
  bwd_dq_cast,
  mask_keys,
  fwd_hopper,
  fwd_hopper_mask,
  bwd_hopper
};
const char* function_name(Function function);

// What one copy through a TMA descriptor moves.
struct Box {
  int rows;
  int columns;
  int swizzle;  // a CUtensorMapSwizzle
};

struct Kernel {
  const char* name;    // unique: bwd_dq_bf16_d128_mask_f32_sm90
  const char* symbol;  // of the function in the cubin
  Function function;
  int arch;
  DType dtype;    // of q, k and v
  DType mask;     // none: no mask
  bool features;  // softcap and dropout
  int block_m;    // query rows a tile
  int block_n;    // keys a tile
  int block_d;    // head_dim is padded up to this
  int num_warps;
  int num_stages;
  int shared;         // bytes of dynamic shared memory
  int registers;      // a thread
  int spill_bytes;    // a thread
  const Arg* params;  // in the order of the kernel's own signature
  int num_params;
  Box boxes[8];  // of its tensor maps, in the order of params
  const unsigned char* image;
  size_t image_size;

  bool uses_tensor_maps() const { return boxes[0].rows != 0; }
};

struct KernelList {
  const Kernel* first;
  size_t count;
  const Kernel* begin() const { return first; }
  const Kernel* end() const { return first + count; }
};
KernelList kernels();

}  // namespace flashtri
