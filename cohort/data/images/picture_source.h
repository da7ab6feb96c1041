#pragma once
// Pictures of JPEG and PNG files: which there are in class folders or in a table with labels, and the source that decodes them when they
// are read, or keeps them decoded, and hands them out as normalised floats.

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cohort/data/images/picture_file.h"
#include "cohort/data/source/byte_buffer.h"
#include "cohort/data/source/source.h"
#include "cohort/data/source/split.h"

namespace cohort {

// Which pictures a folder of class folders holds.

struct PictureFile {
  std::string path;
  int64_t label = 0;
};

struct PictureList {
  std::vector<std::string> class_names;  ///< Of the folders, in ascending order of their bytes.
  std::vector<PictureFile> files;        ///< Class after class, by path: the same order on every machine.
};

/// Every file in and below a class folder is a picture; names that begin with a dot are passed over. Error(kBadInput) where `folder` is
/// none, holds a file beside its class folders, has no class, or a class without a file.
PictureList list_pictures(const std::string& folder);
/// The names in a folder, in ascending order, but for those that begin with a dot. Error(kBadInput) where it cannot be read.
std::vector<std::string> names_in_folder(const std::string& folder);

// Pictures with any number of labels each, as a table says: --data folder:DIR,labels=FILE.csv.

struct LabelledPictures {
  std::vector<std::string> names;  ///< Of the labels.
  std::vector<PictureFile> files;  ///< In the order of the rows.
  std::vector<uint8_t> has_label;  ///< {files, names}: 0 or 1.
};

/// Adds the rows of `table` to `pictures`: its column `path` is a picture's path below `folder`, each other column a label, 0 or 1. Where
/// `pictures` has names already, the columns of those alone are read. Error(kBadInput) with file and line for a row that is malformed,
/// whose path leaves the folder or is that of a row before; with `skip_bad` such rows are left out and counted.
void read_picture_labels(const std::string& table, const std::string& folder, bool skip_bad, SkippedData& skipped,
                         LabelledPictures& pictures);

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
class PictureSource : public DescribedSource {
 public:
  /// `description` says how they are normalised.
  PictureSource(std::shared_ptr<const PictureStore> store, DataDescription description, std::vector<int64_t> samples);
  void read(std::span<const int64_t> indices, Batch& batch) const override;

 private:
  std::shared_ptr<const PictureStore> store_;
  std::vector<std::array<float, 256>> tables_;  // Per channel.
};

}  // namespace cohort
