#include "tensor_map.h"

#include "driver.h"

namespace flashtri {
namespace {

struct Source {
  Arg data, stride_b, stride_h, stride_s, rows, columns;
  bool is_of_keys;  // has heads_q / group_size heads
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
    default:
      throw std::logic_error(std::string("flashtri: ") + arg_info(map).name + " is no TMA descriptor");
  }
}

bool is_broadcast(const Tensor& t) {
  return (t.size[0] > 1 && t.stride[0] == 0) || (t.size[1] > 1 && t.stride[1] == 0) ||
         (t.size[2] > 1 && t.stride[2] == 0);
}

}  // namespace

const char* map_refusal(const Problem& p) {
  if (is_broadcast(p.q)) return "q is broadcast, and a TMA descriptor has no stride of 0";
  if (is_broadcast(p.k)) return "k is broadcast, and a TMA descriptor has no stride of 0";
  if (is_broadcast(p.v)) return "v is broadcast, and a TMA descriptor has no stride of 0";
  constexpr int64_t kLimit = int64_t{1} << 39;  // elements of two bytes
  for (const Tensor* t : {&p.q, &p.k, &p.v, &p.out}) {
    for (int dim = 0; dim < 3; ++dim) {
      if (t->stride[dim] >= kLimit) return "a stride is 2^40 bytes or more, the limit of a TMA descriptor";
    }
  }
  return nullptr;
}

CUtensorMap encode(Arg map, const Arguments& args, DType dtype, const Box& box) {
  const Source source = source_of(map);
  const auto number = [&](Arg arg) { return static_cast<cuuint64_t>(args[arg].i32); };
  const cuuint64_t heads = source.is_of_keys ? number(Arg::heads_q) / number(Arg::group_size) : number(Arg::heads_q);
  const cuuint64_t sizes[] = {number(source.columns), number(source.rows), heads, number(Arg::batch)};
  cuuint64_t strides[3];
  const Arg stride_args[] = {source.stride_s, source.stride_h, source.stride_b};
  for (int i = 0; i < 3; ++i) {
    // 0 stands for a dimension of size 1, never stepped along: any stride that the driver accepts will do.
    const int64_t bytes = args[stride_args[i]].i64 * dtype_size(dtype);
    strides[i] = bytes == 0 ? 16 : bytes;
  }
  const cuuint32_t box_sizes[] = {static_cast<cuuint32_t>(box.columns), static_cast<cuuint32_t>(box.rows), 1, 1};
  const cuuint32_t element_strides[] = {1, 1, 1, 1};
  CUtensorMap made;
  check_driver(driver().cuTensorMapEncodeTiled(
                   &made, dtype == DType::f16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4,
                   args[source.data].pointer, sizes, strides, box_sizes, element_strides, CU_TENSOR_MAP_INTERLEAVE_NONE,
                   static_cast<CUtensorMapSwizzle>(box.swizzle), CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                   CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
               arg_info(map).name);
  return made;
}

}  // namespace flashtri
