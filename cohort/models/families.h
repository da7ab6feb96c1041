#pragma once
// The built-in model families: each lives in the file of its name and says there what its options are. To add one: add its file, a line
// here and a line in the table of registry.cpp.

#include "cohort/models/registry.h"

namespace cohort::families {

ModelEntry fc();
ModelEntry cnn();
ModelEntry resnet8();
ModelEntry resnet50();
ModelEntry vgg11();
ModelEntry inception();
ModelEntry lstm();
ModelEntry transformer();

// The benchmark's four (benchmark.cpp).
ModelEntry mlp_small();
ModelEntry mlp();
ModelEntry cnn_bench();
ModelEntry gpt();

}  // namespace cohort::families
