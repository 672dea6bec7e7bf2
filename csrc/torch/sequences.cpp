#include "sequences.h"

#include <algorithm>

#include "outputs.h"

namespace flashtri::op {

namespace {

// [1, Hk, keys, *] of one sequence, out of a batch or, with a table, out of pages.
at::Tensor keys_of(const at::Tensor& source, const OptionalTensor& table, int64_t sequence, int64_t keys) {
  if (!Options::has(table)) return source.narrow(0, sequence, 1).narrow(2, 0, keys);
  const int64_t page_size = source.size(2);
  const at::Tensor pages = table->select(0, sequence).narrow(0, 0, (keys + page_size - 1) / page_size);
  const at::Tensor gathered = source.index_select(0, pages).transpose(0, 1);  // [Hk, pages, page_size, *]
  return gathered.flatten(1, 2).narrow(1, 0, keys).unsqueeze(0);
}

}  // namespace

ForwardResult forward_by_sequence(const ForwardArgs& args, ForwardFunction dense) {
  ForwardResult result = empty_forward(args);
  Options rest = args;
  rest.seqused_k.reset();
  rest.block_table.reset();
  const int64_t seqlen_k = args.seqlen_k().guard_int(__FILE__, __LINE__);
  for (int64_t i = 0; i < args.q.size(0); ++i) {
    const int64_t used = Options::has(args.seqused_k) ? (*args.seqused_k)[i].item<int>() : seqlen_k;
    const int64_t keys = std::clamp<int64_t>(used, 0, seqlen_k);
    const at::Tensor q = args.q.narrow(0, i, 1), k = keys_of(args.k, args.block_table, i, keys),
                     v = keys_of(args.v, args.block_table, i, keys);
    const ForwardResult one = dense({rest, q, k, v});
    std::get<0>(result).narrow(0, i, 1).copy_(std::get<0>(one));
    std::get<1>(result).narrow(0, i, 1).copy_(std::get<1>(one));
  }
  return result;
}

}  // namespace flashtri::op
