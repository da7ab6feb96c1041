#include "cohort/session/tensor_data_set.h"

#include <memory>
#include <optional>

#include "cohort/base/fail.h"
#include "cohort/data/tensors/tensor_data.h"
#include "cohort/train/model/checkpoint_pieces.h"

namespace cohort {

static NamedArray array_of_tensor(const char* name, const at::Tensor& tensor) {
  if (!tensor.defined()) fail(ErrorCode::kBadInput, "tensor_data: ", name, " is an undefined tensor");
  const std::optional<DType> type = stored_type(tensor.scalar_type());
  if (!type)
    fail(ErrorCode::kBadInput, "tensor_data: ", name, " has the type ", at::toString(tensor.scalar_type()),
         ": expected numbers, real or whole");
  const auto owner = std::make_shared<const at::Tensor>(tensor.detach().cpu().contiguous());
  return {concat("tensor_data: ", name), *type, owner->sizes().vec(), owner->const_data_ptr(), owner};
}

DataSet tensor_data(const at::Tensor& inputs, const at::Tensor& targets, const DataOptions& options, const std::string& settings) {
  return open_arrays(array_of_tensor("inputs", inputs), array_of_tensor("targets", targets), settings, options);
}

}  // namespace cohort
