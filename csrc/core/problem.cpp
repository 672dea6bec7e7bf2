#include "problem.h"

namespace flashtri {

const char* dtype_name(DType dtype) {
  switch (dtype) {
    case DType::f16:
      return "f16";
    case DType::bf16:
      return "bf16";
    case DType::f32:
      return "f32";
    case DType::boolean:
      return "boolean";
    case DType::keys:
      return "keys";
    case DType::none:
      break;
  }
  return "none";
}

int dtype_size(DType dtype) {
  switch (dtype) {
    case DType::f16:
    case DType::bf16:
      return 2;
    case DType::f32:
    case DType::keys:
      return 4;
    case DType::boolean:
      return 1;
    case DType::none:
      break;
  }
  return 0;
}

}  // namespace flashtri
