#include "select.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <map>
#include <set>
#include <vector>

#include "plan_mask.h"
#include "plan_parts.h"
#include "tensor_map.h"

namespace flashtri {
namespace {

// Kernels of one architecture, those with the smallest head_dim first, so that the first that fits pads least.
using ByArch = std::map<int, std::vector<const Kernel*>>;

const ByArch& kernels_by_arch() {
  static const ByArch table = [] {
    ByArch made;
    for (const Kernel& kernel : kernels()) made[kernel.arch].push_back(&kernel);
    for (auto& [arch, list] : made) {
      std::stable_sort(list.begin(), list.end(), [](auto* a, auto* b) { return a->block_d < b->block_d; });
    }
    return made;
  }();
  return table;
}

// A cubin runs on its own architecture; one for 8.x also on every later 8.x. From 9.0 on they are
// architecture-specific.
bool runs_on(int kernel_arch, int device_arch) {
  if (kernel_arch == device_arch) return true;
  return kernel_arch / 10 == 8 && device_arch / 10 == 8 && kernel_arch < device_arch;
}

const std::vector<const Kernel*>* runnable(int device_arch) {
  const ByArch& table = kernels_by_arch();
  for (auto it = table.rbegin(); it != table.rend(); ++it) {
    if (runs_on(it->first, device_arch)) return &it->second;
  }
  return nullptr;
}

int64_t widest_head(const Problem& problem) { return std::max(problem.q.size[3], problem.v.size[3]); }

// The passes over rows alone do not visit keys, mask_keys all of them.
bool uses_band(Function function) { return reads_scores(function) && function != Function::mask_keys; }

bool takes(const Kernel& kernel, Arg arg) {
  return std::find(kernel.params, kernel.params + kernel.num_params, arg) != kernel.params + kernel.num_params;
}

// The first rule by which a kernel that loads through TMA does not serve; null when it does.
const char* tma_refusal(const Kernel& kernel, const Problem& problem, const Device& device) {
  if (!device.has_tensor_maps) return "the driver encodes no TMA descriptors (they came with CUDA 12.0)";
  // -inf times what the GPU takes as 0 would be NaN.
  if (problem.scale < std::numeric_limits<float>::min()) return "it masks scores before it scales them: no scale of 0";
  // The figures of both are from an H200.
  if (widest_head(problem) <= kernel.block_d / 2) return "half of its work would be padding of head_dim";
  if (kernel.block_m > 128 && problem.q.size[2] < (problem.is_causal ? 4096 : 512)) {
    return "its tiles of 192 queries pay from 512 queries on, under causality from 4096";
  }
  if (kernel.function == Function::bwd_hopper) {
    if (problem.deterministic) return "it adds up dq in no fixed order, and the same bits every time are asked for";
    if (problem.needs_delta) return "the gradient of sinks is computed from delta, which it does not leave behind";
    if (!problem.dk) return "it always computes dk and dv, which are not asked for";
  }
  return map_refusal(problem);
}

// The rules in the order in which they are asked; `none`: the kernel serves.
enum class Rule {
  none,
  arch,
  dtype,
  mask,
  mask_layout,
  head_dim,
  shared_memory,
  packed,
  lengths,
  window,
  sinks,
  features,
  tma
};

Rule broken(const Kernel& kernel, const Problem& problem, const Device& device) {
  if (!runs_on(kernel.arch, device.arch)) return Rule::arch;
  if (kernel.dtype != problem.q.dtype) return Rule::dtype;
  if (!reads_mask_dtype(kernel, problem)) return Rule::mask;
  if (mask_refusal(kernel, problem) != nullptr) return Rule::mask_layout;
  if (kernel.block_d < widest_head(problem)) return Rule::head_dim;
  if (kernel.shared > device.shared_memory) return Rule::shared_memory;
  if (kernel.function == Function::fwd_combine) return Rule::none;  // it merges what another kernel computed
  if (problem.is_packed() && uses_band(kernel.function) && !takes(kernel, Arg::is_packed)) return Rule::packed;
  if (length_refusal(kernel, problem, device) != nullptr) return Rule::lengths;
  if (uses_band(kernel.function) && kernel.features != problem.needs_features()) return Rule::features;
  if (uses_band(kernel.function) && problem.has_left_edge() && !takes(kernel, Arg::band_lo)) return Rule::window;
  if (problem.has_sinks && !problem.backward && !takes(kernel, Arg::sinks)) return Rule::sinks;
  if (kernel.uses_tensor_maps() && tma_refusal(kernel, problem, device) != nullptr) return Rule::tma;
  return Rule::none;
}

std::atomic<const Kernel*> preferred{nullptr};

// False where tuning asks for another kernel than this one.
bool may_take(const Kernel& kernel) {
  const Kernel* asked = preferred.load(std::memory_order_relaxed);
  if (asked == nullptr || asked == &kernel) return true;
  return asked->function != kernel.function && asked->uses_tensor_maps() == kernel.uses_tensor_maps();
}

std::string arch_text(int arch) { return std::to_string(arch / 10) + "." + std::to_string(arch % 10); }

[[noreturn]] void refuse_arch(const Device& device) {
  std::string compiled;
  for (const auto& [arch, list] : kernels_by_arch()) compiled += (compiled.empty() ? "" : ", ") + arch_text(arch);
  throw PlanError("flashtri: no kernel is compiled for compute capability " + arch_text(device.arch) +
                      "; compiled in: " + (compiled.empty() ? "none" : compiled) + ". Rebuild with FLASHTRI_ARCHS=\"" +
                      std::to_string(device.arch) + "\" pip install .",
                  true);
}

}  // namespace

std::string refusal(const Kernel& kernel, const Problem& problem, const Device& device) {
  switch (broken(kernel, problem, device)) {
    case Rule::arch:
      return "it is for compute capability " + arch_text(kernel.arch) + ", the device is " + arch_text(device.arch);
    case Rule::dtype:
      return std::string("its dtype is ") + dtype_name(kernel.dtype) + ", q is " + dtype_name(problem.q.dtype);
    case Rule::mask:
      return std::string("its mask is ") + dtype_name(kernel.mask) + ", the problem's is " +
             dtype_name(problem.mask.dtype);
    case Rule::mask_layout:
      return mask_refusal(kernel, problem);
    case Rule::head_dim:
      return "its head_dim goes to " + std::to_string(kernel.block_d) + ", the problem's is " +
             std::to_string(widest_head(problem));
    case Rule::shared_memory:
      return "it needs " + std::to_string(kernel.shared) + " bytes of shared memory, a block may use " +
             std::to_string(device.shared_memory);
    case Rule::packed:
      return "it takes no packed sequences";
    case Rule::lengths:
      return length_refusal(kernel, problem, device);
    case Rule::window:
      return "its band has no left edge, the problem's window_left has one";
    case Rule::features:
      return kernel.features ? "it is for softcap and dropout" : "it computes neither softcap nor dropout";
    case Rule::sinks:
      return "it takes no sinks";
    case Rule::tma:
      return tma_refusal(kernel, problem, device);
    case Rule::none:
      break;
  }
  return "";
}

void prefer(const Kernel* kernel) { preferred.store(kernel, std::memory_order_relaxed); }

const Kernel* find(Function function, const Problem& problem, const Device& device) {
  const auto* list = runnable(device.arch);
  if (list == nullptr) refuse_arch(device);
  for (const Kernel* kernel : *list) {
    if (kernel->function != function || broken(*kernel, problem, device) != Rule::none) continue;
    if (may_take(*kernel)) return kernel;
  }
  return nullptr;
}

const Kernel& select(Function function, const Problem& problem, const Device& device) {
  if (const Kernel* kernel = find(function, problem, device)) return *kernel;
  // The same rule refuses many kernels, so each distinct reason is said once.
  std::set<std::string> reasons;
  for (const Kernel* kernel : *runnable(device.arch)) {
    if (kernel->function == function) reasons.insert(refusal(*kernel, problem, device));
  }
  std::string message =
      std::string("flashtri: no compiled kernel computes ") + function_name(function) + " for this problem.";
  for (const std::string& reason : reasons) message += "\n  refused: " + reason;
  message += "\nSee flashtri.kernels() for what is compiled in; add a variant in aot/variants.py and rebuild.";
  throw PlanError(message, true);
}

}  // namespace flashtri
