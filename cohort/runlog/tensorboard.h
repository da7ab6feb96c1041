#pragma once
// TensorBoard event files: scalars, pictures, and settings for the page HPARAMS. tensorboard.cpp describes the format.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "cohort/base/files/file.h"

namespace cohort {

/// A setting on the page HPARAMS.
struct SessionSetting {
  std::string name;
  std::variant<double, bool, std::string> value;
};

/// Writes a new file FOLDER/events.out.tfevents.<seconds>.<host>.<pid>, whose name sorts after all existing ones; flushed at flush(), in
/// the destructor, and whenever 64 KiB are buffered. Creates `folder` (RUN/events). Error(kFailed) with the path and the system's reason,
/// ignored in the destructor. A failed write loses whole records only. One thread.
class TensorBoardWriter {
 public:
  /// `resume_step`: TensorBoard discards later steps of earlier files.
  explicit TensorBoardWriter(const std::string& folder, int64_t resume_step = 0);
  ~TensorBoardWriter();
  TensorBoardWriter(const TensorBoardWriter&) = delete;
  TensorBoardWriter& operator=(const TensorBoardWriter&) = delete;

  /// `wall_seconds`: Unix time. The value is stored as a float32, also infinities and NaN.
  void scalar(const std::string& tag, int64_t step, double value, double wall_seconds);
  /// `png`: a gray or RGB PNG; others are ignored.
  void picture(const std::string& tag, int64_t step, std::string_view png, double wall_seconds);
  /// Settings of the run, and how it ended; once per process.
  void begin_session(const std::vector<SessionSetting>& parameters, double wall_seconds);
  void end_session(bool succeeded, double wall_seconds);
  /// Returns whether there was anything to write.
  bool flush();
  const std::string& path() const { return file_->path(); }

 private:
  void add(std::string_view event);

  std::optional<AppendFile> file_;
  std::string buffer_;
};

/// CRC-32C (Castagnoli) of `data`.
uint32_t crc32c(std::string_view data);
/// `event` framed as a TFRecord.
std::string tfrecord(std::string_view event);
/// The first Event of a file, and one with a scalar.
std::string tensorboard_version_event(double wall_seconds);
std::string tensorboard_scalar_event(std::string_view tag, int64_t step, float value, double wall_seconds);
/// "" where `png` is not a gray or RGB PNG.
std::string tensorboard_picture_event(std::string_view tag, int64_t step, std::string_view png, double wall_seconds);
/// Discards earlier events from `step` on.
std::string tensorboard_restart_event(int64_t step, double wall_seconds);
std::string tensorboard_session_start_event(const std::vector<SessionSetting>& parameters, double wall_seconds);
std::string tensorboard_session_end_event(bool succeeded, double wall_seconds);

}  // namespace cohort
