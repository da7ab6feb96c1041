#pragma once
// For tests of checkpoints: a small training state in two shards whose values name their step, and file systems that record or fail.

#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/base/text/json.h"
#include "cohort/checkpoint/checkpoint.h"
#include "cohort/checkpoint/io.h"
#include "tests/support/errors.h"
#include "tests/support/places.h"
#include "tests/support/text.h"

namespace cohort::testing {

/// Changes the last bit of a file, in its place.
inline void damage(const std::string& path) {
  std::string content = read_small_file(path, 1 << 20);
  content.back() = static_cast<char>(content.back() ^ 1);
  const UniqueDescriptor file = open_file(path, O_WRONLY | O_TRUNC);
  write_all(file.get(), content.data(), content.size(), path);
}

/// "model/weight" F32 [4, 3] split by rows over two ranks, "model/bias" F64 [2] on rank 1, "optimizer/weight/count" I64 scalar on rank 0.
/// Every value is `mark` plus its position, so a mix of two checkpoints cannot go unseen.
struct SampleState {
  explicit SampleState(int mark) {
    for (int i = 0; i < 12; ++i) weight.push_back(static_cast<float>(mark + i));
    bias = {mark + 0.25, mark + 0.5};
    count = mark;
  }
  std::vector<std::vector<TensorPiece>> ranks() const {
    return {{{{"model/weight", DType::kF32, {1, 3}, weight.data()}, {4, 3}, {0, 0}},
             {{"optimizer/weight/count", DType::kI64, {}, &count}, {}, {}}},
            {{{"model/weight", DType::kF32, {3, 3}, weight.data() + 3}, {4, 3}, {1, 0}},
             {{"model/bias", DType::kF64, {2}, bias.data()}, {2}, {0}}}};
  }
  std::vector<float> weight;
  std::vector<double> bias;
  int64_t count;
};

/// The whole protocol, as a job of two ranks runs it. On an error abandons and throws on.
inline std::vector<std::string> save(const std::string& folder, int64_t step, int mark, const std::string& nonce,
                                     CheckpointIo* io = nullptr, int keep = 2, int64_t best_step = -1) {
  CheckpointWriter writer(folder, step, nonce, io);
  const SampleState state(mark);
  try {
    writer.begin();
    std::vector<ShardInfo> shards;
    const auto ranks = state.ranks();
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      // The description travels between processes as JSON.
      shards.push_back(shard_from_json(to_json(writer.write_shard(static_cast<int>(rank), ranks[rank]))));
    }
    writer.commit(shards, Json{{"mark", mark}}, keep, best_step);
  } catch (const Error&) {
    writer.abandon();
    throw;
  }
  return writer.warnings();
}

/// The mark of a checkpoint of which every value was compared; fails the test on a mix.
inline int mark_of(const Checkpoint& checkpoint) {
  const int mark = checkpoint.state()["mark"].get<int>();
  const SampleState expected(mark);
  std::vector<float> weight(12);
  std::vector<double> bias(2);
  int64_t count = 0;
  checkpoint.read_whole("model/weight", weight.data());
  checkpoint.read_whole("model/bias", bias.data());
  checkpoint.read_whole("optimizer/weight/count", &count);
  CHECK(weight == expected.weight);
  CHECK(bias == expected.bias);
  CHECK(count == expected.count);
  return mark;
}

/// Mark of the newest valid checkpoint, -1 for none.
inline int latest_mark(const std::string& folder, std::vector<std::string>* skipped = nullptr) {
  const auto checkpoint = Checkpoint::open_latest(folder, skipped);
  return checkpoint ? mark_of(*checkpoint) : -1;
}

/// Does everything and writes down what changed the file system.
class RecordingIo : public CheckpointIo {
 public:
  struct Operation {
    enum class Kind { kCreate, kWrite, kSyncFile, kSyncFolder, kRename, kMakeFolder, kUnlink, kRemoveFolder };
    Kind kind;
    std::string path;      ///< Of kWrite and kSyncFile: as it was when created.
    std::string argument;  ///< Data, new name or target.
  };
  std::vector<Operation> operations;

  int create(const std::string& path) override { return opened(CheckpointIo::create(path), Operation::Kind::kCreate, path); }
  int open_folder(const std::string& path) override {
    const int descriptor = CheckpointIo::open_folder(path);
    if (descriptor >= 0) open_[descriptor] = {path, true};
    return descriptor;
  }
  long write(int descriptor, const void* data, size_t size) override {
    // The test's files are smaller than a disk block; 64 bytes a call make more places to stop at.
    const long written = CheckpointIo::write(descriptor, data, std::min<size_t>(size, 64));
    if (written > 0)
      operations.push_back(
          {Operation::Kind::kWrite, open_.at(descriptor).first, std::string(static_cast<const char*>(data), static_cast<size_t>(written))});
    return written;
  }
  int sync(int descriptor) override {
    const auto& [path, is_folder] = open_.at(descriptor);
    return done(0, {is_folder ? Operation::Kind::kSyncFolder : Operation::Kind::kSyncFile, path, ""});
  }
  int close(int descriptor) override {
    open_.erase(descriptor);
    return CheckpointIo::close(descriptor);
  }
  int rename(const std::string& from, const std::string& to) override {
    return done(CheckpointIo::rename(from, to), {Operation::Kind::kRename, from, to});
  }
  int make_folder(const std::string& path) override {
    return done(CheckpointIo::make_folder(path), {Operation::Kind::kMakeFolder, path, ""});
  }
  int unlink(const std::string& path) override { return done(CheckpointIo::unlink(path), {Operation::Kind::kUnlink, path, ""}); }
  int remove_folder(const std::string& path) override {
    return done(CheckpointIo::remove_folder(path), {Operation::Kind::kRemoveFolder, path, ""});
  }

 private:
  int opened(int descriptor, Operation::Kind kind, const std::string& path) {
    if (descriptor >= 0) {
      open_[descriptor] = {path, false};
      operations.push_back({kind, path, ""});
    }
    return descriptor;
  }
  int done(int result, Operation operation) {
    if (result == 0) operations.push_back(std::move(operation));
    return result;
  }
  std::map<int, std::pair<std::string, bool>> open_;
};

/// Counts all calls and makes one of them fail.
class FaultyIo : public CheckpointIo {
 public:
  /// `reason` 0: a write takes half of what it is given; other calls succeed. `repeats`: the call fails that many times in a row.
  FaultyIo(int at, int reason, int repeats = 1) : at_(at), reason_(reason), repeats_(repeats) {}
  int calls() const { return calls_; }
  bool hit() const { return hit_; }
  const std::string& failed_path() const { return failed_path_; }

  int create(const std::string& path) override { return fails(path) && reason_ ? -1 : remember(CheckpointIo::create(path), path); }
  int open_folder(const std::string& path) override {
    return fails(path) && reason_ ? -1 : remember(CheckpointIo::open_folder(path), path);
  }
  long write(int descriptor, const void* data, size_t size) override {
    const bool chosen = fails(paths_[descriptor]);
    if (chosen && reason_ != 0) return -1;
    return CheckpointIo::write(descriptor, data, chosen && size > 1 ? size / 2 : size);
  }
  int sync(int descriptor) override { return fails(paths_[descriptor]) && reason_ ? -1 : 0; }
  int close(int descriptor) override {
    const bool chosen = fails(paths_[descriptor]) && reason_ != 0;
    const int result = CheckpointIo::close(descriptor);  // Closed in any case, as Linux does.
    if (chosen) errno = reason_;
    return chosen ? -1 : result;
  }
  int rename(const std::string& from, const std::string& to) override {
    return fails(from) && reason_ ? -1 : CheckpointIo::rename(from, to);
  }
  int make_folder(const std::string& path) override { return fails(path) && reason_ ? -1 : CheckpointIo::make_folder(path); }
  int unlink(const std::string& path) override { return fails(path) && reason_ ? -1 : CheckpointIo::unlink(path); }
  int remove_folder(const std::string& path) override { return fails(path) && reason_ ? -1 : CheckpointIo::remove_folder(path); }
  int status(const std::string& path, FileStatus* status) override {
    return fails(path) && reason_ ? -1 : CheckpointIo::status(path, status);
  }
  int list(const std::string& folder, std::vector<std::string>* names) override {
    return fails(folder) && reason_ ? -1 : CheckpointIo::list(folder, names);
  }

 private:
  int remember(int descriptor, const std::string& path) {
    paths_[descriptor] = path;
    return descriptor;
  }
  bool fails(const std::string& path) {
    const int call = calls_++;
    if (call < at_ || call >= at_ + repeats_) return false;
    hit_ = true;
    failed_path_ = path;
    errno = reason_;
    return true;
  }

  int at_, reason_, repeats_;
  int calls_ = 0;
  bool hit_ = false;
  std::string failed_path_;
  std::map<int, std::string> paths_;
};

}  // namespace cohort::testing
