#pragma once
// Checkpoints of a run: folders `step-000000100/` with safetensors shards and a manifest that maps each tensor to its pieces, so that any
// layout on any number of ranks can read any checkpoint. A kill at any time leaves a loadable one. Torch-free. Format and protocol:
// docs/formats/checkpoint.md.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cohort/base/export.h"
#include "cohort/base/files/safetensors.h"
#include "cohort/base/text/json_fwd.h"

namespace cohort {

class CheckpointIo;

/// A part of a tensor of `whole_shape`: indices [begin[d], begin[d] + view.shape[d]) of each dimension d.
struct TensorPiece {
  TensorView view;  ///< With the tensor's full name, e.g. "model/conv1.weight" or "optimizer/conv1.weight/momentum".
  std::vector<int64_t> whole_shape;
  std::vector<int64_t> begin;
};

/// A file of a checkpoint and its content, as a rank reports it for the manifest.
struct ShardInfo {
  std::string file;  ///< "rank-00000.safetensors"
  int64_t bytes = 0;
  uint64_t checksum = 0;
  struct Piece {
    std::string tensor;
    DType dtype = DType::kF32;
    std::vector<int64_t> whole_shape, begin, shape;
    std::string entry;  ///< Name in the file: the tensor's, unless the file holds several pieces of it.
  };
  std::vector<Piece> pieces;
};
COHORT_API Json to_json(const ShardInfo& shard);
/// Error(kBadInput) when a member is missing, has another type, or a piece leaves its tensor.
COHORT_API ShardInfo shard_from_json(const Json& json);

/// Writes a checkpoint. One rank calls begin and commit; every rank calls write_shard in between, and the caller synchronizes the ranks
/// before commit. System errors are Error(kFailed) with path and cause; existing checkpoints stay loadable. One thread at a time.
class COHORT_API CheckpointWriter {
 public:
  /// `folder` is RUN/checkpoints. `nonce` (letters, digits, '-', '_') is the same on all ranks and unique to the job. `io`, not owned,
  /// replaces the file system in tests.
  CheckpointWriter(std::string folder, int64_t step, std::string nonce, CheckpointIo* io = nullptr);
  /// Durably creates step-N.tmp.NONCE/ and, if missing, `folder` and (with `makes_above`) the folders above it. A run does not create the
  /// latter, as a user may have moved or removed it.
  void begin(bool makes_above = true);
  /// Writes and fsyncs rank-RANK.safetensors.
  ShardInfo write_shard(int rank, const std::vector<TensorPiece>& pieces);
  /// Writes the manifest, publishes the checkpoint, updates `latest` and `best`, then removes all but the newest `keep` (at least 2) and
  /// stale temporary folders; `best_step` and later steps are never removed. Returns the final path. `best_step` is an existing step; -1
  /// leaves `best` unchanged. Error(kBadInput) naming the tensor when the shards do not hold each element exactly once. After the
  /// checkpoint is durable nothing throws: failures are logged and added to warnings().
  std::string commit(const std::vector<ShardInfo>& shards, const Json& state, int keep = 2, int64_t best_step = -1);
  /// Points `best` at `step` if that exists; also for a resumed run that was killed before doing so.
  void point_best(int64_t step);
  /// Removes the temporary folder; never throws.
  void abandon() noexcept;

  const std::vector<std::string>& warnings() const { return warnings_; }

 private:
  void write_manifest(const std::vector<ShardInfo>& shards, const Json& state);
  void publish();
  void point(const char* name, int64_t step);
  void set_copy_aside(const char* name);

  std::string folder_, temporary_, final_, nonce_;
  int64_t step_;
  CheckpointIo* io_;
  std::vector<std::string> warnings_;
};

/// A validated checkpoint opened for reading. Its files are memory-mapped, so it stays readable when another process removes the folder.
/// Thread-safe. Error(kBadInput) for an unknown tensor.
class COHORT_API Checkpoint {
 public:
  /// Opens a step folder. Error(kBadInput) when invalid; `verify_data` also verifies every shard's checksum.
  static Checkpoint open(const std::string& path, bool verify_data = true);
  /// The newest valid checkpoint of RUN/checkpoints, or nullopt. Appends one line per invalid one to `skipped`, newest first.
  static std::optional<Checkpoint> open_latest(const std::string& folder, std::vector<std::string>* skipped = nullptr);

  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;
  ~Checkpoint();

  int64_t step() const;
  const std::string& path() const;
  const Json& state() const;  ///< The state given to commit().
  const std::vector<ShardInfo>& shards() const;
  std::vector<std::string> tensor_names() const;  ///< Sorted.
  bool has(const std::string& tensor) const;
  DType dtype(const std::string& tensor) const;
  const std::vector<int64_t>& shape(const std::string& tensor) const;
  /// Copies the box [begin, begin + shape) of the tensor to the contiguous `destination`. Error(kBadInput) when it leaves the tensor.
  void read(const std::string& tensor, const std::vector<int64_t>& begin, const std::vector<int64_t>& shape, void* destination) const;
  /// Likewise the elements [begin, end) in row-major order.
  void read_range(const std::string& tensor, int64_t begin, int64_t end, void* destination) const;
  void read_whole(const std::string& tensor, void* destination) const;
  /// The whole tensor in the mapped file; null if it consists of several pieces. Lives as long as this object.
  const void* contiguous_data(const std::string& tensor) const;

 private:
  Checkpoint();
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace cohort
