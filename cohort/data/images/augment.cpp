#include "cohort/data/images/augment.h"

#include <algorithm>

#include "cohort/base/fail.h"
#include "cohort/base/files/safetensors.h"
#include "cohort/base/random.h"
#include "cohort/base/text/strict_json.h"
#include "cohort/base/text/text.h"

namespace cohort {
namespace {

constexpr int64_t kSideFraction = 8;   // Pictures move by up to a side / kSideFraction.
constexpr uint64_t kKey = 0x61756761;  // Separates its random stream from others.

struct Words {
  bool crop = false, flip = false;
};

Words parse(const std::string& text) {
  Words words;
  if (text == "none") return words;
  for (const std::string& word : text.empty() ? std::vector<std::string>{""} : split(text, ',')) {
    bool* const chosen = word == "crop" ? &words.crop : word == "flip" ? &words.flip : nullptr;
    if (!chosen || *chosen)
      fail(ErrorCode::kBadInput, name_settings("--augment "), quote_text(text), " is none of: crop, flip, crop,flip, none");
    *chosen = true;
  }
  return words;
}

/// Position `at` reflected into [0, size).
int64_t reflected(int64_t at, int64_t size) {
  if (size == 1) return 0;
  const int64_t period = 2 * (size - 1), inside = ((at % period) + period) % period;
  return inside < size ? inside : period - inside;
}

/// Uniform in [-most, most] from 16 bits.
int64_t shift_of(uint64_t bits, int64_t most) {
  return static_cast<int64_t>((bits & 0xffff) * static_cast<uint64_t>(2 * most + 1) >> 16) - most;
}

}  // namespace

Augmentation::Augmentation(const std::string& text, const DataShape& shape, uint64_t seed) : seed_(seed) {
  const Words words = parse(text);
  crops_ = words.crop;
  flips_ = words.flip;
  if (!is_on()) return;
  if (shape.kind != DataShape::Kind::kImage || shape.input.size() != 3)
    fail(ErrorCode::kBadInput, name_settings("--augment "), text, " changes pictures, and a sample of these data is ",
         shape.kind == DataShape::Kind::kText ? std::string("text") : shape_text(shape.input), "; leave it out");
  channels_ = shape.input[0];
  height_ = shape.input[1];
  width_ = shape.input[2];
}

/// `plane` is a scratch copy of one channel.
void Augmentation::move(float* sample, std::vector<float>& plane, uint64_t bits) const {
  const int64_t down = crops_ ? shift_of(bits >> 1, height_ / kSideFraction) : 0;
  const int64_t right = crops_ ? shift_of(bits >> 17, width_ / kSideFraction) : 0;
  const bool mirrored = flips_ && (bits & 1) != 0;
  if (down == 0 && right == 0 && !mirrored) return;
  for (int64_t channel = 0; channel < channels_; ++channel) {
    float* const pixels = sample + channel * height_ * width_;
    std::copy(pixels, pixels + height_ * width_, plane.begin());
    for (int64_t row = 0; row < height_; ++row) {
      const float* const from = plane.data() + reflected(row + down, height_) * width_;
      float* const to = pixels + row * width_;
      for (int64_t column = 0; column < width_; ++column)
        to[column] = from[reflected((mirrored ? width_ - 1 - column : column) + right, width_)];
    }
  }
}

void Augmentation::apply(Batch& batch, std::span<const int64_t> indices, int64_t step) const {
  if (!is_on()) return;
  std::vector<float> plane(static_cast<size_t>(height_ * width_));
  const int64_t elements = channels_ * height_ * width_;
  for (size_t i = 0; i < indices.size(); ++i)
    move(batch.values.data() + static_cast<int64_t>(i) * elements, plane, random_bits(seed_, kKey, step, indices[i]));
}

}  // namespace cohort
