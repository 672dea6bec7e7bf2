// flashtri._C: what is compiled in, and what the planner would do. Links the core only: no torch, no GPU needed.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cmath>
#include <set>

#include "core/launcher.h"
#include "core/plan.h"
#include "core/select.h"

namespace py = pybind11;
using namespace flashtri;

namespace {

DType parse_dtype(const std::string& name) {
  for (DType dtype : {DType::f16, DType::bf16, DType::f32, DType::boolean}) {
    if (name == dtype_name(dtype)) return dtype;
  }
  throw py::value_error("dtype must be one of f16, bf16, f32, boolean; got " + name);
}

// (shape, strides) -> Tensor without data. None stands for "no such tensor".
Tensor parse_tensor(const py::object& description, DType dtype) {
  Tensor made;
  if (description.is_none()) return made;
  std::tie(made.size, made.stride) = description.cast<std::pair<std::array<int64_t, 4>, std::array<int64_t, 4>>>();
  made.dtype = dtype;
  return made;
}

struct Question {
  Problem problem;
  Device device;
};

Question parse(const py::kwargs& kwargs) {
  // clang-format off
  static const std::set<std::string> known = {
      "q", "k", "v", "out", "dout", "dq", "dk", "dv", "mask", "dtype", "mask_dtype", "scale", "is_causal",
      "bottom_right", "backward", "needs_dmask", "has_dlse", "deterministic", "window_left",
      "window_right", "has_sinks", "relative_bias", "needs_drelative_bias", "needs_delta", "has_seqused_k", "max_pages",
      "table_stride_b", "sequences", "max_seqlen_q", "max_seqlen_k", "softcap", "dropout_p", "arch", "sm_count",
      "shared_memory", "has_tensor_maps"};
  // clang-format on
  for (const auto& item : kwargs) {
    const auto name = item.first.cast<std::string>();
    if (known.count(name) == 0) throw py::type_error("plan() has no argument " + name);
  }
  for (const char* name : {"q", "k", "v", "out"}) {
    if (!kwargs.contains(name)) throw py::type_error(std::string("plan() needs ") + name + " as (shape, strides)");
  }
  const auto get = [&](const char* name) { return kwargs.contains(name) ? py::object(kwargs[name]) : py::none(); };
  const auto number = [&](const char* name, int otherwise) {
    return kwargs.contains(name) ? kwargs[name].cast<int>() : otherwise;
  };
  Question asked;
  Problem& p = asked.problem;
  const DType dtype = kwargs.contains("dtype") ? parse_dtype(kwargs["dtype"].cast<std::string>()) : DType::bf16;
  p.q = parse_tensor(get("q"), dtype);
  p.k = parse_tensor(get("k"), dtype);
  p.v = parse_tensor(get("v"), dtype);
  p.out = parse_tensor(get("out"), dtype);
  p.dout = parse_tensor(get("dout"), dtype);
  p.dq = parse_tensor(get("dq"), dtype);
  p.dk = parse_tensor(get("dk"), dtype);
  p.dv = parse_tensor(get("dv"), dtype);
  if (!get("mask").is_none()) {
    if (!kwargs.contains("mask_dtype")) throw py::type_error("plan() with a mask needs mask_dtype");
    p.mask = parse_tensor(get("mask"), parse_dtype(kwargs["mask_dtype"].cast<std::string>()));
  }
  if (!get("relative_bias").is_none()) p.relative_bias = parse_tensor(get("relative_bias"), DType::f32);
  p.scale =
      kwargs.contains("scale") ? kwargs["scale"].cast<float>() : 1.0f / std::sqrt(static_cast<float>(p.q.size[3]));
  p.is_causal = number("is_causal", 0);
  p.bottom_right = number("bottom_right", 0);
  const auto side = [&](const char* name) { return kwargs.contains(name) ? kwargs[name].cast<int64_t>() : kNoWindow; };
  p.window_left = side("window_left");
  p.window_right = side("window_right");
  if (kwargs.contains("softcap")) p.softcap = kwargs["softcap"].cast<float>();
  if (kwargs.contains("dropout_p")) p.dropout_p = kwargs["dropout_p"].cast<double>();
  p.has_sinks = number("has_sinks", 0);
  p.backward = number("backward", 0);
  p.needs_dmask = number("needs_dmask", 0);
  p.needs_drelative_bias = number("needs_drelative_bias", 0);
  p.needs_delta = number("needs_delta", 0);
  p.has_dlse = number("has_dlse", 0);
  p.has_seqused_k = number("has_seqused_k", 0);
  p.max_pages = number("max_pages", 0);
  p.table_stride_b = number("table_stride_b", 0);
  p.deterministic = number("deterministic", 0);
  p.sequences = number("sequences", 0);
  p.max_seqlen_q = number("max_seqlen_q", 0);
  p.max_seqlen_k = number("max_seqlen_k", 0);
  asked.device.arch = number("arch", 90);
  asked.device.sm_count = number("sm_count", 132);
  asked.device.shared_memory = number("shared_memory", 227 * 1024);
  asked.device.has_tensor_maps = number("has_tensor_maps", 1);
  return asked;
}

py::object arg_value(Arg arg, const ArgValue& value) {
  switch (arg_info(arg).type) {
    case ArgType::i32:
      return py::int_(value.i32);
    case ArgType::i64:
      return py::int_(value.i64);
    case ArgType::f32:
      return py::float_(value.f32);
    default:
      return py::none();
  }
}

py::dict describe(const Plan& plan) {
  py::list launches;
  for (int i = 0; i < plan.num_launches; ++i) {
    launches.append(
        py::dict(py::arg("kernel") = plan.launches[i].kernel->name, py::arg("grid") = plan.launches[i].grid));
  }
  py::dict args;
  for (size_t i = 0; i < static_cast<size_t>(Arg::count); ++i) {
    const Arg arg = static_cast<Arg>(i);
    if (plan.args.has(arg) && !arg_info(arg).is_pointer()) args[arg_info(arg).name] = arg_value(arg, plan.args[arg]);
  }
  py::dict scratch(py::arg("delta") = plan.delta_elements, py::arg("row_terms") = plan.row_terms_elements,
                   py::arg("dq_acc") = plan.dq_acc_elements, py::arg("dmask") = plan.dmask_elements,
                   py::arg("dmask_splits") = plan.dmask_splits, py::arg("dbias") = plan.dbias_size,
                   py::arg("dbias_block") = plan.dbias_block, py::arg("dbias_offset") = plan.dbias_offset,
                   py::arg("partial_out") = plan.partial_out_elements,
                   py::arg("partial_lse") = plan.partial_lse_elements, py::arg("mask_bias") = plan.mask_bias_elements,
                   py::arg("mask_table") = plan.mask_table_elements);
  return py::dict(py::arg("launches") = launches, py::arg("args") = args, py::arg("scratch") = scratch);
}

py::dict describe(const Kernel& kernel) {
  py::list params;
  for (int i = 0; i < kernel.num_params; ++i) params.append(arg_info(kernel.params[i]).name);
  return py::dict(py::arg("name") = kernel.name, py::arg("symbol") = kernel.symbol,
                  py::arg("function") = function_name(kernel.function), py::arg("arch") = kernel.arch,
                  py::arg("dtype") = dtype_name(kernel.dtype), py::arg("mask") = dtype_name(kernel.mask),
                  py::arg("features") = kernel.features, py::arg("block_m") = kernel.block_m,
                  py::arg("block_n") = kernel.block_n, py::arg("block_d") = kernel.block_d,
                  py::arg("num_warps") = kernel.num_warps, py::arg("num_stages") = kernel.num_stages,
                  py::arg("shared") = kernel.shared, py::arg("registers") = kernel.registers,
                  py::arg("spill_bytes") = kernel.spill_bytes, py::arg("params") = params,
                  py::arg("image_size") = kernel.image_size);
}

}  // namespace

PYBIND11_MODULE(_C, module) {
  module.doc() = "The compiled kernels of flashtri and its planner.";

  py::register_exception_translator([](std::exception_ptr error) {
    try {
      if (error) std::rethrow_exception(error);
    } catch (const PlanError& plan_error) {
      PyErr_SetString(plan_error.unsupported ? PyExc_NotImplementedError : PyExc_ValueError, plan_error.what());
    }
  });

  module.def(
      "kernels",
      [] {
        py::list all;
        for (const Kernel& kernel : kernels()) all.append(describe(kernel));
        return all;
      },
      "Every kernel compiled in, one dict each.");

  module.def(
      "image",
      [](const std::string& name) {
        for (const Kernel& kernel : kernels()) {
          if (name == kernel.name) return py::bytes(reinterpret_cast<const char*>(kernel.image), kernel.image_size);
        }
        throw py::key_error(name);
      },
      py::arg("name"), "The cubin of a kernel, as bytes.");

  module.def(
      "prefer",
      [](const std::optional<std::string>& name) {
        const Kernel* asked = nullptr;
        for (const Kernel& kernel : kernels()) asked = name && *name == kernel.name ? &kernel : asked;
        if (name && asked == nullptr) throw py::key_error(*name);
        prefer(asked);
      },
      py::arg("name"), "For tuning: take the kernel of that name wherever it serves, in this process; None ends that.");

  module.def("device_count", &device_count, "CUDA devices this process sees; 0 where there is no driver.");

  module.def(
      "device",
      [](int index) {
        const Device& facts = device_facts(index);
        return py::dict(py::arg("arch") = facts.arch, py::arg("sm_count") = facts.sm_count,
                        py::arg("shared_memory") = facts.shared_memory,
                        py::arg("has_tensor_maps") = facts.has_tensor_maps);
      },
      py::arg("index") = 0, "Architecture, multiprocessors and shared memory a block of a CUDA device.");

  module.def(
      "plan",
      [](const py::kwargs& kwargs) {
        const Question asked = parse(kwargs);
        return describe(plan(asked.problem, asked.device));
      },
      R"(plan(*, q, k, v, out, dtype="bf16", mask=None, mask_dtype, scale, is_causal=False, bottom_right=False,
     backward=False, dout, dq, dk, dv, needs_dmask=False, has_dlse=False, arch=90, sm_count=132, shared_memory=232448,
     has_tensor_maps=True, window_left=-1, window_right=-1, has_sinks=False, relative_bias=None,
     needs_drelative_bias=False, needs_delta=False, has_seqused_k=False, max_pages=0, table_stride_b=0, sequences=0,
     max_seqlen_q=0, max_seqlen_k=0, deterministic=False, softcap=0.0, dropout_p=0.0) -> dict

What the op would launch for a problem on a device, without either: {"launches": [{"kernel", "grid"}], "args": {name: value},
"scratch": {"delta", "row_terms", "dq_acc", "dmask", "dmask_splits", "dbias", "dbias_block", "dbias_offset", "partial_out", "partial_lse", "mask_bias",
"mask_table"}}.
Tensors are (shape, strides) pairs of four numbers each, strides in elements; the mask has size 1 where it is broadcast.
relative_bias is [1, heads, 1, L]. With max_pages above 0, k and v are pages; with sequences above 0, all tensors are of a
batch of 1 that is packed. Raises ValueError or NotImplementedError as the op does.)");

  module.def(
      "explain",
      [](const py::kwargs& kwargs) {
        const Question asked = parse(kwargs);
        return explain(asked.problem, asked.device);
      },
      "Arguments as plan(); for each function of the problem the kernel taken, and why not each of the others.");
}
