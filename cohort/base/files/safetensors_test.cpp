#include "cohort/base/files/safetensors.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "tests/support/errors.h"
#include "tests/support/mutation.h"
#include "tests/support/text.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

using namespace cohort;

namespace {

constexpr DType kAllTypes[] = {DType::kF64, DType::kF32, DType::kF16, DType::kBF16, DType::kI64,
                               DType::kI32, DType::kI16, DType::kI8,  DType::kU8,   DType::kBool};

std::string bytes_of(const std::vector<TensorView>& tensors, const std::map<std::string, std::string>& metadata = {}) {
  std::string out;
  write_safetensors([&](const void* data, size_t size) { out.append(static_cast<const char*>(data), size); }, "test", tensors, metadata);
  return out;
}

void put_file(const std::string& path, const std::string& content) {
  ::unlink(path.c_str());  // Truncating in place makes ext4 flush each time: thousands of files would take seconds.
  const UniqueDescriptor file = open_file(path, O_WRONLY | O_CREAT | O_EXCL);
  write_all(file.get(), content.data(), content.size(), path);
}

/// A file with the right length in front of any header.
std::string with_header(const std::string& header, const std::string& data = "") {
  const uint64_t length = header.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  return file + header + data;
}

/// Opens and touches every byte, so that a sanitizer sees a view that leaves the file.
uint64_t read_everything(const std::string& path) {
  const SafetensorsFile file(path);
  uint64_t sum = file.checksum();
  for (const TensorView& view : file.tensors()) {
    CHECK(file.find(view.name) == &view);
    if (view.num_bytes() > 0) sum += XXH64(view.data, static_cast<size_t>(view.num_bytes()), 0);
  }
  return sum;
}

}  // namespace

TEST_CASE("dtypes have the names and sizes of the format") {
  for (const DType type : kAllTypes) CHECK(dtype_from_name(dtype_name(type)) == type);
  CHECK(dtype_bytes(DType::kBF16) == 2);
  CHECK(dtype_bytes(DType::kBool) == 1);
  CHECK(contains(error_or_none([] { dtype_from_name("F8_E4M3"); }), "\"F8_E4M3\" is not one of F64, F32"));
  CHECK(checked_num_elements({}) == 1);
  CHECK(checked_num_elements({2, 3}) == 6);
  CHECK(checked_num_elements({INT64_MAX, INT64_MAX, 0}) == 0);
  CHECK(checked_num_elements({INT64_MAX, 2}) == -1);
  CHECK(checked_num_elements({0, -1}) == -1);
}

TEST_CASE("safetensors: known bytes") {
  const float values[2] = {1.0f, -2.0f};
  const std::string expected =
      with_header("{\"x\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}  ", std::string("\0\0\x80\x3f\0\0\0\xc0", 8));
  CHECK(bytes_of({{"x", DType::kF32, {2}, values}}) == expected);
  CHECK(bytes_of({}) == with_header("{}      "));
}

TEST_CASE("safetensors: what is written is read, for every type, awkward shape and name") {
  TemporaryFolder folder;
  const std::string path = folder / "a.safetensors";
  const std::vector<std::vector<int64_t>> shapes = {{}, {0}, {1}, {7}, {3, 0, 5}, {3, 5}, {1, 2, 3, 4, 5}};
  std::vector<std::vector<unsigned char>> storage;
  std::vector<TensorView> tensors;
  for (const DType type : kAllTypes) {
    for (const auto& shape : shapes) {
      TensorView view{"t\"\\\n/\xc3\xbc" + std::to_string(tensors.size()), type, shape, nullptr};
      auto& data = storage.emplace_back(static_cast<size_t>(view.num_bytes()));
      for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<unsigned char>(random_bits(1, tensors.size(), i));
      view.data = data.data();
      tensors.push_back(view);
    }
  }
  const std::map<std::string, std::string> metadata = {{"format", "pt"}, {"step", "12"}, {"quote\"", "line\nbreak"}};
  UniqueDescriptor out = open_file(path, O_WRONLY | O_CREAT);
  const WrittenFile written = write_safetensors(out.get(), path, tensors, metadata);
  out.reset();

  const SafetensorsFile file(path);
  CHECK(file.num_bytes() == written.bytes);
  CHECK(file.checksum() == written.checksum);
  CHECK(file.metadata() == metadata);
  REQUIRE(file.tensors().size() == tensors.size());
  for (const TensorView& view : tensors) {
    const TensorView* got = file.find(view.name);
    REQUIRE(got != nullptr);
    CHECK(got->dtype == view.dtype);
    CHECK(got->shape == view.shape);
    if (view.num_bytes() > 0) CHECK(std::memcmp(got->data, view.data, static_cast<size_t>(view.num_bytes())) == 0);
    CHECK(reinterpret_cast<uintptr_t>(got->data) % static_cast<uintptr_t>(dtype_bytes(view.dtype)) == 0);
  }
  CHECK(file.find("t") == nullptr);
  CHECK(file.find("") == nullptr);
  // Order as given within one element size.
  CHECK(file.tensors().front().name == tensors.front().name);
}

TEST_CASE("safetensors: the writer refuses before it writes") {
  const float values[2] = {1.0f, -2.0f};
  CHECK(contains(error_or_none([&] { bytes_of({{"x", DType::kF32, {2}, values}, {"x", DType::kI8, {2}, values}}); }),
                 "tensor \"x\": the name comes twice"));
  CHECK(contains(error_or_none([&] { bytes_of({{"__metadata__", DType::kF32, {2}, values}}); }), "reserved"));
  CHECK(contains(error_or_none([&] { bytes_of({{"x", DType::kF32, {2, -1}, values}}); }), "[2, -1]"));
  CHECK(contains(error_or_none([&] { bytes_of({{"x", DType::kF32, {INT64_MAX / 2}, values}}); }), "more than 2^63-1 bytes"));
  CHECK(contains(error_or_none([&] { bytes_of({{"x", DType::kF32, {2}, nullptr}}); }), "no data"));
  CHECK(contains(error_or_none([&] { bytes_of({{"\xff", DType::kF32, {2}, values}}); }), "not UTF-8"));
  CHECK(contains(error_or_none([&] { bytes_of({{"x", DType::kI8, {INT64_MAX}, values}, {"y", DType::kI8, {1}, values}}); }),
                 "more than 2^63-1 bytes"));
}

TEST_CASE("safetensors: a full disk is an error with path and reason") {
  const std::vector<float> values(1000);
  const UniqueDescriptor full = open_file("/dev/full", O_WRONLY);
  try {
    write_safetensors(full.get(), "/dev/full", {{"x", DType::kF32, {1000}, values.data()}});
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kFailed);
    CHECK(contains(error.what(), std::strerror(ENOSPC)));
  }
}

TEST_CASE("safetensors: malformed files are refused in one line that names file and place") {
  TemporaryFolder folder;
  const std::string path = folder / "bad.safetensors";
  const std::string eight(8, 'x');
  const struct {
    std::string content, expected;
  } cases[] = {
      {"", "0 bytes, expected at least the 8"},
      {"1234567", "7 bytes"},
      {std::string(8, '\0'), "byte 8: expected '{'"},
      {with_header("{}").substr(0, 9), "header length 2, but only 1 bytes follow"},
      {std::string(8, '\xff') + "{}", "header length 18446744073709551615, at most 100000000"},
      {with_header(" {}"), "byte 8: expected '{'"},
      {with_header("{\"a\""), "byte 12: not valid JSON"},
      {with_header("{}", "x"), "the tensors take 0 bytes of data, the file has 1"},
      {with_header("{\"a\":1}"), "tensor \"a\": expected an object"},
      {with_header("{\"a\":{\"shape\":[1],\"data_offsets\":[0,8]}}", eight), "\"dtype\" is missing"},
      {with_header("{\"a\":{\"dtype\":\"F64\",\"data_offsets\":[0,8]}}", eight), "\"shape\" is missing"},
      {with_header("{\"a\":{\"dtype\":\"F64\",\"shape\":[1]}}", eight), "\"data_offsets\" is missing"},
      {with_header("{\"a\":{\"dtype\":\"F65\",\"shape\":[1],\"data_offsets\":[0,8]}}", eight), "tensor \"a\": dtype \"F65\" is not one of"},
      {with_header("{\"a\":{\"dtype\":64,\"shape\":[1],\"data_offsets\":[0,8]}}", eight), "expected a string in \"dtype\", found 64"},
      {with_header("{\"a\":{\"dtype\":\"F64\",\"shape\":[-1],\"data_offsets\":[0,8]}}", eight), "expected a whole number"},
      {with_header("{\"a\":{\"dtype\":\"F64\",\"shape\":[1.0],\"data_offsets\":[0,8]}}", eight), "expected a whole number"},
      {with_header("{\"a\":{\"dtype\":\"F64\",\"shape\":[18446744073709551615],\"data_offsets\":[0,8]}}", eight),
       "expected a whole number"},
      {with_header("{\"a\":{\"dtype\":\"F64\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}"), "more than 2^63-1 bytes"},
      {with_header("{\"a\":{\"dtype\":\"F64\",\"shape\":[2305843009213693952],\"data_offsets\":[0,0]}}"), "more than 2^63-1 bytes"},
      {with_header("{\"a\":{\"dtype\":\"F64\",\"shape\":[1],\"data_offsets\":[0,8,9]}}", eight),
       "at most 2 items in \"data_offsets\", found 3"},
      {with_header("{\"a\":{\"dtype\":\"F64\",\"shape\":[1],\"data_offsets\":[8,0]}}", eight), "end before they begin"},
      {with_header("{\"a\":{\"dtype\":\"F64\",\"shape\":[2],\"data_offsets\":[0,8]}}", eight), "needs 16 bytes, data_offsets give 8"},
      {with_header("{\"a\":{\"dtype\":\"F64\",\"shape\":[1],\"data_offsets\":[0,8]}}", "1234567"),
       "the tensors take 8 bytes of data, the file has 7"},
      {with_header("{\"a\":{\"dtype\":\"F64\",\"shape\":[1],\"data_offsets\":[0,8]}}", eight + "1"),
       "the tensors take 8 bytes of data, the file has 9"},
      {with_header(
           "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},\"b\":{\"dtype\":\"U8\",\"shape\":[5],\"data_offsets\":[3,8]}}",
           eight),
       "overlaps"},
      {with_header(
           "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},\"b\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[5,8]}}",
           eight),
       "a hole"},
      {with_header(
           "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[4,8]}}",
           eight),
       "key \"a\" comes twice"},
      {with_header("{\"__metadata__\":[]}"), "expected an object of strings"},
      {with_header("{\"__metadata__\":{\"a\":1}}"), "something else than a string under \"a\""},
  };
  for (const auto& item : cases) {
    put_file(path, item.content);
    const std::string text = error_or_none([&] { SafetensorsFile file(path); });
    CHECK_MESSAGE(contains(text, item.expected), text);
    CHECK(contains(text, path));
  }
  CHECK(contains(error_or_none([&] { SafetensorsFile file(folder / "none"); }), "none: No such file"));
  CHECK(contains(error_or_none([&] { SafetensorsFile file(folder.path()); }), "not a regular file"));
}

TEST_CASE("safetensors: a file made by Python's package (0.8.0, torch.save_file)") {
  TemporaryFolder folder;
  const std::string path = folder / "python.safetensors";
  std::string content = with_header(
      "{\"__metadata__\":{\"format\":\"pt\"},\"b\":{\"dtype\":\"I64\",\"shape\":[1],\"data_offsets\":[0,8]},"
      "\"w\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[8,24]},\"e\":{\"dtype\":\"U8\",\"shape\":[0,2],\"data_offsets\":[24,24]}}"
      "   ",
      std::string("\x05\0\0\0\0\0\0\0\0\0\x80?\0\0\0@\0\0@@\0\0\x80@", 24));
  CHECK(content[0] == '\xc8');
  put_file(path, content);
  const SafetensorsFile file(path);
  const float expected[4] = {1, 2, 3, 4};
  REQUIRE(file.find("w") != nullptr);
  CHECK(file.find("w")->shape == std::vector<int64_t>{2, 2});
  CHECK(std::memcmp(file.find("w")->data, expected, sizeof expected) == 0);
  CHECK(file.find("b")->dtype == DType::kI64);
  CHECK(*static_cast<const char*>(file.find("b")->data) == 5);
  CHECK(file.find("e")->shape == std::vector<int64_t>{0, 2});
  CHECK(file.metadata().at("format") == "pt");
  // The same tensors from our writer are the same bytes: names and order given as Python chose them.
  CHECK(bytes_of({*file.find("b"), *file.find("w"), *file.find("e")}, file.metadata()) == content);
}

TEST_CASE("safetensors: files of other writers, unaligned and unsorted, are read") {
  TemporaryFolder folder;
  const std::string path = folder / "a.safetensors";
  put_file(
      path,
      with_header(
          "{\"b\":{\"dtype\":\"I16\",\"shape\":[1],\"data_offsets\":[1,3]},\"z\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[1,1]},"
          "\"a\":{\"dtype\":\"I8\",\"shape\":[],\"data_offsets\":[0,1]}}",
          "\x05\x01\x02"));
  const SafetensorsFile file(path);
  REQUIRE(file.find("b") != nullptr);
  CHECK(std::memcmp(file.find("b")->data, "\x01\x02", 2) == 0);
  CHECK(file.find("a")->num_elements() == 1);
  CHECK(file.find("z")->num_bytes() == 0);
}

TEST_CASE("safetensors: every truncation is refused, random damage is refused or harmless") {
  TemporaryFolder folder;
  const std::string path = folder / "a.safetensors";
  const std::vector<float> floats(6, 1.5f);
  const std::vector<int8_t> bytes(3, 7);
  const std::string good = bytes_of({{"layer.weight", DType::kF32, {2, 3}, floats.data()},
                                     {"empty", DType::kF64, {0}, nullptr},
                                     {"mask", DType::kBool, {3}, bytes.data()}},
                                    {{"k", "v"}});
  for (size_t size = 0; size < good.size(); ++size) {
    put_file(path, good.substr(0, size));
    CHECK(error_or_none([&] { read_everything(path); }) != "");
  }
  int accepted = 0;
  for (uint64_t seed = 0; seed < 4000; ++seed) {
    put_file(path, mutated(good, seed));
    accepted += error_or_none([&] { read_everything(path); }) == "";
  }
  CHECK(accepted > 0);  // Else the damage is so heavy that only the first check was tried.
  CHECK(accepted < 3000);
}
