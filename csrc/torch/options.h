// The options of the ops as one struct, made from options.def.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/SymInt.h>

#include <optional>
#include <type_traits>

namespace flashtri::op {

using OptionalTensor = std::optional<at::Tensor>;
using OptionalDouble = std::optional<double>;
using OptionalSymInt = std::optional<c10::SymInt>;

struct Options {
#define FLASHTRI_KEYWORDS
#define FLASHTRI_OPTION(type, name, initial) type name{};
#include "options.def"

  // An undefined tensor, which C++ callers may pass, is none.
  static bool has(const OptionalTensor& tensor) { return tensor.has_value() && tensor->defined(); }
  bool has_mask() const { return has(attn_mask); }
  // With something added to the scores one LSE number is too little for the backward (docs/semantics.md).
  bool uses_row_stats() const { return has_mask() || has(relative_bias); }
  bool has_pages() const { return has(block_table); }
  bool is_packed() const { return has(cu_seqlens_q) || has(cu_seqlens_k); }
  // Where sequences of one batch have lengths of their own.
  bool has_lengths() const { return has(seqused_k) || has_pages() || is_packed(); }
};

// function(every option...), in order; `options` may be const.
template <typename OptionsType, typename Function>
decltype(auto) apply_options(OptionsType& options, const Function& function) {
  // The 0 goes unused: it stands before the list's first comma.
  const auto without_first = [&](int, auto&... option) -> decltype(auto) { return function(option...); };
#define FLASHTRI_KEYWORDS
#define FLASHTRI_OPTION(type, name, initial) , options.name
  return without_first(0
#include "options.def"
  );
}

template <typename T>
constexpr bool is_tensor_option = std::is_same_v<std::remove_cvref_t<T>, OptionalTensor>;

// function(option) for each that is a tensor; for each that is not.
template <typename OptionsType, typename Function>
void for_each_tensor_option(OptionsType& options, const Function& function) {
  const auto visit = [&](auto& option) {
    if constexpr (is_tensor_option<decltype(option)>) function(option);
  };
  apply_options(options, [&](auto&... option) { (visit(option), ...); });
}

template <typename OptionsType, typename Function>
void for_each_value_option(OptionsType& options, const Function& function) {
  const auto visit = [&](auto& option) {
    if constexpr (!is_tensor_option<decltype(option)>) function(option);
  };
  apply_options(options, [&](auto&... option) { (visit(option), ...); });
}

// Template<every option's type...>: the first type goes unused, as the 0 above.
template <template <typename...> typename Template, typename, typename... Types>
struct WithoutFirst {
  using type = Template<Types...>;
  static constexpr size_t tensors = (size_t{0} + ... + is_tensor_option<Types>);
};

template <template <typename...> typename Template>
using WithOptionTypes = WithoutFirst<Template, void
#define FLASHTRI_KEYWORDS
#define FLASHTRI_OPTION(type, name, initial) , type
#include "options.def"
                                     >;

}  // namespace flashtri::op
