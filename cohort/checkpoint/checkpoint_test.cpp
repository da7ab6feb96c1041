#include "cohort/checkpoint/checkpoint.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "cohort/base/files/process_identity.h"
#include "cohort/base/random.h"
#include "cohort/checkpoint/names.h"
#include "cohort/checkpoint/retention.h"
#include "tests/support/checkpoint_files.h"
#include "tests/support/mutation.h"
#include "tests/support/text.h"

using namespace cohort;
using namespace cohort::testing;

namespace {

namespace fs = std::filesystem;

constexpr size_t kLimit = 1 << 20;

void put_file(const std::string& path, const std::string& content) {
  const UniqueDescriptor file = open_file(path, O_WRONLY | O_CREAT | O_TRUNC);
  write_all(file.get(), content.data(), content.size(), path);
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  posix_io().list(folder, &names);
  return names;
}

/// Moves the times of a folder and its files into the past.
void make_older(const std::string& folder, int seconds) {
  const auto then = fs::file_time_type::clock::now() - std::chrono::seconds(seconds);
  for (const auto& entry : fs::directory_iterator(folder)) fs::last_write_time(entry.path(), then);
  fs::last_write_time(folder, then);
}

}  // namespace

TEST_CASE("a checkpoint gives back what was saved, whole and in boxes") {
  MemoryFolder space;
  const std::string folder = space / "checkpoints";
  save(folder, 100, 7, "nonce");
  CHECK(names_in(folder) == std::vector<std::string>{"latest", "step-000000100"});
  CHECK(read_small_file(folder + "/latest", kLimit) == "step-000000100\n");
  CHECK(names_in(folder + "/step-000000100") ==
        std::vector<std::string>{"manifest.json", "rank-00000.safetensors", "rank-00001.safetensors"});

  const auto checkpoint = Checkpoint::open_latest(folder);
  REQUIRE(checkpoint);
  CHECK(mark_of(*checkpoint) == 7);
  CHECK(checkpoint->step() == 100);
  CHECK(checkpoint->path() == folder + "/step-000000100");
  CHECK(checkpoint->tensor_names() == std::vector<std::string>{"model/bias", "model/weight", "optimizer/weight/count"});
  CHECK(checkpoint->dtype("model/bias") == DType::kF64);
  CHECK(checkpoint->shape("model/weight") == std::vector<int64_t>{4, 3});
  CHECK(checkpoint->shards().size() == 2);
  CHECK(checkpoint->has("model/weight"));
  CHECK(!checkpoint->has("weight"));
  // A box that crosses the cut between the ranks: rows 0 to 2, columns 1 to 2.
  std::vector<float> box(6);
  checkpoint->read("model/weight", {0, 1}, {3, 2}, box.data());
  CHECK(box == std::vector<float>{8, 9, 11, 12, 14, 15});
  CHECK(checkpoint->contiguous_data("model/weight") == nullptr);
  CHECK(*static_cast<const int64_t*>(checkpoint->contiguous_data("optimizer/weight/count")) == 7);
  checkpoint->read("model/weight", {4, 0}, {0, 3}, nullptr);
  CHECK(contains(error_or_none([&] { checkpoint->read("model/weight", {2, 1}, {3, 2}, box.data()); }), "leaves the tensor"));
  CHECK(contains(error_or_none([&] { checkpoint->read_whole("none", box.data()); }), "holds no tensor \"none\""));
}

TEST_CASE("several pieces of one tensor in one shard, odd names, empty tensors, an empty shard") {
  MemoryFolder space;
  const float values[6] = {0, 1, 2, 3, 4, 5};
  const float other = 9;
  CheckpointWriter writer(space.path(), 0, "n");
  writer.begin();
  std::vector<ShardInfo> shards;
  // A flat share of [2, 3]: elements 0 to 3 are a row and a part of one.
  shards.push_back(writer.write_shard(0, {{{"a", DType::kF32, {1, 3}, values}, {2, 3}, {0, 0}},
                                          {{"a", DType::kF32, {1, 1}, values + 3}, {2, 3}, {1, 0}},
                                          {{"a#1", DType::kF32, {}, &other}, {}, {}},
                                          {{"empty", DType::kI64, {0, 5}, nullptr}, {0, 5}, {0, 0}}}));
  shards.push_back(writer.write_shard(1, {{{"a", DType::kF32, {1, 2}, values + 4}, {2, 3}, {1, 1}}}));
  shards.push_back(writer.write_shard(2, {}));
  const std::string path = writer.commit(shards, Json::object());
  const Checkpoint checkpoint = Checkpoint::open(path);
  std::vector<float> got(6);
  checkpoint.read_whole("a", got.data());
  CHECK(got == std::vector<float>(values, values + 6));
  checkpoint.read_whole("a#1", got.data());
  CHECK(got[0] == 9);
  checkpoint.read_whole("empty", nullptr);
  CHECK(checkpoint.step() == 0);
}

TEST_CASE("commit refuses shards that do not hold every element exactly once, and names the tensor") {
  MemoryFolder space;
  const std::vector<float> values(6);
  const auto attempt = [&](const std::vector<std::vector<TensorPiece>>& ranks) {
    CheckpointWriter writer(space.path(), 1, "n");
    writer.begin();
    std::vector<ShardInfo> shards;
    for (size_t rank = 0; rank < ranks.size(); ++rank) shards.push_back(writer.write_shard(static_cast<int>(rank), ranks[rank]));
    const std::string text = error_or_none([&] { writer.commit(shards, Json::object()); });
    writer.abandon();
    CHECK(names_in(space.path()).empty());
    return text;
  };
  const TensorPiece low{{"w", DType::kF32, {1, 3}, values.data()}, {2, 3}, {0, 0}};
  CHECK(contains(attempt({{low}}), "tensor \"w\": the pieces hold 3 of 6 elements"));
  CHECK(contains(attempt({{low}, {low}}), "tensor \"w\": pieces at [0, 0] and at [0, 0] overlap"));
  CHECK(contains(attempt({{low}, {{{"w", DType::kF64, {1, 3}, values.data()}, {2, 3}, {1, 0}}}}),
                 "F32 [2, 3] in one piece, F64 [2, 3] in rank-00001"));
  CHECK(contains(attempt({{low}, {{{"w", DType::kF32, {1, 3}, values.data()}, {3, 3}, {1, 0}}}}), "F32 [3, 3] in rank-00001"));
}

TEST_CASE("a run's folder that was removed is not made again by a save") {
  MemoryFolder space;
  CheckpointWriter writer(space / "run/checkpoints", 1, "n");
  CHECK(contains(error_or_none([&] { writer.begin(/*makes_above=*/false); }, ErrorCode::kFailed), "No such file or directory"));
  CHECK(names_in(space.path()).empty());
  fs::create_directory(space / "run");
  writer.begin(/*makes_above=*/false);
  CHECK(names_in(space / "run/checkpoints").size() == 1);
}

TEST_CASE("commit misses a shard that is not in the folder") {
  MemoryFolder space;
  CheckpointWriter writer(space.path(), 1, "n");
  writer.begin();
  const ShardInfo shard = writer.write_shard(0, {});
  fs::resize_file(space / "step-000000001.tmp.n/rank-00000.safetensors", 20);
  CHECK(contains(error_or_none([&] { writer.commit({shard}, Json::object()); }, ErrorCode::kFailed), "has 20 bytes, its rank wrote"));
  fs::remove(space / "step-000000001.tmp.n/rank-00000.safetensors");
  CHECK(contains(error_or_none([&] { writer.commit({shard}, Json::object()); }, ErrorCode::kFailed), "do all ranks see the same folder?"));
}

TEST_CASE("the newest two are kept, a damaged one does not count, a later one is never removed") {
  MemoryFolder space;
  for (const int step : {10, 20, 30, 40}) save(space.path(), step, step * 100, "n", nullptr, 3);
  CHECK(list_checkpoints(space.path()) == std::vector<std::string>{"step-000000040", "step-000000030", "step-000000020"});
  fs::remove(space / "step-000000040/manifest.json");
  save(space.path(), 50, 5000, "n", nullptr, 1);
  CHECK(list_checkpoints(space.path()) == std::vector<std::string>{"step-000000050", "step-000000040", "step-000000030"});
  save(space.path(), 35, 3500, "n");
  CHECK(list_checkpoints(space.path()) == std::vector<std::string>{"step-000000050", "step-000000040", "step-000000035", "step-000000030"});
  CHECK(read_pointer(space / "latest") == "step-000000035");
}

TEST_CASE("the best stays however old it is, and the pointer goes to it") {
  MemoryFolder space;
  for (const int step : {10, 20, 30, 40}) save(space.path(), step, step * 100, "n", nullptr, 2, 10);
  CHECK(list_checkpoints(space.path()) == std::vector<std::string>{"step-000000040", "step-000000030", "step-000000010"});
  CHECK(read_pointer(space / "best") == "step-000000010");
  save(space.path(), 50, 5000, "n", nullptr, 2, 30);
  CHECK(list_checkpoints(space.path()) == std::vector<std::string>{"step-000000050", "step-000000040", "step-000000030"});
  CHECK(read_pointer(space / "best") == "step-000000030");
  save(space.path(), 60, 6000, "n", nullptr, 2, 5);  // One that is gone: the pointer is not made to name nothing.
  CHECK(read_pointer(space / "best") == "step-000000030");
}

TEST_CASE("two jobs on one folder do not touch each other's work") {
  MemoryFolder space;
  CheckpointWriter other(space.path(), 70, "other");
  other.begin();
  const SampleState state(700);
  std::vector<ShardInfo> shards = {other.write_shard(0, state.ranks()[0])};
  make_older(space / "step-000000070.tmp.other", 100'000);  // Old, but its writer lives: this process.
  save(space.path(), 60, 600, "mine");
  save(space.path(), 65, 650, "mine");
  shards.push_back(other.write_shard(1, state.ranks()[1]));
  other.commit(shards, Json{{"mark", 700}});
  CHECK(latest_mark(space.path()) == 700);
  // Both save the same step: the later one replaces, nothing is mixed.
  save(space.path(), 70, 701, "mine");
  CHECK(latest_mark(space.path()) == 701);
}

TEST_CASE("temporary folders go when their writer is dead or silent for an hour") {
  MemoryFolder space;
  const pid_t child = ::fork();
  if (child == 0) {
    CheckpointWriter(space.path(), 5, "killed").begin();
    ::raise(SIGKILL);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  fs::create_directory(space / "step-000000006.tmp.young");
  fs::create_directory(space / "step-000000007.tmp.silent");
  put_file(space / "step-000000007.tmp.silent/rank-00000.safetensors", "x");
  make_older(space / "step-000000007.tmp.silent", 4000);
  fs::create_directory(space / "step-000000008.tmp.stranger");
  put_file(space / "step-000000008.tmp.stranger/writer.json", "{\"space\":\"another host\",\"pid\":1,\"start_ticks\":1}");
  make_older(space / "step-000000008.tmp.stranger", 3000);
  fs::create_directory(space / "notes");  // Not ours.
  REQUIRE(fs::exists(space / "step-000000005.tmp.killed/writer.json"));
  save(space.path(), 10, 1000, "n");
  CHECK(names_in(space.path()) ==
        std::vector<std::string>{"latest", "notes", "step-000000006.tmp.young", "step-000000008.tmp.stranger", "step-000000010"});
}

TEST_CASE("process_state is certain or says so") {
  CHECK(process_state(describe_this_process()) == ProcessState::kAlive);
  CHECK(process_state("") == ProcessState::kUnknown);
  CHECK(process_state("{\"space\":\"x\",\"pid\":1,\"start_ticks\":1}") == ProcessState::kUnknown);
  Json other = Json::parse(describe_this_process());
  other["start_ticks"] = other["start_ticks"].get<int64_t>() + 1;  // The same number, another process.
  CHECK(process_state(other.dump()) == ProcessState::kGone);
  other["pid"] = 1LL << 40;
  CHECK(process_state(other.dump()) == ProcessState::kGone);
  other["pid"] = "1";
  CHECK(process_state(other.dump()) == ProcessState::kUnknown);
}

TEST_CASE("what a killed writer leaves goes with the next start, and nothing of a living one") {
  MemoryFolder space;
  const std::string folder = space / "checkpoints", file = space / "model.safetensors";
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const std::string nonce = process_nonce();
    CheckpointWriter writer(folder, 5, nonce);
    writer.begin();
    fs::remove(folder + "/step-000000005.tmp." + nonce + "/writer.json");  // As when its manifest is written.
    put_file(folder + "/latest.tmp." + nonce, "step-0");
    put_file(temporary_name(file), "half");
    fs::create_directory(space / ("cohort-batch-" + nonce + "-abcdef"));
    (void)!::write(ends[1], nonce.data(), nonce.size());
    ::raise(SIGKILL);
  }
  std::string nonce(16, ' ');
  REQUIRE(::read(ends[0], nonce.data(), nonce.size()) == 16);
  ::close(ends[0]), ::close(ends[1]);
  siginfo_t ended{};
  REQUIRE(::waitid(P_PID, static_cast<id_t>(child), &ended, WEXITED | WNOWAIT) == 0);
  CHECK(state_of_nonce(nonce) == ProcessState::kGone);  // Though nobody has asked for its exit code.
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(state_of_nonce(nonce) == ProcessState::kGone);
  CHECK(state_of_nonce(process_nonce()) == ProcessState::kAlive);
  for (const char* text : {"", "0123456789abcde", "0123456789abcdeg", "0000000000000000"})
    CHECK(state_of_nonce(text) == ProcessState::kUnknown);
  const std::string mine = process_nonce(), strange = "x.json.tmp.0000000000000000";
  fs::create_directory(folder + "/step-000000006.tmp." + mine);
  const std::string written = temporary_name(file);
  put_file(written, "half");
  put_file(space / strange, "another host's, and young");
  put_file(space / "notes.tmp.txt", "the user's");
  remove_unfinished(posix_io(), folder);
  remove_leftover_files(space.path());
  remove_leftover_folders(space.path(), "cohort-batch");
  CHECK(names_in(folder) == std::vector<std::string>{"step-000000006.tmp." + mine});
  CHECK(names_in(space.path()) == std::vector<std::string>{"checkpoints", fs::path(written).filename().string(), "notes.tmp.txt", strange});
  make_older(space.path(), 100'000);
  remove_leftover_files(space.path());
  CHECK(!fs::exists(space / strange));
  CHECK(fs::exists(written));
}

TEST_CASE("a damaged newest checkpoint is skipped with its reason: every bit of the manifest, sampled bits of the shards") {
  MemoryFolder space;
  save(space.path(), 50, 5000, "n");
  save(space.path(), 100, 10000, "n");
  int flips = 0;
  for (const char* file : {"manifest.json", "rank-00000.safetensors", "rank-00001.safetensors"}) {
    const std::string path = space / "step-000000100/" + file;
    const std::string good = read_small_file(path, kLimit);
    for (size_t at = 0; at < good.size(); ++at) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ (1 << (random_bits(3, at) % 8)));
      put_file(path, bad);
      std::vector<std::string> skipped;
      CHECK(latest_mark(space.path(), &skipped) == 5000);
      REQUIRE(skipped.size() == 1);
      CHECK(contains(skipped[0], file));
      ++flips;
    }
    for (const size_t size : {size_t{0}, size_t{7}, good.size() / 2, good.size() - 1}) {
      put_file(path, good.substr(0, size));
      CHECK(latest_mark(space.path()) == 5000);
    }
    put_file(path, good + "x");
    CHECK(latest_mark(space.path()) == 5000);
    fs::remove(path);
    CHECK(latest_mark(space.path()) == 5000);
    put_file(path, good);
    CHECK(latest_mark(space.path()) == 10000);
  }
  CHECK(flips > 1000);
}

TEST_CASE("swapped and foreign shards, a renamed folder and a link out of it are found") {
  MemoryFolder space;
  save(space.path(), 50, 5000, "n");
  save(space.path(), 100, 10000, "n");
  const std::string step = space / "step-000000100";
  fs::rename(step + "/rank-00000.safetensors", step + "/x");
  fs::rename(step + "/rank-00001.safetensors", step + "/rank-00000.safetensors");
  fs::rename(step + "/x", step + "/rank-00001.safetensors");
  CHECK(latest_mark(space.path()) == 5000);
  fs::copy_file(space / "step-000000050/rank-00000.safetensors", step + "/rank-00001.safetensors", fs::copy_options::overwrite_existing);
  CHECK(latest_mark(space.path()) == 5000);
  fs::remove_all(step);
  fs::rename(space / "step-000000050", space / "step-000000060");
  std::vector<std::string> skipped;
  CHECK(latest_mark(space.path(), &skipped) == -1);
  REQUIRE(skipped.size() == 1);
  CHECK(contains(skipped[0], "it is of step 50, its folder says 60"));
  CHECK(latest_mark(space / "none") == -1);
  CHECK(contains(error_or_none([&] { Checkpoint::open_latest(space / "step-000000060/manifest.json"); }), "Not a directory"));
}

TEST_CASE("names of folders, nonces and shards") {
  for (const char* text : {"step-000000000", "step-000000100", "step-1234567890", "step-000000001.tmp.aB_-9", "step-000000001.old.x"}) {
    const auto name = parse_checkpoint_folder_name(text);
    REQUIRE(name);
    CHECK(checkpoint_folder_name(*name) == text);
  }
  for (const char* text :
       {"", "step-", "step-1", "step-0000000100", "step-+00000001", "step--00000001", "step-000000001.tmp", "step-000000001.tmp.",
        "step-000000001.tmp.a/b", "step-000000001.new.a", "step-000000001x", "step-99999999999999999999", "latest"}) {
    CHECK_MESSAGE(!parse_checkpoint_folder_name(text), text);
  }
  CHECK(!valid_nonce(std::string(65, 'a')));
  CHECK(valid_shard_name(shard_name(3)));
  CHECK(shard_name(123456) == "rank-123456.safetensors");
  for (const char* text : {"", ".safetensors", "..safetensors", "../a.safetensors", "/a.safetensors", "a/b.safetensors", "a.bin"})
    CHECK_MESSAGE(!valid_shard_name(text), text);
  CHECK_THROWS_AS(CheckpointWriter("x", -1, "n"), Error);
  CHECK_THROWS_AS(CheckpointWriter("x", 1, "../n"), Error);
}
