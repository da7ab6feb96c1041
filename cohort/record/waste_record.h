#pragma once
// What workers that are not equally fast cost a run: the time that they wait for the slowest, as it was and as it would be with equal
// shares of the batch.

#include <cstdint>
#include <string>
#include <vector>

#include "cohort/record/fields.h"

namespace cohort {

struct WasteRecord {
  static constexpr char kEvent[] = "waste";
  std::string sentence;                    ///< What it comes to, for people.
  std::vector<double> shares;              ///< One a rank: those of the last steps.
  std::vector<double> seconds_per_sample;  ///< One a rank: forward and backward.
  int64_t slowest_rank = 0;
  double measured_waste = kUnknown;  ///< Share of the ranks' seconds spent waiting for the slowest, with the shares of the last steps.
  double measured_step_seconds = kUnknown;
  double predicted_equal_waste = kUnknown;  ///< With equal shares, from the speeds: the plan's where there was one.
  double predicted_equal_step_seconds = kUnknown;
  double measured_equal_waste = kUnknown;  ///< In the steps of this run whose shares were equal.
  double measured_equal_step_seconds = kUnknown;

  void describe(auto& fields) {
    fields.text("sentence", sentence);
    fields.numbers("shares", shares);
    fields.numbers("seconds_per_sample", seconds_per_sample);
    fields.count("slowest_rank", slowest_rank);
    fields.number("measured_waste", measured_waste);
    fields.number("measured_step_seconds", measured_step_seconds);
    fields.number("predicted_equal_waste", predicted_equal_waste);
    fields.number("predicted_equal_step_seconds", predicted_equal_step_seconds);
    fields.number("measured_equal_waste", measured_equal_waste);
    fields.number("measured_equal_step_seconds", measured_equal_step_seconds);
  }
};

}  // namespace cohort
