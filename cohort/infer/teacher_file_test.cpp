// Teachers: opening what --teacher names, and how its scores reach a student.

#include <ATen/Parallel.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/randn.h>
#include <doctest/doctest.h>

#include <cstdlib>
#include <fstream>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cohort/base/files/file.h"
#include "cohort/base/system/machine.h"
#include "cohort/base/text/json.h"
#include "cohort/data/loader.h"
#include "cohort/data/source/description_json.h"
#include "cohort/infer/trained_file.h"
#include "cohort/models/loss/losses.h"
#include "cohort/models/registry.h"
#include "cohort/parallel/common/parameters.h"
#include "cohort/train/distil/teacher.h"
#include "cohort/train/model/batch_tensors.h"
#include "cohort/train/model/precision.h"
#include "tests/support/errors.h"

namespace cohort {
namespace {

constexpr const char* kModel = "fc:hidden=6";

DataSet small_data() { return open_data("synthetic:1x4x4,classes=3,samples=300"); }

std::shared_ptr<LayerGraph> model_of(uint64_t seed) {
  std::shared_ptr<LayerGraph> model = build_model(kModel, small_data().train->shape(), seed);
  model->eval();
  return model;
}

/// A file as `checkpoint export` writes it, of a training whose pictures had this mean and deviation.
void write_teacher(const std::string& path, uint64_t seed, const DataDescription& data) {
  const std::shared_ptr<LayerGraph> model = model_of(seed);
  std::vector<TensorView> views;
  for (const auto& [name, tensor] : distinct_parameters(*model))
    views.push_back({name, DType::kF32, tensor.sizes().vec(), tensor.data_ptr()});
  Config config;
  config.model = kModel;
  config.data = "synthetic:1x4x4,classes=3,samples=300";
  std::string content;
  write_safetensors([&](const void* from, size_t size) { content.append(static_cast<const char*>(from), size); }, path, views,
                    {{"step", "3"}, {"format", "pt"}, {"model", kModel}, {"config", to_toml(config)}, {"data", to_json(data).dump()}});
  std::ofstream(path, std::ios::binary) << content;
}

DataDescription description(std::vector<double> mean = {}, std::vector<double> deviation = {}) {
  return {.input = DataDescription::Input::kTensor,
          .shape = {1, 4, 4},
          .num_outputs = 3,
          .mean = std::move(mean),
          .deviation = std::move(deviation)};
}

Config config_of(const std::string& teacher, const std::string& how = "auto") {
  Config config;
  config.teacher = teacher;
  config.teacher_answers = how;
  return config;
}

/// Sets the user's cache folder for its lifetime.
class CacheIn {
 public:
  explicit CacheIn(const std::string& folder) : before_(std::getenv("XDG_CACHE_HOME")) { ::setenv("XDG_CACHE_HOME", folder.c_str(), 1); }
  ~CacheIn() { ::setenv("XDG_CACHE_HOME", before_.c_str(), 1); }
  CacheIn(const CacheIn&) = delete;
  CacheIn& operator=(const CacheIn&) = delete;

 private:
  std::string before_;
};

}  // namespace

TEST_CASE("teacher: its scores are its model's, in fp32 whatever the student's precision, with the normalisation of its own training") {
  const TemporaryFolder folder;
  write_teacher(folder / "plain.safetensors", 7, description());
  write_teacher(folder / "other.safetensors", 7, description({0.5}, {2}));
  const DataSet data = small_data();
  const at::Tensor input = at::randn({9, 1, 4, 4});
  const std::shared_ptr<LayerGraph> model = model_of(7);
  const std::unique_ptr<Teacher> plain = open_teacher(config_of(folder / "plain.safetensors"), data);
  const at::Tensor scores = plain->scores(input);
  CHECK(at::equal(scores, model->forward(input)));
  CHECK(!scores.requires_grad());
  {
    const AutocastScope half(Precision::kBf16, c10::DeviceType::CPU);
    CHECK(at::equal(plain->scores(input), scores));
  }
  const std::unique_ptr<Teacher> other = open_teacher(config_of(folder / "other.safetensors"), data);
  CHECK(at::allclose(other->scores(input), model->forward((input - 0.5) / 2), 1e-4, 1e-5));
  CHECK(!at::allclose(other->scores(input), scores));
  CHECK(plain->title() == concat(kModel, ", step 3 of ", folder / "plain.safetensors"));
}

TEST_CASE("teacher: the fingerprint depends on weights and normalisation, not on the file's name") {
  const TemporaryFolder folder;
  const DataSet data = small_data();
  const auto fingerprint = [&](const std::string& name, uint64_t seed, const DataDescription& trained) {
    write_teacher(folder / name, seed, trained);
    return open_teacher(config_of(folder / name), data)->fingerprint();
  };
  const std::string first = fingerprint("a.safetensors", 7, description());
  CHECK(first.size() == 16);
  CHECK(fingerprint("b.safetensors", 7, description()) == first);
  CHECK(fingerprint("c.safetensors", 8, description()) != first);
  CHECK(fingerprint("d.safetensors", 7, description({0.5}, {2})) != first);
}

TEST_CASE("teacher cache: cached scores are those that the teacher gives, and are computed once") {
  const TemporaryFolder folder;
  const CacheIn cache(folder / "cache");
  const std::string path = folder / "t.safetensors";
  write_teacher(path, 7, description());
  const DataSet data = small_data();
  const std::vector<int64_t> samples = {5, data.train->num_samples() - 1, 0, 5};
  Batch batch;
  data.train->read(samples, batch);
  const BatchTensors given = as_tensors(batch, data.train->shape());
  const Config by_hand = config_of(path, "live"), automatic = config_of(path);
  const TeacherAnswers live({.config = by_hand, .data = data}), cached({.config = automatic, .data = data});
  CHECK(!live.is_cached());
  CHECK(cached.is_cached());
  CHECK(live.sentence().find("asked in every step: --teacher-answers says so") != std::string::npos);
  CHECK(cached.sentence().find("kept in " + (folder / "cache/cohort/teacher-answers/")) != std::string::npos);
  CHECK(at::allclose(live.of(samples, given.input), cached.of(samples, given.input), 1e-5, 1e-6));
  CHECK(at::allclose(live.of(samples, given.input), model_of(7)->forward(given.input), 1e-5, 1e-6));
  const TeacherAnswers again({.config = automatic, .data = data});
  CHECK(again.sentence().find("all of them are there") != std::string::npos);
  CHECK(at::equal(again.of(samples, given.input), cached.of(samples, given.input)));

  // And the loss is (1 - alpha) usual + alpha soft.
  const at::Tensor output = at::randn({4, 3}), usual = at::randn({});
  const double soft = soft_target_loss(output, live.of(samples, given.input), by_hand.temperature).item<double>();
  CHECK(live.add_to(usual, output, samples, given.input).item<double>() ==
        doctest::Approx((1 - by_hand.alpha) * usual.item<double>() + by_hand.alpha * soft));
  Config none = by_hand;
  none.alpha = 0;
  CHECK(at::equal(TeacherAnswers({.config = none, .data = data}).add_to(usual, output, samples, given.input), usual));
}

TEST_CASE("teacher scores: a teacher beside the student gives the bits of a live one, batch by batch") {
  const TemporaryFolder folder;
  const std::string path = folder / "t.safetensors";
  write_teacher(path, 7, description());
  const DataSet data = small_data();
  const Config config = config_of(path, "beside"), asked = config_of(path, "live");
  const TeacherAnswers beside({.config = config, .data = data}), live({.config = asked, .data = data});
  CHECK(beside.is_beside());
  CHECK(!live.is_beside());
  CHECK(beside.sentence().find("asked for beside the student, some steps ahead: --teacher-answers says so") != std::string::npos);
  Loader loader(data.train, {.global_batch = 21, .seed = 3, .pieces = 4, .end_step = 3, .answer = [&](LoadedBatch& batch) {
                               return beside.beside(batch, data.train->shape());
                             }});
  for (int step = 0; step < 3; ++step) {
    LoadedBatch got = loader.next();
    const BatchTensors whole = as_tensors(got.batch, data.train->shape());
    const int64_t scores = std::ssize(got.answers) / got.num_local_samples();
    REQUIRE(scores == 3);
    int64_t first = 0;
    for (const Share& piece : got.pieces) {
      const at::Tensor given = at::from_blob(got.answers.data() + first * scores, {piece.size(), scores});
      const at::Tensor input = whole.input.narrow(0, first, piece.size());
      const std::span<const int64_t> samples =
          std::span(got.samples).subspan(static_cast<size_t>(first), static_cast<size_t>(piece.size()));
      CHECK(at::equal(given, live.of(samples, input)));
      const at::Tensor output = at::randn({piece.size(), 3}), usual = at::randn({});
      CHECK(at::equal(beside.add_to(usual, output, samples, input, given), live.add_to(usual, output, samples, input)));
      first += piece.size();
    }
  }
}

TEST_CASE("teacher cache: the choice is measured, and a run that is long enough uses the cache") {
  const TemporaryFolder folder;
  const CacheIn cache(folder / "cache");
  const std::string path = folder / "t.safetensors";
  write_teacher(path, 7, description());
  const DataSet data = small_data();
  const Config config = config_of(path);
  Group alone;
  const TeacherAnswers short_run({.config = config, .data = data, .samples_of_run = 4, .group = &alone});
  CHECK(!short_run.is_cached());
  CHECK(short_run.sentence().find("to keep them") != std::string::npos);
  const TeacherAnswers long_run({.config = config, .data = data, .samples_of_run = 1'000'000, .group = &alone});
  CHECK(long_run.is_cached());
  CHECK(long_run.sentence().find("for that is sooner done: ") != std::string::npos);
  Config changed = config;
  changed.augment = "flip";
  const TeacherAnswers of_changed({.config = changed, .data = data, .samples_of_run = 1'000'000, .group = &alone});
  CHECK(!of_changed.is_cached());
  CHECK(of_changed.sentence().find("--augment changes the pictures") != std::string::npos);

  // Beside the student where each of the processes leaves a core for each thread of its teacher, and a student takes as long as it does.
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  for (const int processes : {1, 1000}) {
    const TeacherAnswers chosen(
        {.config = changed, .data = data, .samples_of_run = 4, .size = processes, .student_seconds = 1, .group = &alone});
    CHECK(chosen.is_beside() == (num_usable_cores() >= 2 * processes));
    const Config as_before = config_of(path, "asked");  // The configuration of a run that began without a cache.
    const TeacherAnswers resumed({.config = as_before, .data = data, .size = processes, .group = &alone});
    CHECK(!resumed.is_cached());
    CHECK(resumed.is_beside() == chosen.is_beside());
  }
  const TeacherAnswers without({.config = changed, .data = data, .samples_of_run = 4, .has_loader = false, .group = &alone});
  CHECK(!without.is_beside());
  at::set_num_threads(threads);
}

TEST_CASE("teacher: unsuitable teachers are refused, with the option in front") {
  const TemporaryFolder folder;
  const std::string path = folder / "t.safetensors";
  write_teacher(path, 7, description());
  const auto error = [&](const Config& config, const DataSet& data) { return error_of([&] { check_teacher(config, data); }); };
  check_teacher(config_of(path), small_data());
  check_teacher(Config(), small_data());
  CHECK(error(config_of(folder / "none"), small_data()).find("--teacher " + (folder / "none")) == 0);
  CHECK(error(config_of(path), open_data("synthetic:1x4x4,classes=4,samples=300")).find("3 classes") != std::string::npos);
  CHECK(error(config_of(path), open_data("synthetic:1x4x5,classes=3,samples=300")).find("[1, 4, 5]") != std::string::npos);
  CHECK(error(config_of(path), open_data("synthetic:text,samples=100")).find("text of ") != std::string::npos);
  Config other_seed = config_of(path);  // The teacher's was 1.
  other_seed.data = "synthetic:1x4x4,classes=3,samples=300";
  check_teacher(other_seed, small_data());
  other_seed.seed = 2;
  CHECK(error(other_seed, small_data()).find("give --data synthetic:...,seed=1") != std::string::npos);
  other_seed.data += ",seed=1";
  check_teacher(other_seed, small_data());
  Config config = config_of(path, "cached");
  config.augment = "flip";
  CHECK(error(config, small_data()).find("use live") != std::string::npos);
  config = config_of(path, "beside");
  config.hint = "a:b";
  CHECK(error(config, small_data()).find("--teacher-answers beside with --hint a:b: ") != std::string::npos);
  // No cache takes files: XDG_CACHE_HOME of tests is /dev/null.
  CHECK(error_of([&] {
          const Config cached = config_of(path, "cached");
          TeacherAnswers({.config = cached, .data = small_data()});
        }).find("/dev/null/cohort/teacher-answers takes no files") != std::string::npos);
  const Config automatic = config_of(path);
  CHECK(!TeacherAnswers({.config = automatic, .data = small_data()}).is_cached());
}

}  // namespace cohort
