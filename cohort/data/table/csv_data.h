#pragma once
// Tables in CSV files as data: --data csv:FILE,target=COLUMN.

#include <string>

#include "cohort/data/source/source.h"

namespace cohort {

/// `FILE,target=COLUMN[,task=...][,category=A+B][,drop=A+B][,encode=onehot|index][,separator=...][,val=FILE][,test=FILE][,seed=N]`; with
/// task=labels `target=A+B+C`, columns of 0 and 1. Error(kBadInput) with file and line for a row that is malformed, has no number where one
/// belongs, or, in a second file, a value that the first one lacks; with options.skip_bad such rows are left out.
DataSet open_csv(const std::string& argument, const DataOptions& options);

}  // namespace cohort
