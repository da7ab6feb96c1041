#include "cohort/data/images/picture_source.h"

#include <algorithm>
#include <utility>

#include "cohort/base/fail.h"
#include "cohort/data/images/image_source.h"
#include "cohort/data/images/resize_images.h"
#include "cohort/data/source/in_threads.h"
#include "cohort/data/source/split.h"

namespace cohort {

Picture shaped_picture(std::span<const uint8_t> file, const std::string& what, const PictureForm& form) {
  Picture picture = with_channels(decode_picture(file, what), form.size.channels);
  if (picture.size == form.size) return picture;
  if (!form.resized)
    fail(ErrorCode::kBadInput, what, " has ", picture.size.width, " x ", picture.size.height, " pixels, expected ", form.size.width, " x ",
         form.size.height);
  Picture out{form.size, std::vector<uint8_t>(static_cast<size_t>(form.size.num_bytes()))};
  Resizer resizer(picture.size.height, picture.size.width, form.size.height, form.size.width);
  for (int64_t c = 0; c < form.size.channels; ++c)
    resizer.resize(picture.bytes.data() + c * picture.size.height * picture.size.width,
                   out.bytes.data() + c * form.size.height * form.size.width);
  return out;
}

PictureSource::PictureSource(std::shared_ptr<const PictureStore> store, DataDescription description, std::vector<int64_t> samples)
    : store_(std::move(store)),
      description_(std::move(description)),
      shape_{DataShape::Kind::kImage, description_.shape, description_.num_outputs, description_.class_names, false, description_.labels},
      samples_(std::move(samples)) {
  for (size_t c = 0; c < description_.mean.size(); ++c)
    tables_.push_back(normalised_bytes(description_.mean[c], description_.deviation[c]));
}

void PictureSource::read(std::span<const int64_t> indices, Batch& batch) const {
  const int64_t elements = shape_.input_elements(), plane = elements / std::ssize(tables_);
  resize_batch(batch, shape_, std::ssize(indices));
  const auto take = [&](int64_t i) {
    check_index(indices[static_cast<size_t>(i)], num_samples());
    const int64_t file = samples_[static_cast<size_t>(indices[static_cast<size_t>(i)])];
    Picture picture;
    const uint8_t* in = store_->decoded.data() + file * elements;
    if (store_->decoded.size() == 0) {
      picture = store_->decode(file);
      in = picture.bytes.data();
    }
    float* out = batch.values.data() + i * elements;
    for (const auto& table : tables_)
      for (int64_t at = 0; at < plane; ++at) *out++ = table[*in++];
    const int64_t labels = shape_.num_classes;
    if (shape_.labels) std::copy_n(store_->has_label.data() + file * labels, labels, batch.numbers.data() + i * labels);
    else batch.targets[static_cast<size_t>(i)] = store_->files[static_cast<size_t>(file)].label;
  };
  in_threads(store_->decoded.size() == 0 ? store_->num_threads : 1, std::ssize(indices), take);
}

}  // namespace cohort
