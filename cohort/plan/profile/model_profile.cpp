// Costs at one micro-batch size from those that were measured at a few.
//
//   1. The points of a key (device, precision, tp) are adjacent in ModelProfile::points, sorted by micro-batch: binary searches find them
//      and the neighbouring sizes. Points of the device itself take precedence over those of any device.
//   2. A measured size has its costs; between two sizes costs are interpolated; with one size they are proportional.
//   3. Beyond the sizes costs are extrapolated from the two outermost sizes. A falling line (noise of cheap layers) continues as constant;
//      below the smallest size a line stays above what is proportional to it (a negative constant comes from a layer that outgrew a cache).
//      So no cost is negative, and none falls as the micro-batch grows.
//   4. Bytes are rounded up, at most 2^44 per layer, so that sums do not overflow. The interval of a layer is interpolated between sizes,
//      and that of the nearest size beyond them.
//
// Cost: log points + layers + edges.

#include "cohort/plan/profile/model_profile.h"

#include <algorithm>
#include <set>
#include <span>
#include <tuple>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"

namespace cohort {
namespace {

constexpr int64_t kMostBytes = INT64_C(1) << 44;  // The limit of check_profile().
constexpr int64_t kMostMicroBatch = INT64_C(1) << 30;

using Points = std::span<const ProfilePoint>;

Points points_of_device(const ModelProfile& profile, const std::string& device, const ProfileKey& key) {
  const auto order = [](const ProfilePoint& point) { return std::tie(point.device, point.precision, point.tp); };
  const auto wanted = std::tie(device, key.precision, key.tp);
  const auto begin = std::partition_point(profile.points.begin(), profile.points.end(), [&](const auto& p) { return order(p) < wanted; });
  const auto end = std::partition_point(begin, profile.points.end(), [&](const auto& p) { return order(p) == wanted; });
  return {begin, end};
}

Points points_of(const ModelProfile& profile, const ProfileKey& key) {
  const Points own = points_of_device(profile, key.device, key);
  return own.empty() ? points_of_device(profile, "", key) : own;
}

/// Position of a micro-batch size among those of the points, of which there is at least one.
class SizePosition {
 public:
  SizePosition(Points points, int64_t micro_batch) : micro_batch_(micro_batch) {
    const auto at = std::partition_point(points.begin(), points.end(), [&](const auto& p) { return p.micro_batch < micro_batch; });
    const size_t behind = static_cast<size_t>(at - points.begin()), last = points.size() - 1;
    is_below_ = behind == 0;
    is_above_ = behind > last;
    is_measured_ = !is_above_ && at->micro_batch == micro_batch;
    const size_t right = std::clamp(behind, std::min<size_t>(1, last), last);
    right_ = is_measured_ ? &*at : &points[right];
    left_ = is_measured_ || last == 0 ? right_ : &points[right - 1];
    near_ = is_above_ ? right_ : left_;
  }

  double seconds(size_t layer, double LayerCost::* member) const {
    const double left = left_->layers[layer].*member, right = right_->layers[layer].*member;
    if (is_measured_) return left;
    const double proportion = near_->layers[layer].*member * static_cast<double>(micro_batch_) / static_cast<double>(near_->micro_batch);
    if (left_ == right_) return proportion;
    const double change = is_between() ? right - left : std::max(0.0, right - left);
    const double step =
        static_cast<double>(micro_batch_ - near_->micro_batch) / static_cast<double>(right_->micro_batch - left_->micro_batch);
    const double on_line = near_->layers[layer].*member + change * step;
    return is_below_ ? std::max(on_line, proportion) : std::max(on_line, 0.0);
  }

  int64_t bytes(size_t layer, int64_t LayerCost::* member) const {
    const int64_t left = left_->layers[layer].*member, right = right_->layers[layer].*member, near = near_->layers[layer].*member;
    if (is_measured_) return left;
    const int64_t proportion = scaled(near, micro_batch_, near_->micro_batch);
    if (left_ == right_) return proportion;
    const int64_t change = is_between() ? right - left : std::max<int64_t>(0, right - left);
    const int64_t on_line = near + scaled(change, micro_batch_ - near_->micro_batch, right_->micro_batch - left_->micro_batch);
    return std::min(kMostBytes, is_below_ ? std::max(on_line, proportion) : on_line);
  }

  double share(size_t layer, double LayerCost::* member) const {
    const double near = near_->layers[layer].*member;
    if (is_measured_ || !is_between()) return near;
    return near + (right_->layers[layer].*member - near) * static_cast<double>(micro_batch_ - left_->micro_batch) /
                      static_cast<double>(right_->micro_batch - left_->micro_batch);
  }

 private:
  bool is_between() const { return !is_below_ && !is_above_; }

  /// value x times / parts, rounded up, within +- kMostBytes. parts > 0.
  static int64_t scaled(int64_t value, int64_t times, int64_t parts) {
    const double about = static_cast<double>(value) * static_cast<double>(times) / static_cast<double>(parts);
    if (about >= static_cast<double>(kMostBytes)) return kMostBytes;
    if (about <= -static_cast<double>(kMostBytes)) return -kMostBytes;
    const int64_t rest = value % parts * times;  // Both are below kMostMicroBatch: no overflow.
    return value / parts * times + rest / parts + (rest % parts > 0 ? 1 : 0);
  }

  int64_t micro_batch_;
  bool is_measured_ = false, is_below_ = false, is_above_ = false;
  const ProfilePoint *left_ = nullptr, *right_ = nullptr, *near_ = nullptr;
};

std::string text_of(const std::string& device, const std::string& precision, int tp) {
  return concat(precision, ", tp=", tp, device.empty() ? "" : ", device " + device);
}

SizePosition position_of(const ModelProfile& profile, const ProfileKey& key) {
  constexpr size_t kMostNamed = 6;
  if (key.micro_batch < 1 || key.micro_batch > kMostMicroBatch)
    fail(ErrorCode::kBadInput, "profile: micro-batch ", key.micro_batch, "; expected 1 to ", kMostMicroBatch);
  const Points points = points_of(profile, key);
  if (points.empty()) {
    std::set<std::string> known;
    for (const ProfilePoint& point : profile.points) known.insert(text_of(point.device, point.precision, point.tp));
    std::vector<std::string> named(known.begin(), known.end());
    if (named.size() > kMostNamed) named.resize(kMostNamed), named.emplace_back("...");
    fail(ErrorCode::kBadInput, "profile: no costs for ", text_of(key.device, key.precision, key.tp),
         "; it has them for: ", join(named, "; "));
  }
  for (const ProfilePoint& point : points)
    if (point.layers.size() != profile.layers.size())
      fail(ErrorCode::kBadInput, "profile: ", point.layers.size(), " costs of ", profile.layers.size(), " layers for ",
           text_of(point.device, point.precision, point.tp), ", micro-batch ", point.micro_batch);
  return SizePosition(points, key.micro_batch);
}

}  // namespace

int64_t ModelProfile::num_trained() const {
  int64_t sum = 0;
  for (const ProfiledLayer& layer : layers) sum += layer.num_trained;
  return sum;
}

bool has_points(const ModelProfile& profile, const ProfileKey& key) { return !points_of(profile, key).empty(); }

std::vector<int64_t> measured_micro_batches(const ModelProfile& profile, const ProfileKey& key) {
  std::vector<int64_t> sizes;
  for (const ProfilePoint& point : points_of(profile, key)) sizes.push_back(point.micro_batch);
  return sizes;
}

Profile profile_at(const ModelProfile& profile, const ProfileKey& key) {
  const SizePosition position = position_of(profile, key);
  Profile out;
  out.model = profile.model;
  out.micro_batch = key.micro_batch;
  out.edges = profile.edges;
  out.tied = profile.tied;
  out.layers.resize(profile.layers.size());
  for (size_t i = 0; i < out.layers.size(); ++i) {
    const ProfiledLayer& from = profile.layers[i];
    LayerProfile& to = out.layers[i];
    to.name = from.name;
    to.kind = from.kind;
    to.forward_seconds = position.seconds(i, &LayerCost::forward_seconds);
    to.backward_input_seconds = position.seconds(i, &LayerCost::backward_input_seconds);
    to.backward_weight_seconds = position.seconds(i, &LayerCost::backward_weight_seconds);
    const int64_t parts = from.tensor_parts % key.tp == 0 ? key.tp : 1, elements = from.num_trained + from.num_frozen;
    to.weight_bytes = 4 * ((elements + parts - 1) / parts);
    to.stash_bytes = position.bytes(i, &LayerCost::stash_bytes);
    to.output_bytes = position.bytes(i, &LayerCost::output_bytes);
    to.working_bytes = position.bytes(i, &LayerCost::working_bytes);
    to.output_kept = from.output_kept;
  }
  return out;
}

const CodingCost* find_coding(const ModelProfile& profile, const std::string& device, const std::string& compress) {
  for (const CodingCost& one : profile.codings)
    if (one.compress == compress && (one.device == device || one.device.empty())) return &one;
  return nullptr;
}

std::pair<double, double> interval_at(const ModelProfile& profile, const ProfileKey& key) {
  const SizePosition position = position_of(profile, key);
  double sum = 0, low = 0, high = 0;
  for (size_t i = 0; i < profile.layers.size(); ++i) {
    const double seconds = position.seconds(i, &LayerCost::forward_seconds) + position.seconds(i, &LayerCost::backward_input_seconds) +
                           position.seconds(i, &LayerCost::backward_weight_seconds);
    sum += seconds;
    low += seconds * position.share(i, &LayerCost::low);
    high += seconds * position.share(i, &LayerCost::high);
  }
  return sum > 0 ? std::pair(std::min(1.0, low / sum), std::max(1.0, high / sum)) : std::pair(1.0, 1.0);
}

}  // namespace cohort
