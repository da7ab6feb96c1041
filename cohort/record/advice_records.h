#pragma once
// What a run says at its end of its exchange, its waiting and its shares: how it might have been faster.

#include <cstdint>
#include <string>
#include <vector>

#include "cohort/record/fields.h"

namespace cohort {

/// Whether compressing gradients would pay.
struct AdviceRecord {
  static constexpr char kEvent[] = "exchange_advice";
  struct Row {
    std::string compress;
    double predicted_step_seconds = kUnknown;
    int64_t sent_bytes = 0;
    double compress_seconds = kUnknown;

    void describe(auto& fields) {
      fields.text("compress", compress);
      fields.number("predicted_step_seconds", predicted_step_seconds);
      fields.count("sent_bytes", sent_bytes);
      fields.number("compress_seconds", compress_seconds);
    }
  };
  std::string sentence;   ///< What to do, in one line, with the numbers that say why.
  std::vector<Row> rows;  ///< "none" first.

  void describe(auto& fields) {
    fields.text("sentence", sentence);
    fields.list("rows", rows);
  }
};

/// Which way of waiting for one another suits the workers of a run (plan/sync_advice.h).
struct SyncAdviceRecord {
  static constexpr char kEvent[] = "sync_advice";
  struct Row {
    std::string sync, options;  ///< As --layout has it, and what stands beside it: "--shares auto".
    double samples_per_second = kUnknown, mean_late_steps = kUnknown;
    double samples_low = kUnknown, samples_high = kUnknown;  ///< To a goal, beside those of step.
    double time_low = kUnknown, time_high = kUnknown;        ///< Likewise.

    void describe(auto& fields) {
      fields.text("sync", sync);
      fields.text_if_any("options", options);
      fields.number("samples_per_second", samples_per_second);
      fields.number("mean_late_steps", mean_late_steps);
      fields.number("samples_low", samples_low);
      fields.number("samples_high", samples_high);
      fields.number("time_low", time_low);
      fields.number("time_high", time_high);
    }
  };
  std::string sentence;       ///< What to do, in one line, with the numbers that say why.
  std::string sync, options;  ///< The choice.
  std::string clock;          ///< The workers as --virtual has them.
  std::vector<Row> rows;      ///< step first.

  void describe(auto& fields) {
    fields.text("sentence", sentence);
    fields.text("sync", sync);
    fields.text_if_any("options", options);
    fields.text("virtual", clock);
    fields.list("rows", rows);
  }
};

/// What workers that are not equally fast cost a run: the time that they wait for the slowest, as it was and as it would be with equal
/// shares of the batch.
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
