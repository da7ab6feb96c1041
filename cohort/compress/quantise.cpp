// Post-training quantisation (Krishnamoorthi 2018; Jacob et al. 2018) of a trained model:
//
//   1. static: scales of activations from samples of the training part, spread evenly over it
//   2. sensitivity of each layer: the increase of the loss on those samples with only this layer compressed, in int8 where the scheme has a
//      kernel for it, else with its weights stored as codes
//   3. all layers together on the validation data; while the error rose by more than is allowed, the most sensitive layer returns to floats
//   4. bytes, and seconds of a forward beside the original's; then the file
//
// Cost: one evaluation of the calibration samples a layer, one of the validation data, and one more for each layer that returns to floats.
#include "cohort/compress/quantise.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"
#include "cohort/compress/compressed_content.h"
#include "cohort/compress/compression_result.h"
#include "cohort/data/source/source.h"
#include "cohort/infer/compressed/compressed_model.h"
#include "cohort/infer/evaluate_trained.h"
#include "cohort/infer/trained_file.h"
#include "cohort/train/model/batch_tensors.h"

namespace cohort {

namespace {

class SpreadSamples : public DataSource {
 public:
  SpreadSamples(const DataSource& whole, int64_t count) : whole_(whole), count_(count) {}

  const DataShape& shape() const override { return whole_.shape(); }
  int64_t num_samples() const override { return count_; }
  void read(std::span<const int64_t> indices, Batch& batch) const override {
    std::vector<int64_t> spread;
    for (const int64_t index : indices) spread.push_back(index * whole_.num_samples() / count_);
    whole_.read(spread, batch);
  }
  DataDescription describe() const override { return whole_.describe(); }

 private:
  const DataSource& whole_;
  int64_t count_;
};

constexpr int64_t kCalibrationBatch = 64;

class Quantisation {
 public:
  Quantisation(const TrainedFile& file, const TrainedFile* original, const DataDescription& trained, const DataSource& training,
               const DataSource& validation, const QuantiseRequest& request, const std::function<void(const std::string&)>& progress)
      : file_(file),
        original_(original ? *original : file),
        is_tuned_(original != nullptr),
        validation_(validation),
        request_(request),
        progress_(progress) {
    source_.fresh = [&file, shape = shape_of(trained)] { return restore_model(file, shape); };
    source_.model = source_.fresh();
    original_model_ = original ? restore_model(*original, shape_of(trained)) : source_.model;
    const int64_t num_samples = std::min(request.calibration_samples, training.num_samples());
    if (num_samples < 1) fail(ErrorCode::kBadInput, "the data have no sample to calibrate with");
    calibration_ = std::make_shared<SpreadSamples>(training, num_samples);
    source_.facts = examine_layers(*source_.model, input_batch(*calibration_, 0, kCalibrationBatch));
    if (request.scheme == "static") observe();
  }

  CompressionResult run(const std::string& out) {
    CompressionResult result{.method = concat("quantize ", is_tuned_ ? "qat" : request_.scheme, request_.bits == 4 ? " int4" : " int8"),
                             .out = out,
                             .step = file_.step(),
                             .validation_samples = validation_.num_samples()};
    check();
    LayerSet chosen = candidates();
    measure_sensitivity(chosen);
    report_progress("validation data");
    const Evaluation original = evaluate_restored(original_, *original_model_, validation_).found;
    CompressedContent content;
    std::shared_ptr<LayerGraph> model;
    const Evaluation found = choose(original, chosen, content, model);
    result.original = {.loss = original.loss, .error = original.error};
    if (is_tuned_) {
      const Evaluation floats = evaluate_restored(file_, *source_.model, validation_).found;
      result.tuned = MeasuredModel{.loss = floats.loss, .error = floats.error};
    }
    result.compressed = {.loss = found.loss, .error = found.error};
    result.layers = layer_results(chosen, content);
    report_progress("latency");
    measure_and_write({original_, *original_model_}, {file_, *model}, content, validation_, result);
    return result;
  }

  void check() const {
    const LayerSet chosen = candidates();
    if (std::none_of(chosen.begin(), chosen.end(), [&](size_t layer) { return is_weight_only() || computes_in_int8(layer); }))
      fail(ErrorCode::kBadInput, source_.model->title(), " has no layer that --scheme ", request_.scheme,
           " supports: ", is_weight_only() ? "it has no matrix and no kernel" : "give --scheme weight-only (or, with qat, --bits 4)");
  }

 private:
  bool is_weight_only() const { return request_.scheme == "weight-only"; }

  void report_progress(const std::string& what) const {
    if (progress_) progress_(what);
  }

  void observe() {
    report_progress("ranges of activations");
    std::vector<at::Tensor> batches;
    for (int64_t first = 0; first < calibration_->num_samples(); first += kCalibrationBatch)
      batches.push_back(input_batch(*calibration_, first, kCalibrationBatch));
    scales_ = observe_activations(*source_.model, batches, find_range_method(request_.calibration));
  }

  LayerSet candidates() const {
    LayerSet found;
    for (size_t i = 0; i < source_.facts.size(); ++i)
      if (source_.facts[i].has_weights) found.insert(i);
    return found;
  }

  /// Whether the scheme has a kernel for the layer; else its weights are stored as codes and it computes in floats.
  bool computes_in_int8(size_t index) const {
    using Does = LayerFacts::Does;
    const LayerFacts& facts = source_.facts[index];
    if (is_weight_only()) return false;
    if (facts.does == Does::kBlock) return true;
    if (request_.scheme == "dynamic") return facts.does == Does::kProduct;
    return (facts.does == Does::kConvolution || facts.does == Does::kProduct) && scales_.outputs.size() > index &&
           scales_.of(source_.model->layers()[index].inputs[0]) && scales_.of(static_cast<int>(facts.last(index)));
  }

  CompressedContent compress_layers(const LayerSet& chosen) const {
    LayerSet computed, coded;
    for (const size_t layer : chosen) (computes_in_int8(layer) ? computed : coded).insert(layer);
    CompressedContent content =
        request_.scheme == "static" ? compress_static(source_, scales_, computed) : compress_dynamic(source_, computed);
    CompressedContent weights = compress_weights(source_, coded, request_.bits, request_.bits == 4 ? request_.group : 0);
    content.form.tensors.merge(weights.form.tensors);
    content.tensors.merge(weights.tensors);
    return content;
  }

  double calibration_loss(LayerGraph& model) const { return evaluate_restored(file_, model, *calibration_).found.loss; }

  void measure_sensitivity(const LayerSet& chosen) {
    const double original = calibration_loss(*source_.model);
    for (const size_t layer : chosen) {
      report_progress(concat("sensitivity of ", source_.model->layers()[layer].name));
      CompressedContent content = compress_layers({layer});
      const double loss = calibration_loss(*build_compressed(source_, content));
      loss_increase_[layer] = std::isnan(loss) ? std::numeric_limits<double>::infinity() : loss - original;
    }
  }

  Evaluation choose(const Evaluation& original, LayerSet& chosen, CompressedContent& content, std::shared_ptr<LayerGraph>& model) const {
    const std::optional<double>& allowed = request_.max_error_increase;
    if (allowed && !original.has_error())
      fail(ErrorCode::kBadInput, "--max-error-increase: the loss of ", source_.model->title(),
           " is its own, so no error is known; leave it out");
    for (;;) {
      content = compress_layers(chosen);
      model = build_compressed(source_, content);
      const Evaluation found = evaluate_restored(file_, *model, validation_).found;
      // 1e-12: errors are ratios of counts, and their difference is rounded.
      if (!allowed || found.error - original.error <= *allowed + 1e-12) return found;
      const auto worst =
          std::max_element(chosen.begin(), chosen.end(), [&](size_t a, size_t b) { return loss_increase_.at(a) < loss_increase_.at(b); });
      report_progress(concat(source_.model->layers()[*worst].name, " returns to floats"));
      if (chosen.size() == 1 && is_tuned_)
        if (const double floats = evaluate_restored(file_, *source_.model, validation_).found.error; floats - original.error > *allowed)
          fail(ErrorCode::kInfeasible, "the training alone, in floats, changes the error from ", original.error, " to ", floats,
               ", and --max-error-increase allows ", *allowed, "; train longer, or with another learning rate, in another folder");
      if (chosen.size() == 1)
        fail(ErrorCode::kInfeasible, "with ", source_.model->layers()[*worst].name, " alone compressed the error rises from ",
             original.error, " to ", found.error, ", and --max-error-increase allows ", *allowed, "; allow more, or take another --scheme");
      chosen.erase(worst);
    }
  }

  std::string absorbed_by(size_t index) const {
    for (size_t i = 0; i < index; ++i)
      if (source_.facts[i].norm == index || source_.facts[i].relu == index) return source_.model->layers()[i].name;
    return "";
  }

  /// Why a layer of which only the weights are codes has no int8 kernel; "" where the scheme wants none.
  std::string why_floats(const LayerFacts& facts) const {
    if (is_weight_only()) return "";
    if (!facts.why_float.empty()) return ": " + facts.why_float;
    return request_.scheme == "dynamic" ? ": LibTorch has no dynamic int8 kernel for conv2d" : ": not all of its activations were finite";
  }

  std::string description_of_layer(size_t index, const LayerSet& chosen, const CompressedContent& content) const {
    using Form = CompressedLayer::Form;
    const LayerFacts& facts = source_.facts[index];
    const std::string& name = source_.model->layers()[index].name;
    if (chosen.contains(index) && !computes_in_int8(index))
      return concat("weights int", request_.bits, ", computes in floats", why_floats(facts));
    if (loss_increase_.contains(index) && !chosen.contains(index)) return "floats: too sensitive";
    if (is_weight_only()) return "unchanged";
    const auto how = std::find_if(content.form.layers.begin(), content.form.layers.end(),
                                  [&](const CompressedLayer& layer) { return layer.name == name; });
    if (how == content.form.layers.end()) return "floats";
    switch (how->form) {
      case Form::kStatic:
      case Form::kSum: {
        std::string text = how->form == Form::kStatic ? "int8 static" : "int8 sum";
        for (const std::optional<size_t>& absorbed : {facts.norm, facts.relu})
          if (absorbed) text += concat(", does ", source_.model->layers()[*absorbed].name);
        return text;
      }
      case Form::kDynamic:
        return "int8 dynamic";
      case Form::kThrough:
        return "on int8 codes";
      case Form::kAbsorbed:
        return concat("done by ", absorbed_by(index));
    }
    return "";
  }

  std::vector<CompressedLayerResult> layer_results(const LayerSet& chosen, const CompressedContent& content) const {
    std::vector<CompressedLayerResult> results;
    for (size_t i = 0; i < source_.facts.size(); ++i) {
      const LayerGraph::Layer& layer = source_.model->layers()[i];
      CompressedLayerResult result{.layer = layer.name,
                                   .kind = layer.kind,
                                   .done = description_of_layer(i, chosen, content),
                                   .bytes = layer_bytes(content, layer.name),
                                   .original_bytes = module_bytes(layer.module.get())};
      if (const auto found = loss_increase_.find(i); found != loss_increase_.end()) result.loss_increase = found->second;
      results.push_back(std::move(result));
    }
    return results;
  }

  const TrainedFile &file_, &original_;
  const bool is_tuned_;
  const DataSource& validation_;
  const QuantiseRequest& request_;
  const std::function<void(const std::string&)>& progress_;
  CompressionSource source_;
  std::shared_ptr<LayerGraph> original_model_;
  std::shared_ptr<const DataSource> calibration_;
  ActivationScales scales_;
  std::map<size_t, double> loss_increase_;
};

}  // namespace

void check_quantise_request(const TrainedFile& file, const QuantiseRequest& request, const std::string& out) {
  const std::vector<std::string> schemes = {"static", "dynamic", "weight-only", "qat"};
  check_not_compressed(file, /*allow_sparse=*/true);
  if (std::find(schemes.begin(), schemes.end(), request.scheme) == schemes.end())
    fail(ErrorCode::kBadInput, "--scheme ", request.scheme, did_you_mean(request.scheme, schemes), ": expected one of ",
         join(schemes, " "));
  if (request.bits != 8 && request.bits != 4)
    fail(ErrorCode::kBadInput, "--bits ", request.bits, ": there are kernels for 8, and 4 with --scheme weight-only or qat");
  if (request.bits == 4 && request.scheme != "weight-only")
    fail(ErrorCode::kBadInput,
         "--bits 4: LibTorch has no kernel that computes with 4 bits; add --scheme weight-only (or qat), which keeps weights in "
         "4 bits and computes in floats");
  if (request.scheme != "weight-only") check_int8_kernels();
  if (request.scheme == "static") find_range_method(request.calibration);
  check_compressed_name(out);
}

void check_quantisable(const TrainedFile& file, const DataDescription& trained, const DataSource& training,
                       const QuantiseRequest& request) {
  use_threads_of_training(file, request.threads);
  const std::function<void(const std::string&)> no_progress;
  Quantisation(file, nullptr, trained, training, training, request, no_progress).check();
}

CompressionResult quantise(const TrainedFile& file, const TrainedFile* original, const DataDescription& trained, const DataSource& training,
                           const DataSource& validation, const QuantiseRequest& request, const std::string& out,
                           const std::function<void(const std::string&)>& progress) {
  check_quantise_request(file, request, out);
  use_threads_of_training(file, request.threads);
  return Quantisation(file, original, trained, training, validation, request, progress).run(out);
}

}  // namespace cohort
