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

// How far a row sees from its diagonal: window_left keys before it and window_right after it, none of the latter under
// causality; all of them where a side has no limit.
inline Band reach_of(int64_t seqlen_q, int64_t seqlen_k, bool is_causal, int64_t window_left, int64_t window_right) {
  const int64_t all = seqlen_q + seqlen_k;
  const int64_t left = window_left == kNoWindow ? all : std::min(window_left, all);
  const int64_t right = is_causal ? 0 : window_right == kNoWindow ? all : std::min(window_right, all);
  return {-left, right};
}

// The band of rows whose diagonal is j = i, or with bottom_right j = i + seqlen_k - seqlen_q. Bounds stay within
// -seqlen_q and seqlen_k, which hold every key: their sums with rows are 32-bit in the kernels.
inline Band band_of(int64_t seqlen_q, int64_t seqlen_k, bool is_causal, bool bottom_right, int64_t window_left,
                    int64_t window_right) {
  const Band reach = reach_of(seqlen_q, seqlen_k, is_causal, window_left, window_right);
  const int64_t diagonal = bottom_right ? seqlen_k - seqlen_q : 0;
  return {std::max(diagonal + reach.lo, -seqlen_q), std::min(diagonal + reach.hi, seqlen_k)};
}

}  // namespace flashtri
