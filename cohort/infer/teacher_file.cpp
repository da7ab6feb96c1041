// A trained file as the teacher of a student (train/distil/teacher.h): opens what --teacher names, and converts the student's inputs to the
// teacher's normalisation.

#include <ATen/ops/tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/base/files/safetensors.h"
#include "cohort/base/text/log.h"
#include "cohort/base/value_hash.h"
#include "cohort/data/source/openers.h"
#include "cohort/infer/trained_file.h"
#include "cohort/models/graph/layer_graph.h"
#include "cohort/parallel/common/parameters.h"
#include "cohort/train/distil/teacher.h"

namespace cohort {
namespace {

struct Opened {
  TrainedFile file;
  DataDescription trained;
};

Opened open_checked(const std::string& path, const DataSet& data) {
  Opened opened{.file = TrainedFile::open(path), .trained = {}};
  check_is_known(opened.file);
  opened.trained = description_of(opened.file);
  check_same_kind(opened.trained, data);
  return opened;
}

/// Synthetic data of another seed are other data. For drawn data without a validation part of its own the seed chooses the validation
/// samples, so with another seed the teacher has trained on some of the student's.
void check_same_seed(const Config& teacher, const Config& student) {
  const auto drawn = {"folder:", "csv:", "npy:", "safetensors:"};
  if (teacher.data == student.data && teacher.seed != student.seed && student.data.find(",seed=") == std::string::npos &&
      std::any_of(drawn.begin(), drawn.end(), [&](const char* kind) { return student.data.starts_with(kind); }))
    log_warning(
        concat(name_settings("the teacher was trained with --seed "), teacher.seed,
               name_settings(", which chose other validation samples than --seed "), student.seed,
               ", unless a file or folder holds them: it has trained on most of them, so errors look better than they are; write ,seed=",
               teacher.seed, name_settings(" behind --data")));
  const std::string kind = "synthetic:";
  if (!teacher.data.starts_with(kind) || !student.data.starts_with(kind)) return;
  const uint64_t teacher_seed = synthetic_seed(teacher.data.substr(kind.size()), teacher.seed);
  const uint64_t student_seed = synthetic_seed(student.data.substr(kind.size()), student.seed);
  if (teacher_seed != student_seed)
    fail(ErrorCode::kBadInput, "it was trained on synthetic data with the seed ", teacher_seed, ", and here the seed is ", student_seed,
         name_settings("; give --data "), kind, "...,seed=", teacher_seed);
}

class TeacherFile : public Teacher {
 public:
  TeacherFile(const Opened& opened, const DataSource& own)
      : model_(restore_model(opened.file, shape_of(opened.trained))),
        is_compressed_(opened.file.compressed()),
        title_(concat(opened.file.config().model, ", step ", opened.file.step(), " of ", opened.file.given())) {
    if (is_compressed_)
      for (const CompressedLayer& layer : opened.file.compressed()->layers) joins_layers_ |= layer.form != CompressedLayer::Form::kDynamic;
    find_scales(opened.trained, own);
    ValueHash hash;
    hash.add(opened.file.config().model);
    if (is_compressed_) hash.add(std::to_string(SafetensorsFile(opened.file.path()).checksum()));
    else add_tensors(hash);
    if (factor_.defined())
      for (const at::Tensor& scale : {factor_, offset_}) hash.add(scale.const_data_ptr(), scale.nbytes());
    fingerprint_ = hash.text();
  }

  const std::string& title() const override { return title_; }
  const std::string& fingerprint() const override { return fingerprint_; }
  at::Tensor scores(const at::Tensor& input) override {
    const at::NoGradGuard no_grad;
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    // LibTorch's int8 kernels run on the CPU only.
    if (const c10::Device device = is_compressed_ ? c10::Device(c10::DeviceType::CPU) : input.device(); device != device_) {
      model_->to(device);
      device_ = device;
    }
    at::Tensor given = input.to(device_);
    if (factor_.defined()) given = given * factor_.to(device_) + offset_.to(device_);
    const at::Tensor scores = model_->forward(given).to(at::kFloat).to(input.device());
    if (taps_) watched_ = taps_->take();
    for (at::Tensor& output : watched_) output = output.to(input.device());
    return scores;
  }
  void watch(const std::vector<std::string>& layers) override {
    if (joins_layers_)
      fail(ErrorCode::kBadInput, name_settings("--hint"), ": the teacher's layers: ", title_,
           " computes several of them at once in int8; give the run that it was made from");
    taps_ = std::make_unique<LayerTaps>(*model_, layers, concat(name_settings("--hint"), ": the teacher's layers"));
  }
  std::vector<at::Tensor> watched() override { return std::move(watched_); }

 private:
  /// Factor and offset from the normalisation of the student's data to that of the teacher's.
  void find_scales(const DataDescription& trained, const DataSource& own) {
    if (trained.input == DataDescription::Input::kText) return;
    const std::vector<ValueScale> from = value_scales(own.describe()), to = value_scales(trained);
    if (from == to || from.size() != to.size()) return;
    std::vector<float> factor, offset;
    for (size_t i = 0; i < from.size(); ++i) {
      factor.push_back(static_cast<float>(from[i].deviation / to[i].deviation));
      offset.push_back(static_cast<float>((from[i].mean - to[i].mean) / to[i].deviation));
    }
    factor_ = at::tensor(factor).reshape(trained.shape);
    offset_ = at::tensor(offset).reshape(trained.shape);
  }

  void add_tensors(ValueHash& hash) const {
    std::vector<NamedTensor> tensors = distinct_parameters(*model_);
    for (NamedTensor& buffer : distinct_buffers(*model_)) tensors.push_back(std::move(buffer));
    for (const auto& [name, tensor] : tensors) {
      hash.add(name);
      hash.add(tensor.const_data_ptr(), tensor.nbytes());
    }
  }

  std::shared_ptr<LayerGraph> model_;
  bool is_compressed_, joins_layers_ = false;
  c10::Device device_ = c10::Device(c10::DeviceType::CPU);
  at::Tensor factor_, offset_;  // Undefined where both have the same normalisation.
  std::string title_, fingerprint_;
  std::unique_ptr<LayerTaps> taps_;  // Null where no layer is watched.
  std::vector<at::Tensor> watched_;
};

[[maybe_unused]] const bool kIsRegistered = register_teacher_opener(
    {.check = [](const Config& student,
                 const DataSet& data) { check_same_seed(open_checked(student.teacher, data).file.config(), student); },
     .open = [](const std::string& path, const DataSet& data) -> std::unique_ptr<Teacher> {
       return std::make_unique<TeacherFile>(open_checked(path, data), *data.train);
     }});

}  // namespace
}  // namespace cohort
