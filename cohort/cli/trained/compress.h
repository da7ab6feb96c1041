#pragma once
// The actions of `cohort compress`, and what they share. Internal to this folder.

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "cohort/cli/options/verb.h"
#include "cohort/compress/compression_result.h"
#include "cohort/compress/fine_tuning.h"
#include "cohort/data/source/source.h"

namespace cohort {

/// --max-error-increase: "0.5%" is 0.005.
std::optional<double> error_increase(const Arguments& arguments);

int run_compress_search(const Arguments& arguments);

// `cohort compress quantize` and `cohort compress prune`. Each takes arguments without the word of the action, returns the exit code, and has options of its own.

/// `arguments` without the action's word. Returns the exit code.
int run_quantize(const Arguments& arguments);
/// Options of it alone; and what else it reads.
std::vector<VerbOption> quantize_options();
VerbAction quantize_action();

/// `arguments` without the action's word. Returns the exit code.
int run_prune(const Arguments& arguments);
/// Options of it alone; and what else it reads.
std::vector<VerbOption> prune_options();
VerbAction prune_action();

// `cohort compress distill`.

/// Of `train`, those that a student's training takes.
std::vector<std::string> distil_settings();
/// Of those, what is the teacher's where it is not given.
std::set<std::string> settings_of_the_teacher();
VerbOption distil_student_option();
VerbAction distil_action();
/// `arguments`: the teacher is their first word. Returns the exit code of the training where that is not 0.
int run_distil(const Arguments& arguments);

// The one file that an action wrote.

/// Before the work: Error(kBadInput) where --report names no place for a page.
void check_compression_report(const Arguments& arguments);
/// A table, or lines with --json, and the page that --report asks for. `headline`: which model, for people. `validation`: what it was
/// measured on. Where a training ended no better than a constant answer, the last line says so.
void print_compression(const Arguments& arguments, const CompressionResult& result, const DataSource& validation,
                       const std::string& headline);

// The training inside of `compress prune` and `compress quantize --scheme qat`.

/// Settings that say how it trains; what they are where they were not given is the run's.
std::vector<std::string> fine_tuning_settings();
/// What of them was given. Error(kBadInput) under a launcher.
FineTuningRequest fine_tuning_request(const Arguments& arguments, const std::string& verb);
/// A line where the run was trained otherwise than the fine-tuning can be.
void say_what_is_left_out(const TrainedFile& file);
/// Trains what `state` says is to be trained. Returns the training's exit code, and 0 only where its last step is done.
int run_fine_tuning(const Config& config, FineTuningState state, const std::string& verb);

}  // namespace cohort
