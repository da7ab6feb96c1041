#pragma once
// manifest.json: the content of a checkpoint. Format: docs/formats/checkpoint.md.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/base/text/json.h"
#include "cohort/checkpoint/box.h"
#include "cohort/checkpoint/checkpoint.h"

namespace cohort {

inline constexpr size_t kMaxManifestBytes = size_t{64} << 20;
inline constexpr size_t kMaxFiles = 65'536;
inline constexpr size_t kMaxPieces = 1'000'000;  ///< Per file and per tensor.
inline constexpr size_t kMaxDimensions = 64;

struct Manifest {
  int64_t step = 0;
  Json state;
  std::vector<ShardInfo> shards;
};

/// A tensor with all its pieces; `shard` and `piece` are indices into Manifest::shards and its pieces.
struct TensorRecord {
  struct Place {
    size_t shard, piece;
  };
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  std::vector<Box> boxes;
  std::vector<Place> places;  ///< One per box.
};
using TensorIndex = std::map<std::string, TensorRecord>;

/// 16 lower-case hexadecimal digits, and back (Error(kBadInput) beginning with `where`).
std::string checksum_text(uint64_t checksum);
uint64_t checksum_from_text(const std::string& text, const std::string& where);

/// Checks that the pieces of each tensor agree in dtype and shape and hold every element exactly once, and that file names are unique and
/// valid. Error(kBadInput) beginning with `where`.
TensorIndex index_tensors(const std::vector<ShardInfo>& shards, const std::string& where);

/// The file's content with its checksum. `index`: that of manifest.shards.
std::string manifest_text(const Manifest& manifest, const TensorIndex& index);
/// Error(kBadInput) naming `path`, the place and what was expected. `index` receives index_tensors() of the result.
Manifest parse_manifest(std::string_view text, const std::string& path, TensorIndex* index);

}  // namespace cohort
