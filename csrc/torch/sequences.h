// The CPU implementation's way with sequences that have lengths of their own: one call for each.
#pragma once

#include "ops.h"

namespace flashtri::op {

// `dense` over each sequence's own rows and keys, without the options that say which. Needs has_lengths(). A seqused_k
// outside [0, Sk] counts as the nearest in it, as on CUDA. Throws ValueError where cu_seqlens_q or cu_seqlens_k do not
// ascend from 0 to the end of q or k.
ForwardResult forward_by_sequence(const ForwardArgs& args, ForwardFunction dense);

// The same of packed sequences, which alone have a gradient.
BackwardResult backward_by_sequence(const BackwardArgs& args, BackwardFunction dense);

}  // namespace flashtri::op
