#include "cohort/session/tensor_data_set.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/complex.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <doctest/doctest.h>

#include <numeric>
#include <vector>

#include "tests/support/errors.h"

using namespace cohort;

namespace {

Batch all_of(const DataSource& source) {
  std::vector<int64_t> indices(static_cast<size_t>(source.num_samples()));
  std::iota(indices.begin(), indices.end(), 0);
  Batch batch;
  source.read(indices, batch);
  return batch;
}

}  // namespace

TEST_CASE("tensor_data: whole numbers are classes, values are normalised over the training part, some are for validation") {
  const at::Tensor inputs = at::rand({50, 3}) * 7 + 2, targets = at::arange(50) % 4;
  const DataSet data = tensor_data(inputs, targets, {.validation_samples = 10});
  CHECK(data.train->num_samples() == 40);
  CHECK(data.validation->num_samples() == 10);
  CHECK(data.train->shape().input == std::vector<int64_t>{3});
  CHECK(data.train->shape().num_classes == 4);
  const Batch batch = all_of(*data.train);
  for (size_t column = 0; column < 3; ++column) {
    double sum = 0, squares = 0;
    for (size_t i = 0; i < 40; ++i)
      sum += batch.values[3 * i + column], squares += batch.values[3 * i + column] * batch.values[3 * i + column];
    CHECK(sum / 40 == doctest::Approx(0).epsilon(1e-4));
    CHECK(squares / 40 == doctest::Approx(1).epsilon(1e-4));
  }
  // A tensor that is not contiguous gives the same.
  const DataSet turned = tensor_data(inputs.t().contiguous().t(), targets.to(at::kInt), {.validation_samples = 10});
  CHECK(all_of(*turned.train).values == batch.values);
  CHECK(all_of(*turned.train).targets == batch.targets);
}

TEST_CASE("tensor_data: numbers are a regression, bytes are pictures, settings are those of npy") {
  const DataSet numbers = tensor_data(at::rand({20, 2}), at::rand({20, 3}));
  CHECK(numbers.train->shape().regression);
  CHECK(numbers.train->shape().num_classes == 3);
  const DataSet pictures = tensor_data(at::randint(256, {20, 1, 4, 4}, at::kByte), at::arange(20) % 2, {}, "classes=5,normalise=none");
  CHECK(pictures.train->describe().input == DataDescription::Input::kPicture);
  CHECK(pictures.train->shape().num_classes == 5);
}

TEST_CASE("tensor_data: what does not fit is refused") {
  CHECK(error_of([] { tensor_data(at::rand({20, 2}), at::arange(19)); }) ==
        "tensor_data: inputs has 20 samples, and tensor_data: targets 19");
  CHECK(error_of([] { tensor_data(at::Tensor(), at::arange(19)); }) == "tensor_data: inputs is an undefined tensor");
  CHECK(error_of([] { tensor_data(at::complex(at::rand({3}), at::rand({3})), at::arange(3)); }).find("ComplexFloat") != std::string::npos);
  CHECK(error_of([] { tensor_data(at::rand({20, 2}), at::arange(20) - 1); }).find("sample 0 has the class -1") != std::string::npos);
  CHECK(error_of([] { tensor_data(at::rand({20, 2}), at::arange(20), {}, "colour=red"); }).find("colour") != std::string::npos);
}
