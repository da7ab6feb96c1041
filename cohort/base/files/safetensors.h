#pragma once
// The safetensors file format: 8 bytes little-endian header length, a JSON header, the raw data. The parser checks every length against the
// file's size before it allocates. Format: docs/formats/safetensors.md.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "cohort/base/export.h"

namespace cohort {

enum class DType { kF64, kF32, kF16, kBF16, kI64, kI32, kI16, kI8, kU8, kBool };

COHORT_API int64_t dtype_bytes(DType type);
COHORT_API const char* dtype_name(DType type);              ///< As safetensors spells it: "F32".
COHORT_API DType dtype_from_name(const std::string& name);  ///< Error(kBadInput) for an unknown one.

/// Product of the dimensions, 1 for a scalar; -1 where a dimension is negative or the product exceeds int64.
COHORT_API int64_t checked_num_elements(const std::vector<int64_t>& shape);
/// "[2, 3]", for errors and tables.
COHORT_API std::string shape_text(const std::vector<int64_t>& shape);

/// A non-owning view of a tensor: contiguous, row-major, little-endian.
struct COHORT_API TensorView {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  const void* data = nullptr;  ///< May be null where num_bytes() is 0.

  /// Error(kBadInput) naming the tensor when a dimension is negative or the product exceeds int64.
  int64_t num_elements() const;
  int64_t num_bytes() const;
};

/// Size and XXH64 (seed 0) of a written file.
struct WrittenFile {
  int64_t bytes = 0;
  uint64_t checksum = 0;
};

/// Writes the next bytes of a file; throws on failure.
using ByteSink = std::function<void(const void* data, size_t size)>;

/// Writes a whole file. The data of 8-byte types comes first, then 4, 2 and 1, in the order given within each: every tensor then begins at
/// a multiple of its element size and no hole is needed. `metadata` becomes "__metadata__". Error(kBadInput) naming the tensor for a name
/// that comes twice, is "__metadata__" or is not UTF-8, and for a bad shape; nothing is written then.
COHORT_API WrittenFile write_safetensors(const ByteSink& sink, const std::string& path_for_errors, const std::vector<TensorView>& tensors,
                                         const std::map<std::string, std::string>& metadata = {});
/// The same to an open descriptor from its present position, complete or Error(kFailed) with errno's text. Does not fsync.
COHORT_API WrittenFile write_safetensors(int descriptor, const std::string& path_for_errors, const std::vector<TensorView>& tensors,
                                         const std::map<std::string, std::string>& metadata = {});

/// A memory-mapped, read-only file; its views live as long as the object. Thread-safe after construction. Truncating the file kills the
/// reader with SIGBUS: replace files by rename.
class COHORT_API SafetensorsFile {
 public:
  /// Error(kBadInput) naming file, offset or tensor and what was expected when the file is malformed.
  explicit SafetensorsFile(const std::string& path);
  ~SafetensorsFile();
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  /// In the order of their data. Files of other writers may hold data that is not aligned to its type: copy it with memcpy.
  const std::vector<TensorView>& tensors() const { return tensors_; }
  const TensorView* find(const std::string& name) const;  ///< Null where there is none.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  int64_t num_bytes() const { return static_cast<int64_t>(size_); }
  /// XXH64 of the whole file; reads all of it.
  uint64_t checksum() const;

 private:
  void map(const std::string& path);
  void parse(const std::string& path);
  void unmap() noexcept;

  const std::byte* map_ = nullptr;
  size_t size_ = 0;
  std::vector<TensorView> tensors_;
  std::vector<size_t> by_name_;  // Positions in tensors_, sorted by name.
  std::map<std::string, std::string> metadata_;
};

}  // namespace cohort
