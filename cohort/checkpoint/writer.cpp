// Writes a checkpoint so that a crash of the process or the machine between any two system calls leaves a loadable one.
//
//   begin        0. create the folder and missing ones above it, fsync the parent of each
//                1. mkdir step-N.tmp.<nonce>      2. writer.json
//   write_shard  3. write rank-R.safetensors, fsync; length and XXH64 go to the manifest
//   commit       4. check all shards and their lengths      5. manifest.json, fsync    6. remove writer.json, fsync the folder
//                7. an existing step-N is renamed to step-N.old.<nonce>   8. rename to step-N   9. fsync the parent: from here on it is
//                durable
//               10. latest.tmp.<nonce> with the name step-N, fsync, rename to latest, fsync the parent; likewise best, where another step
//                   is the best now
//               11. removals (retention.cpp)
//
// Why the order: a name must not become durable before its content (3, 5, 6 before 8), and nothing old may be removed before the new one is
// durable (9 before 10, 11). Between 7 and 8 step-N.old holds the missing step-N; readers try it too. crash_test.cpp replays every prefix
// of the calls with lost, torn and reordered effects. Protocol: docs/formats/checkpoint.md.

#include <exception>
#include <map>
#include <set>
#include <utility>

#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/base/files/process_identity.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/log.h"
#include "cohort/base/text/strict_json.h"
#include "cohort/checkpoint/checkpoint.h"
#include "cohort/checkpoint/io.h"
#include "cohort/checkpoint/manifest.h"
#include "cohort/checkpoint/names.h"
#include "cohort/checkpoint/retention.h"

namespace cohort {
namespace {

using Kind = CheckpointName::Kind;

/// A unique name for a further piece of a tensor in one file.
std::string free_entry_name(const std::string& tensor, const std::set<std::string>& taken) {
  std::string name = tensor;
  for (int i = 1; taken.count(name) != 0; ++i) name = tensor + "#" + std::to_string(i);
  return name;
}

}  // namespace

CheckpointWriter::CheckpointWriter(std::string folder, int64_t step, std::string nonce, CheckpointIo* io)
    : folder_(std::move(folder)), nonce_(std::move(nonce)), step_(step), io_(io ? io : &posix_io()) {
  if (step < 0) fail(ErrorCode::kBadInput, "a checkpoint of step ", step, ": a step is 0 or more");
  if (!valid_nonce(nonce_))
    fail(ErrorCode::kBadInput, "checkpoint nonce ", quote_text(nonce_), " is not 1 to 64 letters, digits, '-' or '_'");
  temporary_ = folder_ + "/" + checkpoint_folder_name({Kind::kTemporary, step, nonce_});
  final_ = folder_ + "/" + checkpoint_folder_name({Kind::kFinal, step, ""});
}

void CheckpointWriter::begin(bool makes_above) {
  checked::make_folders(*io_, folder_, makes_above);
  checked::remove_tree(*io_, temporary_, kManifestName);  // Left by a failed attempt of this job.
  checked::make_folder(*io_, temporary_);
  const std::string text = describe_this_process();
  checked::write_file(*io_, temporary_ + "/" + kWriterName, [&](const ByteSink& sink) { sink(text.data(), text.size()); });
}

ShardInfo CheckpointWriter::write_shard(int rank, const std::vector<TensorPiece>& pieces) {
  ShardInfo shard;
  shard.file = shard_name(rank);
  const std::string path = temporary_ + "/" + shard.file;
  std::vector<TensorView> views;
  // Reserve all tensor names first: a tensor "a#1" keeps its name beside the second piece of "a".
  std::set<std::string> taken, seen;
  for (const TensorPiece& piece : pieces) taken.insert(piece.view.name);
  for (const TensorPiece& piece : pieces) {
    if (const std::string error = box_error({piece.begin, piece.view.shape}, piece.whole_shape); !error.empty()) {
      fail(ErrorCode::kBadInput, path, ": tensor ", quote_text(piece.view.name), ": ", error);
    }
    views.push_back(piece.view);
    if (!seen.insert(piece.view.name).second) views.back().name = free_entry_name(piece.view.name, taken);
    taken.insert(views.back().name);
    shard.pieces.push_back({piece.view.name, piece.view.dtype, piece.whole_shape, piece.begin, piece.view.shape, views.back().name});
  }
  const std::map<std::string, std::string> metadata = {
      {"format", "cohort-shard"}, {"rank", std::to_string(rank)}, {"step", std::to_string(step_)}};
  checked::write_file(*io_, path, [&](const ByteSink& sink) {
    const WrittenFile written = write_safetensors(sink, path, views, metadata);
    shard.bytes = written.bytes;
    shard.checksum = written.checksum;
  });
  return shard;
}

void CheckpointWriter::write_manifest(const std::vector<ShardInfo>& shards, const Json& state) {
  const TensorIndex index = index_tensors(shards, temporary_);
  for (const ShardInfo& shard : shards) {
    FileStatus status;
    const std::string path = temporary_ + "/" + shard.file;
    if (!checked::status(*io_, path, &status)) fail(ErrorCode::kFailed, path, " is not there: do all ranks see the same folder?");
    if (status.bytes != shard.bytes) fail(ErrorCode::kFailed, path, " has ", status.bytes, " bytes, its rank wrote ", shard.bytes);
  }
  const std::string text = manifest_text({step_, state, shards}, index);
  checked::write_file(*io_, temporary_ + "/" + kManifestName, [&](const ByteSink& sink) { sink(text.data(), text.size()); });
  checked::unlink_if_exists(*io_, temporary_ + "/" + kWriterName);
  checked::sync_folder(*io_, temporary_);
}

/// Steps 7 to 9.
void CheckpointWriter::publish() {
  // Another job may publish its own step-N between our two renames; the next attempt moves that aside as well.
  constexpr int kTries = 5;
  for (int i = 1;; ++i) {
    const std::string aside = set_aside(*io_, folder_, step_, nonce_);
    try {
      checked::rename(*io_, temporary_, final_);
      break;
    } catch (const Error&) {
      FileStatus status;
      if (i < kTries && checked::status(*io_, final_, &status)) continue;
      // Restore the old step-N; if that fails too, readers still find it under .old.
      if (!aside.empty()) io_->rename(aside, final_);
      throw;
    }
  }
  checked::sync_folder(*io_, folder_);
}

void CheckpointWriter::point(const char* name, int64_t step) {
  const std::string pointer = folder_ + "/" + name, next = pointer + ".tmp." + nonce_;
  const std::string line = checkpoint_folder_name({Kind::kFinal, step, ""}) + "\n";
  checked::unlink_if_exists(*io_, next);  // Left by a failed attempt.
  checked::write_file(*io_, next, [&](const ByteSink& sink) { sink(line.data(), line.size()); });
  set_copy_aside(name);
  checked::rename(*io_, next, pointer);
  checked::sync_folder(*io_, folder_);
}

/// Copying with symbolic links followed turns a pointer into a checkpoint folder. It is renamed to .old, which is kept if it is the only
/// copy of its step.
void CheckpointWriter::set_copy_aside(const char* name) {
  const std::string copy = folder_ + "/" + name;
  FileStatus status;
  if (!checked::status(*io_, copy, &status) || !status.is_folder) return;
  int64_t step = 0;
  try {
    step = Checkpoint::open(copy, /*verify_data=*/false).step();
  } catch (const Error& error) {
    fail(ErrorCode::kFailed, copy, " is a folder that holds no whole checkpoint (", error.what(), "); move it away, so that '", name,
         "' can be written");
  }
  checked::rename(*io_, copy, folder_ + "/" + checkpoint_folder_name({Kind::kAside, step, name}));
}

/// Also repairs the pointer after a crash between the save and its update.
void CheckpointWriter::point_best(int64_t step) {
  const std::string best = checkpoint_folder_name({Kind::kFinal, step, ""});
  FileStatus status;
  if (read_pointer(folder_ + "/" + kBestName) != best && checked::status(*io_, folder_ + "/" + best, &status)) point(kBestName, step);
}

std::string CheckpointWriter::commit(const std::vector<ShardInfo>& shards, const Json& state, int keep, int64_t best_step) {
  write_manifest(shards, state);
  publish();
  const auto warn = [&](const std::string& text) {
    warnings_.push_back(concat("checkpoint of step ", step_, " is saved, but ", text));
    log_warning(warnings_.back());
  };
  try {
    point(kLatestName, step_);
  } catch (const std::exception& error) {
    warn(error.what());
  }
  try {
    if (best_step >= 0) point_best(best_step);
  } catch (const std::exception& error) {
    warn(error.what());
    return final_;  // The checkpoint that the pointer still names must not be removed.
  }
  for (const std::string& failure : remove_superseded(*io_, folder_, {.step = step_, .keep = keep, .best_step = best_step}, nonce_))
    warn(failure);
  return final_;
}

void CheckpointWriter::abandon() noexcept {
  try {
    checked::remove_tree(*io_, temporary_, kManifestName);
  } catch (const std::exception& error) {
    try {
      log_warning(error.what());
    } catch (const std::exception&) {  // Out of memory.
    }
  }
}

}  // namespace cohort
