// Gradients: a hand-written autograd node, a few microseconds cheaper than a Python or torch::autograd::Function one,
// that also works under torch.func and compiled autograd.
#include <ATen/TensorSubclassLikeUtils.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/dynamo/compiled_autograd.h>

#include <algorithm>
#include <mutex>

#include "cuda.h"

namespace flashtri::op {

namespace {

namespace compiled = torch::dynamo::autograd;
using torch::autograd::Node;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

// shared_ptr in torch 2.11, intrusive_ptr from 2.13 on.
using NodePtr = decltype(std::declval<Node&>().getptr());

template <typename T, typename Ptr = NodePtr>
auto make_node() {
  if constexpr (std::is_same_v<Ptr, std::shared_ptr<Node>>) {
    // Found by argument lookup, since later versions have no such function. It frees a long graph without recursion.
    return std::shared_ptr<T>(new T(), [](T* node) { deleteNode(node); });
  } else {
    return c10::make_intrusive<T>();
  }
}

void refuse_forward_mode(std::initializer_list<const at::Tensor*> tensors) {
  for (const at::Tensor* tensor : tensors) {
    TORCH_CHECK_NOT_IMPLEMENTED(
        !tensor->defined() || !tensor->_fw_grad(/*level=*/0).defined(),
        "flashtri has no forward-mode derivative (torch.func.jvp, torch.autograd.forward_ad); got an input with a "
        "tangent; use reverse mode (backward, torch.func.grad) or detach the input");
  }
}

bool any_requires_grad(std::initializer_list<const at::Tensor*> tensors) {
  return at::GradMode::is_enabled() &&
         std::any_of(tensors.begin(), tensors.end(), [](auto t) { return t->defined() && t->requires_grad(); });
}

// What the node keeps, unpacked: also the form in which compiled autograd hands it to the traced backward.
struct Saved {
  at::Tensor q, k, v, mask, out, lse, row_stats, rng_state;
  double dropout_p;
  bool is_causal;
  std::optional<double> scale;
  bool bottom_right;
  std::array<bool, 4> needs;

  std::vector<c10::IValue> pack() const {
    compiled::PackedArgs args;
    for (const at::Tensor* tensor : {&q, &k, &v, &mask, &out, &lse, &row_stats, &rng_state}) args.pack(*tensor);
    args.pack(dropout_p);
    args.pack(is_causal);
    args.pack(scale.has_value());
    args.pack(scale.value_or(0.0));
    args.pack(bottom_right);
    for (const bool needed : needs) args.pack(needed);
    return args.vec();
  }

  static Saved unpack(const std::vector<c10::IValue>& values) {
    compiled::PackedArgs args(values);
    Saved saved;
    for (at::Tensor* tensor :
         {&saved.q, &saved.k, &saved.v, &saved.mask, &saved.out, &saved.lse, &saved.row_stats, &saved.rng_state}) {
      *tensor = args.unpack<at::Tensor>();
    }
    saved.dropout_p = args.unpack<double>();
    saved.is_causal = args.unpack<bool>();
    const bool has_scale = args.unpack<bool>();
    const double scale = args.unpack<double>();
    if (has_scale) saved.scale = scale;
    saved.bottom_right = args.unpack<bool>();
    for (bool& needed : saved.needs) needed = args.unpack<bool>();
    return saved;
  }
};

// gradients: of out and of lse, each undefined where that output is not part of the loss.
variable_list backward(const variable_list& gradients, const Saved& saved) {
  const at::Tensor& grad_lse = gradients[1];
  if (!gradients[0].defined() && !grad_lse.defined()) return variable_list(4);
  const at::Tensor grad_out = gradients[0].defined() ? gradients[0] : at::zeros_like(saved.out);
  const auto optional = [](const at::Tensor& tensor) {
    return tensor.defined() ? std::optional<at::Tensor>(tensor) : std::nullopt;
  };
  const std::optional<at::Tensor> mask = optional(saved.mask), dlse = optional(grad_lse);
  auto result =
      call_bwd({{saved.q, saved.k, saved.v, mask, saved.dropout_p, saved.is_causal, saved.scale, saved.bottom_right},
                grad_out,
                dlse,
                saved.out,
                saved.lse,
                saved.row_stats,
                saved.rng_state,
                saved.needs});
  variable_list list{std::get<0>(result), std::get<1>(result), std::get<2>(result), std::get<3>(result)};
  for (size_t i = 0; i < 4; ++i) {
    if (!saved.needs[i]) list[i].reset();
  }
  return list;
}

struct AttentionBackward : Node {
  SavedVariable q, k, v, mask, out, lse, row_stats, rng_state;
  double dropout_p = 0.0;
  bool is_causal = false;
  std::optional<double> scale;
  bool bottom_right = false;

  std::string name() const override { return "FlashtriBackward"; }

  Saved unpack() {
    const NodePtr self = getptr();  // out and lse are this node's own outputs
    return {q.unpack(),
            k.unpack(),
            v.unpack(),
            mask.unpack(),
            out.unpack(self),
            lse.unpack(self),
            row_stats.unpack(),
            rng_state.unpack(),
            dropout_p,
            is_causal,
            scale,
            bottom_right,
            {task_should_compute_output(0), task_should_compute_output(1), task_should_compute_output(2),
             task_should_compute_output(3)}};
  }

  variable_list apply(variable_list&& gradients) override {
    const Saved saved = [&] {
      const std::lock_guard<std::mutex> lock(mutex_);  // another thread may run a backward through the same graph
      return unpack();
    }();
    return backward(gradients, saved);
  }

  void release_variables() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    for_each_saved([](SavedVariable& variable, bool) { variable.reset_data(); }, *this);
  }

  void compiled_args(compiled::CompiledNodeArgs& args) const override {
    for_each_saved([&](const SavedVariable& variable, bool is_output) { args.collect(variable, is_output); }, *this);
    args.collect(dropout_p);
    args.collect(is_causal);
    args.collect(scale);
    args.collect(bottom_right);
  }

  variable_list apply_with_saved(const variable_list& gradients, compiled::SwapSavedVariables& swap) override {
    for_each_saved([&](SavedVariable& variable, bool) { swap.before(variable); }, *this);
    const std::vector<c10::IValue> args = unpack().pack();
    const auto& compiler = compiled::getPyCompilerInterface();
    // Once a process: the types are the same for every call.
    static const std::string function = compiler->bind_function(
        swap.get_py_compiler(), name(),
        [](const variable_list& gradients, const std::vector<c10::IValue>& values) {
          return backward(gradients, Saved::unpack(values));
        },
        types_of(args));
    const auto metadata = compiled::IValuePacker<std::vector<std::optional<torch::autograd::InputMetadata>>>::pack(
        compiled::get_input_metadata(next_edges()));
    variable_list result =
        compiler->call_function(swap.get_py_compiler(), "apply_functional", function, gradients, args, metadata);
    for_each_saved([&](SavedVariable& variable, bool) { swap.after(variable); }, *this);
    return result;
  }

 private:
  static std::vector<at::TypePtr> types_of(const std::vector<c10::IValue>& values) {
    std::vector<at::TypePtr> types;
    for (const c10::IValue& value : values) {
      types.push_back(value.isTensor() ? at::TypePtr(at::TensorType::get()) : value.type());
    }
    return types;
  }

  // Calls function(variable, whether it is an output of this node).
  template <typename Function, typename Self>
  static void for_each_saved(const Function& function, Self& self) {
    for (auto* input : {&self.q, &self.k, &self.v, &self.mask}) function(*input, false);
    for (auto* output : {&self.out, &self.lse}) function(*output, true);
    for (auto* constant : {&self.row_stats, &self.rng_state}) function(*constant, false);
  }
};

ForwardResult fwd_autograd(const ForwardArgs& args) {
  const at::Tensor mask = args.has_mask() ? *args.attn_mask : at::Tensor();
  refuse_forward_mode({&args.q, &args.k, &args.v, &mask});
  if (!any_requires_grad({&args.q, &args.k, &args.v, &mask})) {
    const at::AutoDispatchBelowADInplaceOrView below;
    return call_fwd(args);
  }
  // A tensor subclass, FakeTensor for one, has no device to ask.
  if (args.q.is_cuda() && !at::isTensorSubclassLike(args.q)) {
    check_cuda_backward(args, {args.q.requires_grad(), args.k.requires_grad(), args.v.requires_grad(),
                               mask.defined() && mask.requires_grad()});
  }
  // Made before the forward runs, so that its sequence number matches the forward's in profiles.
  auto node = make_node<AttentionBackward>();
  node->set_next_edges(torch::autograd::collect_next_edges(args.q, args.k, args.v, mask));
  ForwardResult result = [&] {
    const at::AutoDispatchBelowADInplaceOrView below;
    return call_fwd(args);
  }();
  auto& [out, lse, row_stats, rng_state] = result;
  torch::autograd::set_history(out, node);
  torch::autograd::set_history(lse, node);
  node->q = SavedVariable(args.q, false);
  node->k = SavedVariable(args.k, false);
  node->v = SavedVariable(args.v, false);
  node->mask = SavedVariable(mask, false);
  node->out = SavedVariable(out, true);
  node->lse = SavedVariable(lse, true);
  node->row_stats = SavedVariable(row_stats, false);
  node->rng_state = SavedVariable(rng_state, false);
  node->dropout_p = args.dropout_p;
  node->is_causal = args.is_causal;
  node->scale = args.scale;
  node->bottom_right = args.bottom_right;
  return result;
}

// Stands behind the gradients where a graph of the backward is asked for, and raises only if someone walks it:
// torch.func.grad and create_graph=True build that graph without ever using it.
struct DoubleBackward : Node {
  std::string name() const override { return "FlashtriDoubleBackward"; }
  variable_list apply(variable_list&&) override { refuse(); }
  void compiled_args(compiled::CompiledNodeArgs&) const override { refuse(); }

 private:
  [[noreturn]] static void refuse() {
    TORCH_CHECK_NOT_IMPLEMENTED(false,
                                "flashtri has no double backward (the gradient of a gradient); got one asked for "
                                "through flashtri::bwd; use create_graph=False, or a composition of torch ops "
                                "where second derivatives are needed");
  }
};

BackwardResult bwd_autograd(const BackwardArgs& args) {
  const at::Tensor mask = args.has_mask() ? *args.attn_mask : at::Tensor();
  const at::Tensor grad_lse = args.has_grad_lse() ? *args.grad_lse : at::Tensor();
  refuse_forward_mode({&args.grad_out, &grad_lse, &args.q, &args.k, &args.v, &mask});
  BackwardResult result = [&] {
    const at::AutoDispatchBelowADInplaceOrView below;
    return call_bwd(args);
  }();
  if (any_requires_grad({&args.grad_out, &grad_lse, &args.q, &args.k, &args.v, &mask, &args.out, &args.lse})) {
    auto node = make_node<DoubleBackward>();
    node->set_next_edges(
        torch::autograd::collect_next_edges(args.grad_out, grad_lse, args.q, args.k, args.v, mask, args.out, args.lse));
    auto& [dq, dk, dv, dmask] = result;
    for (at::Tensor* gradient : {&dq, &dk, &dv, &dmask}) {
      if (at::isFloatingType(gradient->scalar_type())) torch::autograd::set_history(*gradient, node);
    }
  }
  return result;
}

}  // namespace

TORCH_LIBRARY_IMPL(flashtri, Autograd, library) {
  register_fwd<fwd_autograd>(library);
  register_bwd<bwd_autograd>(library);
}

}  // namespace flashtri::op
