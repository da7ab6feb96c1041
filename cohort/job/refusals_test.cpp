#include "cohort/job/refusals.h"

#include <doctest/doctest.h>

#include <fstream>
#include <iterator>

#include "cohort/base/error.h"
#include "tests/support/places.h"

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
  const Layout local_uneven{.pp = 2, .sync = parse_sync("local:4"), .stages = {{{"a"}, 0, 2}, {{"b"}, 1, 1}}};
  return {{0, {}, {.dp = 2, .zero = 1, .sync = parse_sync("queue")}},
          {0, {}, {.pp = 2, .sync = parse_sync("async")}},
          {0, {}, {.tp = 2, .sync = parse_sync("queue:newest")}},
          {0, {}, {.dp = 2, .zero = 1, .sync = parse_sync("stale:3")}},
          {1, {}, {.dp = 2, .sync = parse_sync("async"), .compress = "topk:0.1"}},
          {1, with(&Config::virtual_time, std::string("workers=2")), {.sync = parse_sync("stale:3"), .compress = "powersgd:2"}},
          {2, {}, {.dp = 2, .sync = parse_sync("stale:0"), .compress = "fp16"}},
          {3, {}, {.dp = 2, .sync = parse_sync("queue"), .compress = "int8"}},
          {3, with(&Config::virtual_time, std::string("workers=2")), {.sync = parse_sync("queue:newest"), .compress = "bf16"}},
          {3, {}, {.dp = 2, .sync = parse_sync("diloco:4:quorum=1"), .compress = "fp16"}},
          {4, with(&Config::shares, std::string("3:1")), {.dp = 2, .sync = parse_sync("async")}},
          {4, {}, {.dp = 2, .sync = parse_sync("stale:1"), .shares = "auto"}},
          {5, with(&Config::accumulate, 2), {.dp = 2, .sync = parse_sync("async")}},
          {5, with(&Config::precision, std::string("fp16")), {.dp = 2, .sync = parse_sync("stale:1")}},
          {5, with(&Config::sync_batch_norm, true), {.dp = 2, .sync = parse_sync("async")}},
          {5, with(&Config::noise_scale, int64_t{5}), {.dp = 2, .sync = parse_sync("async")}},
          {6, {}, {.dp = 2, .zero = 1, .compress = "int8"}},
          {7, {}, {.pp = 2, .compress = "fp16"}},
          {8, {}, uneven},
          {9, with(&Config::shares, std::string("3:1")), {.pp = 2}},
          {9, {}, {.tp = 2, .shares = "3:1"}},
          {10, with(&Config::device, std::string("cuda")), {.tp = 2}},
          {11, with(&Config::device, std::string("cuda")), {.dp = 2, .compress = "fp16"}},
          {12, nccl, {.dp = 2}},
          {13, with(&Config::sync_batch_norm, true), {.tp = 2}},
          {14, with(&Config::label_smoothing, 0.1), {.tp = 2}},
          {15, with(&Config::noise_scale, int64_t{5}), {.pp = 2}},
          {16, noisy, {.dp = 2}},
          {17, {}, {.dp = 2, .zero = 2, .sync = parse_sync("local:4")}},
          {18, {}, local_uneven},
          {19, {}, {.dp = 2, .sync = parse_sync("diloco:4"), .compress = "topk:0.1"}},
          {19, {}, {.dp = 2, .sync = parse_sync("local:4"), .compress = "powersgd:2"}},
          {20, with(&Config::shares, std::string("auto")), {.dp = 2, .sync = parse_sync("local:4")}},
          {21, with(&Config::precision, std::string("fp16")), {.dp = 2, .sync = parse_sync("diloco:4")}},
          {21, {}, {.dp = 2, .sync = parse_sync("local:4"), .precision = "fp16"}},
          {22, with(&Config::sync_batch_norm, true), {.dp = 2, .sync = parse_sync("local:4")}},
          {23, with(&Config::noise_scale, int64_t{5}), {.dp = 2, .sync = parse_sync("local:4")}},
          {24, with(&Config::virtual_time, std::string("workers=2")), {.dp = 2, .sync = parse_sync("async")}},
          {25, virtually(&Config::accumulate, 2), {.sync = parse_sync("async")}},
          {25, virtually(&Config::device, std::string("cuda")), {.sync = parse_sync("stale:2")}},
          {25, virtually(&Config::precision, std::string("fp16")), {}},
          {25, with(&Config::virtual_time, std::string("workers=2")), {.sync = parse_sync("queue"), .precision = "fp16"}},
          {25, virtually(&Config::sync_batch_norm, true), {.sync = parse_sync("queue")}},
          {25, virtually(&Config::noise_scale, int64_t{4}), {.sync = parse_sync("async")}},
          {25, virtually(&Config::memory_limit, int64_t{1} << 30), {.sync = parse_sync("async")}},
          {25, virtually(&Config::inject, std::string("kill:0:1")), {.sync = parse_sync("async")}},
          {26, {}, {.dp = 2, .pp = 2, .sync = parse_sync("local:8:4")}},
          {26, {}, {.dp = 2, .tp = 2, .sync = parse_sync("diloco:8:2")}},
          {27, with(&Config::prune, std::string("weight:0.5")), {.tp = 2}},
          {28, with(&Config::prune, std::string("2:4")), {.dp = 2, .sync = parse_sync("local:4")}},
          {28, with(&Config::prune, std::string("2:4")), {.dp = 2, .sync = parse_sync("async")}},
          {29, virtually(&Config::prune, std::string("2:4")), {}},
          {30, with(&Config::quantize_aware, std::string("8")), {.dp = 2, .tp = 2}},
          {31, with(&Config::quantize_aware, std::string("4")), {.dp = 2, .precision = "bf16"}},
          {32, with(&Config::hint, std::string("a:b")), {.pp = 2}},
          {32, with(&Config::hint, std::string("a:b")), {.dp = 2, .recompute = "all"}},
          {33, with(&Config::hint, std::string("a:b")), {.dp = 2, .sync = parse_sync("async")}},
          {33, virtually(&Config::hint, std::string("a:b")), {}},
          {34, with(&Config::teacher_answers, std::string("beside")), {.dp = 2, .sync = parse_sync("async")}},
          {34, virtually(&Config::teacher_answers, std::string("beside")), {}},
          {35, with(&Config::batch_schedule, std::string("5:2")), {.dp = 2, .sync = parse_sync("stale:2")}},
          {35, with(&Config::batch_schedule, std::string("5:2")), {.dp = 2, .sync = parse_sync("local:4:quorum=2")}},
          {35, virtually(&Config::batch_schedule, std::string("5:2")), {.sync = parse_sync("async")}}};
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
        Layout{.dp = 2, .shares = "2:1"}, Layout{.dp = 2, .pp = 2, .tp = 2, .sync = parse_sync("diloco:8")},
        Layout{.dp = 2, .sync = parse_sync("async"), .compress = "fp16"},
        Layout{.dp = 2, .sync = parse_sync("diloco:8:4"), .compress = "fp16"},
        Layout{.dp = 2, .sync = parse_sync("stale:1"), .compress = "int8"},
        Layout{.dp = 2, .sync = parse_sync("local:8"), .compress = "int8"},
        Layout{.dp = 2, .sync = parse_sync("local:8"), .shares = "3:1"}})
    CHECK(!refusal_of(layout));
}

TEST_CASE("refusals: docs/guide/layouts.md has the table") {
  std::ifstream in(repository_file("docs/guide/layouts.md"));
  const std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  REQUIRE(!text.empty());
  std::string table;
  for (const Refusal& row : refusals()) table += std::string("| ") + row.what + " | " + row.instead + " |\n";
  CAPTURE(table);
  CHECK(text.find(table) != std::string::npos);
}

}  // namespace
}  // namespace cohort
