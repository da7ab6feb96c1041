#include "cohort/infer/compressed/tensor_type.h"

#include <optional>

#include "cohort/base/fail.h"
#include "cohort/train/model/parameter_places.h"

namespace cohort {

DType dtype_of_tensor(const std::string& name, const at::Tensor& tensor) {
  if (const std::optional<DType> type = stored_type(tensor.scalar_type())) return *type;
  fail(ErrorCode::kBadInput, "tensor ", name, " has the type ", at::toString(tensor.scalar_type()), ", which no checkpoint holds");
}

}  // namespace cohort
