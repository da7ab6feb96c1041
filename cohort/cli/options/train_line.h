#pragma once
// The `cohort train` line that every form of plan prints. Internal to the command line.

#include <cstdint>
#include <functional>
#include <string>

#include "cohort/cli/options/verb.h"
#include "cohort/plan/profile/model_profile.h"

namespace cohort {

struct TrainLine {
  int num_ranks = 1;
  int64_t global_batch = 1;
  std::string options;                           ///< Override what was typed: "--layout tp=2 --accumulate 4".
  std::function<bool(const std::string&)> acts;  ///< Whether a setting would act in that run; null: all do.
  bool one_host = true;                          ///< Else the ranks are started by a launcher.
};

/// The typed options that train reads: sizes that only plan takes in --model (context=) become options, those that come from the data
/// (vocabulary=) are left out. Model and data of a profile that was measured here come from the profile. Comment lines after it name what
/// the user has to fill in, and how ranks of several hosts are started.
std::string train_line(const Arguments& arguments, const ModelProfile& profile, const TrainLine& what);

}  // namespace cohort
