#pragma once
// Class folders of JPEG and PNG files as data: --data folder:DIR.

#include <string>

#include "cohort/data/source/source.h"

namespace cohort {

/// `DIR[,seed=N][,channels=1|3][,memory=BYTES]`: DIR/CLASS/FILE, or DIR/train/CLASS/FILE with DIR/val and DIR/test beside train. With
/// `,labels=FILE.csv[,val=FILE.csv][,test=FILE.csv]` the files and their labels are those of a table (picture_source.h). Every file is
/// decoded once here, by several threads. Error(kBadInput) that names the file for a picture that cannot be read or, without
/// options.image_size, has another size than the others; with options.skip_bad such pictures are left out.
DataSet open_picture_folder(const std::string& argument, const DataOptions& options);

}  // namespace cohort
