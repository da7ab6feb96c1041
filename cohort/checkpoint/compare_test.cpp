#include "cohort/checkpoint/compare.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tests/support/checkpoint_files.h"

using namespace cohort;
using namespace cohort::testing;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

template <typename Value>
TensorDifference compare(DType dtype, const std::vector<Value>& a, const std::vector<Value>& b) {
  return compare_values(dtype, a.data(), b.data(), static_cast<int64_t>(a.size()));
}

}  // namespace

TEST_CASE("float differences: known answers") {
  const auto d = compare<float>(DType::kF32, {1, -4, 2}, {1, -4.5, 2.25});
  CHECK(d.max_difference == 0.5);
  CHECK(d.max_reference == 4);
  CHECK(d.relative_difference == 0.125);
  CHECK(!d.bitwise_equal);
  CHECK(compare<float>(DType::kF32, {1, 2}, {1, 2}).bitwise_equal);
  CHECK(compare<double>(DType::kF64, {}, {}).bitwise_equal);
  CHECK(compare<double>(DType::kF64, {1e300}, {-1e300}).relative_difference == 2);
  // The two zeros have other bits and the same value.
  const auto zero = compare<float>(DType::kF32, {0.0f}, {-0.0f});
  CHECK(!zero.bitwise_equal);
  CHECK(zero.relative_difference == 0);
  CHECK(compare<double>(DType::kF64, {0}, {1}).relative_difference > 1e300);
}

TEST_CASE("half precision: known answers") {
  // binary16: 1.0, 65504 (largest), 2^-24 (smallest); bfloat16: 1.0, 3.0.
  CHECK(compare<uint16_t>(DType::kF16, {0x3c00, 0x7bff, 0x0001}, {0x3c00, 0x7bff, 0x8001}).max_difference == std::ldexp(1.0, -23));
  CHECK(compare<uint16_t>(DType::kF16, {0x7bff}, {0}).max_difference == 65504);
  CHECK(compare<uint16_t>(DType::kF16, {0xc100}, {0}).max_difference == 2.5);
  CHECK(compare<uint16_t>(DType::kBF16, {0x3f80}, {0x4040}).max_difference == 2);
  CHECK(compare<uint16_t>(DType::kF16, {0x7c00, 0x7e00}, {0x7c00, 0x7e01}).max_difference == 0);  // inf = inf; two NaNs.
}

TEST_CASE("NaN and infinity on one side are infinitely far") {
  const float nan = std::nanf(""), infinity = static_cast<float>(kInfinity);
  CHECK(compare<float>(DType::kF32, {1, nan}, {1, 2}).relative_difference == kInfinity);
  CHECK(compare<float>(DType::kF32, {1, 2}, {nan, 2}).relative_difference == kInfinity);
  CHECK(compare<float>(DType::kF32, {1, infinity}, {1, -infinity}).relative_difference == kInfinity);
  CHECK(compare<float>(DType::kF32, {1, nan, infinity}, {2, nan, infinity}).relative_difference == 1);
}

TEST_CASE("integers are equal or not") {
  CHECK(compare<int64_t>(DType::kI64, {5, 6}, {5, 6}).relative_difference == 0);
  const auto d = compare<int64_t>(DType::kI64, {5, 6}, {5, 9});
  CHECK(d.max_difference == 3);
  CHECK(d.relative_difference == kInfinity);
  // Neighbours that are one double.
  CHECK(compare<int64_t>(DType::kI64, {INT64_MAX}, {INT64_MAX - 1}).relative_difference == kInfinity);
  CHECK(compare<uint8_t>(DType::kBool, {1}, {0}).relative_difference == kInfinity);
}

TEST_CASE("checkpoints: the worst first, missing tensors by name") {
  MemoryFolder space;
  const float a[3] = {1, 2, 4}, near[3] = {1, 2, 4.5}, far[3] = {9, 2, 4};
  const int64_t count = 3;
  const auto write = [&](int64_t step, const std::vector<TensorPiece>& pieces) {
    CheckpointWriter writer(space.path(), step, "n");
    writer.begin();
    return Checkpoint::open(writer.commit({writer.write_shard(0, pieces)}, Json::object()));
  };
  const auto piece = [](const char* name, const float* data, int64_t size = 3) {
    return TensorPiece{{name, DType::kF32, {size}, data}, {size}, {0}};
  };
  const Checkpoint reference = write(1, {piece("model/a", a),
                                         piece("model/b", a),
                                         piece("model/c", a),
                                         piece("model/gone", a),
                                         piece("model/shape", a),
                                         {{"optimizer/count", DType::kI64, {}, &count}, {}, {}}});
  // "model/b" in two pieces: the layout does not matter.
  const Checkpoint other = write(2, {piece("model/a", near),
                                     {{"model/b", DType::kF32, {1}, far}, {3}, {0}},
                                     {{"model/b", DType::kF32, {2}, far + 1}, {3}, {1}},
                                     piece("model/c", a),
                                     piece("model/new", a),
                                     piece("model/shape", a, 2),
                                     {{"optimizer/count", DType::kI64, {}, &count}, {}, {}}});
  const auto differences = compare_checkpoints(reference, other);
  std::vector<std::string> names;
  for (const TensorDifference& difference : differences) names.push_back(difference.name);
  CHECK(names == std::vector<std::string>{"model/gone", "model/new", "model/shape", "model/b", "model/a", "model/c", "optimizer/count"});
  using Kind = TensorDifference::Kind;
  CHECK(differences[0].kind == Kind::kMissingInOther);
  CHECK(differences[1].kind == Kind::kMissingInReference);
  CHECK(differences[2].kind == Kind::kOtherTypeOrShape);
  CHECK(differences[2].relative_difference == kInfinity);
  CHECK(differences[3].relative_difference == 2);
  CHECK(differences[4].relative_difference == 0.125);
  CHECK(differences[5].bitwise_equal);
  CHECK(differences[6].bitwise_equal);
}

TEST_CASE("a difference is measured by how far training has moved the tensor") {
  const float began[] = {1, 2}, reference[] = {1, 2.5}, other[] = {1, 2.625};
  MemoryFolder space;
  const auto checkpoint = [&](int64_t step, const float* a, const float* b) {
    CheckpointWriter writer(space.path(), step, "n");
    writer.begin();
    const ShardInfo shard =
        writer.write_shard(0, {{{"model/a", DType::kF32, {2}, a}, {2}, {0}}, {{"model/b", DType::kF32, {2}, b}, {2}, {0}}});
    return Checkpoint::open(writer.commit({shard}, Json::object(), /*keep=*/3));
  };
  const Checkpoint first = checkpoint(3, began, began), last = checkpoint(4, reference, began), changed = checkpoint(5, other, other);
  const auto differences = compare_checkpoints(last, changed, &first);
  CHECK(differences[0].name == "model/b");  // It should not have moved at all.
  CHECK(differences[0].difference_of_update() == kInfinity);
  CHECK(differences[1].max_update == 0.5);
  CHECK(differences[1].difference_of_update() == 0.25);
  CHECK(differences[1].squared_update == 0.25);
  CHECK(differences[1].squared_difference == 0.125 * 0.125);
  CHECK(compare_checkpoints(last, last, &first)[0].is_equal());
}
