// Decoding: whether the keys of a head are shared between programs (triton_src/fwd_decode.py), and by how many.
#include <algorithm>

#include "plan_parts.h"
#include "select.h"

namespace flashtri {
namespace {

// Rows that read the same keys: queries times the query heads of a key head.
int64_t packed_rows(const Problem& p) { return p.q.size[2] * (p.q.size[1] / p.k.size[1]); }

// Programs with keys of their own, before the keys are shared.
int64_t heads_in_blocks(const Kernel& kernel, const Problem& p) {
  return ceil_div(packed_rows(p), kernel.block_m) * p.q.size[0] * p.k.size[1];
}

// Blocks of this kernel that run on one multiprocessor at the same time.
int64_t blocks_at_once(const Kernel& kernel, const Device& device) {
  constexpr int64_t kRegisters = 65536, kReserved = 1024;  // of shared memory, a block
  const int64_t by_memory = (device.shared_memory + kReserved) / (kernel.shared + kReserved);
  const int64_t by_registers = kRegisters / (int64_t{32} * kernel.num_warps * kernel.registers);
  return std::max<int64_t>(std::min(by_memory, by_registers), 1);
}

// The least of a model of the time, in units of one tile of keys on every block that runs at once. Its terms were
// fitted to an H200: reading is bound by memory, so in a last round that is not full each block reads faster, by half
// at most; a share costs the start of its pipeline, a turn; merging costs two turns, and its reads and writes.
int64_t best_splits(const Kernel& kernel, const Problem& p, const Device& device) {
  const int64_t slots = blocks_at_once(kernel, device) * device.sm_count, work = heads_in_blocks(kernel, p);
  const int64_t tiles = ceil_div(p.seqlen_k(), kernel.block_n), most = std::min(tiles, ceil_div(4 * slots, work));
  const double out_bytes = 3.0 * p.q.size[0] * p.q.size[1] * p.q.size[2] * p.v.size[3] * sizeof(float);
  const double tile_bytes = 1.0 * slots * kernel.block_n * (p.k.size[3] + p.v.size[3]) * dtype_size(p.k.dtype);
  int64_t best = 1;
  double least = 0.0;
  for (int64_t splits = 1; splits <= std::max<int64_t>(most, 1); ++splits) {
    const int64_t rounds = work * splits / slots, rest = work * splits % slots;
    const double last = rest == 0 ? 0.0 : std::max(static_cast<double>(rest) / slots, 2.0 / 3);
    const double merge = splits == 1 ? 0.0 : 2.0 + splits * out_bytes / tile_bytes;
    const double time = (rounds + last) * (ceil_div(tiles, splits) + 1) + merge;
    if (splits == 1 || time < least) {
      best = splits;
      least = time;
    }
  }
  return best;
}

}  // namespace

const char* length_refusal(const Kernel& kernel, const Problem& p, const Device& device) {
  const bool is_paged = kernel.function == Function::fwd_paged;
  if (is_paged != p.has_pages()) {
    return is_paged ? "it takes k and v in pages" : "k and v lie in pages, which a block_table names";
  }
  if (is_paged) return nullptr;
  if (kernel.function != Function::fwd_decode) return p.has_seqused_k ? "it takes no seqused_k" : nullptr;
  constexpr int64_t kSmall = 16, kLarge = 64;  // the rows of its tiles
  const int64_t rows = packed_rows(p);
  if (kernel.block_m <= kSmall && rows > kSmall) return "a tile of 64 rows serves more than 16 rows";
  if (p.has_seqused_k) return nullptr;
  if (rows <= kLarge) return nullptr;
  // Past one tile of rows keys are read again for each; it pays where the others' programs leave much of the GPU idle.
  if (p.q.size[2] > kLarge || 2 * p.q.size[0] * p.q.size[1] > device.sm_count) {
    return "it serves few queries: at most 64 rows, counting each head that shares a key head";
  }
  return nullptr;
}

void add_decode(Plan& plan, const Kernel& kernel, const Problem& p, const Device& device) {
  const int64_t splits = best_splits(kernel, p, device);
  plan.args.set_i32(Arg::key_splits, splits);
  plan.args.set(Arg::partial_out, nullptr);
  plan.args.set(Arg::partial_lse, nullptr);
  add(plan, kernel, heads_in_blocks(kernel, p) * splits);
  if (splits == 1) return;
  const int64_t rows = p.q.size[0] * p.q.size[1] * p.q.size[2];
  plan.partial_lse_elements = rows * splits;
  plan.partial_out_elements = rows * splits * p.v.size[3];
  add(plan, select(Function::fwd_combine, p, device), rows);
}

}  // namespace flashtri
