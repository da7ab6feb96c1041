#pragma once
// Pictures with any number of labels each, as a table says: --data folder:DIR,labels=FILE.csv.

#include <cstdint>
#include <string>
#include <vector>

#include "cohort/data/images/picture_list.h"
#include "cohort/data/source/source.h"

namespace cohort {

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

}  // namespace cohort
