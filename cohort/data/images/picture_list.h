#pragma once
// Which pictures a folder of class folders holds.

#include <cstdint>
#include <string>
#include <vector>

namespace cohort {

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

}  // namespace cohort
