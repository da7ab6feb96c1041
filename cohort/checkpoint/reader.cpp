// Opens a checkpoint: reads the manifest (bounded, with checksum), maps every shard, compares its length and, on request, its XXH64, and
// each entry's dtype and shape with the manifest. A missing, swapped, truncated or damaged shard invalidates the checkpoint. Cost:
// O(manifest), with data verification one pass over all bytes.

#include <exception>
#include <utility>

#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/strict_json.h"
#include "cohort/checkpoint/box.h"
#include "cohort/checkpoint/checkpoint.h"
#include "cohort/checkpoint/io.h"
#include "cohort/checkpoint/manifest.h"
#include "cohort/checkpoint/names.h"

namespace cohort {

struct Checkpoint::State {
  std::string path;
  Manifest manifest;
  TensorIndex tensors;
  std::vector<std::unique_ptr<SafetensorsFile>> files;  // In the order of manifest.shards.

  const TensorRecord& record(const std::string& name) const {
    const auto found = tensors.find(name);
    if (found == tensors.end()) fail(ErrorCode::kBadInput, path, ": holds no tensor ", quote_text(name));
    return found->second;
  }

  const void* data(const TensorRecord::Place& place) const {
    return files[place.shard]->find(manifest.shards[place.shard].pieces[place.piece].entry)->data;
  }
};

namespace {

/// A renamed folder would change the order of the checkpoints, so the step in its name must match.
void check_step(const std::string& path, int64_t step) {
  std::string trimmed = path;
  while (trimmed.size() > 1 && trimmed.back() == '/') trimmed.pop_back();
  const auto name = parse_checkpoint_folder_name(trimmed.substr(trimmed.rfind('/') + 1));
  if (name && name->step != step)
    fail(ErrorCode::kBadInput, path, "/", kManifestName, ": it is of step ", step, ", its folder says ", name->step);
}

std::unique_ptr<SafetensorsFile> open_shard(const std::string& folder, const ShardInfo& shard, bool verify_data) {
  const std::string path = folder + "/" + shard.file;
  auto file = std::make_unique<SafetensorsFile>(path);
  if (file->num_bytes() != shard.bytes)
    fail(ErrorCode::kBadInput, path, ": ", file->num_bytes(), " bytes, the manifest says ", shard.bytes);
  if (verify_data && file->checksum() != shard.checksum) {
    fail(ErrorCode::kBadInput, path, ": its content has XXH64 ", checksum_text(file->checksum()), ", the manifest says ",
         checksum_text(shard.checksum));
  }
  if (file->tensors().size() != shard.pieces.size()) {
    fail(ErrorCode::kBadInput, path, ": ", file->tensors().size(), " entries, the manifest says ", shard.pieces.size());
  }
  for (const ShardInfo::Piece& piece : shard.pieces) {
    const TensorView* view = file->find(piece.entry);
    if (view == nullptr) fail(ErrorCode::kBadInput, path, ": the manifest's entry ", quote_text(piece.entry), " is missing");
    if (view->dtype != piece.dtype || view->shape != piece.shape) {
      fail(ErrorCode::kBadInput, path, ": entry ", quote_text(piece.entry), " is ", dtype_name(view->dtype), " ", shape_text(view->shape),
           ", the manifest says ", dtype_name(piece.dtype), " ", shape_text(piece.shape));
    }
  }
  return file;
}

}  // namespace

Checkpoint::Checkpoint() : state_(std::make_unique<State>()) {}
Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;
Checkpoint& Checkpoint::operator=(Checkpoint&&) noexcept = default;
Checkpoint::~Checkpoint() = default;

Checkpoint Checkpoint::open(const std::string& path, bool verify_data) {
  const std::string manifest_path = path + "/" + kManifestName;
  Checkpoint checkpoint;
  State& state = *checkpoint.state_;
  state.path = path;
  state.manifest = parse_manifest(read_small_file(manifest_path, kMaxManifestBytes), manifest_path, &state.tensors);
  check_step(path, state.manifest.step);
  for (const ShardInfo& shard : state.manifest.shards) state.files.push_back(open_shard(path, shard, verify_data));
  return checkpoint;
}

std::optional<Checkpoint> Checkpoint::open_latest(const std::string& folder, std::vector<std::string>* skipped) {
  const auto opened = [&](const std::string& name) -> std::optional<Checkpoint> {
    try {
      return open(folder + "/" + name);
    } catch (const std::exception& error) {  // Including out of memory.
      if (skipped) skipped->push_back(error.what());
    }
    return std::nullopt;
  };
  std::optional<Checkpoint> newest;
  for (const std::string& name : list_checkpoints(folder)) {
    newest = opened(name);
    if (newest) break;
  }
  // Copying with symbolic links followed turns pointers into folders, which may be the only valid checkpoints.
  for (const char* const copy : {kLatestName, kBestName}) {
    const std::string path = folder + "/" + copy;
    FileStatus status;
    if (!read_pointer(path).empty() || posix_io().status(path + "/" + kManifestName, &status) < 0) continue;
    std::optional<Checkpoint> other = opened(copy);
    if (other && (!newest || other->step() > newest->step())) newest = std::move(other);
  }
  return newest;
}

int64_t Checkpoint::step() const { return state_->manifest.step; }
const std::string& Checkpoint::path() const { return state_->path; }
const Json& Checkpoint::state() const { return state_->manifest.state; }
const std::vector<ShardInfo>& Checkpoint::shards() const { return state_->manifest.shards; }
bool Checkpoint::has(const std::string& tensor) const { return state_->tensors.count(tensor) != 0; }
DType Checkpoint::dtype(const std::string& tensor) const { return state_->record(tensor).dtype; }
const std::vector<int64_t>& Checkpoint::shape(const std::string& tensor) const { return state_->record(tensor).shape; }

std::vector<std::string> Checkpoint::tensor_names() const {
  std::vector<std::string> names;
  for (const auto& [name, record] : state_->tensors) names.push_back(name);
  return names;
}

void Checkpoint::read(const std::string& tensor, const std::vector<int64_t>& begin, const std::vector<int64_t>& shape,
                      void* destination) const {
  const TensorRecord& record = state_->record(tensor);
  const Box wanted{begin, shape};
  if (const std::string error = box_error(wanted, record.shape); !error.empty()) {
    fail(ErrorCode::kBadInput, state_->path, ": tensor ", quote_text(tensor), ": ", error);
  }
  // The pieces hold every element exactly once (index_tensors), so their intersections fill the box.
  for (size_t i = 0; i < record.boxes.size(); ++i) {
    if (const auto common = intersection(wanted, record.boxes[i])) {
      copy_box(*common, {state_->data(record.places[i]), record.boxes[i]}, {destination, wanted}, dtype_bytes(record.dtype));
    }
  }
}

void Checkpoint::read_range(const std::string& tensor, int64_t begin, int64_t end, void* destination) const {
  const TensorRecord& record = state_->record(tensor);
  std::vector<Box> boxes;
  try {
    boxes = boxes_of_range(record.shape, begin, end);
  } catch (const Error& error) {
    fail(error.code(), state_->path, ": tensor ", quote_text(tensor), ": ", error.what());
  }
  auto* at = static_cast<std::byte*>(destination);
  for (const Box& box : boxes) {
    read(tensor, box.begin, box.shape, at);
    at += box.num_elements() * dtype_bytes(record.dtype);
  }
}

void Checkpoint::read_whole(const std::string& tensor, void* destination) const {
  const std::vector<int64_t>& whole = shape(tensor);
  read(tensor, std::vector<int64_t>(whole.size(), 0), whole, destination);
}

const void* Checkpoint::contiguous_data(const std::string& tensor) const {
  const TensorRecord& record = state_->record(tensor);
  for (size_t i = 0; i < record.boxes.size(); ++i) {
    if (record.boxes[i].shape == record.shape) return state_->data(record.places[i]);
  }
  return nullptr;
}

}  // namespace cohort
