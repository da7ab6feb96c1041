// A study in SQLite: the tables of study.db, the other files of the folder (study.toml, study.lock), and reading and adding trials.
#include "cohort/study/store/store.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <limits>
#include <system_error>

#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/base/files/folder_lock.h"
#include "cohort/base/files/writable_place.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/strict_json.h"
#include "cohort/base/text/text.h"
#include "cohort/study/spec/data.h"
#include "cohort/study/spec/parameter_configs.h"
#include "cohort/study/store/sqlite.h"

namespace cohort::study {
namespace {

constexpr int64_t kApplicationId = 0x436f5374;  // "CoSt", at byte 68 of the file.

constexpr const char* kTables = R"(
  CREATE TABLE study (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;
  CREATE TABLE notes (name TEXT PRIMARY KEY, text TEXT NOT NULL) STRICT, WITHOUT ROWID;
  CREATE TABLE batches (
    batch_size INTEGER PRIMARY KEY CHECK (batch_size > 0), num_trials INTEGER NOT NULL, train_steps INTEGER NOT NULL,
    early_stopping INTEGER NOT NULL, space TEXT NOT NULL) STRICT;
  CREATE TABLE trials (
    trial INTEGER PRIMARY KEY, batch_size INTEGER NOT NULL REFERENCES batches, id INTEGER NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('COMPLETE', 'CENSORED', 'INFEASIBLE', 'INCOMPLETE')), steps INTEGER NOT NULL,
    seconds REAL NOT NULL, parameters TEXT NOT NULL, UNIQUE (batch_size, id)) STRICT;
)";

}  // namespace

bool is_study_store(Database& database) {
  const int64_t application = database.integer("PRAGMA application_id");
  const int64_t version = database.integer("PRAGMA user_version");
  if (application == 0 && version == 0 && database.integer("SELECT count(*) FROM sqlite_schema") == 0) return false;
  if (application != kApplicationId)
    fail(ErrorCode::kBadInput, database.path(), " is another program's SQLite file, not a study; give another folder");
  if (version > kStoreVersion)
    fail(ErrorCode::kBadInput, database.path(), " was written by a later version of Cohort (store version ", version, ", this one knows ",
         kStoreVersion, "); use that version");
  return true;
}

void make_tables(Database& database) {
  // One row per measurement, clustered by (trial, step), so that a trial's curve is contiguous in the file.
  std::string measurements = "CREATE TABLE measurements (trial INTEGER NOT NULL REFERENCES trials, step INTEGER NOT NULL";
  std::string view = "CREATE VIEW curves AS SELECT batch_size, id, status, step";
  for (int metric = 0; metric < kNumMetrics; ++metric) {
    measurements += concat(", ", name_of(static_cast<Metric>(metric)), " REAL");
    view += concat(", ", name_of(static_cast<Metric>(metric)));
  }
  Transaction transaction(database, Transaction::Kind::kWrite);
  database.execute(kTables);
  database.execute(measurements + ", PRIMARY KEY (trial, step)) STRICT, WITHOUT ROWID");
  database.execute(view + " FROM trials JOIN measurements USING (trial)");
  database.execute(concat("PRAGMA application_id = ", kApplicationId));
  database.execute(concat("PRAGMA user_version = ", kStoreVersion));
  transaction.commit();
}

void set_journal(Database& database, Journal journal) {
  if (journal == Journal::kWriteAhead) {
    database.execute("PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL");
  } else {
    database.execute("PRAGMA journal_mode = DELETE; PRAGMA synchronous = FULL");
  }
}

namespace {

constexpr const char* kFileName = "/study.db";
constexpr const char* kSpecName = "/study.toml";
constexpr const char* kLockName = "/study.lock";
constexpr double kSyncedFromSeconds = 0.4;  // A sync costs about 4 ms, 1 % of such a trial.

void make_folder(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) fail(ErrorCode::kBadInput, "cannot create the folder ", folder, ": ", error.message());
  check_writable_folder(folder);
}

bool file_holds(const std::string& path, const std::string& content) {
  return ::access(path.c_str(), F_OK) == 0 && read_small_file(path, size_t{1} << 24) == content;
}

void set_value(Database& database, const std::string& key, const std::string& value) {
  Statement statement(database, "INSERT INTO study VALUES (?1, ?2) ON CONFLICT (key) DO UPDATE SET value = ?2");
  statement.bind(1, key).bind(2, value).run();
}

/// Sets the names, goals and seed of the study.
void set_workload(Database& database, const StudyData& study) {
  Json goals = Json::array();
  for (const GoalSpec& goal : study.goals) goals.push_back(goal.text());
  set_value(database, "dataset", study.dataset);
  set_value(database, "model", study.model);
  set_value(database, "optimizer", study.optimizer);
  set_value(database, "seed", concat(study.seed));
  set_value(database, "goals", goals.dump());
}

std::optional<std::string> value_of(Database& database, const char* select, const std::string& key) {
  Statement statement(database, select);
  statement.bind(1, key);
  if (!statement.step()) return std::nullopt;
  return statement.text(0);
}
constexpr const char* kStudyValue = "SELECT value FROM study WHERE key = ?1";
constexpr const char* kNoteValue = "SELECT text FROM notes WHERE name = ?1";

void insert_note(Database& database, const std::string& name, const std::string& text) {
  Statement statement(database, "INSERT INTO notes VALUES (?1, ?2) ON CONFLICT (name) DO UPDATE SET text = ?2");
  statement.bind(1, name).bind(2, text).run();
}

/// Warnings by the run (note "halving") and from an archive (note "warnings").
std::vector<std::string> warnings_of(Database& database) {
  std::vector<std::string> warnings;
  for (const char* name : {"halving", "warnings"}) {
    const auto note = value_of(database, kNoteValue, name);
    const Json json = note ? Json::parse(*note, nullptr, false) : Json();
    for (const Json& text : json.is_array() ? json : Json::array({json}))
      if (text.is_string()) warnings.push_back(text.get<std::string>());
  }
  return warnings;
}

void set_batch(Database& database, const BatchStudy& batch) {
  Statement statement(database,
                      "INSERT INTO batches VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT (batch_size) DO UPDATE SET num_trials = ?2, "
                      "train_steps = ?3, early_stopping = ?4, space = ?5");
  statement.bind(1, batch.batch_size).bind(2, batch.num_trials).bind(3, batch.train_steps).bind(4, int64_t{batch.early_stopping});
  statement.bind(5, to_json(batch.space).dump()).run();
}

void check_trial(int64_t batch_size, const Trial& trial) {
  int64_t before = -1;
  for (const Measurement& measurement : trial.measurements) {
    if (measurement.step <= before)
      fail(ErrorCode::kFailed, "trial ", trial.id, " of batch size ", batch_size, ": measured at step ", measurement.step, " after step ",
           before, "; steps must rise");
    before = measurement.step;
  }
  for (const auto& [name, value] : trial.parameters)
    if (!std::isfinite(value))
      fail(ErrorCode::kFailed, "trial ", trial.id, " of batch size ", batch_size, ": ", name, " is ", value, ", not a finite number");
}

}  // namespace

void check_holds_nothing_else(const std::string& folder) {
  std::error_code ignored;
  if (std::filesystem::exists(folder + kFileName, ignored)) return;
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored))
    if (const std::string name = entry.path().filename().string(); name != kLockName + 1) names.push_back(name);
  if (names.empty()) return;
  const size_t count = names.size();
  std::sort(names.begin(), names.end());
  names.resize(std::min<size_t>(count, 3));
  fail(ErrorCode::kBadInput, folder, " holds no study but other files (", printable(join(names, ", ")), count > names.size() ? ", ..." : "",
       "), and a study has a folder of its own; give a new name");
}

struct Store::State {
  explicit State(const std::string& where, Database::Mode mode) : folder(where), database(where + kFileName, mode) {}

  std::string folder;
  std::unique_ptr<FolderLock> lock;  ///< Set for writers; outlives the connection.
  bool is_write_ahead = false;
  Database database;
  std::map<int64_t, SearchSpace> spaces;  ///< By batch size.
  std::unique_ptr<Statement> insert_trial, insert_measurement;

  static std::unique_ptr<State> open_writer(const std::string& folder);
  void write_study(const StudySpec& spec);
  void load_spaces();
  void insert(int64_t batch_size, const Trial& trial);
  std::vector<Trial> read_trials(int64_t batch_size, bool with_measurements);
  [[noreturn]] void fail_damaged(const std::string& what) const {
    fail(ErrorCode::kBadInput, database.path(), " is damaged: ", what, "; take a copy of it from before, or begin in a new folder");
  }
  std::string required_value(const std::string& key) {
    const auto value = value_of(database, kStudyValue, key);
    if (!value) fail_damaged(concat("it has no ", key));
    return *value;
  }
  template <typename Number>
  Number number_value(const std::string& key, const std::string& text) const {
    Number number{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc() || end != text.data() + text.size())
      fail_damaged(concat(key, " is ", quote_text(text), ", not a whole number"));
    return number;
  }
};

std::unique_ptr<Store::State> Store::State::open_writer(const std::string& folder) {
  make_folder(folder);
  check_holds_nothing_else(folder);
  auto lock = std::make_unique<FolderLock>(folder + kLockName, "the study in " + folder,
                                           "one process at a time writes a study; wait for it, end it, or give another folder");
  auto state = std::make_unique<State>(folder, Database::Mode::kWrite);
  state->lock = std::move(lock);
  Database& database = state->database;
  // Checked before anything is written, so that a foreign file is not changed.
  const bool is_new = !is_study_store(database);
  state->is_write_ahead = !is_network_file_system(folder);
  set_journal(database, state->is_write_ahead ? Journal::kWriteAhead : Journal::kRollback);
  if (is_new) make_tables(database);
  return state;
}

void Store::State::write_study(const StudySpec& spec) {
  Transaction transaction(database, Transaction::Kind::kWrite);
  set_value(database, "spec", to_toml(spec));
  set_value(database, "fingerprint", fingerprint(spec));
  set_workload(
      database,
      {.dataset = spec.dataset_name, .model = spec.model_name, .optimizer = spec.optimizer, .goals = spec.goals, .seed = spec.seed});
  set_value(database, "train_samples", concat(spec.train_samples));
  for (const BatchSpec& batch : spec.batches)
    set_batch(database, {.batch_size = batch.batch_size,
                         .space = batch.space,
                         .num_trials = batch.num_trials,
                         .train_steps = batch.train_steps,
                         .early_stopping = spec.halving});
  transaction.commit();
}

void Store::State::load_spaces() {
  spaces.clear();
  Statement statement(database, "SELECT batch_size, space FROM batches");
  while (statement.step()) {
    const std::string where = concat(database.path(), ", batch size ", statement.integer(0));
    spaces[statement.integer(0)] = parse_parameter_configs(parse_strict_ordered_json(statement.text(1), {.path = where}), where).space;
  }
}

void Store::State::insert(int64_t batch_size, const Trial& trial) {
  check_trial(batch_size, trial);
  const auto space = spaces.find(batch_size);
  if (space == spaces.end()) fail(ErrorCode::kFailed, database.path(), ": batch size ", batch_size, " does not belong to this study");
  if (!insert_trial) {
    insert_trial = std::make_unique<Statement>(
        database,
        "INSERT INTO trials (batch_size, id, status, steps, seconds, parameters) VALUES (?1, ?2, ?3, ?4, ?5, ?6) "
        "ON CONFLICT (batch_size, id) DO NOTHING RETURNING trial");
    insert_measurement =
        std::make_unique<Statement>(database, "INSERT INTO measurements VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)");
    static_assert(kNumMetrics == 9);
  }
  insert_trial->bind(1, batch_size).bind(2, trial.id).bind(3, std::string(name_of(trial.status))).bind(4, trial.steps);
  insert_trial->bind(5, trial.seconds).bind(6, to_json(trial.parameters, space->second).dump());
  const bool is_new = insert_trial->step();
  const int64_t key = is_new ? insert_trial->integer(0) : 0;
  insert_trial->reset();
  if (!is_new)
    fail(ErrorCode::kFailed, "trial ", trial.id, " of batch size ", batch_size, " is in ", database.path(),
         " already; a trial is run and added once");
  for (const Measurement& measurement : trial.measurements) {
    insert_measurement->bind(1, key).bind(2, measurement.step);
    for (int metric = 0; metric < kNumMetrics; ++metric) insert_measurement->bind(3 + metric, measurement.values[metric]);
    insert_measurement->run();
  }
}

std::vector<Trial> Store::State::read_trials(int64_t batch_size, bool with_measurements) {
  Statement rows(database, "SELECT trial, id, status, steps, seconds, parameters FROM trials WHERE batch_size = ?1 ORDER BY id");
  Statement points(database, "SELECT * FROM measurements WHERE trial = ?1 ORDER BY step");
  rows.bind(1, batch_size);
  std::vector<Trial> trials;
  while (rows.step()) {
    Trial& trial = trials.emplace_back();
    trial.id = rows.integer(1);
    trial.status = parse_trial_status(rows.text(2));
    trial.steps = rows.integer(3);
    trial.seconds = rows.number(4);
    const std::string where = concat(database.path(), ", trial ", trial.id, " of batch size ", batch_size);
    trial.parameters = parse_parameters(parse_strict_ordered_json(rows.text(5), {.path = where}), {}, where);
    if (!with_measurements) continue;
    points.bind(1, rows.integer(0));
    while (points.step()) {
      Measurement& measurement = trial.measurements.emplace_back();
      measurement.step = points.integer(1);
      for (int metric = 0; metric < kNumMetrics; ++metric) measurement.values[metric] = points.number(2 + metric);
    }
    points.reset();
  }
  return trials;
}

Store::Store(std::unique_ptr<State> state) : state_(std::move(state)) {}
Store::Store(Store&&) noexcept = default;

Store::~Store() {
  if (!state_ || !state_->lock) return;
  state_->insert_trial.reset();
  state_->insert_measurement.reset();
  try {
    // A closed study is a single file, which can be copied and read in read-only folders. Where a reader has it open it keeps its
    // write-ahead log, which the next connection reads as well.
    state_->database.set_lock_timeout(0);
    state_->database.execute("PRAGMA journal_mode = DELETE");
  } catch (const Error&) {
  }
}

Store Store::open(const std::string& folder, const StudySpec& spec) {
  std::unique_ptr<State> state = State::open_writer(folder);
  const auto toml_before = value_of(state->database, kStudyValue, "spec");
  if (toml_before) {
    const std::string difference = explain_difference(state->required_value("fingerprint"), fingerprint(spec));
    if (!difference.empty())
      fail(ErrorCode::kBadInput, folder, " holds another study: ", difference, "; give a new folder, or the spec it was begun with");
  } else if (value_of(state->database, kStudyValue, "dataset")) {
    fail(ErrorCode::kBadInput, folder, " holds a study that was imported from an archive and cannot be continued; give a new folder");
  }
  const StudySpec all = toml_before ? merge_specs(parse_spec(*toml_before, state->database.path()), spec) : spec;
  const std::string toml = to_toml(all), path = folder + kSpecName;
  if (toml_before != toml) state->write_study(all);
  state->load_spaces();
  if (!file_holds(path, toml)) write_file_atomically(path, toml);
  return Store(std::move(state));
}

Store Store::open_readonly(const std::string& folder) {
  const std::string path = folder + kFileName;
  if (::access(path.c_str(), F_OK) != 0) fail(ErrorCode::kBadInput, folder, " holds no study: there is no ", path);
  const auto open_as = [&](Database::Mode mode) {
    auto state = std::make_unique<State>(folder, mode);
    if (!is_study_store(state->database) || !value_of(state->database, kStudyValue, "dataset"))
      fail(ErrorCode::kBadInput, folder, " holds no study yet: ", path, " is empty");
    state->load_spaces();
    return Store(std::move(state));
  };
  // A file in a read-only folder without a write-ahead log has no writer, even if a killed writer left it in write-ahead mode.
  const bool may_write = ::access(folder.c_str(), W_OK) == 0, has_log = ::access((path + "-wal").c_str(), F_OK) == 0;
  if (may_write || has_log) return open_as(Database::Mode::kRead);
  return open_as(Database::Mode::kImmutable);
}

Store Store::open_existing(const std::string& folder) {
  {
    const Store must_exist = open_readonly(folder);
  }
  std::unique_ptr<State> state = State::open_writer(folder);
  state->load_spaces();
  return Store(std::move(state));
}

void Store::create(const std::string& folder, const StudyData& study) {
  create(folder, study, [&](int64_t batch_size) { return *find_batch(study, batch_size); });
}

void Store::create(const std::string& folder, const StudyData& study, const std::function<BatchStudy(int64_t batch_size)>& batch_with_all) {
  std::unique_ptr<State> state = State::open_writer(folder);
  if (value_of(state->database, kStudyValue, "dataset")) fail(ErrorCode::kBadInput, folder, " holds a study already; give a new folder");
  Transaction transaction(state->database, Transaction::Kind::kWrite);
  set_workload(state->database, study);
  for (const BatchStudy& in_memory : study.batches) {
    const BatchStudy batch = batch_with_all(in_memory.batch_size);
    set_batch(state->database, batch);
    state->spaces[batch.batch_size] = batch.space;
    for (const Trial& trial : batch.trials) state->insert(batch.batch_size, trial);
  }
  insert_note(state->database, "num_train_samples", concat(study.num_train_samples));
  if (!study.warnings.empty()) insert_note(state->database, "warnings", Json(study.warnings).dump());
  transaction.commit();
  const Store closes_in_order(std::move(state));
}

StudySpec Store::spec() const {
  const auto text = value_of(state_->database, kStudyValue, "spec");
  if (!text) fail(ErrorCode::kBadInput, state_->folder, " holds a study that was imported from an archive: it has no spec");
  return parse_spec(*text, state_->database.path());
}

void Store::add(int64_t batch_size, const Trial& trial) {
  Database& database = state_->database;
  if (!state_->lock) fail(ErrorCode::kBadInput, database.path(), " was opened to read only: no trial can be added");
  if (state_->is_write_ahead)
    database.execute(trial.seconds >= kSyncedFromSeconds ? "PRAGMA synchronous = FULL" : "PRAGMA synchronous = NORMAL");
  Transaction transaction(database, Transaction::Kind::kWrite);
  state_->insert(batch_size, trial);
  transaction.commit();
}

std::vector<Trial> Store::trials(int64_t batch_size) const {
  Transaction transaction(state_->database, Transaction::Kind::kRead);
  return state_->read_trials(batch_size, false);
}

StudyData Store::read() const {
  State& state = *state_;
  Transaction transaction(state.database, Transaction::Kind::kRead);
  StudyData study{
      .dataset = state.required_value("dataset"), .model = state.required_value("model"), .optimizer = state.required_value("optimizer")};
  study.seed = state.number_value<uint64_t>("seed", state.required_value("seed"));
  const Json goals = parse_strict_ordered_json(state.required_value("goals"), {.path = state.database.path()});
  for (const Json& goal : goals) {
    if (!goal.is_string()) state.fail_damaged("a goal is not a string");
    study.goals.push_back(parse_goal_spec(goal.get<std::string>()));
  }
  if (const auto note = value_of(state.database, kNoteValue, "num_train_samples"))
    study.num_train_samples = state.number_value<int64_t>("note num_train_samples", *note);
  else study.num_train_samples = state.number_value<int64_t>("train_samples", state.required_value("train_samples"));
  study.warnings = warnings_of(state.database);
  state.load_spaces();  // A concurrent run may have added batch sizes since this store was opened.
  Statement batches(state.database, "SELECT batch_size, num_trials, train_steps, early_stopping FROM batches ORDER BY batch_size");
  while (batches.step()) {
    BatchStudy& batch = study.batches.emplace_back();
    batch.batch_size = batches.integer(0);
    batch.space = state.spaces.at(batch.batch_size);
    batch.num_trials = batches.integer(1);
    batch.train_steps = batches.integer(2);
    batch.trials = state.read_trials(batch.batch_size, true);
    batch.early_stopping = batches.integer(3) != 0 || std::any_of(batch.trials.begin(), batch.trials.end(), [](const Trial& trial) {
                             return trial.status == TrialStatus::kCensored;
                           });
  }
  return study;
}

void Store::set_note(const std::string& name, const std::string& text) {
  if (!state_->lock) fail(ErrorCode::kBadInput, state_->database.path(), " was opened to read only: no note can be set");
  insert_note(state_->database, name, text);
}

std::optional<std::string> Store::note(const std::string& name) const { return value_of(state_->database, kNoteValue, name); }

}  // namespace cohort::study
