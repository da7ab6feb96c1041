#include "cohort/data/registry.h"

#include <algorithm>
#include <exception>
#include <memory>
#include <new>
#include <utility>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"
#include "cohort/data/registered_data.h"

namespace cohort {
namespace {

std::map<std::string, DataEntry>& mutable_data() {
  static std::map<std::string, DataEntry> data;
  return data;
}

/// Validates the batches of a user's source before they become tensors: short vectors would be read out of bounds.
class CheckedSource : public DataSource {
 public:
  CheckedSource(std::string name, std::shared_ptr<const DataSource> source) : name_(std::move(name)), source_(std::move(source)) {}

  const DataShape& shape() const override { return source_->shape(); }
  int64_t num_samples() const override { return source_->num_samples(); }
  DataDescription describe() const override { return source_->describe(); }
  void read(std::span<const int64_t> indices, Batch& batch) const override {
    source_->read(indices, batch);
    const DataShape& data = shape();
    const int64_t samples = std::ssize(indices), inputs = samples * data.input_elements(), targets = samples * data.targets_per_sample();
    const bool is_text = data.kind == DataShape::Kind::kText;
    check("samples", batch.num_samples, samples);
    check(is_text ? "tokens" : "values", is_text ? std::ssize(batch.tokens) : std::ssize(batch.values), inputs);
    check(data.has_numbers() ? "numbers" : "targets", data.has_numbers() ? std::ssize(batch.numbers) : std::ssize(batch.targets), targets);
    check_range("target", batch.targets, data.num_classes);
    if (data.labels) check_labels(batch.numbers);
    if (is_text) check_range("token", batch.tokens, data.vocabulary());
  }

 private:
  void check(const char* what, int64_t found, int64_t expected) const {
    if (found != expected)
      fail(ErrorCode::kBadInput, "data ", name_, ": read() gave ", found, " ", what, ", expected ", expected,
           "; see Batch in cohort/data/source/source.h");
  }
  void check_range(const char* what, const std::vector<int64_t>& numbers, int64_t end) const {
    const auto wrong = std::find_if(numbers.begin(), numbers.end(), [&](int64_t number) { return number < 0 || number >= end; });
    if (wrong != numbers.end())
      fail(ErrorCode::kBadInput, "data ", name_, ": read() gave the ", what, " ", *wrong, ", expected 0 to ", end - 1,
           " (num_classes - 1)");
  }
  void check_labels(const std::vector<float>& numbers) const {
    const auto wrong = std::find_if(numbers.begin(), numbers.end(), [](float number) { return number != 0 && number != 1; });
    if (wrong != numbers.end()) fail(ErrorCode::kBadInput, "data ", name_, ": read() gave the label ", *wrong, ", expected 0 or 1");
  }

  std::string name_;
  std::shared_ptr<const DataSource> source_;
};

void check_shape(const std::string& name, const char* part, const DataSource* source, const DataShape& first) {
  if (!source) fail(ErrorCode::kBadInput, "data ", name, ": its factory gave no source for ", part);
  if (source->num_samples() < 1) fail(ErrorCode::kBadInput, "data ", name, ": its source for ", part, " has no samples");
  const DataShape& shape = source->shape();
  for (const int64_t size : shape.input)
    if (size < 1) fail(ErrorCode::kBadInput, "data ", name, ": its shape for ", part, " has the size ", size);
  if (shape.input.empty() || shape.num_classes < 1)
    fail(ErrorCode::kBadInput, "data ", name, ": its shape for ", part, " has ", shape.input.size(), " sizes and ", shape.num_classes,
         " classes: expected at least one of each");
  if (shape.labels && (shape.regression || shape.kind == DataShape::Kind::kText))
    fail(ErrorCode::kBadInput, "data ", name, ": its shape for ", part, " has labels and is ", shape.regression ? "a regression" : "text",
         " too: expected one of the two");
  if (shape.kind != first.kind || shape.input != first.input || shape.num_classes != first.num_classes ||
      shape.regression != first.regression || shape.labels != first.labels)
    fail(ErrorCode::kBadInput, "data ", name, ": samples for ", part, " have another shape than those for training");
}

}  // namespace

void register_data(const std::string& name, const std::string& help, DataFactory factory) {
  if (name.empty() || name.find_first_of(":,= \t\n") != std::string::npos)
    fail(ErrorCode::kBadInput, "data cannot be registered as '", printable(name),
         "': a name is not empty and holds no ':', ',', '=' or space");
  if (!factory) fail(ErrorCode::kBadInput, "data ", name, " cannot be registered without a factory");
  if (is_built_in_data(name) || !mutable_data().emplace(name, DataEntry{name, help, std::move(factory)}).second)
    fail(ErrorCode::kBadInput, "data ", name, " cannot be registered: the name is taken");
}

const std::map<std::string, DataEntry>& registered_data() { return mutable_data(); }

DataSet open_registered(const DataEntry& entry, const std::string& specification, const std::string& argument, const DataOptions& options) {
  DataSet data;
  try {
    data = entry.factory(argument, options);
  } catch (const Error&) {
    throw;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    fail(ErrorCode::kBadInput, "data ", entry.name, ": its factory failed (", printable(first_line(error.what())), ")");
  }
  if (!data.train) fail(ErrorCode::kBadInput, "data ", entry.name, ": its factory gave no source for training");
  const DataShape& first = data.train->shape();
  check_shape(entry.name, "training", data.train.get(), first);
  check_shape(entry.name, "validation", data.validation.get(), first);
  if (data.test) check_shape(entry.name, "test", data.test.get(), first);
  for (auto* source : {&data.train, &data.validation, &data.test})
    if (*source) *source = std::make_shared<CheckedSource>(entry.name, std::move(*source));
  data.name = specification;
  return data;
}

}  // namespace cohort
