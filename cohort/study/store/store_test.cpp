#include "cohort/study/store/store.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <random>

#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/study/store/sqlite.h"
#include "tests/support/stored_study.h"

using namespace cohort;
using namespace cohort::study;

namespace {

void put_file(const std::string& path, const std::string& content) {
  const UniqueDescriptor file = open_file(path, O_WRONLY | O_CREAT | O_TRUNC);
  write_all(file.get(), content.data(), content.size(), path);
}

}  // namespace

TEST_CASE("store: what was added is read back, to the bit") {
  const MemoryFolder folder;
  const std::string path = folder / "deep/study";
  Trial diverged = trial_of(1, 3);
  diverged.status = TrialStatus::kInfeasible;
  diverged.measurements[2].values[kTrainLoss] = INFINITY;
  {
    Store store = Store::open(path, small_spec());
    store.add(8, trial_of(2, 40));
    store.add(8, diverged);
    Trial censored = trial_of(0, 0, 1.5);
    censored.status = TrialStatus::kCensored;
    store.add(64, censored);
    store.set_note("num_train_samples", "55000");
    CHECK(store.trials(8).size() == 2);
    CHECK(store.trials(8)[0].id == 1);
    CHECK(store.trials(8)[1].measurements.empty());
    CHECK(store.trials(99).empty());
  }
  CHECK(::access((path + "/study.toml").c_str(), F_OK) == 0);
  CHECK(::access((path + "/study.lock").c_str(), F_OK) != 0);
  CHECK(::access((path + "/study.db-wal").c_str(), F_OK) != 0);  // At rest it is one file.
  const StudyData study = read_study(path);
  CHECK(study.dataset == "fashion_mnist");
  CHECK(study.model == "fc_64x3");
  CHECK(study.optimizer == "sgd");
  CHECK(study.seed == 8999999999999999ULL);
  CHECK(study.num_train_samples == 55000);
  REQUIRE(study.goals.size() == 2);
  CHECK(study.goals[1].text() == "val_loss<0.4");
  REQUIRE(study.batches.size() == 2);
  REQUIRE(study.batches[0].trials.size() == 2);
  CHECK(same(study.batches[0].trials[0], diverged));
  CHECK(same(study.batches[0].trials[1], trial_of(2, 40)));
  CHECK(study.batches[0].train_steps == 1000);
  CHECK(study.batches[0].num_trials == 5);
  CHECK_FALSE(study.batches[0].early_stopping);
  CHECK(study.batches[1].early_stopping);
  REQUIRE(study.batches[0].space.size() == 1);
  CHECK(study.batches[0].space[0].scale == Hyperparameter::Scale::kLog);
  CHECK(study.batches[0].space[0].maximum == 3.2);
  CHECK(to_toml(Store::open_readonly(path).spec()) == to_toml(small_spec()));
}

TEST_CASE("store: a trial is added once, and what is wrong with one leaves nothing") {
  const MemoryFolder folder;
  Store store = Store::open(folder / "study", small_spec());
  store.add(8, trial_of(0, 10));
  CHECK(error_of([&] { store.add(8, trial_of(0, 3)); }, ErrorCode::kFailed).find("trial 0 of batch size 8 is in ") == 0);
  CHECK(error_of([&] { store.add(16, trial_of(0, 3)); }, ErrorCode::kFailed).find("batch size 16 does not belong to this study") !=
        std::string::npos);
  Trial unsorted = trial_of(1, 3);
  unsorted.measurements[2].step = 0;
  CHECK(error_of([&] { store.add(8, unsorted); }, ErrorCode::kFailed).find("steps must rise") != std::string::npos);
  Trial no_number = trial_of(1, 3);
  no_number.parameters["learning_rate"] = NAN;
  CHECK(error_of([&] { store.add(8, no_number); }, ErrorCode::kFailed).find("not a finite number") != std::string::npos);
  const StudyData study = store.read();
  REQUIRE(study.batches[0].trials.size() == 1);
  CHECK(same(study.batches[0].trials[0], trial_of(0, 10)));
  store.add(8, trial_of(1, 3));  // It goes on working.
}

TEST_CASE("store: notes") {
  const MemoryFolder folder;
  {
    Store store = Store::open(folder / "study", small_spec());
    CHECK_FALSE(store.note("times"));
    store.set_note("times", "[1]");
    store.set_note("times", "{\"a\": 2}");
    CHECK(store.note("times") == "{\"a\": 2}");
    CHECK(store.read().num_train_samples == 0);
  }
  Store reader = Store::open_readonly(folder / "study");
  CHECK(reader.note("times") == "{\"a\": 2}");
  CHECK(error_of([&] { reader.set_note("times", ""); }).find("read only") != std::string::npos);
  CHECK(error_of([&] { reader.add(8, trial_of(0, 1)); }).find("read only") != std::string::npos);
  Store::open_existing(folder / "study").set_note("times", "3");
  CHECK(reader.note("times") == "3");
  CHECK(error_of([&] { Store::open_existing(folder / "none"); }).find("holds no study") != std::string::npos);
}

TEST_CASE("store: a study may grow, all else that changed is refused by name") {
  const MemoryFolder folder;
  const std::string path = folder / "study";
  {
    Store::open(path, small_spec()).add(8, trial_of(0, 10));
  }
  StudySpec grown = small_spec();
  grown.batches[0].num_trials = 9;
  grown.batches.push_back({512, 5, 100, grown.batches[0].space});
  grown.goals.push_back({kValError, 0.14});
  {
    Store store = Store::open(path, grown);
    store.add(512, trial_of(0, 2));
  }
  const StudyData study = read_study(path);
  REQUIRE(study.batches.size() == 3);
  CHECK(study.batches[0].num_trials == 9);
  CHECK(study.batches[0].trials.size() == 1);
  CHECK(study.goals.size() == 3);
  // A run of a part: the others stay, and so does the larger number of trials.
  StudySpec part = grown;
  part.batches = {grown.batches[0]};
  part.batches[0].num_trials = 4;
  {
    Store store = Store::open(path, part);
    store.add(8, trial_of(1, 3));
    CHECK(to_toml(store.spec()) == to_toml(grown));
  }
  const StudyData after = read_study(path);
  REQUIRE(after.batches.size() == 3);
  CHECK(after.batches[0].num_trials == 9);
  CHECK(after.batches[0].trials.size() == 2);
  CHECK(after.batches[2].trials.size() == 1);
  CHECK(read_small_file(path + "/study.toml", 1 << 20) == to_toml(grown));
  part.seed = 2;
  CHECK(error_of([&] { Store::open(path, part); }).find("holds another study: seed was ") != std::string::npos);
  StudySpec other = grown;
  other.seed = 2;
  const std::string text = error_of([&] { Store::open(path, other); });
  CHECK(text.find("holds another study: seed was ") != std::string::npos);
  other = grown;
  other.batches[0].space[0].maximum = 4;
  CHECK(error_of([&] { Store::open(path, other); }).find("learning_rate at batch size 8") != std::string::npos);
  CHECK(read_study(path).batches[0].space[0].maximum == 3.2);
  CHECK_NOTHROW(Store::open(path, grown));  // No lock was left by the refusals.
}

TEST_CASE("store: warnings are the note of successive halving and those that came with an archive") {
  const MemoryFolder folder;
  StudyData study{.dataset = "d", .model = "m", .optimizer = "o"};
  study.batches.push_back({.batch_size = 8, .num_trials = 1, .train_steps = 2});
  Store::create(folder / "a", study);
  CHECK(read_study(folder / "a").warnings.empty());
  Store::open_existing(folder / "a").set_note("halving", "\"it is biased\"");
  CHECK(read_study(folder / "a").warnings == std::vector<std::string>{"it is biased"});
  for (const char* no_text : {"[1, 2]", "{}", "no JSON", ""}) {
    Store::open_existing(folder / "a").set_note("halving", no_text);
    CHECK(read_study(folder / "a").warnings.empty());
  }
  study.warnings = {"it is biased", "and more"};
  Store::create(folder / "b", study);
  CHECK(read_study(folder / "b").warnings == study.warnings);
}

TEST_CASE("store: a study of an archive is kept whole, but no run goes on with it") {
  const MemoryFolder folder;
  StudyData study{.dataset = "imagenet", .model = "resnet_50", .optimizer = "nesterov_momentum", .num_train_samples = 7, .seed = 3};
  BatchStudy batch{.batch_size = 64, .num_trials = 50, .early_stopping = true};
  batch.space = {{.name = "odd_one", .type = Hyperparameter::Type::kDiscrete, .values = {3, 1, 2}}};
  batch.trials = {trial_of(1, 5)};
  study.batches = {batch};
  Store::create(folder / "study", study);
  const StudyData read = read_study(folder / "study");
  CHECK(read.goals.empty());
  CHECK(read.num_train_samples == 7);
  CHECK(read.batches[0].early_stopping);
  CHECK(read.batches[0].space[0].values == std::vector<double>{3, 1, 2});
  CHECK(same(read.batches[0].trials[0], trial_of(1, 5)));
  CHECK(error_of([&] { Store::create(folder / "study", study); }).find("holds a study already") != std::string::npos);
  CHECK(error_of([&] { Store::open(folder / "study", small_spec()); }).find("imported from an archive") != std::string::npos);
  CHECK(error_of([&] { Store::open_readonly(folder / "study").spec(); }).find("has no spec") != std::string::npos);
}

TEST_CASE("store: a file that is no study is refused with a sentence and left as it is") {
  const MemoryFolder folder;
  const std::string path = folder / "study", file = path + "/study.db";
  ::mkdir(path.c_str(), 0777);
  CHECK(error_of([&] { Store::open_readonly(path); }).find("holds no study: there is no ") != std::string::npos);
  CHECK(error_of([&] { read_study(path); }).find("neither study.db nor an archive's study.json") != std::string::npos);
  put_file(file, "");
  CHECK(error_of([&] { Store::open_readonly(path); }).find("holds no study yet") != std::string::npos);
  put_file(file, std::string(5000, 'x'));
  CHECK(error_of([&] { Store::open(path, small_spec()); }) == file + " is not an SQLite file, so it holds no study");
  CHECK(error_of([&] { Store::open_readonly(path); }) == file + " is not an SQLite file, so it holds no study");
  ::unlink(file.c_str());
  {
    Database(file, Database::Mode::kWrite).execute("CREATE TABLE cats (name TEXT)");
  }
  const std::string before = read_small_file(file, 1 << 20);
  CHECK(error_of([&] { Store::open(path, small_spec()); }).find("is another program's SQLite file") != std::string::npos);
  CHECK(read_small_file(file, 1 << 20) == before);
  ::unlink(file.c_str());
  {
    Store::open(path, small_spec());
  }
  {
    Database(file, Database::Mode::kWrite).execute("PRAGMA user_version = 2");
  }
  CHECK(error_of([&] { Store::open(path, small_spec()); }).find("a later version of Cohort (store version 2, this one knows 1)") !=
        std::string::npos);
  ::unlink(file.c_str());
  ::mkdir(file.c_str(), 0777);
  CHECK(error_of([&] { Store::open(path, small_spec()); }).find("cannot open " + file) == 0);
  put_file(folder / "plain", "");
  CHECK(error_of([&] { Store::open(folder / "plain/study", small_spec()); }).find("cannot create the folder") == 0);
}

TEST_CASE("store: damage is reported, wherever it is") {
  const MemoryFolder folder;
  const std::string path = folder / "study", file = path + "/study.db";
  {
    Store store = Store::open(path, small_spec());
    for (int64_t id = 0; id < 8; ++id) store.add(8, trial_of(id, 300));
  }
  const std::string whole = read_small_file(file, 1 << 24);
  std::mt19937 random(11);
  int num_refused = 0;
  for (int round = 0; round < 40; ++round) {
    std::string bytes = whole;
    if (round % 3 == 0) bytes.resize(random() % bytes.size());
    const size_t at = random() % whole.size(), length = 1 + random() % 3000;
    for (size_t i = at; i < std::min(bytes.size(), at + length); ++i) bytes[i] = static_cast<char>(random());
    put_file(file, bytes);
    try {
      (void)Store::open_readonly(path).read();  // Numbers may have changed unseen; nothing else may happen.
    } catch (const Error& error) {
      ++num_refused;
      CHECK(std::string(error.what()).find('\n') == std::string::npos);
    }
  }
  CHECK(num_refused > 12);
}

TEST_CASE("store: the journal of network file systems keeps and reports the same") {
  const MemoryFolder folder;
  Database database(folder / "study.db", Database::Mode::kWrite);
  make_tables(database);
  set_journal(database, Journal::kRollback);
  CHECK(database.text("PRAGMA journal_mode") == "delete");
  CHECK(database.integer("PRAGMA synchronous") == 2);
  set_journal(database, Journal::kWriteAhead);
  CHECK(database.text("PRAGMA journal_mode") == "wal");
  CHECK(is_study_store(database));
  CHECK_FALSE(is_network_file_system(folder.path()));
}
