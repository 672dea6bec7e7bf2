#include "launcher.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <type_traits>
#include <vector>

#include "driver.h"
#include "tensor_map.h"

namespace flashtri {
namespace {

// What is known of one device. `functions` has a slot for every kernel of the registry, filled when first launched.
struct DeviceState {
  Device facts;
  CUcontext context = nullptr;
  std::unique_ptr<std::atomic<CUfunction>[]> functions;
};

const Driver& require_driver() {
  const Driver& cuda = driver();
  if (!cuda.missing.empty()) throw std::runtime_error("flashtri: no CUDA driver: " + cuda.missing);
  return cuda;
}

DeviceState make_device(int index) {
  const Driver& cuda = require_driver();
  CUdevice device;
  check_driver(cuda.cuDeviceGet(&device, index), "cuDeviceGet");
  const auto ask = [&](CUdevice_attribute attribute) {
    int answer = 0;
    check_driver(cuda.cuDeviceGetAttribute(&answer, attribute, device), "cuDeviceGetAttribute");
    return answer;
  };
  DeviceState made;
  made.facts.arch =
      10 * ask(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) + ask(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  made.facts.sm_count = ask(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
  made.facts.shared_memory = ask(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
  made.facts.has_tensor_maps = cuda.cuTensorMapEncodeTiled != nullptr;
  // The primary context is the one torch uses; it is kept for the life of the process.
  check_driver(cuda.cuDevicePrimaryCtxRetain(&made.context, device), "cuDevicePrimaryCtxRetain");
  made.functions = std::make_unique<std::atomic<CUfunction>[]>(kernels().count);
  return made;
}

std::mutex& mutex() {
  static std::mutex made;
  return made;
}

DeviceState& device_state(int index) {
  static std::vector<std::atomic<DeviceState*>> states(std::max(device_count(), 1));
  if (index < 0 || index >= static_cast<int>(states.size())) {
    throw std::runtime_error("flashtri: there is no CUDA device " + std::to_string(index) + "; this process sees " +
                             std::to_string(device_count()));
  }
  DeviceState* state = states[index].load(std::memory_order_acquire);
  if (state == nullptr) {
    const std::lock_guard<std::mutex> lock(mutex());
    state = states[index].load(std::memory_order_relaxed);
    if (state == nullptr) {
      state = new DeviceState(make_device(index));  // never freed: kernels may be in flight when the process ends
      states[index].store(state, std::memory_order_release);
    }
  }
  return *state;
}

// A thread that has not touched CUDA, or one that works on another device, does not have the context we launch in.
class ContextGuard {
 public:
  explicit ContextGuard(CUcontext context) {
    CUcontext current = nullptr;
    check_driver(driver().cuCtxGetCurrent(&current), "cuCtxGetCurrent");
    pushed_ = current != context;
    if (pushed_) check_driver(driver().cuCtxPushCurrent(context), "cuCtxPushCurrent");
  }
  ~ContextGuard() {
    CUcontext popped;
    if (pushed_) driver().cuCtxPopCurrent(&popped);
  }
  ContextGuard(const ContextGuard&) = delete;
  ContextGuard& operator=(const ContextGuard&) = delete;

 private:
  bool pushed_ = false;
};

// Loading a module is not allowed inside a stream capture, unless the thread's capture mode is relaxed around it.
class RelaxedCapture {
 public:
  RelaxedCapture() { driver().cuThreadExchangeStreamCaptureMode(&mode_); }
  ~RelaxedCapture() { driver().cuThreadExchangeStreamCaptureMode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

CUfunction load(const Kernel& kernel) {
  const Driver& cuda = driver();
  const RelaxedCapture relaxed;
  CUmodule module;
  CUfunction function;
  check_driver(cuda.cuModuleLoadData(&module, kernel.image), kernel.name);
  check_driver(cuda.cuModuleGetFunction(&function, module, kernel.symbol), kernel.name);
  check_driver(cuda.cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, kernel.shared),
               kernel.name);
  return function;
}

CUfunction function_of(const Kernel& kernel, DeviceState& state) {
  std::atomic<CUfunction>& slot = state.functions[&kernel - kernels().first];
  CUfunction function = slot.load(std::memory_order_acquire);
  if (function == nullptr) {
    const std::lock_guard<std::mutex> lock(mutex());
    function = slot.load(std::memory_order_relaxed);
    if (function == nullptr) slot.store(function = load(kernel), std::memory_order_release);
  }
  return function;
}

// The driver reads each parameter from the address given for it: the values stay where they are in the plan.
void launch_kernel(const Launch& launch, const Arguments& args, DeviceState& state, CUstream stream) {
  const Kernel& kernel = *launch.kernel;
  constexpr size_t kScratchPointers = 2;  // Triton appends two, for its own scratch; our kernels need none
  constexpr size_t kMaps = std::extent_v<decltype(kernel.boxes)>;
  void* params[static_cast<size_t>(Arg::count) + kMaps * kMapFollowers + kScratchPointers];
  CUtensorMap maps[kMaps];
  void* null = nullptr;
  int count = 0, map = 0;
  for (int i = 0; i < kernel.num_params; ++i) {
    const Arg arg = kernel.params[i];
    if (arg_info(arg).type == ArgType::tensor_map) {
      maps[map] = encode(arg, args, kernel, kernel.boxes[map]);
      params[count++] = &maps[map++];
      for (int follower = 0; follower < kMapFollowers; ++follower) params[count++] = &null;
      continue;
    }
    if (!args.has(arg)) {
      throw std::logic_error(std::string("flashtri: ") + kernel.name + " needs the argument " + arg_info(arg).name +
                             ", which nobody set");
    }
    params[count++] = const_cast<ArgValue*>(&args[arg]);
  }
  for (size_t i = 0; i < kScratchPointers; ++i) params[count++] = &null;
  check_driver(driver().cuLaunchKernel(function_of(kernel, state), launch.grid, 1, 1, 32 * kernel.num_warps, 1, 1,
                                       kernel.shared, stream, params, nullptr),
               kernel.name);
}

}  // namespace

int device_count() {
  const Driver& cuda = driver();
  int count = 0;
  if (!cuda.missing.empty() || cuda.cuDeviceGetCount(&count) != CUDA_SUCCESS) return 0;
  return count;
}

const Device& device_facts(int index) { return device_state(index).facts; }

void launch(const Plan& plan, int index, void* stream) {
  if (plan.num_launches == 0) return;
  DeviceState& state = device_state(index);
  const ContextGuard guard(state.context);
  for (int i = 0; i < plan.num_launches; ++i) {
    launch_kernel(plan.launches[i], plan.args, state, static_cast<CUstream>(stream));
  }
}

}  // namespace flashtri
