#include "cohort/pipeline/hidden_parameter.h"

#include <memory>

#include "cohort/base/fail.h"

namespace cohort {
namespace {

using Parameters = torch::OrderedDict<std::string, at::Tensor>;

/// LibTorch has no way to unregister a parameter; a subclass may name the member.
struct Access : torch::nn::Module {
  static Parameters& of(torch::nn::Module& module) { return module.*(&Access::parameters_); }
};

std::shared_ptr<torch::nn::Module> holder_of(const torch::nn::Module& module, const std::string& name) {
  const size_t dot = name.rfind('.');
  const auto modules = module.named_modules("", /*include_self=*/false);
  const std::shared_ptr<torch::nn::Module>* const found = dot == std::string::npos ? nullptr : modules.find(name.substr(0, dot));
  if (!found || !(*found)->named_parameters(/*recurse=*/false).contains(name.substr(dot + 1)))
    fail(ErrorCode::kBadInput, "the model has no parameter ", name);
  return *found;
}

}  // namespace

at::Tensor find_parameter(const torch::nn::Module& module, const std::string& name) {
  return holder_of(module, name)->named_parameters(/*recurse=*/false)[name.substr(name.rfind('.') + 1)];
}

at::Tensor hide_parameter(torch::nn::Module& module, const std::string& name) {
  const std::shared_ptr<torch::nn::Module> holder = holder_of(module, name);
  Parameters& parameters = Access::of(*holder);
  const std::string own = name.substr(name.rfind('.') + 1);
  at::Tensor tensor = parameters[own];
  parameters.erase(own);
  // Its memory may be another layer's, which this rank gives up or trains: a copy of its own.
  tensor.set_data(tensor.detach().clone());
  return tensor;
}

}  // namespace cohort
