// What is asked of the planner, in plain numbers: no torch, no Python, no GPU.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "band.h"

namespace flashtri {

// `keys` is a kernel's way to read a mask: what mask_keys has made of one without rows of its own. No tensor has it.
enum class DType : uint8_t { none, f16, bf16, f32, boolean, keys };

const char* dtype_name(DType dtype);
int dtype_size(DType dtype);

// A four-dimensional tensor, strides in elements. A dtype of `none` says that there is no such tensor.
struct Tensor {
  void* data = nullptr;
  DType dtype = DType::none;
  std::array<int64_t, 4> size{};
  std::array<int64_t, 4> stride{};

  explicit operator bool() const { return dtype != DType::none; }
};

// What a head_dim may be.
constexpr int64_t kMaxHeadDim = 256;  // registers and shared memory hold one whole row of q, k and v
constexpr int64_t kHeadDimStep = 8;   // 16 bytes of fp16: the width of one memory access

// One call of the op. `mask` keeps its own sizes (1 where broadcast); everything else is as in the contract.
struct Problem {
  Tensor q, k, v, out;
  Tensor mask;
  float scale = 1.0f;
  bool is_causal = false;
  bool bottom_right = false;  // the diagonal ends in the last row's last key (else starts at the first row's first)
  int64_t window_left = kNoWindow, window_right = kNoWindow;
  Tensor relative_bias;    // [1, Hq or 1, 1, Sq + Sk - 1]; no mask beside it
  float softcap = 0.0f;    // 0: none
  double dropout_p = 0.0;  // the share of probabilities dropped, by bits from Arg::rng_state, which the caller sets
  bool has_sinks = false;  // fp32 [Hq], set as Arg::sinks by the caller

  // Keys of each sequence that exist are in a tensor on the device (Arg::seqused_k).
  bool has_seqused_k = false;
  // k and v are [num_blocks, Hk, page_size, *], and a [B, max_pages] tensor on the device (Arg::block_table) names each
  // sequence's blocks. 0: no pages.
  int64_t max_pages = 0;
  int64_t table_stride_b = 0;
  // Sequences packed one after the other in q [1, Hq, total, D], k and v: how many, and the rows and keys of the
  // longest. Where each begins is on the device (Arg::cu_seqlens_q, Arg::cu_seqlens_k). 0: none are packed.
  int64_t sequences = 0, max_seqlen_q = 0, max_seqlen_k = 0;
  bool is_packed() const { return sequences > 0; }
  int64_t batch() const { return is_packed() ? sequences : q.size[0]; }
  int64_t longest_q() const { return is_packed() ? max_seqlen_q : q.size[2]; }
  int64_t longest_k() const { return is_packed() ? max_seqlen_k : seqlen_k(); }
  bool has_pages() const { return max_pages > 0; }
  int64_t seqlen_k() const { return has_pages() ? max_pages * k.size[2] : k.size[2]; }  // of a sequence, at most

  // Backward only. A gradient whose dtype is `none` is not computed; those of mask and bias are described by
  // `needs_...`.
  bool backward = false;
  Tensor dout, dq, dk, dv;
  bool has_dlse = false;
  bool needs_dmask = false;
  bool needs_drelative_bias = false;
  bool needs_delta = false;  // for the caller's own use, beside that of the kernels

  Band band() const { return band_of(q.size[2], seqlen_k(), is_causal, bottom_right, window_left, window_right); }
  // The same around a diagonal that each sequence has of its own.
  Band reach() const { return reach_of(longest_q(), longest_k(), is_causal, window_left, window_right); }
  bool needs_features() const { return softcap > 0.0f || dropout_p > 0.0; }
  bool has_left_edge() const { return band().lo > -q.size[2]; }
  bool deterministic = false;  // the same bits every time: only kernels that add in a fixed order
};

// Dropout's 16 random bits must reach this.
inline int32_t dropout_threshold(double dropout_p) { return static_cast<int32_t>(std::lround(dropout_p * 65536.0)); }

struct Device {
  int arch = 0;  // 90 for compute capability 9.0
  int sm_count = 0;
  int shared_memory = 0;         // bytes a block may use
  bool has_tensor_maps = false;  // the driver encodes TMA descriptors
};

// Raised before any launch. `unsupported` becomes NotImplementedError, the others ValueError.
struct PlanError : std::runtime_error {
  PlanError(const std::string& message, bool unsupported) : std::runtime_error(message), unsupported(unsupported) {}
  bool unsupported;
};

}  // namespace flashtri
