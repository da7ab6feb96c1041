#pragma once
// Statistics of an asynchronous training: work per worker, staleness of pushes, losses.

#include <cstdint>
#include <string>
#include <vector>

#include "cohort/record/fields.h"

namespace cohort {

struct AsyncRecord {
  static constexpr char kEvent[] = "async";
  struct Worker {
    int64_t worker = 0;
    double speed = kUnknown;          ///< Relative to the median.
    int64_t pushes = 0, samples = 0;  ///< Applied.
    int64_t lost = 0, deaths = 0;     ///< Work items lost with it.
    int64_t left = 0;                 ///< Announced departures.
    double computing_seconds = 0, waiting_seconds = 0, moving_seconds = 0;
    double pushing_seconds = 0;  ///< Part of moving_seconds: its pushes.

    void describe(auto& fields) {
      fields.count("worker", worker);
      fields.number("speed", speed);
      fields.count("pushes", pushes);
      fields.count("samples", samples);
      fields.count("lost", lost);
      fields.count("deaths", deaths);
      fields.count("left", left);
      fields.number("computing_seconds", computing_seconds);
      fields.number("waiting_seconds", waiting_seconds);
      fields.number("moving_seconds", moving_seconds);
      fields.number("pushing_seconds", pushing_seconds);
    }
  };
  int64_t step = 0;
  std::string sync, compress, remedy, clock;  ///< Values of the options.
  double virtual_seconds = kUnknown, samples_per_virtual_second = kUnknown;
  int64_t pushes = 0, samples = 0, lost = 0, deaths = 0, left = 0;
  int64_t bytes_to_workers = 0, bytes_to_server = 0, bytes_in_flight_of_worker = 0;
  double staleness_median = kUnknown, staleness_tail = kUnknown;  ///< In pushes.
  double mean_late_steps = kUnknown, most_late_steps = kUnknown;
  std::vector<int64_t> staleness_from, pushes_of_staleness;  ///< Histogram: lower bounds and counts.
  std::vector<Worker> workers;

  void describe(auto& fields) {
    fields.count("step", step);
    fields.text("sync", sync);
    fields.text_if_any("compress", compress);
    fields.text_if_any("remedy", remedy);
    fields.text_if_any("virtual", clock);
    fields.number("virtual_seconds", virtual_seconds);
    fields.number("samples_per_virtual_second", samples_per_virtual_second);
    fields.count("pushes", pushes);
    fields.count("samples", samples);
    fields.count("lost", lost);
    fields.count("deaths", deaths);
    fields.count("left", left);
    fields.count("bytes_to_workers", bytes_to_workers);
    fields.count("bytes_to_server", bytes_to_server);
    fields.count("bytes_in_flight_of_worker", bytes_in_flight_of_worker);
    fields.number("staleness_median", staleness_median);
    fields.number("staleness_tail", staleness_tail);
    fields.number("mean_late_steps", mean_late_steps);
    fields.number("most_late_steps", most_late_steps);
    fields.counts("staleness_from", staleness_from);
    fields.counts("pushes_of_staleness", pushes_of_staleness);
    fields.list("workers", workers);
  }
};

}  // namespace cohort
