// Files of clusters, damaged and cut off: each is read or refused in one line.

#include <doctest/doctest.h>

#include <cmath>
#include <fstream>

#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/text.h"
#include "cohort/plan/profile/cluster.h"
#include "tests/support/errors.h"
#include "tests/support/mutation.h"
#include "tests/support/places.h"

namespace cohort {
namespace {

std::string mixed() { return repository_file("clusters/mixed.toml"); }

/// What is accepted holds together: its own text is read back as the same, and questions have finite answers.
bool take(const std::string& text, const std::string& path) {
  bool is_accepted = false;
  const std::string what = error_or_none([&] {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
    const Cluster cluster = read_cluster(path);
    const int last = cluster.num_devices() - 1;
    REQUIRE(last >= 0);
    REQUIRE(cluster.device_of_rank(last) < static_cast<int>(cluster.devices.size()));
    REQUIRE(first_devices(cluster, (last + 2) / 2).num_devices() == (last + 2) / 2);
    for (const bool leaves : {false, true}) REQUIRE(std::isfinite(exchange_seconds(cluster, Exchange::kAllReduce, 1 << 20, leaves, 1e15)));
    const Json json = to_json(cluster);
    REQUIRE(to_json(cluster_from_json(json, "again")) == json);
    is_accepted = true;
  });
  REQUIRE(is_accepted == what.empty());
  REQUIRE(what.size() < 2000);
  return is_accepted;
}

void damage(const std::string& whole, const std::string& name) {
  const uint64_t times = mutation_count(20'000);  // 1,000,000 takes minutes.
  const MemoryFolder folder;
  const std::string path = folder / name;
  REQUIRE(take(whole, path));
  for (size_t length = 0; length < whole.size(); ++length)  // What is lost without a trace was nothing, or a table that may be left out.
    if (take(whole.substr(0, length), path)) REQUIRE(whole[length - 1] == '\n');
  uint64_t accepted = 0;
  for (uint64_t seed = 1; seed <= times; ++seed) accepted += take(mutated(whole, seed), path) ? 1 : 0;
  CHECK(accepted > times / 50);
  CHECK(times - accepted > times / 4);
}

TEST_CASE("mutation: clusters in TOML, damaged and cut off") { damage(read_small_file(mixed(), size_t{1} << 20), "c.toml"); }
TEST_CASE("mutation: clusters in JSON, damaged and cut off") { damage(to_json(read_cluster(mixed())).dump(), "c.json"); }

}  // namespace
}  // namespace cohort
