#include "tensor_map.h"

#include "driver.h"

namespace flashtri {
namespace {

struct Source {
  Arg data, stride_b, stride_h, stride_s, rows, columns;
  bool is_of_keys;  // has heads_q / group_size heads
};

// A tensor as the driver takes it: sizes from the last dimension to the first, and strides in bytes but the last one's.
struct Described {
  void* data;
  CUtensorMapDataType type;
  cuuint64_t sizes[4];
  cuuint64_t strides[3];
};

Source source_of(Arg map) {
  switch (map) {
    case Arg::q_map:
      return {Arg::q, Arg::q_stride_b, Arg::q_stride_h, Arg::q_stride_s, Arg::seqlen_q, Arg::head_dim, false};
    case Arg::k_map:
      return {Arg::k, Arg::k_stride_b, Arg::k_stride_h, Arg::k_stride_s, Arg::seqlen_k, Arg::head_dim, true};
    case Arg::v_map:
      return {Arg::v, Arg::v_stride_b, Arg::v_stride_h, Arg::v_stride_s, Arg::seqlen_k, Arg::head_dim_v, true};
    case Arg::out_map:
      return {Arg::out, Arg::out_stride_b, Arg::out_stride_h, Arg::out_stride_s, Arg::seqlen_q, Arg::head_dim_v, false};
    case Arg::dout_map:
      return {Arg::dout, Arg::dout_stride_b, Arg::dout_stride_h, Arg::dout_stride_s, Arg::seqlen_q, Arg::head_dim_v,
              false};
    case Arg::dk_map:
      return {Arg::dk, Arg::dk_stride_b, Arg::dk_stride_h, Arg::dk_stride_s, Arg::seqlen_k, Arg::head_dim, true};
    case Arg::dv_map:
      return {Arg::dv, Arg::dv_stride_b, Arg::dv_stride_h, Arg::dv_stride_s, Arg::seqlen_k, Arg::head_dim_v, true};
    default:
      throw std::logic_error(std::string("flashtri: ") + arg_info(map).name + " is no TMA descriptor");
  }
}

cuuint64_t number(const Arguments& args, Arg arg) { return static_cast<cuuint64_t>(args[arg].i32); }

Described describe(const Source& source, const Arguments& args, DType dtype) {
  Described made;
  made.data = args[source.data].pointer;
  made.type = dtype == DType::f16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  made.sizes[0] = number(args, source.columns);
  made.sizes[1] = number(args, source.rows);
  made.sizes[2] = number(args, Arg::heads_q) / (source.is_of_keys ? number(args, Arg::group_size) : 1);
  made.sizes[3] = number(args, Arg::batch);
  const Arg stride_args[] = {source.stride_s, source.stride_h, source.stride_b};
  for (int i = 0; i < 3; ++i) {
    // 0 stands for a dimension of size 1, never stepped along: any stride that the driver accepts will do.
    const int64_t bytes = args[stride_args[i]].i64 * dtype_size(dtype);
    made.strides[i] = bytes == 0 ? 16 : bytes;
  }
  return made;
}

// Of fp32 scratch, [B, Hq, rows, columns] contiguous; the rows are those of a block of 64 queries.
Described describe_scratch(Arg data, const Arguments& args, cuuint64_t rows_a_block, cuuint64_t columns) {
  const cuuint64_t rows = (number(args, Arg::seqlen_q) + 63) / 64 * rows_a_block, heads = number(args, Arg::heads_q);
  const cuuint64_t row_bytes = columns * sizeof(float);
  return {args[data].pointer,
          CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
          {columns, rows, heads, number(args, Arg::batch)},
          {row_bytes, row_bytes * rows, row_bytes * rows * heads}};
}

Described describe(Arg map, const Arguments& args, const Kernel& kernel) {
  if (map == Arg::row_terms_map) return describe_scratch(Arg::row_terms, args, 2, 64);
  if (map == Arg::dq_acc_map) return describe_scratch(Arg::dq_acc, args, 2 * kernel.block_d, 32);
  return describe(source_of(map), args, kernel.dtype);
}

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
  constexpr int64_t kLimit = int64_t{1} << 39;  // elements of two bytes
  for (const Tensor* t : {&p.q, &p.k, &p.v, &p.out, &p.dout, &p.dk, &p.dv}) {
    for (int dim = 0; dim < 3; ++dim) {
      if (t->stride[dim] >= kLimit) return "a stride is 2^40 bytes or more, the limit of a TMA descriptor";
    }
  }
  return nullptr;
}

CUtensorMap encode(Arg map, const Arguments& args, const Kernel& kernel, const Box& box) {
  const Described tensor = describe(map, args, kernel);
  const cuuint32_t box_sizes[] = {static_cast<cuuint32_t>(box.columns), static_cast<cuuint32_t>(box.rows), 1, 1};
  const cuuint32_t element_strides[] = {1, 1, 1, 1};
  CUtensorMap made;
  check_driver(driver().cuTensorMapEncodeTiled(&made, tensor.type, 4, tensor.data, tensor.sizes, tensor.strides,
                                               box_sizes, element_strides, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                               static_cast<CUtensorMapSwizzle>(box.swizzle),
                                               CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
               arg_info(map).name);
  return made;
}

}  // namespace flashtri
