#pragma once
// Pictures of files, decoded when they are read or kept decoded, handed out as normalised floats.

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cohort/data/images/picture_file.h"
#include "cohort/data/images/picture_list.h"
#include "cohort/data/source/byte_buffer.h"
#include "cohort/data/source/source.h"

namespace cohort {

/// What pictures become: all of one size.
struct PictureForm {
  PictureSize size;
  bool resized = false;  ///< Of any size; else another one than `size` is an error.
};

/// Decoded, in the form's channels and size. Error(kBadInput) that names `what`.
Picture shaped_picture(std::span<const uint8_t> file, const std::string& what, const PictureForm& form);

/// The pictures that train, validation and test share.
struct PictureStore {
  std::vector<PictureFile> files;
  std::vector<uint8_t> has_label;  ///< {files, labels}: 0 or 1; none where each file has one class.
  PictureForm form;
  ByteBuffer decoded;  ///< Of each file form.size.num_bytes(); none: files are decoded each time they are read.
  int num_threads = 1;

  Picture decode(int64_t file) const {
    return shaped_picture(read_picture_file(files[static_cast<size_t>(file)].path), files[static_cast<size_t>(file)].path, form);
  }
};

/// The files `samples` of a store, in that order. What has been decoded once can fail later only where a file has changed: the error names
/// it.
class PictureSource : public DataSource {
 public:
  /// `description` says how they are normalised.
  PictureSource(std::shared_ptr<const PictureStore> store, DataDescription description, std::vector<int64_t> samples);

  const DataShape& shape() const override { return shape_; }
  int64_t num_samples() const override { return std::ssize(samples_); }
  void read(std::span<const int64_t> indices, Batch& batch) const override;
  DataDescription describe() const override { return description_; }

 private:
  std::shared_ptr<const PictureStore> store_;
  DataDescription description_;
  DataShape shape_;
  std::vector<int64_t> samples_;
  std::vector<std::array<float, 256>> tables_;  // Per channel.
};

}  // namespace cohort
