#pragma once
// Which layers of a student are compared with which of its teacher. Torch-free.

#include <string>
#include <vector>

namespace cohort {

struct HintPair {
  std::string student, teacher;  ///< Names of layers.
};

/// "conv2:conv2,body:layer3": student and teacher. "" and "none": nothing. Error(kBadInput), which names --hint, for anything else, and for
/// a layer of the student that is named twice.
std::vector<HintPair> parse_hints(const std::string& text);

}  // namespace cohort
