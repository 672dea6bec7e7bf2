#include <algorithm>
#include <climits>

#include "plan_mask.h"
#include "plan_parts.h"
#include "select.h"

namespace flashtri {
namespace {

// How Hopper's forward shares out its tiles (triton_src/hopper/schedule.py); the ways were measured against each other.
void share_tiles(Plan& plan, const Kernel& kernel, const Problem& p, const Device& device) {
  const int64_t heads = p.q.size[0] * p.q.size[1], tiles = ceil_div(p.q.size[2], kernel.block_m) * heads;
  int64_t grid = std::min<int64_t>(tiles, device.sm_count), heads_at_once = 1, tiles_per_turn = 1;
  if (p.is_causal) {
    const int64_t pairs = ceil_div(tiles, 2), rounds = ceil_div(pairs, device.sm_count);
    if (pairs * 100 >= rounds * device.sm_count * 93) {
      tiles_per_turn = 2;
    } else {
      // Where pairs would leave programs idle in the last round, the GPU itself starts tiles as others end, long ones
      // first. 32 MiB of keys and values leave room for q and out in the 50 MiB of L2.
      constexpr int64_t kKeyBytes = 32 << 20;
      const int64_t head_bytes = p.k.size[2] * (p.k.size[3] + p.v.size[3]) * dtype_size(p.k.dtype);
      heads_at_once = std::clamp<int64_t>(kKeyBytes / head_bytes * (p.q.size[1] / p.k.size[1]), 1, heads);
      grid = tiles;
    }
  }
  plan.args.set_i32(Arg::heads_at_once, heads_at_once);
  plan.args.set_i32(Arg::tiles_per_turn, tiles_per_turn);
  // Tile numbers are 32-bit, and the last round's may pass the last tile's; the error names the limit.
  add(plan, kernel, tiles < INT_MAX - 2 * device.sm_count ? grid : INT64_MAX);
}

}  // namespace

bool add_hopper_forward(Plan& plan, const Problem& p, const Device& device) {
  const Kernel* kernel = find(p.mask ? Function::fwd_hopper_mask : Function::fwd_hopper, p, device);
  if (kernel == nullptr) return false;
  if (kernel->mask == DType::keys) {
    add(plan, select(Function::mask_keys, p, device), prepare_mask_keys(plan, p, *kernel));
  }
  share_tiles(plan, *kernel, p, device);
  return true;
}

bool add_hopper_backward(Plan& plan, const Problem& p, const Device& device) {
  const Kernel* kernel = find(Function::bwd_hopper, p, device);
  if (kernel == nullptr) return false;
  const int64_t heads = p.q.size[0] * p.q.size[1], heads_k = p.k.size[0] * p.k.size[1];
  const int64_t blocks = ceil_div(p.q.size[2], kernel->block_m) * heads;
  plan.row_terms_elements = blocks * 2 * kernel->block_m;
  plan.dq_acc_elements = blocks * kernel->block_m * kernel->block_d;
  int64_t heads_at_once = 1;
  if (p.is_causal) {
    // Long programs first, over as many heads as leave q, dout and dq's accumulator in L2.
    constexpr int64_t kBytes = 32 << 20;
    const int64_t row_bytes = dtype_size(p.q.dtype) * (p.q.size[3] + p.v.size[3]) + 4 * kernel->block_d;
    heads_at_once = std::clamp<int64_t>(kBytes / (p.q.size[2] * row_bytes * (heads / heads_k)), 1, heads_k);
  }
  plan.args.set_i32(Arg::heads_at_once, heads_at_once);
  add(plan, select(Function::bwd_terms, p, device), blocks);
  add(plan, *kernel, ceil_div(p.k.size[2], kernel->block_n) * heads_k);
  if (p.dq) add(plan, select(Function::bwd_dq_cast, p, device), blocks);
  return true;
}

}  // namespace flashtri
