#include "cohort/infer/compressed/coded_tensor.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <doctest/doctest.h>
#include <torch/utils.h>

#include <cstring>

#include "tests/support/errors.h"

namespace cohort {
namespace {

TEST_CASE("codes are the nearest, of each row or group") {
  torch::manual_seed(3);
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{5, 7}, {4, 3, 2, 2}, {1, 1}, {3, 64}})
    for (const int bits : {8, 4})
      for (const int64_t group : {INT64_C(0), INT64_C(1), INT64_C(3)}) {
        CAPTURE(shape.size());
        CAPTURE(bits);
        CAPTURE(group);
        const CodedTensor how{.shape = shape, .bits = bits, .group = std::min<int64_t>(group, CodedTensor{.shape = shape}.columns())};
        const at::Tensor tensor = at::randn(shape);
        const Codes codes = encode_rows(tensor, bits, how.group);
        CHECK((codes.scales.sizes().vec() == std::vector<int64_t>{how.rows(), how.groups()}));
        const at::Tensor back = decode_rows(codes, how);
        REQUIRE((back.sizes().vec() == shape));
        // Number by number, by the definition.
        const at::Tensor flat = tensor.view({how.rows(), how.columns()}), found = back.view({how.rows(), how.columns()});
        const int64_t width = how.group == 0 ? how.columns() : how.group;
        for (int64_t row = 0; row < how.rows(); ++row)
          for (int64_t column = 0; column < how.columns(); ++column) {
            const int64_t begin = column / width * width, length = std::min(width, how.columns() - begin);
            const double largest = flat[row].narrow(0, begin, length).abs().max().item<double>();
            const double scale = largest / (bits == 8 ? 127 : 7);
            const double difference = flat[row][column].item<double>() - found[row][column].item<double>();
            REQUIRE(std::abs(difference) <= 0.5001 * scale);
          }
      }
}

TEST_CASE("the bytes of four bits are as documented") {
  const Codes codes = encode_rows(at::tensor({7.0F, -7.0F, 1.0F}).view({1, 3}), 4, 0);
  REQUIRE((codes.codes.sizes().vec() == std::vector<int64_t>{1, 2}));
  CHECK(codes.codes[0][0].item<int>() == (7 + 8) + 16 * (-7 + 8));
  CHECK(codes.codes[0][1].item<int>() == (1 + 8) + 16 * 8);
  CHECK(codes.scales.item<float>() == 1.0F);
  const Codes zeros = encode_rows(at::tensor({0.0F, 0.0F}).view({1, 2}), 8, 0);
  CHECK(zeros.scales.item<float>() == 1.0F);  // No division by zero.
}

TEST_CASE("a scale that is not positive is refused") {
  const CodedTensor how{.shape = {2, 2}};
  const auto with_scale = [&](float scale) {
    read_codes("w", how, [&](const std::string& name, DType, const std::vector<int64_t>&, void* destination) {
      const float scales[2] = {1, scale};
      const int8_t values[4] = {1, 2, 3, 4};
      if (name == "w.scale") std::memcpy(destination, scales, sizeof scales);
      else std::memcpy(destination, values, sizeof values);
    });
  };
  with_scale(2);
  for (const float bad : {0.0F, -1.0F, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()})
    CHECK(error_of([&] { with_scale(bad); }).find("\"w.scale\"") != std::string::npos);
}

}  // namespace

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
