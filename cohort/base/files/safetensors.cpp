// Reads and writes safetensors files: https://github.com/huggingface/safetensors, section "Format".
//
// Layout: u64 little-endian N, N bytes of JSON, data. The JSON maps each name to {"dtype", "shape", "data_offsets": [begin, end)} with
// offsets from the start of the data; "__metadata__" maps text to text. Data is contiguous: sorted by offset, each tensor begins where the
// one before ends, and the last ends at the end of the file.
//
// Reading: 1. map the file; 2. N <= 100 MB and <= file size - 8; 3. JSON with bounded depth, no key twice; 4. per entry: known dtype,
// product of the shape in int64, end - begin equals it in bytes; 5. sorted by offset, no hole, no overlap, total = file size. Only then are
// views made. Cost: O(header + tensors log tensors); the data is not touched.
//
// Writing: tensors by element size, largest first (stable), header padded with spaces to a multiple of 8: every tensor is aligned to its
// type. Where we differ from the reference implementation: it takes more dtypes (unsigned 16 to 64 bits, 8-bit floats), we refuse those by
// name.

#include "cohort/base/files/safetensors.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <memory>
#include <numeric>
#include <set>
#include <string_view>
#include <tuple>

#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/base/text/json_fields.h"
#include "cohort/base/text/strict_json.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace cohort {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian and is mapped as it is");

constexpr size_t kLengthBytes = 8;
constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // The limit of the reference implementation.
constexpr size_t kMaxDimensions = 64;              // LibTorch's limit is 64 as well.
constexpr const char* kMetadataKey = "__metadata__";

struct DTypeRow {
  DType type;
  const char* name;
  int64_t bytes;
};
constexpr DTypeRow kDTypes[] = {{DType::kF64, "F64", 8}, {DType::kF32, "F32", 4},  {DType::kF16, "F16", 2}, {DType::kBF16, "BF16", 2},
                                {DType::kI64, "I64", 8}, {DType::kI32, "I32", 4},  {DType::kI16, "I16", 2}, {DType::kI8, "I8", 1},
                                {DType::kU8, "U8", 1},   {DType::kBool, "BOOL", 1}};

const DTypeRow& row_of(DType type) {
  for (const DTypeRow& row : kDTypes) {
    if (row.type == type) return row;
  }
  fail(ErrorCode::kBadInput, "data type number ", static_cast<int>(type), " does not exist");
}

std::string json_string(const std::string& text, const std::string& path) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::exception&) {
    fail(ErrorCode::kBadInput, path, ": name ", quote_text(text), " is not UTF-8");
  }
}

template <typename... Parts>
[[noreturn]] void refuse_tensor(const std::string& path, const std::string& name, const Parts&... parts) {
  fail(ErrorCode::kBadInput, path, ": tensor ", quote_text(name), ": ", parts...);
}

struct Located {
  TensorView view;
  int64_t begin = 0, end = 0;
};

Located parse_entry(const std::string& path, const std::string& name, const Json& value) {
  const std::string where = path + ": tensor " + quote_text(name);
  const JsonFields fields(value, where);
  Located located;
  located.view.name = name;
  const std::string& dtype = fields.text("dtype");
  try {
    located.view.dtype = dtype_from_name(dtype);
  } catch (const Error& error) {
    fields.refuse(error.what());
  }
  located.view.shape = fields.naturals("shape", kMaxDimensions);
  const std::vector<int64_t> offsets = fields.naturals("data_offsets", 2);
  if (offsets.size() != 2) fields.refuse("expected [begin, end] in \"data_offsets\"");
  located.begin = offsets[0], located.end = offsets[1];
  if (located.begin > located.end) fields.refuse("data_offsets [", located.begin, ", ", located.end, "] end before they begin");

  const int64_t elements = checked_num_elements(located.view.shape);
  const int64_t element_bytes = dtype_bytes(located.view.dtype);
  if (elements < 0 || elements > INT64_MAX / element_bytes)
    fields.refuse("shape ", shape_text(located.view.shape), " has more than 2^63-1 bytes");
  if (located.end - located.begin != elements * element_bytes) {
    fields.refuse("shape ", shape_text(located.view.shape), " of ", dtype_name(located.view.dtype), " needs ", elements * element_bytes,
                  " bytes, data_offsets give ", located.end - located.begin);
  }
  return located;
}

std::map<std::string, std::string> parse_metadata(const std::string& path, const nlohmann::json& value) {
  if (!value.is_object()) fail(ErrorCode::kBadInput, path, ": expected an object of strings in \"", kMetadataKey, "\"");
  std::map<std::string, std::string> metadata;
  for (const auto& [key, text] : value.items()) {
    if (!text.is_string())
      fail(ErrorCode::kBadInput, path, ": \"", kMetadataKey, "\" holds something else than a string under ", quote_text(key));
    metadata[key] = text.get<std::string>();
  }
  return metadata;
}

/// Sorted by offset, the tensors must fill [0, data_bytes) without hole or overlap.
void check_contiguous(const std::string& path, std::vector<Located>& entries, int64_t data_bytes) {
  std::sort(entries.begin(), entries.end(),
            [](const Located& a, const Located& b) { return std::tie(a.begin, a.end) < std::tie(b.begin, b.end); });
  int64_t expected = 0;
  for (const Located& located : entries) {
    if (located.begin != expected) {
      refuse_tensor(path, located.view.name, "data begins at offset ", located.begin, ", expected ", expected,
                    located.begin < expected ? " (it overlaps the tensor before it)" : " (a hole before it)");
    }
    expected = located.end;
  }
  if (expected != data_bytes)
    fail(ErrorCode::kBadInput, path, ": the tensors take ", expected, " bytes of data, the file has ", data_bytes);
}

/// The header with its length in front, and the tensors in the order in which their data follows.
std::string make_header(const std::string& path, const std::vector<TensorView>& tensors, const std::map<std::string, std::string>& metadata,
                        std::vector<const TensorView*>& order) {
  for (const TensorView& view : tensors) order.push_back(&view);
  std::stable_sort(order.begin(), order.end(),
                   [](const TensorView* a, const TensorView* b) { return dtype_bytes(a->dtype) > dtype_bytes(b->dtype); });

  std::string json = "{";
  if (!metadata.empty()) {
    for (const auto& [key, text] : metadata) {
      json += (json.size() == 1 ? "\"__metadata__\":{" : ",") + json_string(key, path) + ":" + json_string(text, path);
    }
    json += "}";
  }
  std::set<std::string_view> names;
  int64_t offset = 0;
  for (const TensorView* view : order) {
    const int64_t bytes = view->num_bytes();
    const auto refuse = [&](const auto&... parts) { refuse_tensor(path, view->name, parts...); };
    if (!names.insert(view->name).second) refuse("the name comes twice");
    if (view->name == kMetadataKey) refuse("the name is reserved");
    if (view->shape.size() > kMaxDimensions) refuse("more than ", kMaxDimensions, " dimensions");
    if (bytes > 0 && view->data == nullptr) refuse("no data");
    if (bytes > INT64_MAX - offset) refuse("the file would have more than 2^63-1 bytes");
    const nlohmann::json shape = view->shape;
    json += (json.size() == 1 ? "" : ",") + json_string(view->name, path) + ":{\"dtype\":\"" + dtype_name(view->dtype) +
            "\",\"shape\":" + shape.dump() + ",\"data_offsets\":[" + std::to_string(offset) + "," + std::to_string(offset + bytes) + "]}";
    offset += bytes;
  }
  json += "}";
  json.resize((json.size() + 7) / 8 * 8, ' ');
  if (json.size() > kMaxHeaderBytes)
    fail(ErrorCode::kBadInput, path, ": the header of ", tensors.size(), " tensors would exceed ", kMaxHeaderBytes, " bytes");

  const uint64_t length = json.size();
  std::string header(kLengthBytes, '\0');
  std::memcpy(header.data(), &length, kLengthBytes);
  return header + json;
}

}  // namespace

int64_t dtype_bytes(DType type) { return row_of(type).bytes; }
const char* dtype_name(DType type) { return row_of(type).name; }

DType dtype_from_name(const std::string& name) {
  std::string known;
  for (const DTypeRow& row : kDTypes) {
    if (name == row.name) return row.type;
    known += std::string(known.empty() ? "" : ", ") + row.name;
  }
  fail(ErrorCode::kBadInput, "dtype ", quote_text(name), " is not one of ", known);
}

int64_t checked_num_elements(const std::vector<int64_t>& shape) {
  bool empty = false;
  for (const int64_t size : shape) {
    if (size < 0) return -1;
    empty = empty || size == 0;
  }
  if (empty) return 0;  // Whatever the other dimensions are.
  int64_t product = 1;
  for (const int64_t size : shape) {
    if (__builtin_mul_overflow(product, size, &product)) return -1;
  }
  return product;
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (const int64_t size : shape) text += (text.size() == 1 ? "" : ", ") + std::to_string(size);
  return text + "]";
}

int64_t TensorView::num_elements() const {
  const int64_t elements = checked_num_elements(shape);
  if (elements < 0)
    fail(ErrorCode::kBadInput, "tensor ", quote_text(name), ": shape ", shape_text(shape), " is negative or has more than 2^63-1 elements");
  return elements;
}

int64_t TensorView::num_bytes() const {
  const int64_t elements = num_elements();
  if (elements > INT64_MAX / dtype_bytes(dtype))
    fail(ErrorCode::kBadInput, "tensor ", quote_text(name), ": shape ", shape_text(shape), " has more than 2^63-1 bytes");
  return elements * dtype_bytes(dtype);
}

WrittenFile write_safetensors(const ByteSink& sink, const std::string& path_for_errors, const std::vector<TensorView>& tensors,
                              const std::map<std::string, std::string>& metadata) {
  std::vector<const TensorView*> order;
  const std::string header = make_header(path_for_errors, tensors, metadata, order);

  const std::unique_ptr<XXH64_state_t, decltype(&XXH64_freeState)> hash(XXH64_createState(), &XXH64_freeState);
  if (!hash) throw std::bad_alloc();
  XXH64_reset(hash.get(), 0);
  WrittenFile written;
  const auto put = [&](const void* data, size_t size) {
    // Hash and write piece by piece, so that the data passes through the cache once.
    constexpr size_t kPieceBytes = size_t{1} << 20;
    const auto* bytes = static_cast<const std::byte*>(data);
    for (size_t done = 0; done < size; done += kPieceBytes) {
      const size_t piece = std::min(size - done, kPieceBytes);
      XXH64_update(hash.get(), bytes + done, piece);
      sink(bytes + done, piece);
    }
    written.bytes += static_cast<int64_t>(size);
  };
  put(header.data(), header.size());
  for (const TensorView* view : order) put(view->data, static_cast<size_t>(view->num_bytes()));
  written.checksum = XXH64_digest(hash.get());
  return written;
}

WrittenFile write_safetensors(int descriptor, const std::string& path_for_errors, const std::vector<TensorView>& tensors,
                              const std::map<std::string, std::string>& metadata) {
  const auto sink = [&](const void* data, size_t size) { write_all(descriptor, data, size, path_for_errors); };
  return write_safetensors(sink, path_for_errors, tensors, metadata);
}

SafetensorsFile::SafetensorsFile(const std::string& path) {
  map(path);
  try {
    parse(path);
  } catch (...) {
    unmap();
    throw;
  }
}

SafetensorsFile::~SafetensorsFile() { unmap(); }

void SafetensorsFile::map(const std::string& path) {
  int64_t num_bytes = 0;
  const UniqueDescriptor descriptor = open_regular_file(path, &num_bytes);
  size_ = static_cast<size_t>(num_bytes);
  if (size_ < kLengthBytes)
    fail(ErrorCode::kBadInput, path, ": ", size_, " bytes, expected at least the ", kLengthBytes, " of the header's length");
  void* mapped = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, descriptor.get(), 0);
  if (mapped == MAP_FAILED) fail_errno(ErrorCode::kFailed, "map", path, errno);
  map_ = static_cast<const std::byte*>(mapped);
}

void SafetensorsFile::unmap() noexcept {
  if (map_ != nullptr) ::munmap(const_cast<std::byte*>(map_), size_);
  map_ = nullptr;
}

void SafetensorsFile::parse(const std::string& path) {
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, map_, kLengthBytes);
  if (header_bytes > kMaxHeaderBytes)
    fail(ErrorCode::kBadInput, path, ": byte 0: header length ", header_bytes, ", at most ", kMaxHeaderBytes, " is accepted");
  if (header_bytes > size_ - kLengthBytes) {
    fail(ErrorCode::kBadInput, path, ": byte 0: header length ", header_bytes, ", but only ", size_ - kLengthBytes, " bytes follow");
  }
  const std::string_view text(reinterpret_cast<const char*>(map_) + kLengthBytes, header_bytes);
  if (text.empty() || text[0] != '{')
    fail(ErrorCode::kBadInput, path, ": byte ", kLengthBytes, ": expected '{', the beginning of the JSON header");
  const nlohmann::json header = parse_strict_json(text, {.path = path, .first_byte = kLengthBytes});

  std::vector<Located> entries;
  for (const auto& [name, value] : header.items()) {
    if (name == kMetadataKey) {
      metadata_ = parse_metadata(path, value);
    } else {
      entries.push_back(parse_entry(path, name, value));
    }
  }
  const std::byte* data = map_ + kLengthBytes + header_bytes;
  check_contiguous(path, entries, static_cast<int64_t>(size_ - kLengthBytes - header_bytes));
  for (Located& located : entries) {
    located.view.data = data + located.begin;
    tensors_.push_back(std::move(located.view));
  }
  by_name_.resize(tensors_.size());
  std::iota(by_name_.begin(), by_name_.end(), size_t{0});
  std::sort(by_name_.begin(), by_name_.end(), [&](size_t a, size_t b) { return tensors_[a].name < tensors_[b].name; });
}

const TensorView* SafetensorsFile::find(const std::string& name) const {
  const auto place = std::lower_bound(by_name_.begin(), by_name_.end(), name,
                                      [&](size_t i, const std::string& wanted) { return tensors_[i].name < wanted; });
  return place != by_name_.end() && tensors_[*place].name == name ? &tensors_[*place] : nullptr;
}

uint64_t SafetensorsFile::checksum() const { return XXH64(map_, size_, 0); }

}  // namespace cohort
