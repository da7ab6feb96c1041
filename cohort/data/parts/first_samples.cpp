#include "cohort/data/parts/first_samples.h"

#include <utility>

#include "cohort/data/source/split.h"

namespace cohort {
namespace {

class FirstSamples : public DataSource {
 public:
  FirstSamples(std::shared_ptr<const DataSource> whole, int64_t count) : whole_(std::move(whole)), count_(count) {}

  const DataShape& shape() const override { return whole_->shape(); }
  int64_t num_samples() const override { return count_; }
  void read(std::span<const int64_t> indices, Batch& batch) const override {
    for (const int64_t index : indices) check_index(index, count_);
    whole_->read(indices, batch);
  }
  DataDescription describe() const override { return whole_->describe(); }

 private:
  std::shared_ptr<const DataSource> whole_;
  int64_t count_;
};

}  // namespace

std::shared_ptr<const DataSource> first_samples(const std::shared_ptr<const DataSource>& source, int64_t count) {
  if (count < 0 || count >= source->num_samples()) return source;
  return std::make_shared<FirstSamples>(source, count);
}

}  // namespace cohort
