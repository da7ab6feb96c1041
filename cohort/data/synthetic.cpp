// Synthetic data, computed when read. Numbers are hashes of (seed, sample, position), so samples are independent of each other.
//
// Pictures. A class is a pattern of +1 and -1, drawn from (seed, class); in a picture of several rows a sign covers a block of 4x4 pixels,
// so that it survives convolution and pooling. Sample i has class i mod classes and value (sign + noise g) / sqrt(1 + noise^2) (mean 0,
// variance 1), where g is the sum of four uniform bytes, centred and scaled to variance 1: near a normal distribution (Irwin-Hall), in
// integer arithmetic, two a hash.
//
// Labels. Each has such a pattern, and sample i has each label with probability 1/4, drawn from (seed, i, label). The sum of the patterns
// of its labels, over the root of their number, replaces the sign.
//
// Text. A Markov chain of order 2 over 27 symbols (letters and the blank): after the pair (a, b) come four candidates, drawn from (seed, a,
// b), with probabilities 1/2, 1/4, 1/8 and 1/8, so the entropy is at most 1.75 bits (1.213 nats) per byte. Samples are independent chains.

#include "cohort/data/source/openers.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <optional>
#include <utility>

#include "cohort/base/fail.h"
#include "cohort/base/random.h"
#include "cohort/base/text/text.h"
#include "cohort/data/source/byte_buffer.h"
#include "cohort/data/source/data_settings.h"
#include "cohort/data/source/split.h"

namespace cohort {
namespace {

enum Stream : uint64_t { kPatternStream = 1, kNoiseStream, kChainStream, kTextStream, kLabelStream };

constexpr int64_t kMaxElements = 1 << 22, kMaxClasses = 1 << 16, kMaxContext = 1 << 20;
constexpr double kMaxNoise = 1000;
constexpr int64_t kBlockSide = 4;

/// Sum of four bytes: mean 510, variance 4 (256^2 - 1) / 12.
constexpr int kByteSumMean = 510;
const double kByteSumDeviation = std::sqrt((256.0 * 256.0 - 1) / 3);

int sum_of_bytes(uint32_t bits) { return static_cast<int>((bits & 255) + (bits >> 8 & 255) + (bits >> 16 & 255) + (bits >> 24)); }

class SyntheticImages : public DataSource {
 public:
  SyntheticImages(DataShape shape, double noise, uint64_t seed, int64_t begin, int64_t end)
      : shape_(std::move(shape)), seed_(seed), begin_(begin), end_(end) {
    const double scale = 1 / std::sqrt(1 + noise * noise);
    sign_scale_ = static_cast<float>(scale);
    noise_scale_ = static_cast<float>(noise * scale / kByteSumDeviation);
    number_blocks();
  }

  const DataShape& shape() const override { return shape_; }
  int64_t num_samples() const override { return end_ - begin_; }

  void read(std::span<const int64_t> indices, Batch& batch) const override {
    const int64_t elements = std::ssize(block_of_);
    resize_batch(batch, shape_, static_cast<int64_t>(indices.size()));
    std::vector<float> signs(static_cast<size_t>(num_blocks_));
    float* out = batch.values.data();
    for (size_t i = 0; i < indices.size(); ++i, out += elements) {
      check_index(indices[i], num_samples());
      const int64_t sample = begin_ + indices[i];
      if (shape_.labels) {
        draw_labels(sample, batch.numbers.data() + static_cast<int64_t>(i) * shape_.num_classes, signs);
      } else {
        batch.targets[i] = sample % shape_.num_classes;
        draw_signs(batch.targets[i], signs);
      }
      const uint64_t key = random_bits(seed_, kNoiseStream, sample);
      for (int64_t at = 0; at < elements; at += 2) {
        const uint64_t bits = mix64(key + static_cast<uint64_t>(at));
        out[at] = value_at(at, signs, static_cast<uint32_t>(bits));
        if (at + 1 < elements) out[at + 1] = value_at(at + 1, signs, static_cast<uint32_t>(bits >> 32));
      }
    }
  }

 private:
  void number_blocks() {
    const bool flat = shape_.input.size() == 1;
    const int64_t side = flat ? 1 : kBlockSide, channels = flat ? 1 : shape_.input[0], height = flat ? 1 : shape_.input[1],
                  width = shape_.input.back();
    const int64_t rows = (height + side - 1) / side, columns = (width + side - 1) / side;
    num_blocks_ = channels * rows * columns;
    block_of_.reserve(static_cast<size_t>(channels * height * width));
    for (int64_t c = 0; c < channels; ++c) {
      for (int64_t y = 0; y < height; ++y) {
        for (int64_t x = 0; x < width; ++x) block_of_.push_back(static_cast<int32_t>((c * rows + y / side) * columns + x / side));
      }
    }
  }

  void draw_signs(int64_t label, std::vector<float>& signs) const {
    const uint64_t key = random_bits(seed_, kPatternStream, label);
    uint64_t bits = 0;
    for (size_t block = 0; block < signs.size(); ++block, bits >>= 1) {
      if (block % 64 == 0) bits = mix64(key + block);
      signs[block] = bits & 1 ? sign_scale_ : -sign_scale_;
    }
  }

  /// Draws num_classes labels; `signs` becomes the normalised sum of their patterns.
  void draw_labels(int64_t sample, float* labels, std::vector<float>& signs) const {
    std::fill(signs.begin(), signs.end(), 0.0F);
    std::vector<float> pattern(signs.size());
    int64_t count = 0;
    for (int64_t label = 0; label < shape_.num_classes; ++label) {
      labels[label] = random_bits(seed_, kLabelStream, sample, label) >> 62 == 0 ? 1.0F : 0.0F;
      if (labels[label] == 0) continue;
      ++count;
      draw_signs(label, pattern);
      for (size_t block = 0; block < signs.size(); ++block) signs[block] += pattern[block];
    }
    for (float& sign : signs) sign /= std::sqrt(static_cast<float>(std::max<int64_t>(1, count)));
  }

  float value_at(int64_t at, const std::vector<float>& signs, uint32_t bits) const {
    return signs[static_cast<size_t>(block_of_[static_cast<size_t>(at)])] +
           noise_scale_ * static_cast<float>(sum_of_bytes(bits) - kByteSumMean);
  }

  DataShape shape_;
  uint64_t seed_;
  int64_t begin_, end_, num_blocks_ = 0;
  float sign_scale_, noise_scale_;
  std::vector<int32_t> block_of_;  // Per position of a sample: which sign of the pattern it takes.
};

class SyntheticText : public DataSource {
 public:
  SyntheticText(int64_t context, uint64_t seed, int64_t begin, int64_t end)
      : shape_{DataShape::Kind::kText, {context}, 256, {}}, seed_(seed), begin_(begin), end_(end) {
    for (uint64_t pair = 0; pair < next_.size(); ++pair) {
      for (uint64_t k = 0; k < 4; ++k)
        next_[pair][k] = static_cast<uint8_t>((random_bits(seed, kChainStream, pair, k) >> 32) * kSymbols >> 32);
    }
  }

  const DataShape& shape() const override { return shape_; }
  int64_t num_samples() const override { return end_ - begin_; }

  void read(std::span<const int64_t> indices, Batch& batch) const override {
    const size_t context = static_cast<size_t>(shape_.input[0]);
    resize_batch(batch, shape_, static_cast<int64_t>(indices.size()));
    for (size_t i = 0; i < indices.size(); ++i) {
      check_index(indices[i], num_samples());
      const uint64_t key = random_bits(seed_, kTextStream, begin_ + indices[i]);
      int64_t* tokens = batch.tokens.data() + i * context;
      int64_t* targets = batch.targets.data() + i * context;
      uint64_t pair = (key >> 32) * next_.size() >> 32;  // Where the chain starts.
      for (size_t at = 0; at <= context; ++at) {
        const uint64_t bits = mix64(key + at);
        const uint64_t symbol = next_[pair][kChoice[bits >> 61]];
        if (at < context) tokens[at] = static_cast<unsigned char>(kAlphabet[symbol]);
        if (at > 0) targets[at - 1] = static_cast<unsigned char>(kAlphabet[symbol]);
        pair = pair % kSymbols * kSymbols + symbol;
      }
    }
  }

 private:
  static constexpr uint64_t kSymbols = 27;
  static constexpr char kAlphabet[] = " abcdefghijklmnopqrstuvwxyz";
  static constexpr uint8_t kChoice[8] = {0, 0, 0, 0, 1, 1, 2, 3};

  DataShape shape_;
  uint64_t seed_;
  int64_t begin_, end_;
  std::array<std::array<uint8_t, 4>, kSymbols * kSymbols> next_{};  // Candidates after each pair of symbols.
};

struct Settings {
  std::string shape;
  int64_t num_classes = 10, num_samples = 10000;
  double noise = 1.0;
  bool labels = false;
  std::optional<int64_t> seed = {};
};

Settings parse_settings(const std::string& specification) {
  const bool text = specification == "text" || specification.starts_with("text,");
  const std::vector<std::string> of_text{"samples", "seed"}, of_numbers{"classes", "labels", "samples", "noise", "seed"};
  const DataSettings given("synthetic", specification, text ? of_text : of_numbers);
  if (given.has("classes") && given.has("labels")) given.refuse("a sample has one of classes=N or any of labels=N; give one of the two");
  Settings settings{.shape = given.path(), .labels = given.has("labels")};
  settings.num_classes =
      settings.labels ? given.integer("labels", 1, 1, kMaxClasses) : given.integer("classes", settings.num_classes, 2, kMaxClasses);
  settings.num_samples = given.integer("samples", settings.num_samples, 2, kMaxSamples);
  settings.noise = given.number("noise", settings.noise, 0, kMaxNoise);
  if (given.has("seed")) settings.seed = given.integer("seed", 0, 0, INT64_MAX);
  return settings;
}

std::vector<int64_t> parse_shape(const std::string& what, const std::string& shape) {
  const std::vector<std::string> parts = split(shape, 'x');
  if (parts.size() != 1 && parts.size() != 3) {
    fail(ErrorCode::kBadInput, what, ": expected a shape like 784, 1x28x28 (channels x height x width) or text, found '", shape, "'");
  }
  std::vector<int64_t> sizes;
  int64_t elements = 1;
  for (const std::string& part : parts) {
    const auto size = parse_integer(part);
    if (!size || *size < 1) fail(ErrorCode::kBadInput, what, ": expected a shape like 784, 1x28x28 or text, found '", shape, "'");
    if (*size > kMaxElements / elements)
      fail(ErrorCode::kBadInput, what, ": a sample of ", shape, " has more than the limit of ", kMaxElements, " values");
    elements *= *size;
    sizes.push_back(*size);
  }
  return sizes;
}

}  // namespace

uint64_t synthetic_seed(const std::string& specification, uint64_t otherwise) {
  const std::optional<int64_t> own = parse_settings(specification).seed;
  return own ? static_cast<uint64_t>(*own) : otherwise;
}

DataSet open_synthetic(const std::string& specification, const DataOptions& options) {
  const std::string what = "synthetic:" + specification;
  const Settings settings = parse_settings(specification);
  const int64_t end = settings.num_samples;
  const uint64_t seed = settings.seed ? static_cast<uint64_t>(*settings.seed) : options.seed;
  DataSet data;
  if (settings.shape == "text") {
    if (options.context < 1 || options.context > kMaxContext) {
      fail(ErrorCode::kBadInput, "context: expected 1 to ", kMaxContext, " bytes, found ", options.context);
    }
    const int64_t cut = end - num_validation_samples(what, end, options);
    data.train = std::make_shared<SyntheticText>(options.context, seed, 0, cut);
    data.validation = std::make_shared<SyntheticText>(options.context, seed, cut, end);
    return data;
  }
  const DataShape shape{DataShape::Kind::kImage, parse_shape(what, settings.shape), settings.num_classes, {}, false, settings.labels};
  const int64_t cut = end - num_validation_samples(what, end, options);
  data.train = std::make_shared<SyntheticImages>(shape, settings.noise, seed, 0, cut);
  data.validation = std::make_shared<SyntheticImages>(shape, settings.noise, seed, cut, end);
  return data;
}

}  // namespace cohort
