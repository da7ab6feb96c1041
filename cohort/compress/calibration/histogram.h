#pragma once
// How often a tensor had which values, of all samples of a calibration. Torch-free.

#include <cstddef>
#include <span>
#include <vector>

namespace cohort {

struct ValueRange {
  double low = 0, high = 0;
};

/// Bins of equal width over a range that holds zero, because codes have to have one for it. Values outside are counted in the last bin of
/// their side, those that are no number not at all.
class Histogram {
 public:
  static constexpr size_t kNumBins = 2048;

  Histogram() = default;
  explicit Histogram(ValueRange range);

  void add(std::span<const float> values);

  const ValueRange& range() const { return range_; }
  bool is_empty() const { return total_ == 0; }
  double total() const { return total_; }
  double width() const { return (range_.high - range_.low) / kNumBins; }
  double middle(size_t bin) const { return range_.low + (static_cast<double>(bin) + 0.5) * width(); }
  const std::vector<double>& counts() const { return counts_; }

 private:
  ValueRange range_;
  std::vector<double> counts_ = std::vector<double>(kNumBins);
  double total_ = 0;
};

}  // namespace cohort
