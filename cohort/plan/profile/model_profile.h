#pragma once
// What the layers of a model cost at several micro-batch sizes, in several precisions, divided among several ranks: what a plan is made
// from. Measured, or from shapes (analytic_profile.h). Torch-free; a file is docs/formats/profile.md. A Profile (plan/profile/profile.h) is
// what this one says for one micro-batch size.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "cohort/base/text/json_fwd.h"
#include "cohort/plan/profile/cluster.h"
#include "cohort/plan/profile/profile.h"

namespace cohort {

/// The properties of a layer that do not depend on the micro-batch size.
struct ProfiledLayer {
  std::string name, kind;
  int64_t num_trained = 0;   ///< Trained elements.
  int64_t num_frozen = 0;    ///< Frozen elements.
  int64_t buffer_bytes = 0;  ///< Running statistics.
  OutputKept output_kept = OutputKept::kNo;
  int tensor_parts = 1;          ///< Under tp a degree that divides this number divides the layer; 1: every rank has all of it.
  int num_tensor_exchanges = 0;  ///< All-reduces of its output in forward where it is divided, and as many in backward.
};

/// One layer, one micro-batch, one rank of `tp`, without exchanges.
struct LayerCost {
  double forward_seconds = 0, backward_input_seconds = 0, backward_weight_seconds = 0;
  double low = 1, high = 1;  ///< 90 % of the repeats took from `low` to `high` times these seconds. low <= 1 <= high.
  int64_t stash_bytes = 0;   ///< As in LayerProfile.
  int64_t output_bytes = 0;
  int64_t working_bytes = 0;  ///< As in LayerProfile; 0: unknown.
};

struct ProfilePoint {
  std::string device;  ///< Name of a kind of device of a cluster; "": of whatever devices there are, if they are of one kind.
  std::string precision = "fp32";
  int tp = 1;
  int64_t micro_batch = 1;
  std::vector<LayerCost> layers;  ///< One a layer.
};

/// What compressing the gradients of the whole model costs a rank in a step.
struct CodingCost {
  std::string device;     ///< As in ProfilePoint.
  std::string compress;   ///< A value of Layout::compress.
  double seconds = 0;     ///< To compress and decompress.
  double sent_share = 1;  ///< Bytes sent for each byte of fp32 gradients, between two ranks.
  int num_exchanges = 1;  ///< Sequential exchanges for each exchange without compression.
};

struct ModelProfile {
  std::string model, source;
  std::vector<ProfiledLayer> layers;
  std::vector<std::pair<int, int>> edges;  ///< As in Profile.
  std::vector<std::pair<int, int>> tied;   ///< As in Profile; the weight counts in its owner alone.
  int64_t sample_granularity = 1;          ///< Samples that a norm keeps together; above 1 a step is not cut into pieces.
  std::vector<ProfilePoint> points;        ///< Sorted by device, precision, tp, micro_batch; no duplicates.
  std::vector<CodingCost> codings;         ///< Those that were measured; others are taken from the speed of memory.
  /// Where it was measured: for each number of workers that ran side by side a cluster of that many, whose device the points name. Empty
  /// where it was not measured here.
  std::vector<Cluster> measured_on;

  int64_t num_trained() const;
};

/// Selects the costs of a profile.
struct ProfileKey {
  std::string device;  ///< A name of Cluster::devices.
  std::string precision;
  int tp = 1;
  int64_t micro_batch = 1;
};

/// Whether there are points for this device (or for any), precision and tp.
bool has_points(const ModelProfile& profile, const ProfileKey& key);
/// Micro-batch sizes that were measured for it, rising.
std::vector<int64_t> measured_micro_batches(const ModelProfile& profile, const ProfileKey& key);

/// The costs at one micro-batch size: as measured, on the line between the sizes beside it, or beyond them on the line through the two
/// outermost (through 0 where there is one), where none is negative or falls as the micro-batch rises. weight_bytes are 4 bytes an element
/// divided by tp where the layer divides; link numbers stay 0. Error(kBadInput) where has_points() is false.
Profile profile_at(const ModelProfile& profile, const ProfileKey& key);
/// Null where it was not measured for this device.
const CodingCost* find_coding(const ModelProfile& profile, const std::string& device, const std::string& compress);
/// The interval of all costs together: the sums of seconds x low and seconds x high over the sum of seconds.
std::pair<double, double> interval_at(const ModelProfile& profile, const ProfileKey& key);

/// Error(kBadInput) that says what is missing or wrong, with its place; unknown keys are refused. At most 65,536 layers, 4,096 points and
/// 16 Mi numbers (7 a layer and point); a file of at most 128 MiB. The one-size form of to_json(Profile) is read too, as one point.
ModelProfile model_profile_from_json(const Json& json, const std::string& where);
Json to_json(const ModelProfile& profile);
ModelProfile read_model_profile(const std::string& path);

}  // namespace cohort
