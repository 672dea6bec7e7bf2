// The ops on CUDA tensors: describe them to the planner, allocate, launch. No CUDA library is linked: device and stream
// come through c10's registry of device types, the launch through csrc/core.
#include "cuda.h"

#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "checks.h"
#include "core/launcher.h"
#include "describe.h"
#include "lse_gradient.h"
#include "outputs.h"
#include "packed.h"

namespace flashtri::op {

namespace {

Plan make_plan(const Problem& problem, c10::DeviceIndex device) {
  try {
    return plan(problem, device_facts(device));
  } catch (const PlanError& error) {
    TORCH_CHECK_NOT_IMPLEMENTED(!error.unsupported, error.what());
    TORCH_CHECK_VALUE(false, error.what());
  }
}

void launch_on_current_stream(const Plan& plan, at::Device device) {
  const c10::impl::VirtualGuardImpl cuda(c10::DeviceType::CUDA);
  launch(plan, device.index(), cuda.getStream(device).native_handle());
}

// What mask_keys writes, as one allocation: first the bias, whose size is a multiple of 64, then the table.
at::Tensor set_mask_scratch(Plan& plan, const at::TensorOptions& fp32) {
  static_assert(sizeof(float) == sizeof(int32_t));
  if (plan.mask_bias_elements == 0) return {};
  at::Tensor scratch = at::empty({plan.mask_bias_elements + plan.mask_table_elements}, fp32);
  plan.args.set(Arg::mask_bias, scratch.mutable_data_ptr());
  plan.args.set(Arg::mask_table, scratch.mutable_data_ptr<float>() + plan.mask_bias_elements);
  return scratch;
}

// The sums over distances, from what bwd_dbias wrote: see Plan.
at::Tensor relative_bias_gradient(const Plan& plan, const at::Tensor& dbias, int64_t length) {
  const at::Tensor sums = dbias.sum(0);
  const at::Tensor moved = at::constant_pad_nd(sums.select(1, 0), {plan.dbias_block, 0})
                               .add_(at::constant_pad_nd(sums.select(1, 1), {0, plan.dbias_block}));
  return moved.narrow(1, plan.dbias_offset, length);
}

ForwardResult fwd_cuda(const ForwardArgs& args) {
  check_forward(args);
  const c10::DeviceGuard guard(args.q.device());
  ForwardResult result = empty_forward(args, Memory::cuda_allocator);
  const auto& [out, lse, row_stats, rng_state] = result;
  draw_rng_state(args, rng_state);
  if (has_no_scores(args)) {
    fill_without_keys(args, result);
    return result;
  }

  at::Tensor q, k, v, mask, bias, sinks;  // copies, where needed
  Problem problem;
  problem.q = readable(args.q, q);
  problem.k = readable(args.k, k);
  problem.v = readable(args.v, v);
  problem.out = describe_output(out);
  set_options(problem, args);
  const Lengths lengths(args);
  lengths.describe(problem);
  set_mask(problem, args, mask);
  if (args.has(args.relative_bias)) problem.relative_bias = readable_bias(args, bias);

  Plan plan = make_plan(problem, args.q.device().index());
  at::Tensor partial;
  if (plan.partial_out_elements > 0) {
    partial = at::empty({plan.partial_out_elements + plan.partial_lse_elements}, lse.options());
    float* data = static_cast<float*>(partial.mutable_data_ptr());
    plan.args.set(Arg::partial_out, data);
    plan.args.set(Arg::partial_lse, data + plan.partial_out_elements);
  }
  lengths.set_pointers(plan.args);
  const at::Tensor mask_scratch = set_mask_scratch(plan, lse.options());
  plan.args.set(Arg::lse, lse.mutable_data_ptr());
  if (args.uses_row_stats()) plan.args.set(Arg::row_stats, row_stats.mutable_data_ptr());
  if (args.dropout_p > 0.0) plan.args.set(Arg::rng_state, rng_state.mutable_data_ptr());
  if (problem.has_sinks) plan.args.set(Arg::sinks, dense(args.sinks->to(at::kFloat), sinks));
  launch_on_current_stream(plan, args.q.device());
  return result;
}

BackwardResult bwd_cuda(const BackwardArgs& args) {
  check_backward(args);
  const c10::DeviceGuard guard(args.q.device());
  // dk and dv come from one kernel, which writes both.
  BackwardArgs wider = args;
  wider.output_mask[kK] = wider.output_mask[kV] = args.output_mask[kK] || args.output_mask[kV];
  BackwardResult result = empty_backward(wider, Memory::cuda_allocator);
  auto& [dq, dk, dv, dmask, dsinks, drelative_bias] = result;
  if (has_no_scores(args)) {
    for (at::Tensor* gradient : {&dq, &dk, &dv, &dmask, &dsinks, &drelative_bias}) gradient->zero_();
    if (args.needs_dsinks() && args.has_grad_lse()) dsinks.copy_(sinks_gradient(args, args.grad_lse->neg()));
  } else {
    at::Tensor q, k, v, mask, bias, out, grad_out, lse, row_stats, grad_lse, scratch;
    Problem problem;
    problem.backward = true;
    problem.q = readable(args.q, q);
    problem.k = readable(args.k, k);
    problem.v = readable(args.v, v);
    problem.out = readable(args.out, out);
    problem.dout = readable(args.grad_out, grad_out);
    set_options(problem, args);
    set_mask(problem, args, mask);
    if (args.has(args.relative_bias)) problem.relative_bias = readable_bias(args, bias);
    if (wider.output_mask[kQ]) problem.dq = describe_output(dq);
    if (wider.output_mask[kK]) problem.dk = describe_output(dk);
    if (wider.output_mask[kV]) problem.dv = describe_output(dv);
    problem.has_dlse = args.has_grad_lse();
    problem.needs_delta = args.needs_dsinks();
    problem.needs_drelative_bias = args.needs_drelative_bias();
    const bool is_constant = args.needs_dmask() && dmask_needs_no_scores(args);
    problem.needs_dmask = args.needs_dmask() && !is_constant;
    const Lengths lengths(args);
    lengths.describe(problem);

    Plan plan = make_plan(problem, args.q.device().index());
    lengths.set_pointers(plan.args);
    const auto fp32 = args.lse.options();
    const at::Tensor delta = at::empty({plan.delta_elements}, fp32);
    const at::Tensor row_terms = at::empty({plan.row_terms_elements}, fp32);
    const at::Tensor dq_acc = at::empty({plan.dq_acc_elements}, fp32);
    plan.args.set(Arg::delta, delta.mutable_data_ptr());
    plan.args.set(Arg::row_terms, row_terms.mutable_data_ptr());
    plan.args.set(Arg::dq_acc, dq_acc.mutable_data_ptr());
    plan.args.set(Arg::lse, dense(args.lse, lse));
    if (args.uses_row_stats()) plan.args.set(Arg::row_stats, dense(args.row_stats, row_stats));
    if (args.dropout_p > 0.0) plan.args.set(Arg::rng_state, const_cast<void*>(args.rng_state.const_data_ptr()));
    if (args.has_grad_lse()) plan.args.set(Arg::dlse, dense(grad_lse_of_seen_rows(args), grad_lse));
    if (problem.needs_dmask) {
      scratch = at::empty({plan.dmask_splits, dmask.numel()}, fp32);
      plan.args.set(Arg::dmask, scratch.mutable_data_ptr());
    }
    at::Tensor dbias;
    if (problem.needs_drelative_bias) {
      dbias = at::empty(plan.dbias_size, fp32);
      plan.args.set(Arg::dbias, dbias.mutable_data_ptr());
    }
    launch_on_current_stream(plan, args.q.device());
    if (is_constant) fill_dmask_without_scores(args, dmask);
    if (problem.needs_dmask) dmask.copy_(scratch.sum(0).view(dmask.sizes()));
    if (args.needs_dsinks()) dsinks.copy_(sinks_gradient(args, delta.view(args.lse.sizes())));
    if (problem.needs_drelative_bias) drelative_bias.copy_(relative_bias_gradient(plan, dbias, drelative_bias.size(1)));
  }
  if (!args.output_mask[kK]) dk = at::empty({0}, args.k.options());
  if (!args.output_mask[kV]) dv = at::empty({0}, args.v.options());
  return result;
}

// What the planner would be asked by the backward, with gradients described by their inputs: same dtypes and sizes.
Problem backward_problem(const ForwardArgs& args, const Needs& needs) {
  const auto contiguous = [](const at::Tensor& tensor, int64_t last_dim) {
    Tensor described = describe(tensor, nullptr);
    described.size[3] = last_dim;
    described.stride = {described.size[1] * described.size[2] * last_dim, described.size[2] * last_dim, last_dim, 1};
    return described;
  };
  Problem problem;
  set_options(problem, args);
  problem.backward = true;
  problem.q = contiguous(args.q, args.q.size(3));
  problem.k = contiguous(args.k, args.k.size(3));
  problem.v = contiguous(args.v, args.v.size(3));
  problem.out = problem.dout = contiguous(args.q, args.v.size(3));
  if (args.has_mask()) {
    problem.mask = describe(*args.attn_mask, nullptr);
    problem.mask.dtype = served_mask_dtype(problem);
  }
  if (args.has(args.relative_bias)) {
    problem.relative_bias = describe(args.relative_bias->unsqueeze(1), nullptr);
    problem.relative_bias.dtype = DType::f32;
  }
  if (needs[kQ]) problem.dq = problem.q;
  if (needs[kK] || needs[kV]) {
    problem.dk = problem.k;
    problem.dv = problem.v;
  }
  problem.needs_drelative_bias = needs[kRelativeBias];
  problem.needs_dmask = needs[kMask] && !dmask_needs_no_scores(args);
  Lengths(args).describe(problem);
  return problem;
}

void check_as_batch(const ForwardArgs& args, const Needs& needs) {
  check_forward(args);
  make_plan(backward_problem(args, needs), args.q.device().index());
}

}  // namespace

void check_cuda_backward(const ForwardArgs& args, const Needs& needs) {
  if (args.is_packed()) {
    check_packed(args);
    const at::Tensor q = as_batch(args.q), k = as_batch(args.k), v = as_batch(args.v);
    return check_as_batch({args, q, k, v}, needs);
  }
  check_as_batch(args, needs);
}

TORCH_LIBRARY_IMPL(flashtri, CUDA, library) {
  register_fwd<fwd_of_packed<fwd_cuda>>(library);
  register_bwd<bwd_of_packed<bwd_cuda>>(library);
}

}  // namespace flashtri::op
