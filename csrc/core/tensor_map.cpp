#include "tensor_map.h"

#include <algorithm>

#include "driver.h"

namespace flashtri {
namespace {

// A tensor as the driver is told of it: sizes and strides from the innermost dimension on, strides in elements and
// without the innermost, which is 1.
struct Source {
  void* data;
  DType dtype;
  std::array<int64_t, 4> sizes;
  std::array<int64_t, 3> strides;
};

Source source_of(Arg map, const Arguments& args, const Kernel& kernel) {
  const auto i32 = [&](Arg arg) -> int64_t { return args[arg].i32; };
  const auto i64 = [&](Arg arg) { return args[arg].i64; };
  const int64_t batch = i32(Arg::batch), heads = i32(Arg::heads_q), heads_k = heads / i32(Arg::group_size);
  // Of fp32 scratch, [B, Hq, rows, columns] contiguous; the rows are those of a block of 64 queries.
  const auto scratch = [&](Arg data, int64_t rows_a_block, int64_t columns) -> Source {
    const int64_t rows = (i32(Arg::seqlen_q) + 63) / 64 * rows_a_block;
    return {args[data].pointer,
            DType::f32,
            {columns, rows, heads, batch},
            {columns, columns * rows, columns * rows * heads}};
  };
#define FLASHTRI_SOURCE(name, heads, rows, columns)                                             \
  {                                                                                             \
    args[Arg::name].pointer, kernel.dtype, {i32(Arg::columns), i32(Arg::rows), heads, batch}, { \
      i64(Arg::name##_stride_s), i64(Arg::name##_stride_h), i64(Arg::name##_stride_b)           \
    }                                                                                           \
  }
  switch (map) {
    case Arg::q_map:
      return FLASHTRI_SOURCE(q, heads, seqlen_q, head_dim);
    case Arg::k_map:
      return FLASHTRI_SOURCE(k, heads_k, seqlen_k, head_dim);
    case Arg::v_map:
      return FLASHTRI_SOURCE(v, heads_k, seqlen_k, head_dim_v);
    case Arg::out_map:
      return FLASHTRI_SOURCE(out, heads, seqlen_q, head_dim_v);
    case Arg::dout_map:
      return FLASHTRI_SOURCE(dout, heads, seqlen_q, head_dim_v);
    case Arg::dk_map:
      return FLASHTRI_SOURCE(dk, heads_k, seqlen_k, head_dim);
    case Arg::dv_map:
      return FLASHTRI_SOURCE(dv, heads_k, seqlen_k, head_dim_v);
    case Arg::row_terms_map:
      return scratch(Arg::row_terms, 2, 64);
    case Arg::dq_acc_map:
      return scratch(Arg::dq_acc, 2 * kernel.block_d, 32);
    case Arg::mask_map: {
      const int64_t mask_batch = i32(Arg::mask_batch), mask_heads = i32(Arg::mask_heads);
      if (kernel.mask == DType::keys) {
        const int64_t keys = (i32(Arg::seqlen_k) + kernel.block_n - 1) / kernel.block_n * kernel.block_n;
        return {args[Arg::mask_bias].pointer,
                DType::f32,
                {keys, 1, mask_heads, mask_batch},
                {keys, keys, mask_heads * keys}};
      }
      return {args[Arg::mask].pointer,
              kernel.mask,
              {i32(Arg::mask_columns), i32(Arg::mask_rows), mask_heads, mask_batch},
              {i64(Arg::mask_stride_q), i64(Arg::mask_stride_h), i64(Arg::mask_stride_b)}};
    }
    default:
      throw std::logic_error(std::string("flashtri: ") + arg_info(map).name + " is no TMA descriptor");
  }
#undef FLASHTRI_SOURCE
}

CUtensorMapDataType element_type(DType dtype) {
  switch (dtype) {
    case DType::f16:
      return CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    case DType::bf16:
      return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    case DType::f32:
      return CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
    default:
      return CU_TENSOR_MAP_DATA_TYPE_UINT8;
  }
}

constexpr int64_t kStrideLimit = int64_t{1} << 40;  // bytes

bool is_broadcast(const Tensor& t) {
  return (t.size[0] > 1 && t.stride[0] == 0) || (t.size[1] > 1 && t.stride[1] == 0) ||
         (t.size[2] > 1 && t.stride[2] == 0);
}

}  // namespace

const char* map_refusal(const Problem& p) {
  if (p.backward && is_broadcast(p.dout)) return "dout is broadcast, and a TMA descriptor has no stride of 0";
  if (is_broadcast(p.q)) return "q is broadcast, and a TMA descriptor has no stride of 0";
  if (is_broadcast(p.k)) return "k is broadcast, and a TMA descriptor has no stride of 0";
  if (is_broadcast(p.v)) return "v is broadcast, and a TMA descriptor has no stride of 0";
  for (const Tensor* t : {&p.q, &p.k, &p.v, &p.out, &p.dout, &p.dk, &p.dv}) {
    if (!*t) continue;
    for (int dim = 0; dim < 3; ++dim) {
      if (t->stride[dim] >= kStrideLimit / dtype_size(t->dtype))
        return "a stride is 2^40 bytes or more, the limit of a TMA descriptor";
    }
  }
  return nullptr;
}

const char* mask_map_refusal(const Tensor& mask) {
  if (mask.size[3] > 1 && mask.stride[3] != 1) return "keys of the mask do not lie side by side";
  if (mask.size[3] == 1) return "the mask has one column for all keys";
  if (is_broadcast(mask)) return "the mask is expanded, and a TMA descriptor has no stride of 0";
  const int64_t size = dtype_size(mask.dtype);
  if (reinterpret_cast<uintptr_t>(mask.data) % 16 != 0)
    return "the mask's first element is not at a multiple of 16 bytes";
  for (int dim = 0; dim < 3; ++dim) {
    if (mask.size[dim] == 1) continue;
    if (mask.stride[dim] * size % 16 != 0) return "a stride of the mask is no multiple of 16 bytes";
    if (mask.stride[dim] < 0) return "a stride of the mask is negative";
    if (mask.stride[dim] >= kStrideLimit / size) return "a stride of the mask is 2^40 bytes or more";
  }
  return nullptr;
}

CUtensorMap encode(Arg map, const Arguments& args, const Kernel& kernel, const Box& box) {
  const Source source = source_of(map, args, kernel);
  cuuint64_t sizes[4], strides[3];
  std::copy(source.sizes.begin(), source.sizes.end(), sizes);
  for (int i = 0; i < 3; ++i) {
    // 0 stands for a dimension of size 1, never stepped along: any stride that the driver accepts will do.
    const int64_t bytes = source.strides[i] * dtype_size(source.dtype);
    strides[i] = bytes == 0 ? 16 : bytes;
  }
  const cuuint32_t box_sizes[] = {static_cast<cuuint32_t>(box.columns), static_cast<cuuint32_t>(box.rows), 1, 1};
  const cuuint32_t element_strides[] = {1, 1, 1, 1};
  CUtensorMap made;
  check_driver(driver().cuTensorMapEncodeTiled(&made, element_type(source.dtype), 4, source.data, sizes, strides,
                                               box_sizes, element_strides, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                               static_cast<CUtensorMapSwizzle>(box.swizzle),
                                               CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
               arg_info(map).name);
  return made;
}

}  // namespace flashtri
