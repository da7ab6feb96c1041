#pragma once
// The built-in kinds of data that need no more than their opener. Each takes what follows the colon in --data NAME:ARGUMENT; errors are
// those of open_data.

#include <cstdint>
#include <string>

#include "cohort/data/source/source.h"

namespace cohort {

/// CIFAR-10 in its binary version: those of data_batch_1.bin to data_batch_5.bin that `folder` has, at least one, and test_batch.bin, where
/// it is there, as the test set.
DataSet open_cifar10(const std::string& folder, const DataOptions& options);

/// Class folders of JPEG and PNG files: `DIR[,seed=N][,channels=1|3][,memory=BYTES]`, DIR/CLASS/FILE, or DIR/train/CLASS/FILE with DIR/val
/// and DIR/test beside train. With `,labels=FILE.csv[,val=FILE.csv][,test=FILE.csv]` the files and their labels are those of a table
/// (picture_source.h). Every file is decoded once here, by several threads. Error(kBadInput) that names the file for a picture that cannot
/// be read or, without options.image_size, has another size than the others; with options.skip_bad such pictures are left out.
DataSet open_picture_folder(const std::string& argument, const DataOptions& options);

/// A table:
/// `FILE,target=COLUMN[,task=...][,category=A+B][,drop=A+B][,encode=onehot|index][,separator=...][,val=FILE][,test=FILE][,seed=N]`; with
/// task=labels `target=A+B+C`, columns of 0 and 1. Error(kBadInput) with file and line for a row that is malformed, has no number where one
/// is expected, or, in a second file, a value that the first one lacks; with options.skip_bad such rows are left out.
DataSet open_csv(const std::string& argument, const DataOptions& options);

/// Synthetic samples: `SHAPE[,classes=10 or labels=N][,samples=10000][,noise=1.0][,seed=N]`, SHAPE as 784, 3x32x32 (channels, height,
/// width) or text. Sample i is a function of (seed, i) alone; the seed is that of the options where the specification has none.
DataSet open_synthetic(const std::string& specification, const DataOptions& options);
/// The seed of the specification, or `otherwise`.
uint64_t synthetic_seed(const std::string& specification, uint64_t otherwise);

}  // namespace cohort
