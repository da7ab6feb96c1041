#pragma once
// What lies in `.grad` while a rank has a part of the gradient at most, which is nobody's to read or to change.

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "cohort/parallel/common/parameters.h"

namespace cohort {

/// A tensor of the parameter's shape and type without memory. Every operator on it, or on what it shares its storage with as data() does,
/// throws Error(kBadInput) with what to do instead, data_ptr() a c10::Error; zero_grad() of a module or an optimizer works.
at::Tensor gradient_stand_in(const at::Tensor& parameter);
bool is_stand_in(const at::Tensor& gradient);
/// Whether it is the stand-in, or what detach() makes of it.
bool is_of(const at::Tensor& gradient, const at::Tensor& stand_in);
/// Whether the program has dropped the gradient: `now` is undefined, or is what zero_grad(/*set_to_none=*/false) makes of the stand-in.
bool has_dropped(const at::Tensor& stand_in, const at::Tensor& now);

/// Takes the gradients of a model away between a backward() and what needs them. One thread.
class HiddenGradients {
 public:
  HiddenGradients() = default;
  /// Stand-ins that another one has left behind are dropped: it went between backward() and step().
  explicit HiddenGradients(const std::vector<NamedTensor>& parameters);

  /// Puts stand-ins in their places.
  void hide();
  /// Puts those back that the program has not dropped; the name of the first that it has, or "". Error(kBadInput) where the program put
  /// others in their places.
  std::string show();

 private:
  struct Place {
    NamedTensor parameter;
    at::Tensor stand_in;  ///< Made when first needed.
    at::Tensor hidden;
  };
  std::vector<Place> places_;
  bool is_hiding_ = false;
};

}  // namespace cohort
