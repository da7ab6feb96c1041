#include "cohort/checkpoint/tools.h"

#include <doctest/doctest.h>
#include <fcntl.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "cohort/checkpoint/model_file.h"
#include "tests/support/checkpoint_files.h"
#include "tests/support/text.h"

using namespace cohort;
using namespace cohort::testing;

namespace {

namespace fs = std::filesystem;

}  // namespace

TEST_CASE("info describes the newest valid checkpoint from a run, its checkpoints or one step") {
  MemoryFolder space;
  fs::create_directory(space / "run");
  const std::string folder = space / "run/checkpoints";
  save(folder, 50, 5000, "n");
  save(folder, 100, 10000, "n");
  for (const std::string& path : {space / "run", folder}) {
    const Json info = checkpoint_info(path);
    CHECK(info["path"] == folder + "/step-000000100");
    CHECK(info["step"] == 100);
    CHECK(info["state"] == Json{{"mark", 10000}});
    CHECK(info["checkpoints"].size() == 2);
    REQUIRE(info["tensors"].size() == 3);
    CHECK(info["tensors"][1].dump() == "{\"name\":\"model/weight\",\"dtype\":\"F32\",\"shape\":[4,3],\"bytes\":48,\"pieces\":2}");
    CHECK(info["files"][0]["name"] == "rank-00000.safetensors");
    CHECK(info["bytes"] == info["files"][0]["bytes"].get<int64_t>() + info["files"][1]["bytes"].get<int64_t>());
  }
  CHECK(checkpoint_info(folder + "/step-000000050")["step"] == 50);
  CHECK(checkpoint_info(folder + "/latest")["step"] == 100);
  fs::remove(folder + "/step-000000100/rank-00000.safetensors");
  CHECK(checkpoint_info(folder)["step"] == 50);
  CHECK(checkpoint_info(folder)["checkpoints"][0]["ok"] == false);
  CHECK(contains(error_or_none([&] { checkpoint_info(folder + "/step-000000100"); }), "rank-00000.safetensors"));
  CHECK(contains(error_or_none([&] { checkpoint_info(space / "none"); }), "does not exist"));
  CHECK(contains(error_or_none([&] { checkpoint_info(space.path()); }), "holds no checkpoint"));
}

TEST_CASE("info cuts a long state") {
  MemoryFolder space;
  CheckpointWriter writer(space.path(), 1, "n");
  writer.begin();
  const ShardInfo shard = writer.write_shard(0, {});
  writer.commit({shard}, Json{{"rng", std::string(5000, 'a')}, {"order", std::vector<int>(100)}, {"lr", 0.5}});
  const Json info = checkpoint_info(space.path());
  CHECK(info["state"].dump() == "{\"rng\":\"... 5000 characters\",\"order\":\"... 100 items\",\"lr\":0.5}");
}

TEST_CASE("verify names what is wrong with each checkpoint") {
  MemoryFolder space;
  save(space.path(), 50, 5000, "n");
  save(space.path(), 100, 10000, "n");
  CHECK(checkpoint_verify(space.path())["ok"] == true);
  damage(space / "step-000000050/rank-00001.safetensors");
  const Json found = checkpoint_verify(space.path());
  CHECK(found["ok"] == false);
  REQUIRE(found["checkpoints"].size() == 2);
  CHECK(found["checkpoints"][0]["step"] == 100);
  CHECK(found["checkpoints"][0]["ok"] == true);
  CHECK(found["checkpoints"][0]["tensors"] == 3);
  CHECK(found["checkpoints"][1]["ok"] == false);
  CHECK(contains(found["checkpoints"][1]["error"], "XXH64"));
  // Info does not read the data.
  CHECK(checkpoint_info(space.path())["checkpoints"][1]["ok"] == true);
}

TEST_CASE("what a living run is removing is no checkpoint, and `latest` is where it points to") {
  MemoryFolder space;
  const std::string folder = space.path();
  save(folder, 50, 5000, "n");
  save(folder, 100, 10000, "n");
  fs::rename(folder + "/step-000000050", folder + "/step-000000050.old.7");  // Superseded, and half removed.
  fs::remove(folder + "/step-000000050.old.7/rank-00001.safetensors");
  fs::create_directory(folder + "/step-000000150.tmp.7");
  for (const Json& found : {checkpoint_verify(folder), checkpoint_info(folder)}) {
    REQUIRE(found["checkpoints"].size() == 1);
    CHECK(found["checkpoints"][0]["step"] == 100);
  }
  CHECK(checkpoint_verify(folder)["ok"] == true);
  CHECK(checkpoint_verify(folder + "/latest")["checkpoints"][0]["path"] == folder + "/step-000000100");
  // Between the two renames of a replacement a kill leaves the only copy so.
  fs::rename(folder + "/step-000000100", folder + "/step-000000100.old.7");
  CHECK(checkpoint_info(folder)["step"] == 100);
}

TEST_CASE("steps that are removed while they are read are no failure") {
  MemoryFolder space;
  const std::string folder = space.path();
  save(folder, 1, 100, "n");
  std::atomic<bool> ends{false};
  std::thread run([&] {
    for (int step = 2; !ends; ++step) save(folder, step, 100 * step, "n");
  });
  for (int i = 0; i < 200; ++i) {
    const Json found = checkpoint_verify(folder);
    CHECK(found["ok"] == true);
    CHECK(!contains(found.dump(), ".old."));
    CHECK(!found["checkpoints"].empty());
    CHECK(checkpoint_info(folder)["checkpoints"][0]["ok"] == true);
    CHECK(checkpoint_verify(folder + "/latest")["ok"] == true);
  }
  ends = true;
  run.join();
}

TEST_CASE("export joins the pieces under the model's own names") {
  MemoryFolder space;
  const std::string folder = space / "checkpoints", out = space / "model.safetensors";
  save(folder, 100, 10000, "n");
  const ExportResult result = checkpoint_export(folder, out);
  CHECK(result.step == 100);
  CHECK(result.num_tensors == 2);
  const SafetensorsFile file(out);
  CHECK(file.num_bytes() == result.bytes);
  CHECK(file.metadata() == with_checksums(file.tensors(), {{"format", "pt"}, {"step", "100"}}));
  REQUIRE(file.find("weight") != nullptr);
  CHECK(file.tensors().size() == 2);
  CHECK(file.find("weight")->shape == std::vector<int64_t>{4, 3});
  CHECK(std::memcmp(file.find("weight")->data, SampleState(10000).weight.data(), 48) == 0);
  CHECK(std::memcmp(file.find("bias")->data, SampleState(10000).bias.data(), 16) == 0);
}

TEST_CASE("a modified header is rejected; a header without a checksum is accepted") {
  MemoryFolder space;
  const std::string out = space / "model.safetensors";
  save(space.path(), 100, 10000, "n");
  checkpoint_export(space.path(), out, {.metadata = {{"data", "{\"mean\":[0.25]}"}}});
  const std::string whole = read_small_file(out, 1 << 20);
  const auto check = [&](const std::string& from, const std::string& to) {
    std::string text = whole;
    text.replace(text.find(from), from.size(), to);
    const UniqueDescriptor file = open_file(out, O_WRONLY | O_TRUNC);
    write_all(file.get(), text.data(), text.size(), out);
    return error_or_none([&] { check_tensors(SafetensorsFile(out), out); });
  };
  CHECK(check("0.25", "0.25") == "");
  CHECK(contains(check("0.25", "0.35"), "the text of its header has the checksum"));
  CHECK(contains(check("\"100\"", "\"101\""), "leave \"text_xxh3\" out of the header"));
  CHECK(check("text_xxh3", "text_none") == "");
  CHECK(checkpoint_verify(space.path())["ok"] == true);
}

TEST_CASE("export takes the previous checkpoint when the newest is damaged, and leaves the old file when it fails") {
  MemoryFolder space;
  const std::string folder = space / "checkpoints", out = space / "model.safetensors";
  save(folder, 50, 5000, "n");
  save(folder, 100, 10000, "n");
  damage(folder + "/step-000000100/rank-00000.safetensors");
  CHECK(checkpoint_export(folder, out).step == 50);
  const std::string before = read_small_file(out, 1 << 20);
  damage(folder + "/step-000000050/rank-00000.safetensors");
  CHECK(contains(error_or_none([&] { checkpoint_export(folder, out); }), "no valid checkpoint"));
  CHECK(read_small_file(out, 1 << 20) == before);
  save(folder, 150, 15000, "n");
  CHECK(contains(error_or_none([&] { checkpoint_export(folder, space / "none/x"); }, ErrorCode::kFailed), "No such file"));
  fs::create_directory(space / "taken");
  CHECK(contains(error_or_none([&] { checkpoint_export(folder, space / "taken"); }, ErrorCode::kFailed), "taken"));
  size_t entries = 0;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator(space.path())) ++entries;
  CHECK(entries == 3);  // checkpoints, model.safetensors, taken; no temporary file.
}

TEST_CASE("export writes aliases as copies, or leaves them out") {
  MemoryFolder space;
  const float values[2] = {1, 2};
  const auto write = [&](const Json& aliases) {
    CheckpointWriter writer(space / "checkpoints", 1, "n");
    writer.begin();
    const ShardInfo shard = writer.write_shard(0, {{{"model/embed", DType::kF32, {2}, values}, {2}, {0}}});
    writer.commit({shard}, Json{{"aliases", aliases}});
  };
  write({{"head", "embed"}, {"model/tied", "model/embed"}});
  CHECK(checkpoint_export(space.path(), space / "a.safetensors").num_tensors == 3);
  const SafetensorsFile file(space / "a.safetensors");
  for (const char* name : {"embed", "head", "tied"}) {
    REQUIRE(file.find(name) != nullptr);
    CHECK(std::memcmp(file.find(name)->data, values, sizeof values) == 0);
  }
  CHECK(checkpoint_export(space.path(), space / "b.safetensors", {.with_aliases = false}).num_tensors == 1);
  write({{"head", "none"}});
  CHECK(contains(error_or_none([&] { checkpoint_export(space.path(), space / "c.safetensors"); }),
                 "alias \"head\" stands for a tensor that is not stored"));
  write(Json::array());
  CHECK(contains(error_or_none([&] { checkpoint_export(space.path(), space / "c.safetensors"); }), "not an object"));
}
