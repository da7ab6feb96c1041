#pragma once
// Advice at the end of a run: how its exchange, waiting and shares could have been faster.

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

/// Which sync mode suits the workers of a run (plan/sync_advice.h).
struct SyncAdviceRecord {
  static constexpr char kEvent[] = "sync_advice";
  struct Row {
    std::string sync, options;  ///< Value of --layout sync=, and further options such as "--shares auto".
    double samples_per_second = kUnknown, mean_late_steps = kUnknown;
    double samples_low = kUnknown, samples_high = kUnknown;  ///< Samples to a goal, relative to sync=step.
    double time_low = kUnknown, time_high = kUnknown;        ///< Time to a goal, likewise.

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
  std::string sync, options;  ///< The recommended mode.
  std::string clock;          ///< The workers as a value of --virtual.
  std::vector<Row> rows;      ///< step first.

  void describe(auto& fields) {
    fields.text("sentence", sentence);
    fields.text("sync", sync);
    fields.text_if_any("options", options);
    fields.text("virtual", clock);
    fields.list("rows", rows);
  }
};

/// Time that ranks of different speed waited for the slowest, as measured and as predicted for equal shares of the batch.
struct WasteRecord {
  static constexpr char kEvent[] = "waste";
  std::string sentence;                    ///< Summary for users.
  std::vector<double> shares;              ///< Per rank, of the last steps.
  std::vector<double> seconds_per_sample;  ///< Per rank, forward and backward.
  int64_t slowest_rank = 0;
  double measured_waste = kUnknown;  ///< Fraction of the ranks' time spent waiting, with the shares of the last steps.
  double measured_step_seconds = kUnknown;
  double predicted_equal_waste = kUnknown;  ///< With equal shares, from the speeds or the plan.
  double predicted_equal_step_seconds = kUnknown;
  double measured_equal_waste = kUnknown;  ///< In steps with equal shares.
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
