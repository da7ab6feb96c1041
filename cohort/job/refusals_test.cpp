#include "cohort/job/refusals.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "cohort/base/error.h"

namespace cohort {
namespace {

struct Asked {
  size_t row;
  Config config;
  Layout layout;
};

/// One for each row, and what differs from it in one setting goes through.
std::vector<Asked> asked() {
  const auto with = [](auto member, auto value) {
    Config config;
    config.*member = value;
    return config;
  };
  const auto virtually = [&](auto member, auto value) {
    Config config = with(member, value);
    config.virtual_time = "workers=2";
    return config;
  };
  Config nccl, noisy;
  nccl.backend = "nccl";
  noisy.noise_scale = 5, noisy.sync_batch_norm = true;
  Layout uneven{.pp = 2, .order = "pp-dp-tp", .stages = {{{"a"}, 0, 2}, {{"b"}, 1, 1}}};
  const Layout local_uneven{.pp = 2, .sync = "local:4", .stages = {{{"a"}, 0, 2}, {{"b"}, 1, 1}}};
  return {{0, {}, {.dp = 2, .zero = 1, .sync = "queue"}},
          {0, {}, {.pp = 2, .sync = "async"}},
          {0, {}, {.dp = 2, .zero = 1, .sync = "stale:3"}},
          {1, {}, {.dp = 2, .sync = "async", .compress = "fp16"}},
          {2, with(&Config::shares, std::string("3:1")), {.dp = 2, .sync = "async"}},
          {2, {}, {.dp = 2, .sync = "stale:1", .shares = "auto"}},
          {3, with(&Config::accumulate, 2), {.dp = 2, .sync = "async"}},
          {3, with(&Config::precision, std::string("fp16")), {.dp = 2, .sync = "stale:1"}},
          {3, with(&Config::sync_batch_norm, true), {.dp = 2, .sync = "async"}},
          {3, with(&Config::noise_scale, int64_t{5}), {.dp = 2, .sync = "async"}},
          {4, {}, {.dp = 2, .zero = 1, .compress = "int8"}},
          {5, {}, {.pp = 2, .compress = "fp16"}},
          {6, {}, uneven},
          {7, with(&Config::shares, std::string("3:1")), {.pp = 2}},
          {7, {}, {.tp = 2, .shares = "3:1"}},
          {8, with(&Config::device, std::string("cuda")), {.tp = 2}},
          {9, with(&Config::device, std::string("cuda")), {.dp = 2, .compress = "fp16"}},
          {10, nccl, {.dp = 2}},
          {11, with(&Config::sync_batch_norm, true), {.tp = 2}},
          {12, with(&Config::label_smoothing, 0.1), {.tp = 2}},
          {13, with(&Config::noise_scale, int64_t{5}), {.pp = 2}},
          {14, noisy, {.dp = 2}},
          {15, {}, {.dp = 2, .zero = 2, .sync = "local:4"}},
          {16, {}, local_uneven},
          {17, {}, {.dp = 2, .sync = "diloco:4", .compress = "topk:0.1"}},
          {17, {}, {.dp = 2, .sync = "local:4", .compress = "powersgd:2"}},
          {18, with(&Config::shares, std::string("auto")), {.dp = 2, .sync = "local:4"}},
          {19, with(&Config::precision, std::string("fp16")), {.dp = 2, .sync = "diloco:4"}},
          {19, {}, {.dp = 2, .sync = "local:4", .precision = "fp16"}},
          {20, with(&Config::sync_batch_norm, true), {.dp = 2, .sync = "local:4"}},
          {21, with(&Config::noise_scale, int64_t{5}), {.dp = 2, .sync = "local:4"}},
          {22, with(&Config::virtual_time, std::string("workers=2")), {.dp = 2, .sync = "async"}},
          {23, virtually(&Config::accumulate, 2), {.sync = "async"}},
          {23, virtually(&Config::device, std::string("cuda")), {.sync = "stale:2"}},
          {23, virtually(&Config::precision, std::string("fp16")), {}},
          {23, with(&Config::virtual_time, std::string("workers=2")), {.sync = "queue", .precision = "fp16"}},
          {23, virtually(&Config::sync_batch_norm, true), {.sync = "queue"}},
          {23, virtually(&Config::noise_scale, int64_t{4}), {.sync = "async"}},
          {23, virtually(&Config::memory_limit, int64_t{1} << 30), {.sync = "async"}},
          {23, virtually(&Config::inject, std::string("kill:0:1")), {.sync = "async"}}};
}

TEST_CASE("refusals: every row refuses what it names, with values and what to do, and nothing that a run can do") {
  std::vector<bool> met(refusals().size(), false);
  for (const Asked& each : asked()) {
    CAPTURE(each.row);
    met[each.row] = true;
    const Situation situation{.config = each.config, .layout = each.layout, .num_ranks = 2};
    for (size_t row = 0; row < refusals().size(); ++row) CHECK(refusals()[row].found(situation).empty() == (row != each.row));
    const std::string sentence = refusal_of(situation).value();
    CHECK(sentence.find(" is not supported; ") != std::string::npos);
    CHECK_THROWS_AS(check_refusals(situation), Error);
  }
  for (size_t row = 0; row < met.size(); ++row) CHECK_MESSAGE(met[row], "a new row needs a case above");
  for (const Layout& layout :
       {Layout{}, Layout{.dp = 2, .zero = 3}, Layout{.dp = 2, .compress = "topk:0.01"}, Layout{.dp = 2, .pp = 2, .tp = 2, .zero = 2},
        Layout{.dp = 2, .shares = "2:1"}, Layout{.dp = 2, .pp = 2, .tp = 2, .sync = "diloco:8"},
        Layout{.dp = 2, .sync = "local:8", .compress = "int8"}, Layout{.dp = 2, .sync = "local:8", .shares = "3:1"}})
    CHECK(!refusal_of(layout));
}

TEST_CASE("refusals: docs/guide/layouts.md has the table") {
  std::ifstream in(std::filesystem::path(__FILE__).parent_path() / "../../docs/guide/layouts.md");
  const std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  REQUIRE(!text.empty());
  std::string table;
  for (const Refusal& row : refusals()) table += std::string("| ") + row.what + " | " + row.instead + " |\n";
  CAPTURE(table);
  CHECK(text.find(table) != std::string::npos);
}

}  // namespace
}  // namespace cohort
