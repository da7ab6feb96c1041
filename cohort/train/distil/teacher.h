#pragma once
// A trained model whose scores a student learns from (--teacher), and what its layers gave. How such a model is opened is the business of
// infer/, which stands above this room: it registers itself.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cohort/data/source/source.h"
#include "cohort/job/config.h"
#include "cohort/models/graph/layer_graph.h"

namespace cohort {

// What layers of a model gave in its newest forward.

/// Puts itself behind functions of `model`, which may outlive it. One thread.
class LayerTaps {
 public:
  /// Error(kBadInput) that begins with `option` for a layer that the model does not have.
  LayerTaps(LayerGraph& model, const std::vector<std::string>& layers, const std::string& option);

  /// In the order of the names; undefined where no forward has been since the last call. Kept no longer here.
  std::vector<at::Tensor> take() const;

 private:
  std::shared_ptr<std::vector<at::Tensor>> outputs_;
};

/// One thread.
class Teacher {
 public:
  virtual ~Teacher() = default;
  Teacher() = default;
  Teacher(const Teacher&) = delete;
  Teacher& operator=(const Teacher&) = delete;

  /// "cnn, step 500 of runs/big".
  virtual const std::string& title() const = 0;
  /// 16 hexadecimal digits (XXH3) of its weights, its model and how it takes its inputs.
  virtual const std::string& fingerprint() const = 0;
  /// {samples, ..., classes} in fp32 for inputs as the student's data have them; in eval mode, without gradients, whatever the student's
  /// precision is.
  virtual at::Tensor scores(const at::Tensor& input) = 0;

  /// From now on scores() keeps what these layers give. Once; Error(kBadInput) for a layer that it does not have.
  virtual void watch(const std::vector<std::string>& layers) = 0;
  /// What they gave in the last scores(), on that input's device; in their order.
  virtual std::vector<at::Tensor> watched() = 0;
};

/// Scores of all targets of a sample.
int64_t scores_of_sample(const DataShape& shape);

/// config.teacher for students on `data`, with its weights. Error(kBadInput) in one line that begins with the option: a file that is
/// missing, damaged or no trained model, and one of other data or classes.
std::unique_ptr<Teacher> open_teacher(const Config& config, const DataSet& data);
/// The same without reading weights, and what else cannot be about its settings; nothing where there is no teacher.
void check_teacher(const Config& config, const DataSet& data);

/// How trained/ does it; `open` may throw Error(kBadInput).
struct TeacherOpener {
  void (*check)(const Config& student, const DataSet& data) = nullptr;
  std::unique_ptr<Teacher> (*open)(const std::string& path, const DataSet& data) = nullptr;
};
/// At namespace scope of one file; returns true.
bool register_teacher_opener(TeacherOpener opener);

}  // namespace cohort
