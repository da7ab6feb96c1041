#include "cohort/comm/compute_threads.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>

#include "cohort/base/system/machine.h"

namespace cohort {

void use_compute_threads(int threads) {
  at::set_num_threads(threads > 0 ? threads : num_usable_cores());
  warm_up_vector_functions();
}

void warm_up_vector_functions() {
  static const bool done = [] {
    const int threads = at::get_num_threads();
    at::set_num_threads(1);
    for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
      const at::Tensor x = at::full({48, 48}, 0.5, type);
      for (const auto function :
           {&at::Tensor::acos, &at::Tensor::asin, &at::Tensor::atan, &at::Tensor::cos, &at::Tensor::erf, &at::Tensor::erfc,
            &at::Tensor::erfinv, &at::Tensor::exp, &at::Tensor::expm1, &at::Tensor::log, &at::Tensor::log10, &at::Tensor::log1p,
            &at::Tensor::log2, &at::Tensor::sin, &at::Tensor::sinh, &at::Tensor::sqrt, &at::Tensor::tan, &at::Tensor::tanh})
        (x.*function)();
      x.mm(x);
    }
    at::set_num_threads(threads);
    return true;
  }();
  static_cast<void>(done);
}

}  // namespace cohort
