#include "cohort/data/images/mnist.h"

#include <filesystem>
#include <utility>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/data/images/idx.h"
#include "cohort/data/images/image_source.h"
#include "cohort/data/images/test_set.h"

namespace cohort {
namespace {

constexpr char kDebianFolder[] = "/usr/share/datasets/fashion-mnist";

/// The file of `stem` ("train-images") and `suffix` ("idx3-ubyte") under the first of its names that exists in `folder`, or "".
std::string find_part(const std::string& folder, const std::string& stem, const std::string& suffix) {
  for (const char* joint : {"-", "."}) {  // The second is what some archives unpack to.
    for (const char* ending : {"", ".gz"}) {
      const std::string path = (std::filesystem::path(folder) / concat(stem, joint, suffix, ending)).string();
      std::error_code error;
      if (std::filesystem::exists(path, error)) return path;
    }
  }
  return "";
}

struct Files {
  std::string images, labels;
};

/// Of "train" or "t10k"; without names where they are not there. Half a pair is an error: silently training on other data would be worse.
Files find_set(const std::string& folder, const std::string& set) {
  const std::string images = set + "-images", labels = set + "-labels";
  const Files files{find_part(folder, images, "idx3-ubyte"), find_part(folder, labels, "idx1-ubyte")};
  if (files.images.empty() == files.labels.empty()) return files;
  if (files.labels.empty()) fail(ErrorCode::kBadInput, files.images, " has no labels beside it: expected ", labels, "-idx1-ubyte[.gz]");
  fail(ErrorCode::kBadInput, files.labels, " has no images beside it: expected ", images, "-idx3-ubyte[.gz]");
}

struct Sets {
  Files train, test;  ///< The latter without names where there is none.
};

/// The train files with the t10k files as test set, or the t10k files alone.
Sets find_sets(const std::string& folder, const std::string& advice) {
  std::error_code error;
  if (!std::filesystem::exists(folder, error)) fail(ErrorCode::kBadInput, "no folder ", folder, advice);
  if (!std::filesystem::is_directory(folder, error)) fail(ErrorCode::kBadInput, folder, " is not a folder: expected one with IDX files");
  Files train = find_set(folder, "train"), test = find_set(folder, "t10k");
  if (!train.images.empty()) return {train, test};
  if (!test.images.empty()) return {test, {}};
  fail(ErrorCode::kBadInput, folder, " has no IDX files: expected train-images-idx3-ubyte[.gz] and train-labels-idx1-ubyte[.gz]", advice);
}

ImagePixels read_set(const Files& files, DataShape& shape) {
  IdxImages images;
  IdxLabels labels;
  read_idx_pair(files.images, files.labels, shape.num_classes, images, labels);
  shape.input = {1, images.rows, images.columns};
  return {std::move(images.pixels), std::move(labels.labels)};
}

DataSet open_idx_folder(const std::string& folder, std::vector<std::string> class_names, const DataOptions& options,
                        const std::string& advice) {
  const Sets sets = find_sets(folder, advice);
  const int64_t num_classes = static_cast<int64_t>(class_names.size());
  DataShape shape{DataShape::Kind::kImage, {}, num_classes, std::move(class_names)};
  ImagePixels pixels = read_set(sets.train, shape);
  DataSet data = split_images(sets.train.images, std::move(pixels), shape, options);
  if (sets.test.images.empty()) return data;
  pixels = read_set(sets.test, shape);
  data.test = test_pictures(dynamic_cast<const ImageSource&>(*data.train), sets.test.images, std::move(pixels), shape, options);
  return data;
}

}  // namespace

DataSet open_mnist(const std::string& folder, const DataOptions& options) {
  return open_idx_folder(folder, {"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"}, options, "");
}

DataSet open_fashion_mnist(const std::string& folder, const DataOptions& options) {
  const std::vector<std::string> names{"T-shirt/top", "Trouser", "Pullover", "Dress", "Coat",
                                       "Sandal",      "Shirt",   "Sneaker",  "Bag",   "Ankle boot"};
  if (!folder.empty()) return open_idx_folder(folder, names, options, "");
  return open_idx_folder(kDebianFolder, names, options, "; on Debian and Ubuntu: apt install dataset-fashion-mnist");
}

}  // namespace cohort
