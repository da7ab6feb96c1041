#include "cohort/train/records/mistake_pictures.h"

#include "cohort/base/text/base64.h"
#include "cohort/data/images/picture_of_sample.h"

namespace cohort {

int num_mistakes_of(const DataShape& shape) { return are_pictures(shape) && !shape.has_numbers() ? kMostMistakes : 0; }

MistakesRecord mistakes_record(int64_t step, const std::vector<Mistake>& mistakes, const DataSource& validation,
                               const DataDescription& description) {
  MistakesRecord record{.step = step, .pictures = {}};
  const std::vector<std::string>& names = validation.shape().class_names;
  const auto name = [&](int64_t label) {
    return static_cast<size_t>(label) < names.size() ? names[static_cast<size_t>(label)] : std::to_string(label);
  };
  for (const Mistake& each : mistakes)
    record.pictures.push_back({.sample = each.sample,
                               .label = name(each.label),
                               .predicted = name(each.predicted),
                               .probability = each.probability,
                               .png = to_base64(png_of_sample(validation, description, each.sample))});
  return record;
}

}  // namespace cohort
