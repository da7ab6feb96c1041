#pragma once
// Pictures of JPEG and PNG files: lists of class folders or of a table with labels, and a source that decodes them once or on each read.

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

struct PictureFile {
  std::string path;
  int64_t label = 0;
};

struct PictureList {
  std::vector<std::string> class_names;  ///< Sorted by bytes.
  std::vector<PictureFile> files;        ///< By class, then path.
};

/// Lists every file in and below each class folder, without names that begin with a dot. Error(kBadInput) where `folder` is not a folder,
/// holds a file beside class folders, has no class, or an empty class.
PictureList list_pictures(const std::string& folder);
/// The sorted names in a folder that do not begin with a dot. Error(kBadInput) where it cannot be read.
std::vector<std::string> names_in_folder(const std::string& folder);

/// Pictures with any number of labels each, from a table: --data folder:DIR,labels=FILE.csv.
struct LabelledPictures {
  std::vector<std::string> names;  ///< Names of the labels.
  std::vector<PictureFile> files;  ///< In the order of the rows.
  std::vector<uint8_t> has_label;  ///< {files, names}: 0 or 1.
};

/// Adds the rows of `table` to `pictures`: column `path` is a picture's path below `folder`, each other column a label, 0 or 1. If
/// `pictures` already has names, only those columns are read. Error(kBadInput) with file and line for a row that is invalid, leaves the
/// folder or is a duplicate; with `skip_bad` such rows are skipped and counted.
void read_picture_labels(const std::string& table, const std::string& folder, bool skip_bad, SkippedData& skipped,
                         LabelledPictures& pictures);

/// The common format of pictures.
struct PictureForm {
  PictureSize size;
  bool resized = false;  ///< Pictures are resized; else another size is an error.
};

/// Decodes a picture to the form's channels and size. Error(kBadInput) that names `what`.
Picture shaped_picture(std::span<const uint8_t> file, const std::string& what, const PictureForm& form);

/// The pictures that train, validation and test share.
struct PictureStore {
  std::vector<PictureFile> files;
  std::vector<uint8_t> has_label;  ///< {files, labels}: 0 or 1; empty if each file has one class.
  PictureForm form;
  ByteBuffer decoded;  ///< form.size.num_bytes() per file; empty: files are decoded on each read.
  int num_threads = 1;

  Picture decode(int64_t file) const {
    return shaped_picture(read_picture_file(files[static_cast<size_t>(file)].path), files[static_cast<size_t>(file)].path, form);
  }
};

/// The files `samples` of a store. Reading fails only where a file has changed since it was first decoded; the error names it.
class PictureSource : public DescribedSource {
 public:
  /// `description` holds the normalisation.
  PictureSource(std::shared_ptr<const PictureStore> store, DataDescription description, std::vector<int64_t> samples);
  void read(std::span<const int64_t> indices, Batch& batch) const override;

 private:
  std::shared_ptr<const PictureStore> store_;
  std::vector<std::array<float, 256>> tables_;  // Per channel.
};

}  // namespace cohort
