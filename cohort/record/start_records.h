#pragma once
// Records at the start or resumption of a run.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cohort/record/fields.h"

namespace cohort {

/// Which layers tensor parallelism divides.
struct DivisionRecord {
  struct Layer {
    std::string layer, placement, reason;

    void describe(auto& fields) {
      fields.text("layer", layer);
      fields.text("placement", placement);
      fields.text("reason", reason);
    }
  };
  std::string sentence;
  double divided_weights = kUnknown;  ///< Fraction of all weights.
  std::vector<Layer> layers;

  void describe(auto& fields) {
    fields.text("sentence", sentence);
    fields.number("divided_weights", divided_weights);
    fields.list("layers", layers);
  }
};

struct OptimizerRecord {
  std::string name;
  double lr = kUnknown, weight_decay = kUnknown;  ///< Effective values.

  void describe(auto& fields) {
    fields.text("name", name);
    fields.number("lr", lr);
    fields.number("weight_decay", weight_decay);
  }
};

struct StartRecord {
  static constexpr char kEvent[] = "start";
  int64_t world_size = 1;
  std::string layout;  ///< JSON object with the keys of --layout; "": none.
  std::optional<int64_t> parameters, train_samples, val_samples;
  std::string model, data;
  std::optional<int64_t> global_batch, steps;
  std::string batch_schedule;  ///< Value of --batch-schedule; "": none.
  std::optional<OptimizerRecord> optimizer;
  std::string backend, launcher, version, torch, host, started;
  std::string command, commit;                    ///< Command line, and git commit of the working tree; "": unknown.
  std::string resume_with, reproduce_with;        ///< Commands that resume and reproduce the run.
  std::vector<std::string> devices;               ///< Per rank; empty: all on the CPU.
  std::string device_backend;                     ///< Backend for device tensors; "": none.
  std::string loss;                               ///< "own" (the model's), "mse", "binary"; "": cross-entropy.
  std::optional<int64_t> skipped_samples;         ///< Left out by --skip-bad,
  std::vector<std::string> skipped;               ///< and the reasons of the first ones.
  std::optional<DivisionRecord> tensor_parallel;  ///< Nullopt without tp.

  void describe(auto& fields) {
    fields.count("world_size", world_size);
    fields.json("layout", layout);
    fields.count("parameters", parameters);
    fields.count("train_samples", train_samples);
    fields.count("val_samples", val_samples);
    fields.text("model", model);
    fields.text("data", data);
    fields.count("global_batch", global_batch);
    fields.text_if_any("batch_schedule", batch_schedule);
    fields.count("steps", steps);
    fields.object("optimizer", optimizer);
    fields.text("backend", backend);
    fields.text("launcher", launcher);
    fields.text("version", version);
    fields.text("torch", torch);
    fields.text("host", host);
    fields.text("started", started);
    fields.text_if_any("command", command);
    fields.text_if_any("commit", commit);
    fields.text_if_any("resume_with", resume_with);
    fields.text_if_any("reproduce_with", reproduce_with);
    fields.texts_if_any("devices", devices);
    fields.text_if_any("device_backend", device_backend);
    fields.text_if_any("loss", loss);
    fields.count("skipped_samples", skipped_samples);
    fields.texts_if_any("skipped", skipped);
    fields.object("tensor_parallel", tensor_parallel);
  }
};

/// The run goes on from a checkpoint.
struct ResumeRecord {
  static constexpr char kEvent[] = "resume";
  int64_t step = 0;
  std::string from;
  double seconds = kUnknown;  ///< Loading time.

  void describe(auto& fields) {
    fields.count("step", step);
    fields.text("from", from);
    fields.number("seconds", seconds);
  }
};

/// A setting that a resume changed.
struct ChangeRecord {
  static constexpr char kEvent[] = "changed";
  int64_t step = 0;  ///< First step with the new value.
  std::string setting, from, to;

  void describe(auto& fields) {
    fields.count("step", step);
    fields.text("setting", setting);
    fields.text("from", from);
    fields.text("to", to);
  }
};

/// The plan of a pipeline and the forecast of its step.
struct PipelineRecord {
  static constexpr char kEvent[] = "pipeline";
  struct Stage {
    std::vector<std::string> layers;
    std::optional<int64_t> worker;      ///< Position on the pipeline axis.
    double forward_seconds = kUnknown;  ///< Per micro-batch; backward may be split.
    double backward_input_seconds = kUnknown, backward_weight_seconds = kUnknown;

    void describe(auto& fields) {
      fields.texts("layers", layers);
      fields.count("worker", worker);
      fields.number("forward_seconds", forward_seconds);
      fields.number("backward_input_seconds", backward_input_seconds);
      fields.number("backward_weight_seconds", backward_weight_seconds);
    }
  };
  std::string schedule;  ///< As the layout names it.
  std::vector<Stage> stages;
  std::optional<int64_t> micro_batches;
  double predicted_step_seconds = kUnknown;  ///< One pass through the schedule.
  double predicted_bubble = kUnknown;        ///< Idle time / (ranks x step).
  std::string chart_svg;                     ///< Made by timeline_svg(); untrusted when read from a file.

  void describe(auto& fields) {
    fields.text("schedule", schedule);
    fields.list("stages", stages);
    fields.count("microbatches", micro_batches);
    fields.number("predicted_step_seconds", predicted_step_seconds);
    fields.number("predicted_bubble", predicted_bubble);
    fields.text("chart_svg", chart_svg);
  }
};

}  // namespace cohort
