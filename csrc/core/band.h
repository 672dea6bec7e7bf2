// Which keys a row sees: causality, window and alignment as two numbers.
#pragma once

#include <algorithm>
#include <cstdint>

namespace flashtri {

constexpr int64_t kNoWindow = -1;  // a window's side without a limit

// Row i sees key j only where i + lo <= j <= i + hi.
struct Band {
  int64_t lo, hi;
};

// The band of rows whose diagonal is j = i, or with bottom_right j = i + seqlen_k - seqlen_q. A row sees window_left
// keys before its diagonal and window_right after it, none of the latter under causality. Bounds stay within -seqlen_q
// and seqlen_k, which hold every key: their sums with rows are 32-bit in the kernels.
inline Band band_of(int64_t seqlen_q, int64_t seqlen_k, bool is_causal, bool bottom_right, int64_t window_left,
                    int64_t window_right) {
  const int64_t all = seqlen_q + seqlen_k, diagonal = bottom_right ? seqlen_k - seqlen_q : 0;
  const int64_t left = window_left == kNoWindow ? all : std::min(window_left, all);
  const int64_t right = is_causal ? 0 : window_right == kNoWindow ? all : std::min(window_right, all);
  return {std::max(diagonal - left, -seqlen_q), std::min(diagonal + right, seqlen_k)};
}

}  // namespace flashtri
