// Files of clusters: what survives, what is refused.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <tuple>

#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/base/random.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/text.h"
#include "cohort/plan/profile/cluster.h"
#include "tests/support/errors.h"
#include "tests/support/places.h"

namespace cohort {
namespace {

/// Ten devices on four hosts.
Json json_by_hand() {
  return Json::parse(R"({"name": "small",
 "devices": [{"name": "a", "memory_bytes": 1000, "rates": {"fp32": 100}, "memory_bytes_per_second": 10},
             {"name": "b", "memory_bytes": 500, "rates": {"fp32": 50, "bf16": 80}, "memory_bytes_per_second": 10}],
 "hosts": [{"num_hosts": 3, "devices_per_host": 2, "device": "a"}, {"num_hosts": 1, "devices_per_host": 4, "device": "b"}],
 "links": {"inside": {"latency_seconds": 0.5, "bytes_per_second": 100},
           "across": {"latency_seconds": 2, "rank_seconds": 1, "bytes_per_second": 10, "all_gather": {"latency_seconds": 3}}}})");
}

/// All members differ from what they are when left out.
Cluster random_cluster(uint64_t seed) {
  uint64_t counter = 0;
  const auto below = [&](uint64_t end) { return static_cast<int>(random_bits(seed, ++counter) % end); };
  const auto unit = [&] { return unit_interval(random_bits(seed, ++counter)); };
  Cluster cluster{concat("\xc3\xa9 \"", seed, "\""), "made up", {}, {}, {}, {}, true, unit(), 1 + unit()};
  const int num_kinds = 1 + below(3);
  for (int i = 0; i < num_kinds; ++i)
    cluster.devices.push_back({concat("device", i),
                               1000 + below(1000),
                               1 + below(999),
                               unit(),
                               {{"bf16", 1 + unit() * 1e14}, {"fp32", 2}},
                               unit() * 1e5,
                               unit(),
                               1e9 + unit(),
                               unit() * 1e-3,
                               "x"});
  for (int i = 0; i < 1 + below(4); ++i) cluster.hosts.push_back({1 + below(4), 1 + below(9), below(static_cast<uint64_t>(num_kinds))});
  for (Links* links : {&cluster.inside, &cluster.across})
    for (size_t i = 0; i < kNumExchanges; ++i) links->by_exchange[i] = {unit(), i == 0 ? 0 : unit(), below(3) == 0 ? 0 : 1 + unit() * 1e9};
  return cluster;
}

void check_same(const Cluster& a, const Cluster& b) {
  REQUIRE(a.devices.size() == b.devices.size());
  REQUIRE(a.hosts.size() == b.hosts.size());
  CHECK(std::tie(a.name, a.source, a.shared_memory, a.forecast_low, a.forecast_high) ==
        std::tie(b.name, b.source, b.shared_memory, b.forecast_low, b.forecast_high));
  const auto parts = [](const DeviceKind& x) {
    return std::tie(x.name, x.memory_bytes, x.reserved_bytes, x.allocator_overhead, x.half_rate_elements, x.half_rate_width,
                    x.memory_bytes_per_second, x.launch_seconds, x.source);
  };
  for (size_t i = 0; i < a.devices.size(); ++i) {
    CHECK(parts(a.devices[i]) == parts(b.devices[i]));
    REQUIRE(a.devices[i].rates.size() == b.devices[i].rates.size());
    for (size_t r = 0; r < a.devices[i].rates.size(); ++r) {
      CHECK(a.devices[i].rates[r].precision == b.devices[i].rates[r].precision);
      CHECK(a.devices[i].rates[r].flops_per_second == b.devices[i].rates[r].flops_per_second);
    }
  }
  for (size_t i = 0; i < a.hosts.size(); ++i) {
    CHECK(a.hosts[i].num_hosts == b.hosts[i].num_hosts);
    CHECK(a.hosts[i].devices_per_host == b.hosts[i].devices_per_host);
    CHECK(a.hosts[i].device == b.hosts[i].device);
  }
  const auto numbers = [](const Link& x) { return std::tie(x.latency_seconds, x.rank_seconds, x.bytes_per_second); };
  for (size_t i = 0; i < kNumExchanges; ++i) {
    CHECK(numbers(a.inside.by_exchange[i]) == numbers(b.inside.by_exchange[i]));
    CHECK(numbers(a.across.by_exchange[i]) == numbers(b.across.by_exchange[i]));
  }
}

TEST_CASE("a cluster survives its file to the last bit") {
  const MemoryFolder folder;
  const std::string path = folder / "c.json";
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    const Cluster cluster = random_cluster(seed);
    write_file_atomically(path, to_json(cluster).dump());
    check_same(read_cluster(path), cluster);
  }
  Cluster one = cluster_from_json(json_by_hand(), "x");  // Nothing to exchange, nothing of links.
  one.inside = one.across = {};
  one.hosts = {{1, 1, 1}};
  CHECK_FALSE(to_json(one).contains("links"));
  check_same(cluster_from_json(to_json(one), "x"), one);
  one.hosts = {{2, 3, 1}};  // Free exchanges are said.
  check_same(cluster_from_json(to_json(one), "x"), one);
}

const char* const kToml = R"(name = "t"
source = "by hand"

[[device]]
name = "slow"
memory_bytes = 32e9
rates = {fp32 = 1e12}
memory_bytes_per_second = 1e11

[[device]]
name = "fast"
memory_bytes = 80_000_000_000
reserved_bytes = 1e9
rates = {fp32 = 2e13, bf16 = 3e14}
half_rate_elements = 300e3
memory_bytes_per_second = 1e12
launch_seconds = 1e-3

[[hosts]]
num_hosts = 2
devices_per_host = 4
device = "fast"

[[hosts]]
num_hosts = 1
devices_per_host = 2
device = "slow"

[links.inside]
latency_seconds = 1e-6
bytes_per_second = 1e11

[links.across]
latency_seconds = 1e-5
rank_seconds = 1e-6
bytes_per_second = 1e9
hand_over = {bytes_per_second = 0}
all_gather = {latency_seconds = 2e-5}
)";

Cluster read_text(const std::string& text, const std::string& path) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
  return read_cluster(path);
}

TEST_CASE("TOML by hand") {
  const MemoryFolder folder;
  const Cluster cluster = read_text(kToml, folder / "t.toml");
  CHECK(cluster.devices.at(1).memory_bytes == 80'000'000'000);
  CHECK(cluster.devices[0].memory_bytes == 32'000'000'000);
  CHECK(cluster.devices[0].reserved_bytes == 0);
  CHECK(cluster.devices[1].flops_per_second("bf16") == 3e14);
  CHECK(cluster.hosts.at(0).device == 1);
  CHECK(cluster.hosts.at(1).device == 0);
  CHECK(cluster.num_devices() == 10);
  CHECK_FALSE(cluster.shared_memory);
  CHECK(cluster.forecast_high == 1);
  const Link &hand_over = cluster.across.of(Exchange::kHandOver), &gather = cluster.across.of(Exchange::kAllGather);
  CHECK(std::tie(hand_over.latency_seconds, hand_over.rank_seconds, hand_over.bytes_per_second) == std::tuple(1e-5, 0.0, 0.0));
  CHECK(std::tie(gather.latency_seconds, gather.rank_seconds, gather.bytes_per_second) == std::tuple(2e-5, 1e-6, 1e9));
  CHECK(cluster.across.of(Exchange::kReduceScatter).latency_seconds == 1e-5);
  CHECK(cluster.inside.of(Exchange::kReduceScatter).rank_seconds == 0);
  check_same(cluster_from_json(to_json(cluster), "x"), cluster);
}

/// TOML with `from` replaced by `to`, and what is said of it, without the folder.
TEST_CASE("what is wrong in TOML is said with its line") {
  const MemoryFolder folder;
  const std::string path = folder / "f.toml";
  const auto said = [&](const std::string& text) {
    std::string what = error_or_none([&] { read_text(text, path); });
    for (size_t at = what.find(path); at != std::string::npos; at = what.find(path)) what.replace(at, path.size(), "f.toml");
    return what;
  };
  const auto refused = [&](const std::string& from, const std::string& to, const std::string& expected) {
    std::string text = kToml;
    const size_t at = text.find(from);
    REQUIRE(at != std::string::npos);
    const std::string what = said(text.replace(at, from.size(), to));
    CHECK_MESSAGE(what == expected, what);
  };
  const std::string keys = "; keys: name source shared_memory forecast_low forecast_high device hosts links";
  refused("source", "sorce", "f.toml:2: unknown key \"sorce\" (did you mean 'source'?)" + keys);
  refused("[[device]]", "[[devices]]", "f.toml:4: unknown key \"devices\" (did you mean 'device'?)" + keys);
  refused("reserved_bytes = 1e9", "reserved_byte = 1e9",
          "f.toml:13: [[device]] 2: unknown key \"reserved_byte\" (did you mean 'reserved_bytes'?); keys: name memory_bytes reserved_bytes "
          "allocator_overhead rates half_rate_elements half_rate_width launch_seconds source memory_bytes_per_second");
  refused("memory_bytes = 80_000_000_000\n", "", "f.toml:10: [[device]] 2: 'memory_bytes' is missing");
  refused("bytes_per_second = 1e11\n\n[links.across]", "\n[links.across]", "f.toml:29: [links.inside]: 'bytes_per_second' is missing");
  refused("device = \"slow\"", "device = \"slov\"",
          "f.toml:27: [[hosts]] 2: no device is named \"slov\" (did you mean 'slow'?); there are: \"slow fast\"");
  refused("hand_over = {bytes_per_second = 0}", "hand_over = {rank_seconds = 1}",
          "f.toml:37: [links.across.hand_over]: 'rank_seconds' does not act on a hand-over, which is between two ranks; leave it out");
  refused("{latency_seconds = 2e-5}", "{}",
          "f.toml:38: [links.across.all_gather]: is empty; give one or more of: latency_seconds rank_seconds bytes_per_second");
  refused("name = \"t\"", "name = 2001-01-01", "f.toml:1: 'name' is a date or a time; expected text");
  refused("name = \"t\"", "name = nan", "f.toml:1: 'name' is nan; expected text");
  refused("32e9", "nan", "f.toml:6: [[device]] 1: 'memory_bytes' is nan; expected a whole number from 1 to 1125899906842624");
  refused("32e9", "-1", "f.toml:6: [[device]] 1: 'memory_bytes' is -1; expected a whole number from 1 to 1125899906842624");
  refused("devices_per_host = 2", "devices_per_host = \"2\"",
          "f.toml:26: [[hosts]] 2: 'devices_per_host' is \"2\"; expected a whole number from 1 to 1048576");
  const std::string whole = kToml;
  CHECK(said(whole.substr(0, whole.find("[links.across]"))) == "f.toml: 'links.across' is missing: there are several hosts");
  CHECK(said(whole.substr(0, whole.find("[links.inside]"))) == "f.toml: 'links.inside' is missing: a host has several devices");
  CHECK(said(whole.substr(0, whole.find("[[hosts]]"))) == "f.toml: 'hosts' is missing");
  CHECK(said(whole.substr(0, whole.size() - 1)) ==
        "f.toml:38: the last line has no end: the file may be cut off; where it is whole, end the line");
  CHECK(said("name = \"t\"\nname = \"u\"\n").starts_with("f.toml:2: "));
  CHECK(said("name = \n").starts_with("f.toml:1: "));
  CHECK(said("name = \"\xff\"\n").starts_with("f.toml:1: "));
  CHECK(said("") == "f.toml: 'name' is missing");
  CHECK(said("name = \"t\"\ndevice = 3\n") == "f.toml:2: 'device' is 3; expected tables, each under [[device]]");
  CHECK(said("name = \"t\"\ndevice = [3]\n") == "f.toml:2: [[device]] 1: expected a table, found 3");
  // Keys in depth: the parser itself takes them, and its tables end the process when there are too many of them.
  std::string deep = "a";
  for (int i = 0; i < 39; ++i) deep += ".a";
  CHECK(said("[" + deep + "]\n").find("nested deeper than 8 levels") != std::string::npos);
  for (int i = 0; i < 400'000; ++i) deep += ".a";
  CHECK(said("name = \"t\"\n[" + deep + "]\n") == "f.toml:2: more than 40 dots in one line; divide it");
  std::string line = "[{a", lists;  // As deep as the parser takes them, with 40 dots in each line.
  for (int i = 0; i < 40; ++i) line += ".a";
  for (int i = 0; i < 1000; ++i) lists += line + "=\n";
  CHECK(said("a = " + lists).starts_with("f.toml:"));
  // Many keys, long keys.
  std::string many;
  for (int i = 0; i < 100'000; ++i) many += concat("k", i, "=1\n");
  CHECK(said(many).find("unknown key \"k0\"") != std::string::npos);
  CHECK(said("[" + std::string(500'000, 'k') + "]\nx = 1\n").size() < 400);
}

TEST_CASE("what is wrong in JSON is said with its place") {
  const Json json = json_by_hand();
  const auto refused = [&](const char* text, auto&& change) {
    Json changed = json;
    change(changed);
    const std::string what = error_or_none([&] { cluster_from_json(changed, "f.json"); });
    CHECK_MESSAGE(what == std::string("f.json: ") + text, what);
  };
  refused("expected an object, found a list", [](Json& j) { j = Json::array(); });
  refused(
      "unknown key \"device\" (did you mean 'devices'?); keys: name source shared_memory forecast_low forecast_high devices hosts links",
      [](Json& j) { j["device"] = 1; });
  refused("'name' is missing", [](Json& j) { j.erase("name"); });
  refused("'name' is empty", [](Json& j) { j["name"] = ""; });
  refused("'name' is null; expected text", [](Json& j) { j["name"] = nullptr; });
  refused("'name' is \"a\\x0ab\": control characters are not accepted", [](Json& j) { j["name"] = "a\nb"; });
  refused("'source' has 5000 bytes; at most 4096 are accepted", [](Json& j) { j["source"] = std::string(5000, 'x'); });
  refused("'shared_memory' is 1; expected true or false", [](Json& j) { j["shared_memory"] = 1; });
  refused("'forecast_low' is 1.5; expected a number from 0 to 1", [](Json& j) { j["forecast_low"] = 1.5; });
  refused("'forecast_high' is 0.5; expected a number from 1 to 1e+06", [](Json& j) { j["forecast_high"] = 0.5; });
  refused("'forecast_high' is inf; expected a number from 1 to 1e+06", [](Json& j) { j["forecast_high"] = INFINITY; });
  refused("'devices' is missing", [](Json& j) { j.erase("devices"); });
  refused("'devices' is empty", [](Json& j) { j["devices"] = Json::array(); });
  refused("'devices' is an object; expected a list", [](Json& j) { j["devices"] = Json::object(); });
  refused("devices[1]: 'name' is \"a\", as that of device 1; names differ", [](Json& j) { j["devices"][1]["name"] = "a"; });
  refused("devices[1]: 'memory_bytes' is 0; expected a whole number from 1 to 1125899906842624",
          [](Json& j) { j["devices"][1]["memory_bytes"] = 0; });
  refused("devices[1]: 'memory_bytes' is 1.5; expected a whole number from 1 to 1125899906842624",
          [](Json& j) { j["devices"][1]["memory_bytes"] = 1.5; });
  refused("devices[1]: 'memory_bytes' is 18446744073709551615; expected a whole number from 1 to 1125899906842624",
          [](Json& j) { j["devices"][1]["memory_bytes"] = UINT64_MAX; });
  refused("devices[1]: 'reserved_bytes' is 500; expected a whole number from 0 to 499",
          [](Json& j) { j["devices"][1]["reserved_bytes"] = 500; });
  refused("devices[0]: 'allocator_overhead' is 1.25; expected a number from 0 to 1",
          [](Json& j) { j["devices"][0]["allocator_overhead"] = 1.25; });
  refused("devices[0]: 'rates' is missing", [](Json& j) { j["devices"][0].erase("rates"); });
  refused("devices[0]: rates: no rate; expected one or more of: fp32 bf16 fp16",
          [](Json& j) { j["devices"][0]["rates"] = Json::object(); });
  refused("devices[0]: rates: unknown key \"fp64\" (did you mean 'fp32'?); keys: fp32 bf16 fp16",
          [](Json& j) { j["devices"][0]["rates"]["fp64"] = 1; });
  refused("devices[0]: rates: 'fp32' is 0; expected a number from 1 to 1e+30", [](Json& j) { j["devices"][0]["rates"]["fp32"] = 0; });
  refused("devices[0]: rates: 'fp32' is nan; expected a number from 1 to 1e+30", [](Json& j) { j["devices"][0]["rates"]["fp32"] = NAN; });
  refused("devices[0]: rates: expected an object, found 3", [](Json& j) { j["devices"][0]["rates"] = 3; });
  refused("devices[0]: 'half_rate_elements' is -1; expected a number from 0 to 1e+30",
          [](Json& j) { j["devices"][0]["half_rate_elements"] = -1; });
  refused("devices[0]: 'half_rate_width' is \"1\"; expected a number from 0 to 1e+30",
          [](Json& j) { j["devices"][0]["half_rate_width"] = "1"; });
  refused("devices[0]: 'memory_bytes_per_second' is missing", [](Json& j) { j["devices"][0].erase("memory_bytes_per_second"); });
  refused("devices[0]: 'memory_bytes_per_second' is 0; expected a number from 1 to 1e+30",
          [](Json& j) { j["devices"][0]["memory_bytes_per_second"] = 0; });
  refused("devices[0]: 'launch_seconds' is 1e+10; expected a number from 0 to 1e+09",
          [](Json& j) { j["devices"][0]["launch_seconds"] = 1e10; });
  refused("'hosts' is missing", [](Json& j) { j.erase("hosts"); });
  refused("'hosts' is empty", [](Json& j) { j["hosts"] = Json::array(); });
  refused("hosts[1]: 'num_hosts' is 0; expected a whole number from 1 to 1048576", [](Json& j) { j["hosts"][1]["num_hosts"] = 0; });
  refused("hosts[1]: 'devices_per_host' is missing", [](Json& j) { j["hosts"][1].erase("devices_per_host"); });
  refused("hosts[1]: no device is named \"cc\"; there are: \"a b\"", [](Json& j) { j["hosts"][1]["device"] = "cc"; });
  refused("hosts[1]: 'device' is 1; expected text", [](Json& j) { j["hosts"][1]["device"] = 1; });
  refused("hosts[1]: 'device' and 'devices' say the same; leave one of them out",
          [](Json& j) { j["hosts"][1]["devices"] = {"a", "b", "a", "a"}; });
  const auto with_devices = [](Json devices) {
    return [devices](Json& j) {
      j["hosts"][1].erase("device");
      j["hosts"][1]["devices"] = devices;
    };
  };
  refused("hosts[1]: 'devices' names 2 devices, and 'devices_per_host' is 4", with_devices({"a", "b"}));
  refused("hosts[1]: 'devices' is string; expected a list of names", with_devices("a"));
  refused("hosts[1]: 'devices' has number; expected the names of devices", with_devices({"a", 1, "a", "b"}));
  refused("hosts[1]: no device is named \"c\" (did you mean 'a'?); there are: \"a b\"", with_devices({"a", "b", "c", "b"}));
  refused("hosts[1]: that makes 1048582 devices; at most 1048576 are accepted", [](Json& j) {
    j["hosts"][1]["num_hosts"] = 1024;
    j["hosts"][1]["devices_per_host"] = 1024;
  });
  refused("'links.inside' is missing: a host has several devices", [](Json& j) { j.erase("links"); });
  refused("'links.across' is missing: there are several hosts", [](Json& j) { j["links"].erase("across"); });
  refused("links: unknown key \"accross\" (did you mean 'across'?); keys: inside across", [](Json& j) { j["links"]["accross"] = 1; });
  refused("links: is empty; leave it out or give 'inside' or 'across'", [](Json& j) {
    j["hosts"] = Json::array({{{"num_hosts", 1}, {"devices_per_host", 1}, {"device", "a"}}});
    j["links"] = Json::object();
  });
  refused("links.inside: 'latency_seconds' is missing", [](Json& j) { j["links"]["inside"].erase("latency_seconds"); });
  refused("links.inside: 'bytes_per_second' is 0.5; expected a number from 1 to 1e+30, or 0: no limit",
          [](Json& j) { j["links"]["inside"]["bytes_per_second"] = 0.5; });
  refused("links.across: 'rank_seconds' is -1; expected a number from 0 to 1e+09",
          [](Json& j) { j["links"]["across"]["rank_seconds"] = -1; });
  refused("links.across.all_gather: 'latency_seconds' is true; expected a number from 0 to 1e+09",
          [](Json& j) { j["links"]["across"]["all_gather"]["latency_seconds"] = true; });
  refused(
      "links.across: unknown key \"all_gathr\" (did you mean 'all_gather'?); keys: latency_seconds rank_seconds bytes_per_second hand_over "
      "all_reduce all_gather reduce_scatter",
      [](Json& j) { j["links"]["across"]["all_gathr"] = 1; });
}

TEST_CASE("files that are no cluster") {
  const MemoryFolder folder;
  CHECK(error_or_none([&] { read_cluster("c.yaml"); }) == "c.yaml: a cluster is a file whose name ends in .toml or .json");
  for (const char* name : {"none.toml", "none.json"})
    CHECK(error_or_none([&] { read_cluster(folder / name); }).find(name) != std::string::npos);
  for (const char* name : {"large.toml", "large.json"}) {
    write_file_atomically(folder / name, std::string((size_t{1} << 20) + 1, ' '));
    CHECK(error_or_none([&] { read_cluster(folder / name); }).find("at most 1048576 are accepted") != std::string::npos);
  }
  CHECK(error_or_none([&] { read_text("{\"name\": \"a\", \"name\": \"b\"}", folder / "c.json"); }).find("comes twice") !=
        std::string::npos);
  CHECK(error_or_none([&] { read_text(std::string(100'000, '['), folder / "c.json"); }).find("nested deeper") != std::string::npos);
}

std::vector<std::filesystem::path> shipped() {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(repository_file("clusters"))) paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  return paths;
}

TEST_CASE("the clusters that come with Cohort are read, and their files have no part that can be lost unseen") {
  const MemoryFolder folder;
  std::vector<std::string> names;
  for (const std::filesystem::path& path : shipped()) {
    CAPTURE(path);
    const Cluster cluster = read_cluster(path);
    names.push_back(cluster.name);
    CHECK(cluster.name + ".toml" == path.filename());
    CHECK_FALSE(cluster.source.empty());
    for (const DeviceKind& device : cluster.devices) CHECK_FALSE(device.source.empty());
    check_same(cluster_from_json(to_json(cluster), "x"), cluster);
    const std::string text = read_small_file(path, size_t{1} << 20);
    for (size_t length = 0; length < text.size(); ++length)
      REQUIRE_FALSE(error_or_none([&] { read_text(text.substr(0, length), folder / "cut.toml"); }).empty());
  }
  CHECK(names == std::vector<std::string>{"a100", "cpu-host", "ethernet-10g", "h100", "mixed"});
  CHECK(read_cluster(repository_file("clusters/a100.toml")).num_devices() == 64);
  CHECK(read_cluster(repository_file("clusters/cpu-host.toml")).shared_memory);
  CHECK(read_cluster(repository_file("clusters/ethernet-10g.toml")).num_devices() == 32);
  CHECK(read_cluster(repository_file("clusters/mixed.toml")).is_mixed());
}

TEST_CASE("the page about clusters shows a whole file") {
  const std::string page = read_small_file(repository_file("docs/formats/cluster.md"), size_t{1} << 20);
  const std::string fence = "```", file = read_small_file(repository_file("clusters/cpu-host.toml"), size_t{1} << 20);
  CHECK(page.find(fence + "toml\n" + file + fence) != std::string::npos);
}

}  // namespace
}  // namespace cohort
