#include "cohort/data/source/source.h"

#include "cohort/base/fail.h"

namespace cohort {

int64_t DataShape::input_elements() const {
  int64_t product = 1;
  for (const int64_t size : input) product *= size;
  return product;
}

int64_t DataShape::targets_per_sample() const {
  if (has_numbers()) return num_classes;
  return kind == Kind::kText ? input_elements() : 1;
}

void SkippedData::add(const std::string& sentence) {
  constexpr int64_t kMostSentences = 20;
  if (count++ < kMostSentences) first.push_back(sentence);
}

void SkippedData::add_or_fail(const std::string& sentence, bool skip_bad, const char* what) {
  if (!skip_bad) fail(ErrorCode::kBadInput, sentence, name_settings("; --skip-bad leaves such "), what, " out and counts them");
  add(sentence);
}

DataDescription DataSource::describe() const {
  const DataShape& data = shape();
  DataDescription description;
  description.input = data.kind == DataShape::Kind::kText ? DataDescription::Input::kText : DataDescription::Input::kTensor;
  description.shape = data.input;
  description.regression = data.regression;
  description.labels = data.labels;
  description.num_outputs = data.num_classes;
  description.class_names = data.class_names;
  if (data.regression) description.targets.resize(static_cast<size_t>(data.num_classes));
  return description;
}

}  // namespace cohort
