// The CUDA driver's functions that the launcher calls, found in libcuda.so.1 at first use, so that the library loads on
// a machine without a GPU.
#pragma once

#include <cuda.h>

#include <string>

namespace flashtri {

// clang-format off
#define FLASHTRI_DRIVER_FUNCTIONS(X)                                              \
  X(cuInit, "cuInit")                                                             \
  X(cuGetErrorString, "cuGetErrorString")                                         \
  X(cuDeviceGetCount, "cuDeviceGetCount")                                         \
  X(cuDeviceGet, "cuDeviceGet")                                                   \
  X(cuDeviceGetAttribute, "cuDeviceGetAttribute")                                 \
  X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain")                         \
  X(cuCtxGetCurrent, "cuCtxGetCurrent")                                           \
  X(cuCtxPushCurrent, "cuCtxPushCurrent_v2")                                      \
  X(cuCtxPopCurrent, "cuCtxPopCurrent_v2")                                        \
  X(cuModuleLoadData, "cuModuleLoadData")                                         \
  X(cuModuleGetFunction, "cuModuleGetFunction")                                   \
  X(cuFuncSetAttribute, "cuFuncSetAttribute")                                     \
  X(cuLaunchKernel, "cuLaunchKernel")                                             \
  X(cuThreadExchangeStreamCaptureMode, "cuThreadExchangeStreamCaptureMode")
// Null where the driver is older than they are.
#define FLASHTRI_NEWER_DRIVER_FUNCTIONS(X)                                        \
  X(cuTensorMapEncodeTiled, "cuTensorMapEncodeTiled") /* CUDA 12.0 */
// clang-format on

struct Driver {
#define FLASHTRI_DECLARE(name, symbol) decltype(&::name) name = nullptr;
  FLASHTRI_DRIVER_FUNCTIONS(FLASHTRI_DECLARE)
  FLASHTRI_NEWER_DRIVER_FUNCTIONS(FLASHTRI_DECLARE)
#undef FLASHTRI_DECLARE
  std::string missing;  // why there is no driver; empty when there is one
};

const Driver& driver();

// Throws std::runtime_error with the driver's own words.
void check_driver(CUresult result, const char* what);

}  // namespace flashtri
