#include "cohort/train/distil/teacher_cache.h"

#include <fcntl.h>
#include <sys/file.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <system_error>
#include <thread>
#include <utility>

#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/base/value_hash.h"

namespace cohort {
namespace {

namespace fs = std::filesystem;

constexpr const char* kTensor = "scores";
constexpr std::chrono::milliseconds kBetweenLooks{50};

std::string checksum_of(const void* data, int64_t bytes) {
  ValueHash hash;
  hash.add(data, static_cast<size_t>(bytes));
  return hash.text();
}

/// The metadata that identifies a file of the cache.
std::map<std::string, std::string> metadata_of(const TeacherCacheKey& key, int64_t first, const void* data, int64_t bytes) {
  return {{"format", "pt"},
          {"teacher", key.teacher},
          {"data", key.data},
          {"num_samples", std::to_string(key.num_samples)},
          {"first_sample", std::to_string(first)},
          {"xxh3", checksum_of(data, bytes)}};
}

}  // namespace

std::string default_teacher_cache_folder() {
  constexpr const char* kName = "/cohort/teacher-answers";
  // The XDG base directory specification makes relative paths invalid.
  if (const char* const cache = std::getenv("XDG_CACHE_HOME"); cache && *cache == '/') return concat(cache, kName);
  if (const char* const home = std::getenv("HOME"); home && *home) return concat(home, "/.cache", kName);
  return "";
}

TeacherCache::TeacherCache(const std::string& base, TeacherCacheKey key) : key_(std::move(key)) {
  if (key_.num_samples < 1 || key_.scores < 1) fail(ErrorCode::kFailed, "a teacher cache without samples or scores");
  folder_ = concat(base, "/", key_.teacher, "-", key_.data, "-", key_.scores);
  samples_of_piece_ = std::max((key_.num_samples + kMostPieces - 1) / kMostPieces, kFewestSamples);
  pieces_.resize(static_cast<size_t>((key_.num_samples + samples_of_piece_ - 1) / samples_of_piece_));
  for (int64_t piece = 0; piece < num_pieces(); ++piece) open(piece);
}

int64_t TeacherCache::count_of(int64_t piece) const { return std::min(samples_of_piece_, key_.num_samples - first_of(piece)); }

std::string TeacherCache::path_of(int64_t piece) const {
  char name[40];
  std::snprintf(name, sizeof name, "/from-%09lld.safetensors", static_cast<long long>(first_of(piece)));
  return folder_ + name;
}

int64_t TeacherCache::num_missing() const {
  int64_t missing = 0;
  for (int64_t piece = 0; piece < num_pieces(); ++piece)
    if (!pieces_[static_cast<size_t>(piece)]) missing += count_of(piece);
  return missing;
}

/// False if it is missing or damaged.
bool TeacherCache::open(int64_t piece) {
  const std::string path = path_of(piece);
  if (std::error_code ignored; !fs::exists(path, ignored)) return false;
  try {
    auto file = std::make_unique<const SafetensorsFile>(path);
    const TensorView* const scores = file->find(kTensor);
    const std::vector<int64_t> wanted = {count_of(piece), key_.scores};
    if (!scores || scores->dtype != DType::kF32 || scores->shape != wanted)
      fail(ErrorCode::kBadInput, path, " holds no tensor \"", kTensor, "\" of type F32 and shape ", shape_text(wanted));
    for (const auto& [name, value] : metadata_of(key_, first_of(piece), scores->data, scores->num_bytes()))
      if (const auto found = file->metadata().find(name); found == file->metadata().end() || found->second != value)
        fail(ErrorCode::kBadInput, path, ": \"", name, "\" of its header is not ", value);
    pieces_[static_cast<size_t>(piece)] = std::move(file);
    return true;
  } catch (const Error& error) {
    damaged_.push_back(concat(error.what(), "; it is made anew"));
    return false;
  }
}

void TeacherCache::make(int64_t piece, const std::function<void(int64_t first, int64_t count, float* out)>& answer) const {
  const int64_t first = first_of(piece), count = count_of(piece);
  std::vector<float> scores(static_cast<size_t>(count * key_.scores));
  answer(first, count, scores.data());
  if (const auto bad = std::find_if(scores.begin(), scores.end(), [](float score) { return !std::isfinite(score); }); bad != scores.end())
    fail(ErrorCode::kBadInput, name_settings("--teacher"), " gives a score that is not finite for sample ",
         first + (bad - scores.begin()) / key_.scores, " of the training part; it has not learnt, or not these data");
  std::string content;
  const TensorView view{kTensor, DType::kF32, {count, key_.scores}, scores.data()};
  write_safetensors([&](const void* data, size_t size) { content.append(static_cast<const char*>(data), size); }, path_of(piece), {view},
                    metadata_of(key_, first, scores.data(), view.num_bytes()));
  write_file_atomically(path_of(piece), content);
}

void TeacherCache::fill(const std::function<void(int64_t first, int64_t count, float* out)>& answer, int place, int size,
                        const std::function<bool()>& stops) {
  std::error_code error;
  fs::create_directories(folder_, error);
  if (error) fail_errno(ErrorCode::kFailed, "make the folder", folder_, error.value());
  const int64_t begin = num_pieces() * place / std::max(1, size);
  while (num_missing() > 0) {
    bool has_made = false;
    for (int64_t i = 0; i < num_pieces(); ++i) {
      const int64_t piece = (begin + i) % num_pieces();
      if (pieces_[static_cast<size_t>(piece)]) continue;
      if (stops()) fail(ErrorCode::kInterrupted, "interrupted while a teacher was asked; what it has answered is kept in ", folder_);
      const std::string lock = path_of(piece) + ".lock";
      const UniqueDescriptor descriptor = open_file(lock, O_RDWR | O_CREAT);
      // Another process works on it. Without locks of the file system the work is only done twice.
      if (::flock(descriptor.get(), LOCK_EX | LOCK_NB) != 0 && (errno == EWOULDBLOCK || errno == EINTR)) continue;
      if (!open(piece)) {
        make(piece, answer);
        has_made = true;
        if (!open(piece)) fail(ErrorCode::kFailed, "what was written to ", path_of(piece), " is not what is read there");
      }
      fs::remove(lock, error);
    }
    if (!has_made && num_missing() > 0) std::this_thread::sleep_for(kBetweenLooks);
  }
}

void TeacherCache::read(int64_t sample, float* out) const {
  const SafetensorsFile& file = *pieces_[static_cast<size_t>(sample / samples_of_piece_)];
  const auto* const scores = static_cast<const std::byte*>(file.tensors().front().data);
  const auto bytes = static_cast<size_t>(key_.scores) * sizeof(float);
  std::memcpy(out, scores + static_cast<size_t>(sample % samples_of_piece_) * bytes, bytes);
}

}  // namespace cohort
