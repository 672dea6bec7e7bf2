// The CPU implementation's way with sequences that have lengths of their own: one call for each.
#pragma once

#include "ops.h"

namespace flashtri::op {

// `dense` over each sequence's own keys, without seqused_k and block_table. Needs has_lengths(). A length outside
// [0, Sk] counts as the nearest in it, as on CUDA.
ForwardResult forward_by_sequence(const ForwardArgs& args, ForwardFunction dense);

}  // namespace flashtri::op
