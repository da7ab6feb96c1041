// Crash consistency by exhaustion: the calls of a save are recorded, then every prefix of them is replayed into a copy of the folder as it
// was before, with what a crash of the machine may do to effects that no fsync had confirmed (Pillai et al., OSDI 2014, "All file systems
// are not created equal"):
//   file data not fsynced:         kept, torn inside the last write, cut to half, cut to nothing
//   folder entries not fsynced:    all kept, all lost, each one lost alone (later ones kept), each suffix lost
// Afterwards the newest valid checkpoint must be the one before or the new one, whole; every folder with a final name must be whole too,
// and `latest` and `best` must not point to nothing (unless the step they name is just being replaced).

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "cohort/checkpoint/names.h"
#include "tests/support/checkpoint_files.h"

using namespace cohort;
using namespace cohort::testing;

namespace {

namespace fs = std::filesystem;
using Operation = RecordingIo::Operation;
using Kind = Operation::Kind;

enum class LostData { kNone, kTornWrite, kHalf, kAll };

bool changes_folder(const Operation& operation) {
  return operation.kind != Kind::kWrite && operation.kind != Kind::kSyncFile && operation.kind != Kind::kSyncFolder;
}

/// Positions of the operations on folder entries among the first `count` that no later fsync of their folder confirmed.
std::vector<size_t> unconfirmed(const std::vector<Operation>& operations, size_t count) {
  std::vector<size_t> positions;
  for (size_t i = 0; i < count; ++i) {
    if (!changes_folder(operations[i])) continue;
    bool confirmed = false;
    for (size_t j = i + 1; j < count; ++j)
      confirmed = confirmed || (operations[j].kind == Kind::kSyncFolder && operations[j].path == parent_folder(operations[i].path));
    if (!confirmed) positions.push_back(i);
  }
  return positions;
}

class Replay {
 public:
  Replay(std::string recorded, std::string target) : recorded_(std::move(recorded)), target_(std::move(target)) {}

  /// An operation whose folder or name was lost fails here too; that is the wanted effect.
  void apply(const Operation& operation) {
    const std::string path = moved(operation.path);
    switch (operation.kind) {
      case Kind::kCreate:
        files_[operation.path] = {UniqueDescriptor(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600)), 0, 0, 0};
        break;
      case Kind::kWrite: {
        File& file = files_[operation.path];
        file.last = file.written;
        file.written += operation.argument.size();
        if (file.descriptor) write_all(file.descriptor.get(), operation.argument.data(), operation.argument.size(), path);
        break;
      }
      case Kind::kSyncFile:
        files_[operation.path].synced = files_[operation.path].written;
        break;
      case Kind::kSyncFolder:
        break;
      case Kind::kRename:
        ignored(::rename(path.c_str(), moved(operation.argument).c_str()));
        break;
      case Kind::kMakeFolder:
        ignored(::mkdir(path.c_str(), 0700));
        break;
      case Kind::kUnlink:
        ignored(::unlink(path.c_str()));
        break;
      case Kind::kRemoveFolder:
        ignored(::rmdir(path.c_str()));
        break;
    }
  }

  /// The folder keeps its old name; what is done inside it later is done inside it all the same.
  void lose(const Operation& operation) {
    if (operation.kind == Kind::kRename) old_names_[operation.argument + "/"] = operation.path + "/";
  }

  void lose_data(LostData lost) {
    for (auto& [name, file] : files_) {
      if (!file.descriptor || file.synced == file.written || lost == LostData::kNone) continue;
      size_t left = file.synced;
      if (lost == LostData::kTornWrite) left = file.last + (file.written - file.last) / 2;
      if (lost == LostData::kHalf) left = file.synced + (file.written - file.synced) / 2;
      REQUIRE(::ftruncate(file.descriptor.get(), static_cast<off_t>(left)) == 0);
    }
  }

 private:
  struct File {
    UniqueDescriptor descriptor;
    size_t written = 0, synced = 0, last = 0;
  };
  static void ignored(int) {}
  std::string moved(std::string path) const {
    for (const auto& [name, old_name] : old_names_) {
      if (path.rfind(name, 0) == 0) path = old_name + path.substr(name.size());
    }
    REQUIRE(path.rfind(recorded_, 0) == 0);
    return target_ + path.substr(recorded_.size());
  }
  std::string recorded_, target_;
  std::map<std::string, File> files_;
  std::map<std::string, std::string> old_names_;
};

void check_names(const std::string& folder) {
  for (const std::string& text : list_checkpoints(folder)) {
    if (parse_checkpoint_folder_name(text)->kind == CheckpointName::Kind::kFinal) CHECK_NOTHROW(Checkpoint::open(folder + "/" + text));
  }
  for (const char* name : {"/latest", "/best"}) {
    if (!fs::exists(folder + name)) continue;
    const std::string step = read_pointer(folder + name);
    CHECK(!step.empty());  // Whole, or not there.
    if (fs::exists(folder + "/" + step)) continue;
    bool set_aside = false;
    for (const std::string& text : list_checkpoints(folder)) set_aside = set_aside || text.rfind(step + ".old.", 0) == 0;
    CHECK(set_aside);
  }
}

struct Outcome {
  std::set<int> marks;
  std::set<int> marks_after;  ///< Of crashes after the last call: what was promised is kept.
  int replays = 0;
};

/// Runs `action` on a copy of `before` under a recorder, then replays every crash and collects which mark the newest valid checkpoint of
/// the folder `checkpoints` below it has.
Outcome crash_everywhere(const TemporaryFolder& space, const std::string& before,
                         const std::function<void(const std::string&, CheckpointIo*)>& action, const std::string& checkpoints = "",
                         const std::function<void(const std::string&)>& look = {}) {
  const std::string recorded = space / "recorded", target = space / "replay";
  fs::copy(before, recorded, fs::copy_options::recursive | fs::copy_options::copy_symlinks);
  RecordingIo io;
  action(recorded, &io);
  const std::vector<Operation>& operations = io.operations;

  Outcome outcome;
  const auto crash = [&](size_t count, const std::set<size_t>& lost, LostData data) {
    fs::remove_all(target);
    fs::copy(before, target, fs::copy_options::recursive | fs::copy_options::copy_symlinks);
    Replay replay(recorded, target);
    for (size_t i = 0; i < count; ++i) {
      lost.count(i) == 0 ? replay.apply(operations[i]) : replay.lose(operations[i]);
    }
    replay.lose_data(data);
    const int mark = latest_mark(target + checkpoints);
    outcome.marks.insert(mark);
    if (count == operations.size()) outcome.marks_after.insert(mark);
    check_names(target + checkpoints);
    if (look) look(target + checkpoints);
    ++outcome.replays;
  };

  for (size_t count = 0; count <= operations.size(); ++count) {
    std::set<std::set<size_t>> losses = {{}};
    const std::vector<size_t> open = unconfirmed(operations, count);
    for (size_t i = 0; i < open.size(); ++i) {
      losses.insert({open[i]});
      losses.insert(std::set<size_t>(open.begin() + static_cast<long>(i), open.end()));
    }
    for (const auto& lost : losses) {
      crash(count, lost, LostData::kAll);
      crash(count, lost, LostData::kNone);
    }
    crash(count, {}, LostData::kTornWrite);
    crash(count, {}, LostData::kHalf);
  }
  fs::remove_all(recorded);
  return outcome;
}

}  // namespace

TEST_CASE("a crash anywhere in a save leaves the checkpoint before or the new one") {
  MemoryFolder space;
  const std::string before = space / "before";
  save(before, 25, 2500, "first");
  save(before, 50, 5000, "first");
  // keep = 2: step 25 is removed at the end, so removals are crashed into as well.
  const Outcome outcome = crash_everywhere(
      space, before, [](const std::string& folder, CheckpointIo* io) { CHECK(save(folder, 100, 10000, "second", io).empty()); });
  CHECK(outcome.marks == std::set<int>{5000, 10000});
  CHECK(outcome.marks_after == std::set<int>{10000});
  CHECK(outcome.replays > 300);
}

/// Step of the checkpoint that `best` names, which is whole; -1 where there is none.
int best_step(const std::string& folder) {
  if (!fs::exists(folder + "/best")) return -1;
  const Checkpoint best = Checkpoint::open(folder + "/" + read_pointer(folder + "/best"));
  CHECK(mark_of(best) == best.step() * 100);
  return static_cast<int>(best.step());
}

TEST_CASE("a crash anywhere in a save that brings a new best leaves the best before or the new one, whole") {
  MemoryFolder space;
  const std::string before = space / "before";
  save(before, 25, 2500, "first", nullptr, 2, 25);
  save(before, 50, 5000, "first", nullptr, 2, 25);
  save(before, 75, 7500, "first", nullptr, 2, 25);
  CHECK(best_step(before) == 25);
  // keep = 2: steps 25 and 50 are removed at the end, 25 only once the name of 100 is durable.
  std::set<int> best;
  const Outcome outcome = crash_everywhere(
      space, before, [](const std::string& folder, CheckpointIo* io) { CHECK(save(folder, 100, 10000, "second", io, 2, 100).empty()); }, "",
      [&](const std::string& folder) { best.insert(best_step(folder)); });
  CHECK(outcome.marks_after == std::set<int>{10000});
  CHECK(best == std::set<int>{25, 100});
  // One that is not the best leaves the pointer, and what it names.
  best.clear();
  crash_everywhere(
      space, before, [](const std::string& folder, CheckpointIo* io) { save(folder, 100, 10000, "second", io, 2, 25); }, "",
      [&](const std::string& folder) { best.insert(best_step(folder)); });
  CHECK(best == std::set<int>{25});
}

TEST_CASE("a crash anywhere in the first save leaves nothing or the checkpoint") {
  MemoryFolder space;
  const std::string before = space / "before";
  fs::create_directory(before);
  const Outcome outcome =
      crash_everywhere(space, before, [](const std::string& folder, CheckpointIo* io) { save(folder, 100, 10000, "n", io); });
  CHECK(outcome.marks == std::set<int>{-1, 10000});
  CHECK(outcome.marks_after == std::set<int>{10000});
}

TEST_CASE("a crash after the first save of a new run leaves it, the run's folder and those above it included") {
  MemoryFolder space;
  const std::string before = space / "before";
  fs::create_directory(before);
  // As RunFolder and the trainer do it: the run's folder first, its checkpoints with the first save.
  const auto in_two_parts = [](const std::string& folder, CheckpointIo* io) {
    checked::make_folders(*io, folder + "/runs/new");
    save(folder + "/runs/new/checkpoints", 100, 10000, "n", io);
  };
  const auto at_once = [](const std::string& folder, CheckpointIo* io) { save(folder + "/runs/new/checkpoints", 100, 10000, "n", io); };
  for (const auto& action : {std::function<void(const std::string&, CheckpointIo*)>(in_two_parts), {at_once}}) {
    const Outcome outcome = crash_everywhere(space, before, action, "/runs/new/checkpoints");
    CHECK(outcome.marks == std::set<int>{-1, 10000});
    CHECK(outcome.marks_after == std::set<int>{10000});
  }
}

TEST_CASE("a crash anywhere in a second save of one step leaves that step, old or new") {
  MemoryFolder space;
  const std::string before = space / "before";
  save(before, 50, 5000, "first");
  save(before, 100, 10000, "first");
  const Outcome outcome =
      crash_everywhere(space, before, [](const std::string& folder, CheckpointIo* io) { save(folder, 100, 20000, "second", io); });
  // Never back to step 50: the old step 100 stays readable under its other name until the new one is durable.
  CHECK(outcome.marks == std::set<int>{10000, 20000});
}

TEST_CASE("a crash anywhere in a second save of the only step, with the same nonce, leaves that step") {
  MemoryFolder space;
  const std::string before = space / "before";
  save(before, 100, 10000, "same");
  const Outcome outcome =
      crash_everywhere(space, before, [](const std::string& folder, CheckpointIo* io) { save(folder, 100, 20000, "same", io); });
  CHECK(outcome.marks == std::set<int>{10000, 20000});
}

TEST_CASE("a crash in the save that follows a crash between the two renames leaves a checkpoint") {
  MemoryFolder space;
  const std::string before = space / "before";
  save(before, 100, 10000, "same");
  fs::rename(before + "/step-000000100", before + "/step-000000100.old.same");
  CHECK(latest_mark(before) == 10000);
  const Outcome outcome =
      crash_everywhere(space, before, [](const std::string& folder, CheckpointIo* io) { save(folder, 100, 20000, "same", io); });
  CHECK(outcome.marks == std::set<int>{10000, 20000});
  const Outcome next =
      crash_everywhere(space, before, [](const std::string& folder, CheckpointIo* io) { save(folder, 150, 15000, "same", io); });
  CHECK(next.marks == std::set<int>{10000, 15000});
}
