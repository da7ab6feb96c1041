#include "cohort/compress/samples.h"

#include <algorithm>
#include <vector>

#include "cohort/base/fail.h"

namespace cohort {
namespace {

class SpreadSamples : public DataSource {
 public:
  SpreadSamples(const DataSource& whole, int64_t count) : whole_(whole), count_(count) {}

  const DataShape& shape() const override { return whole_.shape(); }
  int64_t num_samples() const override { return count_; }
  void read(std::span<const int64_t> indices, Batch& batch) const override {
    std::vector<int64_t> places;
    for (const int64_t index : indices) places.push_back(index * whole_.num_samples() / count_);
    whole_.read(places, batch);
  }
  DataDescription describe() const override { return whole_.describe(); }

 private:
  const DataSource& whole_;
  int64_t count_;
};

}  // namespace

std::shared_ptr<const DataSource> spread_samples(const DataSource& source, int64_t count) {
  const int64_t num_samples = std::min(count, source.num_samples());
  if (num_samples < 1) fail(ErrorCode::kBadInput, "the data have no sample to calibrate with");
  return std::make_shared<SpreadSamples>(source, num_samples);
}

}  // namespace cohort
