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

#include "checks.h"
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

template <typename Tensors>
void refuse_forward_mode(const Tensors& tensors) {
  for (const at::Tensor* tensor : tensors) {
    TORCH_CHECK_NOT_IMPLEMENTED(
        !tensor->defined() || !tensor->_fw_grad(/*level=*/0).defined(),
        "flashtri has no forward-mode derivative (torch.func.jvp, torch.autograd.forward_ad); got an input with a "
        "tangent; use reverse mode (backward, torch.func.grad) or detach the input");
  }
}

bool requires_grad(const at::Tensor* tensor) { return tensor->defined() && tensor->requires_grad(); }

template <typename Tensors>
bool any_requires_grad(const Tensors& tensors) {
  return at::GradMode::is_enabled() && std::any_of(tensors.begin(), tensors.end(), requires_grad);
}

// Values of a call with their types, as compiled autograd takes them into its graph and hands them back.
class Packed {
 public:
  Packed() = default;
  explicit Packed(const std::vector<c10::IValue>& values) : args_(values) {}

  template <typename T>
  void pack(const T& value) {
    args_.pack(value);
    types_.push_back(compiled::IValuePacker<T>::packed_type());
  }
  void pack(const OptionalTensor& tensor) { pack(tensor.value_or(at::Tensor())); }

  template <typename T>
  void unpack(T& value) {
    value = args_.unpack<T>();
  }
  void unpack(OptionalTensor& option) {
    if (const auto tensor = args_.unpack<at::Tensor>(); tensor.defined()) option = tensor;
  }

  const std::vector<c10::IValue>& values() const { return args_.vec(); }
  const std::vector<at::TypePtr>& types() const { return types_; }

 private:
  compiled::PackedArgs args_;
  std::vector<at::TypePtr> types_;
};

// What the backward takes from the forward, unpacked.
struct Saved {
  at::Tensor q, k, v, out, lse, row_stats, rng_state;
  Options options;
  Needs needs;

  // Calls function on each member; `self` may be const.
  template <typename Self, typename Function>
  static void for_each(Self& self, const Function& function) {
    for (auto* tensor : {&self.q, &self.k, &self.v, &self.out, &self.lse, &self.row_stats, &self.rng_state}) {
      function(*tensor);
    }
    apply_options(self.options, [&](auto&... option) { (function(option), ...); });
    for (auto& needed : self.needs) function(needed);
  }

  Packed pack() const {
    Packed packed;
    for_each(*this, [&](const auto& value) { packed.pack(value); });
    return packed;
  }

  static Saved unpack(Packed packed) {
    Saved saved;
    for_each(saved, [&](auto& value) { packed.unpack(value); });
    return saved;
  }
};

// gradients: of out and of lse, each undefined where that output is not part of the loss.
variable_list backward(const variable_list& gradients, const Saved& saved) {
  if (!gradients[0].defined() && !gradients[1].defined()) return variable_list(kInputs);
  const at::Tensor grad_out = gradients[0].defined() ? gradients[0] : at::zeros_like(saved.out);
  const OptionalTensor grad_lse = gradients[1].defined() ? OptionalTensor(gradients[1]) : std::nullopt;
  variable_list list = std::apply([](auto... gradient) { return variable_list{std::move(gradient)...}; },
                                  call_bwd({{saved.options, saved.q, saved.k, saved.v},
                                            grad_out,
                                            grad_lse,
                                            saved.out,
                                            saved.lse,
                                            saved.row_stats,
                                            saved.rng_state,
                                            saved.needs}));
  for (size_t i = 0; i < kInputs; ++i) {
    if (!saved.needs[i]) list[i].reset();
  }
  return list;
}

struct AttentionBackward : Node {
  SavedVariable q, k, v, out, lse, row_stats, rng_state;
  std::array<SavedVariable, WithOptionTypes<std::tuple>::tensors> option_tensors;
  Options options;  // without its tensors, which are in option_tensors

  std::string name() const override { return "FlashtriBackward"; }

  void save(const ForwardArgs& args, const ForwardResult& result) {
    q = SavedVariable(args.q, false);
    k = SavedVariable(args.k, false);
    v = SavedVariable(args.v, false);
    out = SavedVariable(std::get<0>(result), true);
    lse = SavedVariable(std::get<1>(result), true);
    row_stats = SavedVariable(std::get<2>(result), false);
    rng_state = SavedVariable(std::get<3>(result), false);
    options = args;
    auto* next = option_tensors.data();
    for_each_tensor_option(options, [&](OptionalTensor& tensor) {
      *next++ = SavedVariable(tensor, false);
      tensor.reset();
    });
  }

  Saved unpack() {
    const NodePtr self = getptr();  // out and lse are this node's own outputs
    Saved saved{q.unpack(),         k.unpack(), v.unpack(), out.unpack(self), lse.unpack(self), row_stats.unpack(),
                rng_state.unpack(), options,    {}};
    const auto* next = option_tensors.data();
    for_each_tensor_option(saved.options, [&](OptionalTensor& option) {
      if (const auto tensor = (next++)->unpack(); tensor.defined()) option = tensor;
    });
    for (size_t i = 0; i < kInputs; ++i) saved.needs[i] = task_should_compute_output(i);
    return saved;
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
    for_each_value_option(options, [&](const auto& option) { args.collect(option); });
  }

  variable_list apply_with_saved(const variable_list& gradients, compiled::SwapSavedVariables& swap) override {
    for_each_saved([&](SavedVariable& variable, bool) { swap.before(variable); }, *this);
    for_each_value_option(options, [&](auto& option) { swap.before(option); });
    const Packed packed = unpack().pack();
    const auto& compiler = compiled::getPyCompilerInterface();
    // Once a process: the types are the same for every call.
    static const std::string function = compiler->bind_function(
        swap.get_py_compiler(), name(),
        [](const variable_list& gradients, const std::vector<c10::IValue>& values) {
          return backward(gradients, Saved::unpack(Packed(values)));
        },
        packed.types());
    const auto metadata = compiled::IValuePacker<std::vector<std::optional<torch::autograd::InputMetadata>>>::pack(
        compiled::get_input_metadata(next_edges()));
    variable_list result = compiler->call_function(swap.get_py_compiler(), "apply_functional", function, gradients,
                                                   packed.values(), metadata);
    for_each_value_option(options, [&](auto& option) { swap.after(option); });
    for_each_saved([&](SavedVariable& variable, bool) { swap.after(variable); }, *this);
    return result;
  }

 private:
  // Calls function(variable, whether it is an output of this node).
  template <typename Function, typename Self>
  static void for_each_saved(const Function& function, Self& self) {
    for (auto* input : {&self.q, &self.k, &self.v, &self.row_stats, &self.rng_state}) function(*input, false);
    for (auto* output : {&self.out, &self.lse}) function(*output, true);
    for (auto& option : self.option_tensors) function(option, false);
  }
};

ForwardResult fwd_autograd(const ForwardArgs& args) {
  const auto inputs = args.inputs();
  refuse_forward_mode(inputs);
  if (!any_requires_grad(inputs)) {
    const at::AutoDispatchBelowADInplaceOrView below;
    return call_fwd(args);
  }
  check_differentiable(args);
  // A tensor subclass, FakeTensor for one, has no device to ask.
  if (args.q.is_cuda() && !at::isTensorSubclassLike(args.q)) {
    Needs needs;
    std::transform(inputs.begin(), inputs.end(), needs.begin(), requires_grad);
    check_cuda_backward(args, needs);
  }
  // Made before the forward runs, so that its sequence number matches the forward's in profiles.
  auto node = make_node<AttentionBackward>();
  node->set_next_edges(torch::autograd::collect_next_edges(at::ArrayRef(inputs)));
  ForwardResult result = [&] {
    const at::AutoDispatchBelowADInplaceOrView below;
    return call_fwd(args);
  }();
  torch::autograd::set_history(std::get<0>(result), node);
  torch::autograd::set_history(std::get<1>(result), node);
  node->save(args, result);
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
  const at::Tensor grad_lse = args.has_grad_lse() ? *args.grad_lse : at::Tensor();
  const auto [q, k, v, mask, sinks, relative_bias] = args.inputs();
  const auto sources = {
      &args.grad_out, &grad_lse, q, k, v, mask, sinks, relative_bias, &args.out, &args.lse,
  };
  refuse_forward_mode(sources);
  BackwardResult result = [&] {
    const at::AutoDispatchBelowADInplaceOrView below;
    return call_bwd(args);
  }();
  if (any_requires_grad(sources)) {
    auto node = make_node<DoubleBackward>();
    node->set_next_edges(torch::autograd::collect_next_edges(at::ArrayRef(sources)));
    const auto give_history = [&](at::Tensor& gradient) {
      if (at::isFloatingType(gradient.scalar_type())) torch::autograd::set_history(gradient, node);
    };
    std::apply([&](auto&... gradient) { (give_history(gradient), ...); }, result);
  }
  return result;
}

}  // namespace

TORCH_LIBRARY_IMPL(flashtri, Autograd, library) {
  register_fwd<fwd_autograd>(library);
  register_bwd<bwd_autograd>(library);
}

}  // namespace flashtri::op
