#include "plan.h"

#include <algorithm>
#include <climits>
#include <cmath>

#include "plan_mask.h"
#include "plan_parts.h"
#include "select.h"

namespace flashtri {
namespace {

int64_t volume(const Tensor& t) { return t.size[0] * t.size[1] * t.size[2] * t.size[3]; }

// A dimension of size 1 may carry any stride; it is never stepped along.
int64_t step(const Tensor& t, int dim) { return t.size[dim] == 1 ? 0 : t.stride[dim]; }

void check_head_dim(const char* name, int64_t head_dim) {
  if (head_dim % kHeadDimStep == 0 && head_dim >= kHeadDimStep && head_dim <= kMaxHeadDim) return;
  const std::string step = std::to_string(kHeadDimStep);
  throw PlanError(std::string("flashtri: head_dim of ") + name + " must be a multiple of " + step + " from " + step +
                      " to " + std::to_string(kMaxHeadDim) + ", got " + std::to_string(head_dim) +
                      "; pad the last dimension with zeros",
                  true);
}

void check(const Problem& p) {
  check_head_dim("q and k", p.q.size[3]);
  check_head_dim("v", p.v.size[3]);
  // Row and column indices, and their sum with the band's offset, are 32-bit in the kernels.
  if (p.q.size[2] + p.seqlen_k() >= INT_MAX - 1024) {
    throw PlanError("flashtri: seqlen_q + seqlen_k must be below 2^31 - 1024, got " + std::to_string(p.q.size[2]) +
                        " + " + std::to_string(p.seqlen_k()) + "; split the sequence",
                    false);
  }
  if (p.has_pages() && p.k.size[2] % 16 != 0) {
    throw PlanError("flashtri: pages of k and v must hold a multiple of 16 keys, got " + std::to_string(p.k.size[2]) +
                        "; choose another page size",
                    false);
  }
  if (!(p.scale >= 0.0f) || std::isinf(p.scale)) {
    throw PlanError(
        "flashtri: scale must be finite and not negative, got " + std::to_string(p.scale) + "; negate q instead",
        false);
  }
  if (p.relative_bias && p.relative_bias.size[3] != p.q.size[2] + p.k.size[2] - 1) {
    throw PlanError(
        "flashtri: relative_bias must have seqlen_q + seqlen_k - 1 = " + std::to_string(p.q.size[2] + p.k.size[2] - 1) +
            " columns, got " + std::to_string(p.relative_bias.size[3]) + "; one for each distance",
        false);
  }
  if ((p.dk.dtype == DType::none) != (p.dv.dtype == DType::none)) {
    throw PlanError("flashtri: dk and dv come from one kernel: describe both or neither", false);
  }
  if (p.mask.dtype != served_mask_dtype(p)) {
    throw PlanError(std::string("flashtri: the mask of a ") + dtype_name(p.q.dtype) + " problem must be boolean, " +
                        dtype_name(p.q.dtype) + " or f32, f32 with softcap or dropout; got " +
                        dtype_name(p.mask.dtype) + "; convert it to f32",
                    false);
  }
  const std::pair<const char*, const Tensor*> tensors[] = {{"q", &p.q},     {"k", &p.k},       {"v", &p.v},
                                                           {"out", &p.out}, {"dout", &p.dout}, {"dq", &p.dq},
                                                           {"dk", &p.dk},   {"dv", &p.dv}};
  for (const auto& [name, tensor] : tensors) {
    if (*tensor && !is_readable(*tensor)) {
      throw PlanError(
          std::string("flashtri: ") + name +
              " must have a last stride of 1, 16-byte aligned data and strides that are multiples of 8; copy it "
              "with contiguous()",
          false);
    }
  }
}

void set_tensor(Arguments& args, const Tensor& t, Arg data, Arg stride_b, Arg stride_h, Arg stride_s) {
  args.set(data, t.data);
  args.set_i64(stride_b, step(t, 0));
  args.set_i64(stride_h, step(t, 1));
  args.set_i64(stride_s, step(t, 2));
}

#define FLASHTRI_SET(name) \
  if (p.name) set_tensor(args, p.name, Arg::name, Arg::name##_stride_b, Arg::name##_stride_h, Arg::name##_stride_s)

void set_arguments(Arguments& args, const Problem& p) {
  FLASHTRI_SET(q);
  FLASHTRI_SET(k);
  FLASHTRI_SET(v);
  FLASHTRI_SET(out);
  FLASHTRI_SET(dout);
  FLASHTRI_SET(dq);
  FLASHTRI_SET(dk);
  FLASHTRI_SET(dv);

  // Without a mask the kernels still have its parameters, and never read them.
  const Tensor mask = p.needs_dmask || p.needs_drelative_bias ? p.mask : collapsed(p.mask);
  args.set(Arg::mask, mask.data);
  args.set_i64(Arg::mask_stride_b, step(mask, 0));
  args.set_i64(Arg::mask_stride_h, step(mask, 1));
  args.set_i64(Arg::mask_stride_q, step(mask, 2));
  args.set_i64(Arg::mask_stride_k, step(mask, 3));
  args.set_i32(Arg::mask_batch, mask.size[0]);
  args.set_i32(Arg::mask_heads, mask.size[1]);
  args.set_i32(Arg::mask_rows, mask.size[2]);
  args.set_i32(Arg::mask_columns, mask.size[3]);
  args.set(Arg::mask_table, nullptr);
  args.set(Arg::row_stats, nullptr);
  args.set(Arg::dlse, nullptr);

  const int64_t seqlen_q = p.q.size[2], seqlen_k = p.seqlen_k();
  args.set_i64(Arg::num_rows, p.q.size[0] * p.q.size[1] * seqlen_q);
  args.set_i32(Arg::batch, p.q.size[0]);
  args.set_i64(Arg::lse_stride_b, p.is_packed() ? 0 : p.q.size[1] * seqlen_q);
  args.set_i64(Arg::lse_stride_h, seqlen_q);
  args.set_i32(Arg::max_seqlen_q, p.longest_q());
  args.set_i32(Arg::max_seqlen_k, p.longest_k());
  args.set_i32(Arg::is_packed, p.is_packed());
  args.set(Arg::cu_seqlens_q, nullptr);
  args.set(Arg::cu_seqlens_k, nullptr);
  args.set_i32(Arg::heads_q, p.q.size[1]);
  args.set_i32(Arg::group_size, p.q.size[1] / p.k.size[1]);
  args.set_i32(Arg::seqlen_q, seqlen_q);
  args.set_i32(Arg::seqlen_k, seqlen_k);
  args.set_i32(Arg::head_dim, p.q.size[3]);
  args.set_i32(Arg::head_dim_v, p.v.size[3]);
  args.set_f32(Arg::scale, p.scale);
  args.set_i32(Arg::has_dlse, p.has_dlse);
  // Where a sequence's own length is known on the device only, the kernel moves a diagonal that ends in its last key.
  const bool band_follows = (p.has_seqused_k || p.is_packed()) && p.bottom_right;
  const Band band = band_follows || p.is_packed() ? p.reach() : p.band();
  args.set_i32(Arg::band_follows, band_follows);
  args.set_i32(Arg::band_lo, band.lo);
  args.set_i32(Arg::band_hi, band.hi);
  args.set(Arg::sinks, nullptr);
  args.set_i32(Arg::has_sinks, p.has_sinks);
  args.set(Arg::seqused_k, nullptr);
  args.set_i32(Arg::has_seqused_k, p.has_seqused_k);
  args.set_i64(Arg::table_stride_b, p.table_stride_b);
  args.set_i32(Arg::page_size, p.k.size[2]);
  args.set(Arg::rng_state, nullptr);
  args.set_f32(Arg::softcap, p.softcap);
  args.set_i32(Arg::dropout_threshold, dropout_threshold(p.dropout_p));
  args.set_f32(Arg::dropout_scale, static_cast<float>(1.0 / (1.0 - p.dropout_p)));
}

// One program sums every place that a tile of the mask is broadcast to. Where the mask has few tiles, several programs
// share a tile, each writing a partial sum, so that about two programs a multiprocessor run.
void add_dmask(Plan& plan, const Problem& p, const Device& device) {
  const Kernel& kernel = select(Function::bwd_dmask, p, device);
  const int64_t row_blocks = ceil_div(p.q.size[2], kernel.block_m),
                column_blocks = ceil_div(p.k.size[2], kernel.block_n);
  int64_t tiles = p.mask.size[0] * p.mask.size[1], repeats = 1;
  (p.mask.size[2] == 1 ? repeats : tiles) *= row_blocks;
  (p.mask.size[3] == 1 ? repeats : tiles) *= column_blocks;
  if (p.mask.size[0] == 1) repeats *= p.q.size[0];
  if (p.mask.size[1] == 1) repeats *= p.q.size[1];
  const int64_t splits = std::clamp<int64_t>(ceil_div(2 * device.sm_count, tiles), 1, std::min<int64_t>(repeats, 64));
  plan.args.set_i32(Arg::splits, splits);
  plan.dmask_splits = splits;
  plan.dmask_elements = splits * volume(p.mask);
  add(plan, kernel, splits * tiles);
}

// One program sums a diagonal of tiles, the longest of which sets how long it takes; several share it as for a mask.
void add_dbias(Plan& plan, const Problem& p, const Device& device) {
  const Kernel& kernel = select(Function::bwd_dbias, p, device);
  const int64_t row_blocks = ceil_div(p.q.size[2], kernel.block_m),
                column_blocks = ceil_div(p.k.size[2], kernel.block_m), diagonals = row_blocks + column_blocks - 1;
  const int64_t heads = p.relative_bias.size[1], programs = heads * diagonals;
  const int64_t repeats = std::min(row_blocks, column_blocks) * p.q.size[0] * (heads == 1 ? p.q.size[1] : 1);
  const int64_t splits =
      std::clamp<int64_t>(ceil_div(4 * device.sm_count, programs), 1, std::min<int64_t>(repeats, 64));
  plan.args.set_i32(Arg::splits, splits);
  plan.dbias_size = {splits, heads, 2, diagonals * kernel.block_m};
  plan.dbias_block = kernel.block_m;
  plan.dbias_offset = row_blocks * kernel.block_m - p.q.size[2] + 1;
  add(plan, kernel, splits * programs);
}

}  // namespace

void add(Plan& plan, const Kernel& kernel, int64_t grid) {
  if (grid > INT_MAX) {
    throw PlanError("flashtri: " + std::string(function_name(kernel.function)) + " would need " + std::to_string(grid) +
                        " programs, the limit is 2^31 - 1; split the batch",
                    false);
  }
  plan.launches[plan.num_launches++] = {&kernel, static_cast<unsigned>(grid)};
}

bool is_readable(const Tensor& t) {
  if (t.stride[3] != 1 || reinterpret_cast<uintptr_t>(t.data) % 16 != 0) return false;
  for (int dim = 0; dim < 3; ++dim) {
    if (step(t, dim) % 8 != 0) return false;
  }
  return true;
}

DType served_mask_dtype(const Problem& p) {
  if (p.mask.dtype == DType::none || p.needs_features()) return p.mask ? DType::f32 : DType::none;
  return p.mask.dtype != p.q.dtype && p.mask.dtype != DType::boolean ? DType::f32 : p.mask.dtype;
}

Problem as_kernels_see(const Problem& problem) {
  Problem p = problem;
  if (!p.relative_bias) return p;
  const Tensor& bias = p.relative_bias;
  const int64_t seqlen_q = p.q.size[2], stride = bias.stride[3];
  p.mask.dtype = bias.dtype;
  p.mask.data = static_cast<char*>(bias.data) + (seqlen_q - 1) * stride * dtype_size(bias.dtype);
  p.mask.size = {1, bias.size[1], seqlen_q, p.k.size[2]};
  p.mask.stride = {0, step(bias, 1), -stride, stride};
  return p;
}

Plan plan(const Problem& problem, const Device& device) {
  Problem changed;
  if (problem.relative_bias) changed = as_kernels_see(problem);
  const Problem& p = problem.relative_bias ? changed : problem;
  check(p);
  Plan plan;
  if (volume(p.q) == 0 || volume(p.k) == 0 || p.longest_q() == 0 || p.longest_k() == 0) return plan;
  set_arguments(plan.args, p);

  const int64_t heads = p.batch() * p.q.size[1], heads_k = p.batch() * p.k.size[1];
  const auto query_blocks = [&](const Kernel& kernel) { return ceil_div(p.longest_q(), kernel.block_m) * heads; };
  const auto key_blocks = [&](const Kernel& kernel) { return ceil_div(p.longest_k(), kernel.block_n) * heads_k; };
  if (!p.backward) {
    const Function few_queries = p.has_pages() ? Function::fwd_paged : Function::fwd_decode;
    // Nothing else takes lengths of their own, so where those kernels do not serve their reasons are what to say.
    const bool must_serve = p.has_pages() || p.has_seqused_k;
    if (const Kernel* decode = must_serve ? &select(few_queries, p, device) : find(few_queries, p, device)) {
      add_decode(plan, *decode, p, device);
      return plan;
    }
    if (add_hopper_forward(plan, p, device)) return plan;
    const Kernel& fwd = select(Function::fwd, p, device);
    add(plan, fwd, query_blocks(fwd));
    return plan;
  }
  if (!p.dq && !p.dk && !p.needs_dmask && !p.needs_drelative_bias && !p.needs_delta) return plan;
  if (add_hopper_backward(plan, p, device)) return plan;
  const Kernel& delta = select(Function::bwd_delta, p, device);
  // Delta is of rows alone, packed or not.
  plan.delta_elements = p.q.size[0] * p.q.size[1] * p.q.size[2];
  add(plan, delta, ceil_div(p.q.size[2], delta.block_m) * p.q.size[0] * p.q.size[1]);
  if (p.dk) {
    const Kernel& dkdv = select(Function::bwd_dkdv, p, device);
    add(plan, dkdv, key_blocks(dkdv));
  }
  if (p.dq) {
    const Kernel& dq = select(Function::bwd_dq, p, device);
    add(plan, dq, query_blocks(dq));
  }
  if (p.needs_dmask) add_dmask(plan, p, device);
  if (p.needs_drelative_bias) add_dbias(plan, p, device);
  return plan;
}

}  // namespace flashtri
