#pragma once
// The actions of `cohort compress`, and what they share. Internal to this folder. Actions take arguments without the word of the action,
// and return the exit code.

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "cohort/cli/options/verb.h"
#include "cohort/compress/compression_result.h"
#include "cohort/compress/fine_tuning.h"
#include "cohort/data/source/source.h"

namespace cohort {

/// --max-error-increase as a fraction.
std::optional<double> error_increase(const Arguments& arguments);

int run_compress_search(const Arguments& arguments);

int run_quantize(const Arguments& arguments);
std::vector<VerbOption> quantize_options();
VerbAction quantize_action();

int run_prune(const Arguments& arguments);
std::vector<VerbOption> prune_options();
VerbAction prune_action();

/// Settings of `train` that a student's training reads.
std::vector<std::string> distil_settings();
/// Those of them whose default is the teacher's value.
std::set<std::string> settings_from_teacher();
VerbOption distil_student_option();
VerbAction distil_action();
int run_distil(const Arguments& arguments);

// The file that an action wrote.

/// Error(kBadInput) if --report cannot be written as a page.
void check_compression_report(const Arguments& arguments);
/// Prints a table, or lines with --json, and writes the page of --report. `headline` describes the model, `validation` is the data of the
/// measurement. The last line says if a training ended no better than a constant answer.
void print_compression(const Arguments& arguments, const CompressionResult& result, const DataSource& validation,
                       const std::string& headline);

// The training of `compress prune` and `compress quantize --scheme qat`.

/// Settings of the training; their defaults are the run's values.
std::vector<std::string> fine_tuning_settings();
/// The request with those that were given. Error(kBadInput) under a launcher.
FineTuningRequest fine_tuning_request(const Arguments& arguments, const std::string& verb);
/// Logs what of the run's training the fine-tuning leaves out.
void log_what_is_left_out(const TrainedFile& file);
/// Trains, or resumes, according to `state`. Returns the training's exit code; 0 only if its last step is done.
int run_fine_tuning(const Config& config, FineTuningState state, const std::string& verb);

}  // namespace cohort
