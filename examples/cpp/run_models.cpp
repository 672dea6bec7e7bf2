// Runs what export.py saved, without Python: forward and backward of a TorchScript model, forward of an AOTInductor
// package, both with torch.ops.flashtri inside; compares every result with what export.py computed in Python.
//
//   run_models FOLDER

#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/script.h>

#include <cstdio>
#include <fstream>
#include <string>

namespace {

using at::Tensor;

// The same op on the same inputs; only the rounding of the fp32 layers around it may differ (AOTInductor fuses them),
// which moves an fp16 value by a unit in the last place, 2^-10 of it, and then sums of them. NaN fails.
constexpr double kTolerance = 1.0 / 256;

bool agrees(const char* name, const Tensor& actual, const Tensor& expected) {
  const double largest = expected.abs().max().item<double>();
  const double error = (actual - expected).abs().max().item<double>();
  const bool passed = actual.sizes() == expected.sizes() && error <= kTolerance * largest;
  std::printf("%-28s checksum %14.6f, expected %14.6f, largest difference %.2e of %.2e: %s\n", name,
              actual.sum(at::kDouble).item<double>(), expected.sum(at::kDouble).item<double>(), error, largest,
              passed ? "ok" : "FAILED");
  return passed;
}

bool has_python() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("libpython") != std::string::npos || line.find("libtorch_python") != std::string::npos) return true;
  }
  return false;
}

int run(const std::string& folder) {
  const auto data = torch::jit::load(folder + "/data.pt");  // inputs and expected results, as a module's buffers
  const auto tensor = [&](const char* name) { return data.attr(name).toTensor(); };
  const Tensor mask = tensor("mask");
  std::printf("device %s\n", mask.device().str().c_str());
  int failed = 0;

  torch::jit::setGraphExecutorOptimize(false);  // no profiler, no fuser: nothing is compiled in this process
  auto model = torch::jit::load(folder + "/model.pt");
  const Tensor x = tensor("x").clone().requires_grad_();
  const Tensor out = model.forward({x, mask}).toTensor();
  (out * tensor("grad_out")).sum().backward();
  failed += !agrees("TorchScript out", out.detach(), tensor("out"));
  failed += !agrees("TorchScript gradient of x", x.grad(), tensor("grad_x"));
  for (const auto& parameter : model.named_parameters()) {
    if (parameter.name == "qkv.weight") {
      failed += !agrees("TorchScript gradient of qkv", parameter.value.grad(), tensor("grad_qkv"));
    }
  }

  torch::inductor::AOTIModelPackageLoader package(folder + "/model.pt2");
  failed += !agrees("AOTInductor out", package.run({tensor("x"), mask}).at(0), tensor("out"));

  const bool python = has_python();
  std::printf("Python in this process: %s\n", python ? "yes" : "no");
  return failed + python;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s FOLDER (written by export.py)\n", argv[0]);
    return 2;
  }
  try {
    const int failed = run(argv[1]);
    std::printf("run_models: %s\n", failed ? "FAILED" : "all results agree with Python's");
    return failed ? 1 : 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
