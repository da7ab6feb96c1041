#pragma once
// `cohort compress distill`, an action of compress.cpp.

#include <set>
#include <string>
#include <vector>

#include "cohort/cli/options/verb.h"

namespace cohort {

/// Of `train`, those that a student's training takes.
std::vector<std::string> distil_settings();
/// Of those, what is the teacher's where it is not given.
std::set<std::string> settings_of_the_teacher();
VerbOption distil_student_option();
VerbAction distil_action();
/// `arguments`: the teacher is their first word. Returns the exit code of the training where that is not 0.
int run_distil(const Arguments& arguments);

}  // namespace cohort
