#pragma once
// TensorBoard event files: scalars, pictures, and the settings of the run for the page HPARAMS. A record is length, masked CRC32C of the
// length, a small protobuf, masked CRC32C of it.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "cohort/base/files/file.h"

namespace cohort {

/// A setting as the page HPARAMS sorts and filters it.
struct SessionSetting {
  std::string name;
  std::variant<double, bool, std::string> value;
};

/// One writer, one thread. Writes a new file FOLDER/events.out.tfevents.<seconds>.<host>.<pid>, whose name sorts after all that are there;
/// flushed at flush(), in the destructor, and whenever 64 KiB wait. `folder` (RUN/events) is made where it is missing. Error(kFailed) with
/// the path and the system's reason; the destructor drops it. What could not be written is lost whole: no record of the file is ever torn.
class TensorBoardWriter {
 public:
  /// `resume_step`: what earlier files have of steps after it is undone by the beginning of this one; TensorBoard drops it.
  explicit TensorBoardWriter(const std::string& folder, int64_t resume_step = 0);
  ~TensorBoardWriter();
  TensorBoardWriter(const TensorBoardWriter&) = delete;
  TensorBoardWriter& operator=(const TensorBoardWriter&) = delete;

  /// `wall_seconds`: since 1970. The value is stored as a float32; infinities and NaN are kept.
  void scalar(const std::string& tag, int64_t step, double value, double wall_seconds);
  /// `png`: the bytes of a gray or RGB one. Others are left out.
  void picture(const std::string& tag, int64_t step, std::string_view png, double wall_seconds);
  /// What the run was started with, and how it ended: once each a process.
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

/// CRC-32C (Castagnoli), the checksum of TFRecord files and of iSCSI (RFC 3720, appendix B.4), of all bytes of `data`; 0 for none.
uint32_t crc32c(std::string_view data);
/// The framing of one TFRecord. `event` shorter than 2^63 bytes.
std::string tfrecord(std::string_view event);
/// The protobuf `Event` that every event file begins with, and the one that holds a scalar.
std::string tensorboard_version_event(double wall_seconds);
std::string tensorboard_scalar_event(std::string_view tag, int64_t step, float value, double wall_seconds);
/// "" where `png` begins as no gray or RGB PNG does.
std::string tensorboard_picture_event(std::string_view tag, int64_t step, std::string_view png, double wall_seconds);
/// From `step` on what was read before is of a run that was ended there.
std::string tensorboard_restart_event(int64_t step, double wall_seconds);
std::string tensorboard_session_start_event(const std::vector<SessionSetting>& parameters, double wall_seconds);
std::string tensorboard_session_end_event(bool succeeded, double wall_seconds);

}  // namespace cohort
