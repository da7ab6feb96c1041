#pragma once
// A cache on disk of a teacher's scores for every training sample. There is one folder for each pair of teacher and data, with files of
// consecutive samples in safetensors format (docs/formats/teacher_answers.md), written atomically. Torch-free.
//
//   open    files that exist are mapped and checked (teacher, data, first sample, shape, checksum); a damaged file counts as missing
//   fill    each process locks the first missing file that no other process has locked, computes the teacher's scores and writes it. Ranks,
//           hosts with one file system and several trainings share the work without messages. Ends when all files exist
//   read    copies a sample's scores from the mapped file
//
// Memory: one file, of at most kMaxTeacherCacheBytes / kMostPieces. A killed process loses only the file that it was writing; its lock is
// released by the system.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cohort/base/files/safetensors.h"

namespace cohort {

inline constexpr int64_t kMaxTeacherCacheBytes = int64_t{2} << 30;

struct TeacherCacheKey {
  std::string teacher, data;  ///< Fingerprints.
  int64_t num_samples = 0;
  int64_t scores = 0;  ///< Scores per sample.

  int64_t bytes() const { return num_samples * scores * static_cast<int64_t>(sizeof(float)); }
};

/// $XDG_CACHE_HOME/cohort/teacher-answers or ~/.cache/cohort/teacher-answers; "" where neither variable is there.
std::string default_teacher_cache_folder();

/// One thread.
class TeacherCache {
 public:
  static constexpr int64_t kMostPieces = 512, kFewestSamples = 1024;  ///< Files, and samples of a file but the last.

  /// Opens the files of `key` in `base`, which is not empty; creates nothing.
  TeacherCache(const std::string& base, TeacherCacheKey key);

  const std::string& folder() const { return folder_; }
  int64_t num_pieces() const { return static_cast<int64_t>(pieces_.size()); }
  int64_t num_missing() const;  ///< Samples without scores.
  /// One message for each damaged file.
  const std::vector<std::string>& damaged() const { return damaged_; }

  /// `answer` writes the scores of samples [first, first + count) to `out`, for missing files. Process `place` of `size` begins at its part
  /// of the files. Returns when all files exist, including those of other processes. Error(kInterrupted) if `stops` returns true between
  /// two files; Error(kFailed) where a file cannot be written; Error(kBadInput) for a score that is not finite.
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
  std::vector<std::unique_ptr<const SafetensorsFile>> pieces_;  // Null if missing.
  std::vector<std::string> damaged_;
};

}  // namespace cohort
