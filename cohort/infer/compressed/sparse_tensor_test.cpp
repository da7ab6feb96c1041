#include "cohort/infer/compressed/sparse_tensor.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <doctest/doctest.h>
#include <torch/utils.h>

#include <cstring>

#include "tests/support/errors.h"

namespace cohort {
namespace {

at::Tensor read_back(const SparseValues& sparse, const CodedTensor& how) {
  return read_sparse("w", how, [&](const std::string& name, DType dtype, const std::vector<int64_t>& shape, void* destination) {
    const at::Tensor& tensor = name == "w" ? sparse.values : sparse.mask;
    REQUIRE((tensor.sizes().vec() == shape));
    REQUIRE(dtype == (name == "w" ? DType::kF32 : DType::kU8));
    if (tensor.numel() > 0) std::memcpy(destination, tensor.data_ptr(), tensor.nbytes());
  });
}

TEST_CASE("what comes back is what went in, whatever the share of zeros and the number of elements") {
  torch::manual_seed(4);
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{1, 1}, {3, 5}, {8, 8}, {4, 3, 5, 5}, {100, 33}})
    for (const double share : {0.0, 0.5, 0.9, 1.0}) {
      const at::Tensor tensor = at::randn(shape) * (at::rand(shape) >= share);
      const SparseValues sparse = encode_sparse(tensor);
      const CodedTensor how{.shape = shape, .bits = 32, .kept = sparse.values.numel()};
      CHECK(at::equal(read_back(sparse, how), tensor));
      CHECK(sparse_bytes(tensor.numel(), how.kept) == static_cast<int64_t>(sparse.values.nbytes() + sparse.mask.nbytes()));
    }
}

TEST_CASE("the bits are as documented, and a mask that does not fit is refused") {
  const at::Tensor tensor = at::zeros({2, 5});
  tensor[0][1] = 3;
  tensor[1][4] = -2;
  SparseValues sparse = encode_sparse(tensor);
  CHECK(sparse.mask[0].item<int>() == 2);
  CHECK(sparse.mask[1].item<int>() == 2);
  CodedTensor how{.shape = {2, 5}, .bits = 32, .kept = 2};
  sparse.mask[1] = 4;  // One behind the last element.
  CHECK(error_of([&] { read_back(sparse, how); }).find("behind the last element") != std::string::npos);
  sparse.mask[1] = 3;
  CHECK(error_of([&] { read_back(sparse, how); }).find("\"w.mask\" has 3 ones for 2 numbers") != std::string::npos);
}

}  // namespace
}  // namespace cohort
