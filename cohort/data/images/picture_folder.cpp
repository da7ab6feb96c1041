// A folder of pictures becomes samples in two multithreaded passes over its files:
//   1. Headers: the number of channels (three if any picture has colours) and, without --image-size, that all have one size.
//   2. Every picture is decoded and resized, so unreadable files fail before training. Integer sums of values and squares are kept per
//      picture; mean and deviation of the training part follow once the split is known, independent of the number of threads.
// Decoded pictures are kept, shared by the ranks of a host, if all fit into memory=BYTES (1 GiB); otherwise they are decoded on each read,
// by several threads, ahead of the training (Loader). A resumed run knows mean and deviation and skips pass 2 in that case.

#include "cohort/data/source/openers.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <map>
#include <numeric>
#include <utility>

#include "cohort/base/fail.h"
#include "cohort/base/system/machine.h"
#include "cohort/base/text/text.h"
#include "cohort/data/images/image_source.h"
#include "cohort/data/images/picture_source.h"
#include "cohort/data/source/data_settings.h"
#include "cohort/data/source/split.h"

namespace cohort {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kDefaultMemory = INT64_C(1) << 30;
constexpr int kMostThreads = 8;

/// Files of train, then of val, then of test.
struct Found {
  PictureList list;
  std::vector<uint8_t> has_label;                   // With a table of labels: {files, names}.
  int64_t end_of_train = 0, end_of_validation = 0;  // Equal if the seed decides the split.
  bool has_validation = false, has_test = false;
};

std::string path_in(const std::string& folder, const char* name) { return (fs::path(folder) / name).string(); }

/// Adds the pictures of val or test, whose classes must be those of train.
void add_part(const std::string& folder, Found& found) {
  const PictureList part = list_pictures(folder);
  for (const PictureFile& file : part.files) {
    const std::string& name = part.class_names[static_cast<size_t>(file.label)];
    const auto known = std::find(found.list.class_names.begin(), found.list.class_names.end(), name);
    if (known == found.list.class_names.end())
      fail(ErrorCode::kBadInput, folder, " has the class ", name, ", which train lacks", did_you_mean(name, found.list.class_names),
           ": expected ", join(found.list.class_names, ", "));
    found.list.files.push_back({file.path, known - found.list.class_names.begin()});
  }
}

/// Assigns the labels of a trained model; false where it does not know all classes.
bool take_labels(PictureList& list, const DataDescription* kept) {
  if (!kept || kept->input != DataDescription::Input::kPicture || kept->class_names.empty()) return false;
  std::vector<int64_t> label_of;
  for (const std::string& name : list.class_names) {
    const auto known = std::find(kept->class_names.begin(), kept->class_names.end(), name);
    if (known == kept->class_names.end()) return false;
    label_of.push_back(known - kept->class_names.begin());
  }
  for (PictureFile& file : list.files) file.label = label_of[static_cast<size_t>(file.label)];
  list.class_names = kept->class_names;
  return true;
}

Found find_pictures(const std::string& folder, const DataDescription* kept) {
  const std::vector<std::string> names = names_in_folder(folder);
  const auto has = [&](const char* name) { return std::find(names.begin(), names.end(), name) != names.end(); };
  Found found{.has_validation = has("train") && has("val"), .has_test = has("train") && has("test")};
  if (has("train")) {
    for (const std::string& name : names)
      if (name != "train" && name != "val" && name != "test")
        fail(ErrorCode::kBadInput, path_in(folder, name.c_str()), " stands beside train", did_you_mean(name, {"val", "test"}),
             ": expected val and test at most");
  }
  found.list = list_pictures(has("train") ? path_in(folder, "train") : folder);
  if (!take_labels(found.list, kept) && found.list.class_names.size() < 2)
    fail(ErrorCode::kBadInput, folder, " has one class, ", found.list.class_names[0], ": expected at least two class folders");
  found.end_of_train = std::ssize(found.list.files);
  if (found.has_validation) add_part(path_in(folder, "val"), found);
  found.end_of_validation = std::ssize(found.list.files);
  if (found.has_test) add_part(path_in(folder, "test"), found);
  return found;
}

/// Finds pictures and labels of tables.
Found find_labelled(const DataSettings& settings, const DataOptions& options, SkippedData& skipped) {
  LabelledPictures pictures;
  if (options.kept && options.kept->labels) pictures.names = options.kept->class_names;
  const auto read = [&](const char* key) {
    if (settings.has(key)) read_picture_labels(settings.text(key), settings.path(), options.skip_bad, skipped, pictures);
    return std::ssize(pictures.files);
  };
  Found found{.has_validation = settings.has("val"), .has_test = settings.has("test")};
  found.end_of_train = read("labels");
  found.end_of_validation = read("val");
  read("test");
  found.list = {std::move(pictures.names), std::move(pictures.files)};
  found.has_label = std::move(pictures.has_label);
  return found;
}

/// Runs `work` on all files; skips those with Error(kBadInput), or throws the error of the first one.
class Pass {
 public:
  Pass(int num_threads, bool skip_bad, SkippedData& skipped) : num_threads_(num_threads), skip_bad_(skip_bad), skipped_(skipped) {}

  void run(std::vector<bool>& is_bad, const std::function<void(int64_t)>& work) {
    std::vector<std::string> faults(is_bad.size());
    parallel_for_samples(num_threads_, std::ssize(is_bad), [&](int64_t i) {
      if (is_bad[static_cast<size_t>(i)]) return;
      try {
        work(i);
      } catch (const Error& error) {
        if (error.code() != ErrorCode::kBadInput) throw;
        if (!skip_bad_) fail(ErrorCode::kBadInput, error.what(), name_settings("; --skip-bad leaves such pictures out and counts them"));
        faults[static_cast<size_t>(i)] = error.what();
      }
    });
    for (size_t i = 0; i < faults.size(); ++i)
      if (!faults[i].empty()) {
        is_bad[i] = true;
        skipped_.add(faults[i]);
      }
  }

 private:
  int num_threads_;
  bool skip_bad_;
  SkippedData& skipped_;
};

/// The common size and channels of all pictures, from their headers.
PictureForm form_of(const DataSettings& settings, const DataOptions& options, const std::vector<PictureFile>& files, Pass& pass,
                    std::vector<bool>& is_bad) {
  std::vector<PictureSize> sizes(files.size());
  pass.run(is_bad, [&](int64_t i) {
    const std::string& path = files[static_cast<size_t>(i)].path;
    sizes[static_cast<size_t>(i)] = picture_size(read_picture_file(path), path);
  });
  PictureForm form{.resized = options.image_size > 0};
  int64_t first = -1;
  for (size_t i = 0; i < files.size(); ++i) {
    if (is_bad[i]) continue;
    if (first < 0) form.size = sizes[static_cast<size_t>(first = static_cast<int64_t>(i))];
    form.size.channels = std::max(form.size.channels, sizes[i].channels);
    if (form.resized || (sizes[i].height == form.size.height && sizes[i].width == form.size.width)) continue;
    fail(ErrorCode::kBadInput, files[static_cast<size_t>(first)].path, " has ", form.size.width, " x ", form.size.height, " pixels and ",
         files[i].path, " has ", sizes[i].width, " x ", sizes[i].height,
         name_settings("; give --image-size N, which makes all of them N x N"));
  }
  if (first < 0) fail(ErrorCode::kBadInput, settings.path(), " has no picture that can be read, of ", files.size());
  const bool has_colours = options.kept && options.kept->input == DataDescription::Input::kPicture && !options.kept->shape.empty() &&
                           options.kept->shape.front() == 3;
  form.size.channels = settings.integer("channels", has_colours ? 3 : form.size.channels, 1, 3);
  if (form.size.channels == 2) settings.refuse("channels=2: expected 1 (grey) or 3 (RGB)");
  if (form.resized) form.size.height = form.size.width = options.image_size;
  return form;
}

std::vector<int64_t> good_ones(const std::vector<bool>& is_bad, int64_t begin, int64_t end) {
  std::vector<int64_t> out;
  for (int64_t i = begin; i < end; ++i)
    if (!is_bad[static_cast<size_t>(i)]) out.push_back(i);
  return out;
}

SplitSamples split_of(const DataSettings& settings, const DataOptions& options, const Found& found, const std::vector<bool>& is_bad) {
  const bool is_table = settings.has("labels");
  const std::string train = is_table ? settings.text("labels") : path_in(settings.path(), "train"),
                    val = is_table ? "val=" + settings.text("val") : path_in(settings.path(), "val");
  const uint64_t seed = seed_of_split(settings, options, found.has_validation, val);
  SplitSamples split{good_ones(is_bad, 0, found.end_of_train), good_ones(is_bad, found.end_of_train, found.end_of_validation)};
  if (found.has_validation) {
    if (split.train.empty() || split.validation.empty())
      fail(ErrorCode::kBadInput, split.train.empty() ? train : val, " has no picture that can be read");
    return split;
  }
  const std::vector<int64_t> all = std::move(split.train);
  split = split_by_seed(settings.path(), std::ssize(all), options, seed);
  for (std::vector<int64_t>* part : {&split.train, &split.validation})
    for (int64_t& sample : *part) sample = all[static_cast<size_t>(sample)];
  return split;
}

bool is_of_form(const DataDescription* kept, const PictureForm& form) {
  return kept && kept->input == DataDescription::Input::kPicture && std::ssize(kept->mean) == form.size.channels &&
         kept->shape == std::vector<int64_t>{form.size.channels, form.size.height, form.size.width};
}

}  // namespace

DataSet open_picture_folder(const std::string& argument, const DataOptions& options) {
  const DataSettings settings("folder", argument, {"seed", "channels", "memory", "labels", "val", "test"});
  for (const char* key : {"val", "test"})
    if (settings.has(key) && !settings.has("labels"))
      settings.refuse(key, "=", settings.text(key), " is a table beside that of labels=FILE.csv; of class folders it is DIR/", key);
  DataSet data;
  Found found =
      settings.has("labels") ? find_labelled(settings, options, data.skipped) : find_pictures(settings.path(), options.kept.get());
  const std::vector<std::string> class_names = found.list.class_names;
  const int all_threads = std::min(kMostThreads, num_usable_cores());
  Pass pass(all_threads, options.skip_bad, data.skipped);
  auto store = std::make_shared<PictureStore>();
  store->num_threads = options.threads > 0 ? options.threads : all_threads;
  store->files = std::move(found.list.files);
  store->has_label = std::move(found.has_label);
  std::vector<bool> is_bad(store->files.size());
  store->form = form_of(settings, options, store->files, pass, is_bad);
  const int64_t bytes = store->form.size.num_bytes();
  const bool keeps = bytes <= settings.integer("memory", kDefaultMemory, 0, kMaxDataBytes) / std::ssize(store->files);
  const bool knows = is_of_form(options.kept.get(), store->form);
  std::vector<ByteSums> sums(store->files.size() * static_cast<size_t>(store->form.size.channels));
  if (keeps) store->decoded = ByteBuffer(bytes * std::ssize(store->files), settings.path());
  if (keeps || !knows || options.skip_bad) {
    pass.run(is_bad, [&](int64_t i) {
      const Picture picture = store->decode(i);
      if (keeps) std::copy(picture.bytes.begin(), picture.bytes.end(), store->decoded.data() + i * bytes);
      const int64_t channels = picture.size.channels, plane = bytes / channels;
      for (int64_t c = 0; c < channels; ++c)
        add_bytes(sums[static_cast<size_t>(i * channels + c)], picture.bytes.data() + c * plane, plane);
    });
  }
  SplitSamples split = split_of(settings, options, found, is_bad);
  DataDescription description{.input = DataDescription::Input::kPicture,
                              .shape = {store->form.size.channels, store->form.size.height, store->form.size.width},
                              .labels = settings.has("labels"),
                              .num_outputs = std::ssize(class_names),
                              .class_names = class_names,
                              .resized = store->form.resized};
  if (knows) {
    description.mean = options.kept->mean, description.deviation = options.kept->deviation;
  } else {
    const int64_t channels = store->form.size.channels;
    std::vector<ByteSums> totals(static_cast<size_t>(channels));
    for (const int64_t i : split.train)
      for (int64_t c = 0; c < channels; ++c) totals[static_cast<size_t>(c)] += sums[static_cast<size_t>(i * channels + c)];
    const ChannelStatistics statistics = statistics_of_sums(totals, std::ssize(split.train) * bytes / channels);
    description.mean = statistics.mean, description.deviation = statistics.deviation;
  }
  data.train = std::make_shared<PictureSource>(store, description, std::move(split.train));
  data.validation = std::make_shared<PictureSource>(store, description, std::move(split.validation));
  if (found.has_test) {
    std::vector<int64_t> test = good_ones(is_bad, found.end_of_validation, std::ssize(store->files));
    if (test.empty())
      fail(ErrorCode::kBadInput, settings.has("test") ? settings.text("test") : path_in(settings.path(), "test"),
           " has no picture that can be read");
    data.test = std::make_shared<PictureSource>(store, description, std::move(test));
  }
  return data;
}

}  // namespace cohort
