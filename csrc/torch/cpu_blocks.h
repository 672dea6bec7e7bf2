// The problem of the CPU ops seen block by block of query rows, in fp32: the whole score matrix never exists.
#pragma once

#include <algorithm>

#include "core/band.h"
#include "ops.h"

namespace flashtri::op {

// Query rows [row, row + rows), which see keys [key, key + keys).
struct Block {
  int64_t row, rows, key, keys;
};

// Query heads that share a key head are folded into the rows of one matrix product, so block matrices are
// [B, Hk, G * rows, *] and, seen by head, [B, Hq, rows, *].
class Blocks {
 public:
  // rng_state: int64 [2] with dropout, else unused.
  Blocks(const ForwardArgs& args, const at::Tensor& rng_state);

  // Calls function(block) for every block that sees a key.
  template <typename Function>
  void for_each(const Function& function) const {
    const int64_t per_row = std::max<int64_t>(batch_ * heads_q_ * seqlen_k_, 1);
    const int64_t step = std::max<int64_t>(kBlockElements / per_row, 16);
    for (int64_t row = 0; row < seqlen_q_; row += step) {
      const int64_t rows = std::min(step, seqlen_q_ - row);
      const int64_t key = std::clamp<int64_t>(row + band_.lo, 0, seqlen_k_);
      const int64_t end = std::clamp<int64_t>(row + rows + band_.hi, key, seqlen_k_);
      if (end > key) function(Block{row, rows, key, end - key});
    }
  }

  const at::Tensor& k() const { return k_; }
  const at::Tensor& mask() const { return mask_; }
  double scale() const { return scale_; }

  // The rows of a [B, Hq, Sq, X] tensor, as fp32 [B, Hk, G * rows, X].
  at::Tensor fold(const at::Tensor& tensor, const Block& block) const;
  at::Tensor by_head(const at::Tensor& folded, const Block& block) const;

  // scale * q k^T, capped, plus mask and bias, -inf where not visible. q: folded rows. Returns [B, Hk, G * rows, keys].
  at::Tensor scores(const at::Tensor& q, const Block& block) const;

  // Turns dS by the scores into dS by scale * q k^T, in place: the softcap's own derivative.
  void through_softcap(const at::Tensor& ds, const at::Tensor& q, const Block& block) const;

  // What dropout multiplies probabilities by, 0 or 1 / (1 - p), folded; undefined without dropout.
  at::Tensor dropout_factor(const Block& block) const;

  // The part of a mask, or of its gradient, that a block reads: all of a broadcast dimension.
  at::Tensor mask_part(const at::Tensor& mask, const Block& block) const;

  // Adds dS, folded, to the bias's gradient, fp32 [Hq or 1, Sq + Sk - 1].
  void add_to_drelative_bias(const at::Tensor& drelative_bias, const at::Tensor& ds, const Block& block) const;

 private:
  static constexpr int64_t kBlockElements = 1 << 21;  // scores alive at a time: 8 MiB, about a last-level cache

  // tanh(scale * q k^T / softcap), folded.
  at::Tensor capped(const at::Tensor& q, const Block& block) const;

  const ForwardArgs& args_;
  const at::Tensor& rng_state_;
  int64_t batch_, heads_q_, heads_k_, seqlen_q_, seqlen_k_;
  Band band_;
  double scale_;
  at::Tensor k_;              // fp32
  at::Tensor mask_;           // [B or 1, Hq or 1, Sq or 1, Sk or 1], or undefined
  at::Tensor relative_bias_;  // fp32 [Hq or 1, Sq + Sk - 1], or undefined
};

}  // namespace flashtri::op
