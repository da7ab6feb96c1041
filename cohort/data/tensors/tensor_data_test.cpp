#include "cohort/data/tensors/tensor_data.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "cohort/base/files/safetensors.h"
#include "cohort/data/encode_input.h"
#include "cohort/data/source/fingerprint.h"
#include "cohort/data/tensors/npy.h"
#include "tests/support/data_files.h"
#include "tests/support/mutation.h"
#include "tests/support/text.h"

using namespace cohort;
using namespace cohort::testing;

namespace {

/// As numpy.save writes it.
template <typename T>
std::string npy(const std::string& type, const std::string& shape, const std::vector<T>& numbers) {
  std::string header = "{'descr': '" + type + "', 'fortran_order': False, 'shape': " + shape + ", }";
  header += std::string(63 - (10 + header.size()) % 64, ' ') + "\n";
  std::string out =
      std::string("\x93NUMPY\x01\x00", 8) + static_cast<char>(header.size() & 255) + static_cast<char>(header.size() >> 8) + header;
  return out + std::string(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(T));
}

template <typename T>
std::vector<T> counting(size_t count, T begin = 0) {
  std::vector<T> out(count);
  std::iota(out.begin(), out.end(), begin);
  return out;
}

}  // namespace

TEST_CASE("npy: types, shapes and every refusal") {
  TempFolder folder;
  const NpyArray read = read_npy(folder.write("a.npy", npy<int16_t>("<i2", "(2, 3)", {1, 2, 3, -4, 5, 6})));
  CHECK(read.shape == std::vector<int64_t>{2, 3});
  CHECK(number_of(read.dtype, read.data.data(), 3) == -4);
  CHECK(read_npy(folder.write("a.npy", npy<double>("<f8", "(3,)", {1, 2, 3}))).shape == std::vector<int64_t>{3});
  CHECK(read_npy(folder.write("a.npy", npy<float>("<f4", "()", {1}))).shape.empty());
  const auto refusal = [&](const std::string& content) { return error_of([&] { read_npy(folder.write("b.npy", content)); }); };
  const std::string good = npy<float>("<f4", "(2,)", {1, 2});
  CHECK(mentions(refusal(""), "is not an NPY file (0 bytes)"));
  CHECK(mentions(refusal(good.substr(0, good.size() - 1)), "has 7 bytes of data, and its header says [2] of F32"));
  CHECK(mentions(refusal(good + "x"), "has 9 bytes of data"));
  CHECK(mentions(refusal(npy<float>(">f4", "(2,)", {1, 2})), "save x.astype('<f4')"));
  CHECK(mentions(refusal(npy<float>("|O", "(2,)", {1, 2})), "holds numbers of type '|O'"));
  CHECK(mentions(refusal(npy<float>("<f4", "(99999999999, 99999999999)", {1, 2})), "its header says"));
  std::string fortran = good;
  fortran.replace(fortran.find("False"), 5, "True ");
  CHECK(mentions(refusal(fortran), "is in Fortran's order"));
  std::string negative = good;
  negative.replace(negative.find("(2,)"), 4, "(-2)");
  CHECK(mentions(refusal(negative), "expected a whole number from 0 to 2^63-1 in \"shape\", found -2"));
}

TEST_CASE("number_of: halves and bfloat16") {
  const uint16_t halves[] = {0x3c00, 0xc000, 0x0001, 0x7bff, 0x7c00, 0x7e00};
  const auto half = [&](int64_t i) { return number_of(DType::kF16, reinterpret_cast<const uint8_t*>(halves), i); };
  CHECK(half(0) == 1);
  CHECK(half(1) == -2);
  CHECK(half(2) == std::ldexp(1, -24));
  CHECK(half(3) == 65504);
  CHECK(std::isinf(half(4)));
  CHECK(std::isnan(half(5)));
  const uint16_t brain = 0x4049;
  CHECK(number_of(DType::kBF16, reinterpret_cast<const uint8_t*>(&brain), 0) == 3.140625);
}

TEST_CASE("tensor data: mean and deviation of each column, classes, numbers to predict") {
  TempFolder folder;
  std::vector<float> x;
  for (int i = 0; i < 8; ++i) x.push_back(static_cast<float>(i)), x.push_back(5);
  folder.write("train/x.npy", npy("<f4", "(8, 2)", x));
  folder.write("train/y.npy", npy<int64_t>("<i8", "(8,)", {0, 1, 2, 0, 1, 2, 0, 1}));
  folder.write("val/x.npy", npy<float>("<f4", "(1, 2)", {3.5F, 6}));
  folder.write("val/y.npy", npy<int64_t>("<i8", "(1,)", {2}));
  const DataSet data = open_npy(folder.path(), {});
  const Batch train = all_of(*data.train), validation = all_of(*data.validation);
  CHECK(data.train->shape().num_classes == 3);
  CHECK(train.values[0] == static_cast<float>(-3.5 / std::sqrt(63.0 / 12)));
  CHECK(train.values[1] == 0);
  CHECK(validation.values == std::vector<float>{0, 1});
  CHECK(validation.targets == std::vector<int64_t>{2});
  const std::vector<double> raw{3.5, 6};
  CHECK(encode_numbers(data.train->describe(), raw, "x").values == validation.values);
  folder.write("train/y.npy", npy<float>("<f4", "(8, 2)", counting<float>(16)));
  folder.write("val/y.npy", npy<float>("<f4", "(1, 2)", {7, 8}));
  const DataSet regression = open_npy(folder.path(), {});
  CHECK(regression.train->shape().num_classes == 2);
  CHECK(all_of(*regression.validation).numbers == std::vector<float>{0, 0});
}

TEST_CASE("tensor data: bytes of three channels are pictures; a file of tensors gives the same samples") {
  TempFolder folder;
  const std::vector<uint8_t> pixels = counting<uint8_t>(10 * 3 * 2 * 2);
  const std::vector<int32_t> labels{0, 1, 0, 1, 0, 1, 0, 1, 0, 1};
  folder.write("x.npy", npy("|u1", "(10, 3, 2, 2)", pixels));
  folder.write("y.npy", npy("<i4", "(10,)", labels));
  const DataSet data = open_npy(folder.path() + ",seed=3", {});
  CHECK(data.train->describe().input == DataDescription::Input::kPicture);
  std::string bytes;
  write_safetensors([&](const void* from, size_t size) { bytes.append(static_cast<const char*>(from), size); }, "t",
                    {{"x", DType::kU8, {10, 3, 2, 2}, pixels.data()}, {"y", DType::kI32, {10}, labels.data()}});
  const std::string path = folder.write("t.safetensors", bytes);
  CHECK(data_fingerprint(open_safetensors(path + ",seed=3", {})) == data_fingerprint(data));
  CHECK(mentions(error_of([&] { open_safetensors(path + ",x=pixels", {}); }), "has no tensor 'pixels': expected pixels and y, or x=NAME"));
}

TEST_CASE("tensor data: what does not fit is refused by file and sample, or left out") {
  TempFolder folder;
  folder.write("y.npy", npy<int64_t>("<i8", "(4,)", {0, 1, 0, 1}));
  folder.write("x.npy", npy<float>("<f4", "(4, 1)", {1, 2, std::nanf(""), 4}));
  const auto refusal = [&](const std::string& more = "") { return error_of([&] { open_npy(folder.path() + more, {}); }); };
  CHECK(mentions(refusal(), "x.npy: sample 2 is not finite at element 0"));
  const DataSet data = open_npy(folder.path(), {.skip_bad = true});
  CHECK(data.skipped.count == 1);
  CHECK(data.train->num_samples() + data.validation->num_samples() == 3);
  folder.write("x.npy", npy<float>("<f4", "(3, 1)", {1, 2, 3}));
  CHECK(mentions(refusal(), "x.npy has 3 samples, and "));
  folder.write("x.npy", npy<float>("<f4", "(4, 1)", {1, 2, 3, 4}));
  CHECK(mentions(refusal(",classes=7,normalise=chanel"), "normalise=chanel (did you mean 'channel'?)"));
  folder.write("y.npy", npy<int64_t>("<i8", "(4,)", {0, -1, 0, 1}));
  CHECK(mentions(refusal(), "y.npy: sample 1 has the class -1, expected 0 to 1"));
}

TEST_CASE("tensor data: labels are rows of 0 and 1 of any type") {
  TempFolder folder;
  folder.write("x.npy", npy<float>("<f4", "(4, 1)", {1, 2, 3, 4}));
  const std::vector<float> expected{1, 0, 0, 0, 1, 1, 1, 1};
  const auto refusal = [&](const std::string& more) { return error_of([&] { open_npy(folder.path() + more, {}); }); };
  const auto numbers = [&] {
    const DataSet data = open_npy(folder.path() + ",task=labels,seed=1", {.validation_samples = 1});
    CHECK(data.train->shape().labels);
    CHECK(data.train->shape().num_classes == 2);
    // In the order of the samples, by their inputs.
    std::vector<float> out(8);
    for (const DataSource* part : {data.train.get(), data.validation.get()}) {
      const Batch batch = all_of(*part);
      const DataDescription description = part->describe();
      for (size_t i = 0; i < batch.values.size(); ++i) {
        const auto sample =
            static_cast<size_t>(std::lround(static_cast<double>(batch.values[i]) * description.deviation[0] + description.mean[0] - 1));
        std::copy_n(batch.numbers.begin() + 2 * static_cast<std::ptrdiff_t>(i), 2, out.begin() + 2 * static_cast<std::ptrdiff_t>(sample));
      }
    }
    return out;
  };
  folder.write("y.npy", npy<uint8_t>("|b1", "(4, 2)", {1, 0, 0, 0, 1, 1, 1, 1}));
  CHECK(numbers() == expected);
  folder.write("y.npy", npy<int64_t>("<i8", "(4, 2)", {1, 0, 0, 0, 1, 1, 1, 1}));
  CHECK(numbers() == expected);
  CHECK(mentions(refusal(""), "expected one class a sample; columns of 0 and 1 are task=labels"));
  CHECK(mentions(refusal(",task=labels,classes=2"), "classes= is of a classification, and "));
  folder.write("y.npy", npy<float>("<f4", "(4, 2)", {1, 0, 0, 0, 1, 1, 1, 1}));
  CHECK(numbers() == expected);
  folder.write("y.npy", npy<float>("<f4", "(4, 2)", {1, 0, 0, 0, 1, 0.5F, 1, 1}));
  CHECK(mentions(refusal(",task=labels"), "y.npy: sample 2 has 0.5 for label 1, expected 0 or 1"));
  folder.write("y.npy", npy<uint8_t>("|u1", "(4, 2)", {1, 0, 0, 0, 1, 2, 1, 1}));
  CHECK(mentions(refusal(",task=labels"), "y.npy: sample 2 has 2 for label 1, expected 0 or 1"));
  CHECK(open_npy(folder.path() + ",task=labels", {.skip_bad = true}).skipped.count == 1);
}

TEST_CASE("mutation: an array that is damaged is refused with one line, or becomes samples") {
  TempFolder folder;
  const std::string x = npy("<f4", "(6, 2)", counting<float>(12)), y = npy<int64_t>("<i8", "(6,)", {0, 1, 0, 1, 0, 1});
  folder.write("y.npy", y);
  int64_t opened = 0, refused = 0;
  for (uint64_t seed = 1; seed <= mutation_count(600); ++seed) {
    folder.write("x.npy", mutated(x, seed));
    ++(succeeds_or_is_refused([&] { all_of(*open_npy(folder.path(), {}).train); }) ? opened : refused);
  }
  CHECK(opened > 20);
  CHECK(refused > 100);
}
