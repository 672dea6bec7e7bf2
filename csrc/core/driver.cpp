#include "driver.h"

#include <dlfcn.h>

#include <stdexcept>

namespace flashtri {
namespace {

Driver open_driver() {
  Driver made;
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    made.missing = dlerror();
    return made;
  }
#define FLASHTRI_FIND(name, symbol) made.name = reinterpret_cast<decltype(made.name)>(dlsym(library, symbol));
#define FLASHTRI_REQUIRE(name, symbol) \
  FLASHTRI_FIND(name, symbol)          \
  if (made.name == nullptr) made.missing = "libcuda.so.1 has no function " symbol;
  FLASHTRI_DRIVER_FUNCTIONS(FLASHTRI_REQUIRE)
  FLASHTRI_NEWER_DRIVER_FUNCTIONS(FLASHTRI_FIND)
#undef FLASHTRI_REQUIRE
#undef FLASHTRI_FIND
  if (!made.missing.empty()) return made;
  const CUresult result = made.cuInit(0);
  if (result != CUDA_SUCCESS) made.missing = "cuInit failed with error " + std::to_string(result);
  return made;
}

}  // namespace

const Driver& driver() {
  static const Driver made = open_driver();
  return made;
}

void check_driver(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  const char* words = nullptr;
  driver().cuGetErrorString(result, &words);
  throw std::runtime_error(std::string("flashtri: ") + what + " failed: " + (words ? words : "unknown error") + " (" +
                           std::to_string(result) + ")");
}

}  // namespace flashtri
