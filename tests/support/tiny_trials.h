#pragma once
// What the tests of trials share: tiny studies, and a watch that writes down what it hears.

#include <cmath>
#include <string>
#include <vector>

#include "cohort/trials/model_trial.h"

namespace cohort {

/// Evaluated at every step.
inline study::StudySpec tiny_spec(const std::string& model, const std::string& optimizer = "sgd") {
  study::StudySpec spec;
  spec.name = "tiny";
  spec.data = "synthetic:1x8x8,classes=4,samples=140,noise=0.5";
  spec.val_samples = 30;
  spec.model = model;
  spec.optimizer = optimizer;
  spec.evaluation_ratio = 1;
  return spec;
}

inline DataSet data_of(const study::StudySpec& spec) {
  return open_data(spec.data, {.context = spec.context, .validation_samples = spec.val_samples, .seed = 5});
}

inline study::TrialOrder tiny_order(double learning_rate, int64_t batch_size = 16, int64_t train_steps = 12) {
  return {.batch_size = batch_size, .id = 2, .train_steps = train_steps, .parameters = {{"learning_rate", learning_rate}}, .seed = 11};
}

struct RecordedTrial {
  study::TrialOutcome outcome;
  std::vector<study::Measurement> measurements;

  std::vector<double> val_losses() const {
    std::vector<double> losses;
    for (const study::Measurement& measurement : measurements) losses.push_back(measurement.values[study::kValLoss]);
    return losses;
  }
};

/// `wanted` is what the watch answers.
inline RecordedTrial run_trial(study::TrialRunner& runner, const study::TrialOrder& order, int64_t wanted = INT64_MAX) {
  RecordedTrial heard;
  heard.outcome = runner.run(order, {[&](const study::Measurement& measurement) {
                               heard.measurements.push_back(measurement);
                               return wanted;
                             }});
  return heard;
}

/// The largest relative difference; infinity for lists of different lengths or NaN.
inline double largest_difference(const std::vector<double>& left, const std::vector<double>& right) {
  if (left.size() != right.size()) return INFINITY;
  double largest = 0;
  for (size_t i = 0; i < left.size(); ++i) {
    const double difference = std::abs(left[i] - right[i]) / std::abs(right[i]);
    if (!(difference <= largest)) largest = std::isnan(difference) ? INFINITY : difference;
  }
  return largest;
}

}  // namespace cohort
