#pragma once
// A teacher's scores for every sample of a training part, on disk, so that students need not ask again. One folder for each pair of teacher
// and data, in pieces of samples; a piece is a safetensors file (docs/formats/teacher_answers.md), written in one go. Torch-free.
//
//   open    pieces that are there are mapped and checked (teacher, data, place, length, checksum); a damaged one counts as not there
//   fill    whoever comes takes the first piece that nobody works on (a lock of the file system, so a killed process holds none), asks the
//           teacher, writes; ranks, hosts with one file system and several trainings share the work without a word between them. Ends when
//           all pieces are there
//   read    copies a sample's scores from the map
//
// Memory: one piece of at most kMaxTeacherCacheBytes / kMostPieces. A kill loses the pieces that were in the making.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cohort/base/files/safetensors.h"

namespace cohort {

inline constexpr int64_t kMaxTeacherCacheBytes = int64_t{2} << 30;

/// Whose answers to what.
struct TeacherCacheKey {
  std::string teacher, data;  ///< Fingerprints of both.
  int64_t num_samples = 0;
  int64_t scores = 0;  ///< Of one sample.

  int64_t bytes() const { return num_samples * scores * static_cast<int64_t>(sizeof(float)); }
};

/// $XDG_CACHE_HOME/cohort/teacher-answers or ~/.cache/cohort/teacher-answers; "" where neither variable is there.
std::string default_teacher_cache_folder();

/// One thread.
class TeacherCache {
 public:
  static constexpr int64_t kMostPieces = 512, kFewestSamples = 1024;  ///< The latter of a piece, where there are so many.

  /// Opens what `base` holds of `key`; makes nothing. `base` is not empty.
  TeacherCache(const std::string& base, TeacherCacheKey key);

  const std::string& folder() const { return folder_; }
  int64_t num_pieces() const { return static_cast<int64_t>(pieces_.size()); }
  int64_t num_missing() const;  ///< Samples without an answer.
  /// A sentence on each piece that was there and is damaged.
  const std::vector<std::string>& damaged() const { return damaged_; }

  /// `answer` writes the scores of samples [first, first + count) to `out`; it is called for pieces that are missing, by `place` of `size`
  /// processes with different ones first. Ends when all are there, also those that others make. Error(kInterrupted) where `stops` says so
  /// between two pieces; Error(kFailed) where a file cannot be written, or a score is not finite.
  void fill(const std::function<void(int64_t first, int64_t count, float* out)>& answer, int place, int size,
            const std::function<bool()>& stops);

  /// Only after fill(). `sample` is in [0, num_samples).
  void read(int64_t sample, float* out) const;

 private:
  int64_t first_of(int64_t piece) const { return piece * samples_of_piece_; }
  int64_t count_of(int64_t piece) const;
  std::string path_of(int64_t piece) const;
  bool open(int64_t piece);
  void make(int64_t piece, const std::function<void(int64_t first, int64_t count, float* out)>& answer) const;

  TeacherCacheKey key_;
  std::string folder_;
  int64_t samples_of_piece_ = 1;
  std::vector<std::unique_ptr<const SafetensorsFile>> pieces_;  // Null where not there.
  std::vector<std::string> damaged_;
};

}  // namespace cohort
