#pragma once
// Checkpoints of a run: folders `step-000000100/` with safetensors shards and a manifest that maps each tensor to its pieces, so that any
// layout on any number of ranks reads any checkpoint. Written so that a kill at any instant leaves a loadable one. Torch-free. Format and
// protocol: docs/formats/checkpoint.md.

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

/// A part of a tensor: rows [begin, begin + view.shape[d]) of each dimension d of the whole tensor of shape `whole_shape`.
struct TensorPiece {
  TensorView view;  ///< name = the tensor's full name, e.g. "model/conv1.weight" or "optimizer/conv1.weight/momentum".
  std::vector<int64_t> whole_shape;
  std::vector<int64_t> begin;
};

/// One file of a checkpoint and what is in it: what a rank reports to the one that writes the manifest.
struct ShardInfo {
  std::string file;  ///< "rank-00000.safetensors"
  int64_t bytes = 0;
  uint64_t checksum = 0;
  struct Piece {
    std::string tensor;
    DType dtype = DType::kF32;
    std::vector<int64_t> whole_shape, begin, shape;
    std::string entry;  ///< Name inside the file: the tensor's own, unless the file holds several pieces of it.
  };
  std::vector<Piece> pieces;
};
COHORT_API Json to_json(const ShardInfo& shard);
/// Error(kBadInput) when a member is missing, has another type, or a piece leaves its tensor.
COHORT_API ShardInfo shard_from_json(const Json& json);

/// Writing, in the order of the protocol. In a job of several ranks every rank calls write_shard between begin and commit; begin and commit
/// are called by one rank, and commit only after every shard was written (the caller's barrier). Errors of the system are Error(kFailed)
/// naming the path and the cause; until commit returns, the checkpoints that were there before stay loadable. One thread at a time.
class COHORT_API CheckpointWriter {
 public:
  /// `folder` is RUN/checkpoints. `nonce` (letters, digits, '-', '_') is the same on every rank of the job and not that of another job.
  /// `io`, not owned, stands for the file system in tests.
  CheckpointWriter(std::string folder, int64_t step, std::string nonce, CheckpointIo* io = nullptr);
  /// Makes step-N.tmp.NONCE/ and, where it is missing, `folder`, durably; and the folders above it unless `makes_above` is false, as for a
  /// run, whose folder a user may have moved or removed.
  void begin(bool makes_above = true);
  /// Writes rank-RANK.safetensors, fsyncs. The pieces' data is read before this returns.
  ShardInfo write_shard(int rank, const std::vector<TensorPiece>& pieces);
  /// Manifest, fsync, rename, fsync of the parent, `latest` and `best`, then removal of all but the newest `keep` (at least 2; that of
  /// `best_step`, and those of later steps, are never removed) and of stale temporary folders. Returns the final path. `best_step`: this
  /// one's or that of another that is there; -1: none is known, and `best` stays as it is. Error(kBadInput) naming the tensor when the
  /// shards do not hold every element of it exactly once. Once the checkpoint is durable nothing throws: a failure of a pointer or of a
  /// removal is logged and in warnings().
  std::string commit(const std::vector<ShardInfo>& shards, const Json& state, int keep = 2, int64_t best_step = -1);
  /// Points `best` at the checkpoint of `step` if that exists. Also for a resumed run, which may have been killed before this.
  void point_best(int64_t step);
  /// Removes what begin() made; never throws.
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

/// A checkpoint opened for reading; every length and name checked, no path leaves the folder. Its files are memory-mapped, so it stays
/// readable when another process removes the folder. Thread-safe. Naming a tensor that is not in it is Error(kBadInput).
class COHORT_API Checkpoint {
 public:
  /// `path` is a step folder. Error(kBadInput) when malformed; `verify_data` also compares every shard's checksum (reads all data).
  static Checkpoint open(const std::string& path, bool verify_data = true);
  /// The newest valid checkpoint of RUN/checkpoints, walking from newest to oldest; empty where none is. What was skipped and why is
  /// appended to `skipped`, one line each, newest first.
  static std::optional<Checkpoint> open_latest(const std::string& folder, std::vector<std::string>* skipped = nullptr);

  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;
  ~Checkpoint();

  int64_t step() const;
  const std::string& path() const;
  const Json& state() const;  ///< What the trainer gave to commit().
  const std::vector<ShardInfo>& shards() const;
  std::vector<std::string> tensor_names() const;  ///< Sorted.
  bool has(const std::string& tensor) const;
  DType dtype(const std::string& tensor) const;
  const std::vector<int64_t>& shape(const std::string& tensor) const;
  /// Fills `destination` (contiguous, bytes of `shape`) with the box [begin, begin + shape) of the tensor, joined from its pieces.
  /// Error(kBadInput) when the box leaves the tensor.
  void read(const std::string& tensor, const std::vector<int64_t>& begin, const std::vector<int64_t>& shape, void* destination) const;
  /// The same with the elements [begin, end) of the tensor, counted row by row, whatever pieces were written.
  void read_range(const std::string& tensor, int64_t begin, int64_t end, void* destination) const;
  void read_whole(const std::string& tensor, void* destination) const;
  /// The whole tensor where it lies in the mapped file, null when it consists of several pieces; lives as long as this object.
  const void* contiguous_data(const std::string& tensor) const;

 private:
  Checkpoint();
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace cohort
