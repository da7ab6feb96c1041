#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "cohort/base/clock.h"
#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/base/files/process_identity.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/log.h"
#include "cohort/base/text/text.h"
#include "cohort/cli/options/output.h"
#include "cohort/cli/trained/compress.h"
#include "cohort/cli/trained/trained.h"
#include "cohort/compress/compression_result.h"
#include "cohort/compress/compression_search.h"
#include "cohort/infer/trained_file.h"

namespace cohort {
namespace {

namespace fs = std::filesystem;

/// The file of the latest attempt, beside the output; it is removed with this object.
class Attempt {
 public:
  explicit Attempt(const std::string& out) : path_(concat(out, ".attempt-", process_nonce(), ".safetensors")) {}
  ~Attempt() {
    std::error_code ignored;
    fs::remove(path_, ignored);
  }
  Attempt(const Attempt&) = delete;
  Attempt& operator=(const Attempt&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// One search: every method for each model, in the given order.
class Search {
 public:
  explicit Search(const Arguments& arguments)
      : arguments_(arguments),
        out_(out_file(arguments, "compress search")),
        ends_(steady_seconds() + seconds_of(arguments)),
        attempt_(out_) {
    check_compressed_name(out_);
    check_compression_report(arguments);
    increase_ = error_increase(arguments);
    if (arguments.options.contains("max-bytes")) limits_.max_bytes = arguments.integer_option("max-bytes", 0, 1, int64_t{1} << 60);
    if (!increase_ && !limits_.max_bytes)
      fail(ErrorCode::kBadInput,
           "compress search: give --max-error-increase X%, --max-bytes N or both: how much error, or how large a file");
  }

  int run() {
    for (const std::string& model : arguments_.positional) try_model(model);
    if (std::none_of(tried_.begin(), tried_.end(), [](const TriedCompression& one) { return one.measured.has_value(); }))
      fail(ErrorCode::kBadInput, "compress search: no method succeeded: ", tried_.front().reason);
    const std::optional<size_t> taken = judge(tried_, limits_);
    report(taken);
    if (!taken)
      fail(ErrorCode::kInfeasible, "of ", tried_.size(), " attempts none stays within ", limits_text(),
           "; nothing was written; allow more");
    return 0;
  }

 private:
  static double seconds_of(const Arguments& arguments) {
    return static_cast<double>(arguments.integer_option("budget", 600, 1, 1'000'000));
  }

  std::string limits_text() const {
    std::string text = limits_.max_error ? concat("an error of ", 100 * *limits_.max_error, " %") : "";
    if (limits_.max_bytes) text += concat(text.empty() ? "" : " and ", human_bytes(*limits_.max_bytes));
    return text;
  }

  void try_model(const std::string& model) {
    Arguments of_model = arguments_;
    of_model.positional = {model};
    const TrainedFile file = open_trained(of_model, "compress search");
    check_differs_from_input(file, out_);
    check_not_compressed(file, /*allow_sparse=*/true);
    DataDescription trained;
    const DataSet data = data_of_trained(of_model, file, trained);
    check_same_kind(trained, data);
    const QuantiseRequest common{.calibration_samples = arguments_.integer_option("calibration-samples", 512, 1, 1'000'000'000),
                                 .max_error_increase = {},
                                 .threads = arguments_.config.threads};
    for (const CompressionWay& way : compression_ways(common)) {
      TriedCompression one{.model = model, .way = way.name, .measured = {}, .reason = ""};
      if (steady_seconds() > ends_) one.reason = "not tried: --budget is used up";
      else try_way(file, trained, data, way.request, one);
      print(one);
      tried_.push_back(std::move(one));
    }
  }

  void try_way(const TrainedFile& file, const DataDescription& trained, const DataSet& data, QuantiseRequest request,
               TriedCompression& one) {
    // Layers return to floats until the limit holds: the error of the first model plus the allowed increase.
    if (increase_ && limits_.max_error && file.val_error())
      request.max_error_increase = std::max(0.0, *limits_.max_error - *file.val_error());
    else request.max_error_increase = increase_;
    try {
      CompressionResult result = quantise(file, nullptr, trained, *with_training_normalisation(trained, part_of(data, "train")),
                                          *with_training_normalisation(trained, part_of(data, "val")), request, attempt_.path(),
                                          [&](const std::string& what) { log_debug(concat("compress: ", one.way, ": ", what)); });
      add_original(one.model, result);
      one.measured = result.compressed;
      keep_if_better(std::move(result));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kInfeasible && error.code() != ErrorCode::kBadInput) throw;
      one.reason = error.what();
    }
  }

  /// Adds the uncompressed model, once. The limit is relative to the error of the first one.
  void add_original(const std::string& model, const CompressionResult& result) {
    for (const TriedCompression& before : tried_)
      if (before.model == model && before.is_original) return;
    if (increase_ && !limits_.max_error) {
      if (std::isnan(result.original.error))
        fail(ErrorCode::kEnvironment, "compress search: the loss of ", model, " is its own, so no error is known; give --max-bytes alone");
      limits_.max_error = result.original.error + *increase_;
    }
    tried_.push_back({.model = model, .way = "as it is", .measured = result.original, .reason = "", .is_original = true});
    print(tried_.back());
  }

  void keep_if_better(CompressionResult result) {
    const MeasuredModel& model = result.compressed;
    if (!within(model, limits_) || (best_ && !is_better(model, best_->compressed, limits_))) return;
    fs::rename(attempt_.path(), out_);
    result.out = out_;
    best_ = std::move(result);
  }

  void print(const TriedCompression& one) const {
    if (arguments_.config.json) {
      Json line{{"event", "compress_tried"}, {"model", one.model}, {"way", one.way}};
      if (one.measured)
        line.update({{"val_error", finite_json(one.measured->error)},
                     {"bytes", one.measured->bytes},
                     {"seconds_batch_1", one.measured->seconds_batch_1},
                     {"seconds_batch_64", one.measured->seconds_batch_64}});
      else line["reason"] = one.reason;
      print_line(line);
    } else if (one.measured) {
      std::printf("%-24s %-34s %7.2f %% %10s %9s %9s\n", one.model.c_str(), one.way.c_str(), 100 * one.measured->error,
                  human_bytes(one.measured->bytes).c_str(), human_seconds(one.measured->seconds_batch_1).c_str(),
                  human_seconds(one.measured->seconds_batch_64).c_str());
    } else {
      std::printf("%-24s %-34s %s\n", one.model.c_str(), one.way.c_str(), printable(one.reason).c_str());
    }
    std::fflush(stdout);
  }

  void report(const std::optional<size_t>& taken) const {
    std::vector<std::string> front;
    for (const TriedCompression& one : tried_)
      if (one.is_on_front) front.push_back(concat(one.model, ", ", one.way));
    if (arguments_.options.contains("report"))
      write_file_atomically(arguments_.option("report", ""),
                            tried_page(tried_, taken, concat(arguments_.positional.front(), ": error against size")));
    if (arguments_.config.json) {
      print_line(Json{{"event", "compress_front"}, {"models", front}});
      if (taken && best_) print_line(result_line(*best_));
      return;
    }
    std::printf("\nPareto front (no other has less error in as few bytes):\n");
    for (const std::string& one : front) std::printf("  %s\n", printable(one).c_str());
    if (taken && best_)
      std::printf("\ntaken: %s, %s, within %s; wrote %s\n", tried_[*taken].model.c_str(), tried_[*taken].way.c_str(), limits_text().c_str(),
                  out_.c_str());
  }

  const Arguments& arguments_;
  const std::string out_;
  const double ends_;
  Attempt attempt_;
  std::optional<double> increase_;
  CompressionLimits limits_;
  std::vector<TriedCompression> tried_;
  std::optional<CompressionResult> best_;
};

}  // namespace

int run_compress_search(const Arguments& arguments) {
  if (arguments.positional.empty())
    fail(ErrorCode::kBadInput,
         "compress search: no models given; give run folders or files, of which the first one's error is the reference");
  return Search(arguments).run();
}

}  // namespace cohort
