// A Cluster, and its files as TOML and as JSON: docs/formats/cluster.md. Both have one schema. TOML is turned into the JSON of the same
// content, and its tables are kept for the line of each key.
//
// Large files are refused early: by their bytes, and TOML also by the dots of a line, since a key a.b.c... nests a table for each dot and
// the parser frees tables by recursion.
#include "cohort/plan/profile/cluster.h"

#include <toml++/toml.h>

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/base/text/text.h"
#include "cohort/base/text/toml_text.h"
#include "cohort/plan/profile/file_fields.h"

namespace cohort {

const std::array<std::string, kNumExchanges>& exchange_names() {
  static const std::array<std::string, kNumExchanges> kNames = {"hand_over", "all_reduce", "all_gather", "reduce_scatter"};
  return kNames;
}

bool DeviceKind::has(const std::string& precision) const {
  return std::any_of(rates.begin(), rates.end(), [&](const Rate& rate) { return rate.precision == precision; });
}

double DeviceKind::flops_per_second(const std::string& precision) const {
  std::vector<std::string> known;
  for (const Rate& rate : rates) {
    if (rate.precision == precision) return rate.flops_per_second;
    known.push_back(rate.precision);
  }
  fail(ErrorCode::kBadInput, "device '", name, "' has no rate for ", precision, "; it has: ", join(known, " "));
}

int Cluster::num_devices() const {
  int64_t count = 0;
  for (const HostGroup& group : hosts) count += static_cast<int64_t>(group.num_hosts) * group.devices_per_host;
  return static_cast<int>(count);
}

namespace {

void check_rank(const Cluster& cluster, int rank) {
  if (rank < 0 || rank >= cluster.num_devices())
    fail(ErrorCode::kBadInput, "the cluster '", cluster.name, "' has ", cluster.num_devices(), " devices, and none for rank ", rank);
}

}  // namespace

int Cluster::device_of_rank(int rank) const {
  check_rank(*this, rank);
  for (const HostGroup& group : hosts) {
    const int here = group.num_hosts * group.devices_per_host;
    if (rank < here) return group.kind_of(rank % group.devices_per_host);
    rank -= here;
  }
  return hosts.back().device;
}

int Cluster::host_of_rank(int rank) const {
  check_rank(*this, rank);
  int host = 0;
  for (const HostGroup& group : hosts) {
    const int here = group.num_hosts * group.devices_per_host;
    if (rank < here) return host + rank / group.devices_per_host;
    rank -= here;
    host += group.num_hosts;
  }
  return host;
}

bool Cluster::is_mixed() const {
  const int first = hosts.front().kind_of(0);
  return std::any_of(hosts.begin(), hosts.end(), [&](const HostGroup& group) {
    return group.mixed.empty() ? group.device != first
                               : std::any_of(group.mixed.begin(), group.mixed.end(), [&](int kind) { return kind != first; });
  });
}

double exchange_seconds(const Cluster& cluster, Exchange exchange, int num_ranks, bool leaves_host, double bytes) {
  if (num_ranks <= 1) return 0;
  const Link& link = (leaves_host ? cluster.across : cluster.inside).of(exchange);
  const auto moved = [&](double sent) { return link.bytes_per_second > 0 ? sent / link.bytes_per_second : 0; };
  if (exchange == Exchange::kHandOver) return link.latency_seconds + moved(bytes);
  const double ranks = num_ranks, times = exchange == Exchange::kAllReduce ? 2 : 1;
  return link.latency_seconds * std::log2(ranks) + link.rank_seconds * ranks + moved(times * (ranks - 1) / ranks * bytes);
}

bool leaves_host(const Cluster& cluster, int first, int stride, int num_ranks) {
  const int64_t last = first + static_cast<int64_t>(stride) * (num_ranks - 1);
  return num_ranks > 1 && cluster.host_of_rank(first) != cluster.host_of_rank(static_cast<int>(last));
}

Cluster with_hosts_for(Cluster cluster, int num_devices) {
  HostGroup& last = cluster.hosts.back();
  if (const int missing = num_devices - cluster.num_devices(); missing > 0)
    last.num_hosts += (missing + last.devices_per_host - 1) / last.devices_per_host;
  return cluster;
}

Cluster first_devices(const Cluster& cluster, int num_devices) {
  if (num_devices < 1 || num_devices > cluster.num_devices())
    fail(ErrorCode::kBadInput, "the cluster '", cluster.name, "' has 1 to ", cluster.num_devices(), " devices, not ", num_devices);
  Cluster out = cluster;
  out.hosts.clear();
  for (const HostGroup& group : cluster.hosts) {
    const int whole = std::min(group.num_hosts, num_devices / group.devices_per_host);
    if (whole > 0) out.hosts.push_back({whole, group.devices_per_host, group.device, group.mixed});
    num_devices -= whole * group.devices_per_host;
    if (whole < group.num_hosts && num_devices > 0) {
      HostGroup& part = out.hosts.emplace_back(HostGroup{1, num_devices, group.device, {}});
      for (int place = 0; place < num_devices && !group.mixed.empty(); ++place) part.mixed.push_back(group.kind_of(place));
      num_devices = 0;
    }
    if (num_devices == 0) break;
  }
  return out;
}

namespace {

/// Location of a value: FILE, and in TOML its line.
struct Place {
  std::string file;
  bool is_toml = false;

  std::string at(const toml::node* node) const {
    const int64_t line = node ? static_cast<int64_t>(node->source().begin.line) : 0;
    return line > 0 ? concat(file, ":", line) : file;
  }
  std::string table(const std::string& name) const { return is_toml ? "[" + name + "]" : name; }
};

/// One table of the file. Refusals name the line of the key, or of its table; a key that the whole file lacks has no line.
class ClusterFields : public FileFields {
 public:
  static constexpr double kMostRate = 1e30;

  /// `title` is that of the table, "" for the whole file; `node` is the TOML node, null in JSON.
  ClusterFields(const Json& object, const toml::node* node, const Place& place, const std::string& title,
                const std::vector<std::string>& keys)
      : FileFields(
            object,
            [node, &place, title](const std::string& key) {
              const toml::node *member = member_of(node, key), *table = title.empty() ? nullptr : node;
              return concat(place.at(member ? member : table), title.empty() ? "" : ": ", title);
            },
            keys, place.is_toml),
        node_(node),
        place_(place),
        title_(title) {}

  const std::string& title() const { return title_; }
  const Place& place() const { return place_; }

  std::string name(const char* key) const {
    std::string name = text(key);
    if (name.empty()) refuse(key, "'", key, "' is empty");
    return name;
  }

  /// Whole numbers may be written as 80e9.
  int64_t integer(const char* key, int64_t least, int64_t most) const {
    const Json& value = member(key);
    const bool is_whole_float = value.is_number_float() && value.get<double>() == std::floor(value.get<double>());
    if (!is_whole_float || std::abs(value.get<double>()) > 1e18) return integer_value(value, key, {}, least, most);
    return integer_value(Json(value.get<int64_t>()), key, {}, least, most);
  }

  /// A rate of at least 1 per second; with `may_be_none` 0 means no limit.
  double rate(const char* key, bool may_be_none) const {
    const Json& value = member(key);
    const double number = value.is_number() ? value.get<double>() : NAN;
    if (may_be_none && number == 0) return 0;
    if (!(number >= 1 && number <= kMostRate))
      refuse(key, "'", key, "' is ", shown(value), "; expected a number from 1 to ", kMostRate, may_be_none ? ", or 0: no limit" : "");
    return number;
  }

  const Json& list(const char* key) const {
    const Json& value = member(key);
    const std::string heading = concat("[[", key, "]]");
    if (!value.is_array())
      refuse(key, "'", key, "' is ", shown(value), "; expected ", place_.is_toml ? "tables, each under " + heading : "a list");
    if (value.empty()) refuse(key, "'", key, "' is empty");
    return value;
  }

  /// The object at `index` of a list.
  ClusterFields entry(const char* key, size_t index, const std::vector<std::string>& keys) const {
    const toml::node* list = member_of(node_, key);
    const toml::array* array = list ? list->as_array() : nullptr;
    const std::string title = place_.is_toml ? concat("[[", key, "]] ", index + 1) : concat(key, "[", index, "]");
    return {member(key)[index], array ? array->get(index) : nullptr, place_, title, keys};
  }

  ClusterFields part(const char* key, const std::string& title, const std::vector<std::string>& keys) const {
    return {member(key), member_of(node_, key), place_, title, keys};
  }

 private:
  static const toml::node* member_of(const toml::node* node, const std::string& key) {
    const toml::table* table = node ? node->as_table() : nullptr;
    return table && !key.empty() ? table->get(key) : nullptr;
  }

  const toml::node* node_;
  const Place& place_;
  std::string title_;
};

constexpr size_t kMostFileBytes = size_t{1} << 20, kMostDots = 40;
constexpr int kMostDepth = 8, kMostDevices = 1 << 20;
constexpr int64_t kMostBytes = INT64_C(1) << 50;  // Far from overflow, also with overhead.
constexpr double kMostSeconds = 1e9, kMostShare = 1e6;

const std::vector<std::string> kPrecisions = {"fp32", "bf16", "fp16"};
const std::vector<std::string> kDeviceKeys = {"name",   "memory_bytes",           "reserved_bytes",  "allocator_overhead",
                                              "rates",  "half_rate_elements",     "half_rate_width", "launch_seconds",
                                              "source", "memory_bytes_per_second"};
const std::vector<std::string> kHostKeys = {"num_hosts", "devices_per_host", "device", "devices"};
const std::vector<std::string> kLinkKeys = {"latency_seconds", "rank_seconds", "bytes_per_second"};

/// TOML repeats [[device]], JSON lists "devices".
std::vector<std::string> cluster_keys(bool is_toml) {
  return {"name", "source", "shared_memory", "forecast_low", "forecast_high", is_toml ? "device" : "devices", "hosts", "links"};
}

std::vector<std::string> link_group_keys() {
  std::vector<std::string> keys = kLinkKeys;
  keys.insert(keys.end(), exchange_names().begin(), exchange_names().end());
  return keys;
}

DeviceKind device_from(const ClusterFields& fields) {
  DeviceKind device;
  device.name = fields.name("name");
  device.memory_bytes = fields.integer("memory_bytes", 1, kMostBytes);
  if (fields.has("reserved_bytes")) device.reserved_bytes = fields.integer("reserved_bytes", 0, device.memory_bytes - 1);
  device.allocator_overhead = fields.number("allocator_overhead", 0, 1, 0);
  const ClusterFields rates = fields.part("rates", fields.title() + ": rates", kPrecisions);
  for (const auto& [precision, value] : rates.object().items()) device.rates.push_back({precision, rates.rate(precision.c_str(), false)});
  if (device.rates.empty()) rates.refuse("", "no rate; expected one or more of: ", join(kPrecisions, " "));
  device.half_rate_elements = fields.number("half_rate_elements", 0, ClusterFields::kMostRate, 0);
  device.half_rate_width = fields.number("half_rate_width", 0, ClusterFields::kMostRate, 0);
  device.memory_bytes_per_second = fields.rate("memory_bytes_per_second", false);
  device.launch_seconds = fields.number("launch_seconds", 0, kMostSeconds, 0);
  if (fields.has("source")) device.source = fields.text("source");
  return device;
}

/// Reads the values of all exchanges, then those that single exchanges override.
Links links_from(const ClusterFields& all, const char* key) {
  const std::string name = concat("links.", key);
  const ClusterFields fields = all.part(key, all.place().table(name), link_group_keys());
  Links links;
  Link of_all;
  of_all.latency_seconds = fields.number("latency_seconds", 0, kMostSeconds);
  of_all.rank_seconds = fields.number("rank_seconds", 0, kMostSeconds, 0);
  of_all.bytes_per_second = fields.rate("bytes_per_second", true);
  for (size_t i = 0; i < links.by_exchange.size(); ++i) {
    Link& link = links.by_exchange[i] = of_all;
    const bool is_hand_over = i == static_cast<size_t>(Exchange::kHandOver);
    if (is_hand_over) link.rank_seconds = 0;
    const std::string& exchange = exchange_names()[i];
    if (!fields.has(exchange.c_str())) continue;
    const ClusterFields own = fields.part(exchange.c_str(), fields.place().table(name + "." + exchange), kLinkKeys);
    if (own.is_empty()) own.refuse("", "is empty; give one or more of: ", join(kLinkKeys, " "));
    if (is_hand_over && own.has("rank_seconds"))
      own.refuse("rank_seconds", "'rank_seconds' does not act on a hand-over, which is between two ranks; leave it out");
    link.latency_seconds = own.number("latency_seconds", 0, kMostSeconds, link.latency_seconds);
    link.rank_seconds = own.number("rank_seconds", 0, kMostSeconds, link.rank_seconds);
    if (own.has("bytes_per_second")) link.bytes_per_second = own.rate("bytes_per_second", true);
  }
  return links;
}

void take_devices(const ClusterFields& fields, const char* key, Cluster& cluster, std::unordered_map<std::string, int>& index_of) {
  const size_t count = fields.list(key).size();
  for (size_t i = 0; i < count; ++i) {
    const ClusterFields its = fields.entry(key, i, kDeviceKeys);
    cluster.devices.push_back(device_from(its));
    const std::string& name = cluster.devices.back().name;
    const auto [known, is_new] = index_of.emplace(name, static_cast<int>(i));
    if (!is_new) its.refuse("name", "'name' is ", quote_text(name), ", as that of device ", known->second + 1, "; names differ");
  }
}

int kind_named(const ClusterFields& its, const char* key, const std::string& device, const Cluster& cluster,
               const std::unordered_map<std::string, int>& index_of) {
  const auto found = index_of.find(device);
  if (found != index_of.end()) return found->second;
  std::vector<std::string> names;
  for (const DeviceKind& kind : cluster.devices) names.push_back(kind.name);
  const std::string meant = suggestion(device, names);
  if (names.size() > 8) names.resize(8), names.emplace_back("...");
  its.refuse(key, "no device is named ", quote_text(device), meant, "; there are: ", quote_text(join(names, " ")));
}

/// Hosts with different devices name each of them.
void take_mixed(const ClusterFields& its, const Cluster& cluster, const std::unordered_map<std::string, int>& index_of, HostGroup& group) {
  if (its.has("device")) its.refuse("device", "'device' and 'devices' say the same; leave one of them out");
  const Json& names = its.member("devices");
  if (!names.is_array()) its.refuse("devices", "'devices' is ", names.type_name(), "; expected a list of names");
  if (std::ssize(names) != group.devices_per_host)
    its.refuse("devices", "'devices' names ", names.size(), " devices, and 'devices_per_host' is ", group.devices_per_host);
  for (const Json& name : names) {
    if (!name.is_string()) its.refuse("devices", "'devices' has ", name.type_name(), "; expected the names of devices");
    group.mixed.push_back(kind_named(its, "devices", name.get<std::string>(), cluster, index_of));
  }
  group.device = group.mixed.front();
}

void take_hosts(const ClusterFields& fields, Cluster& cluster, const std::unordered_map<std::string, int>& index_of) {
  const size_t count = fields.list("hosts").size();
  int64_t num_devices = 0;
  for (size_t i = 0; i < count; ++i) {
    const ClusterFields its = fields.entry("hosts", i, kHostKeys);
    HostGroup group;
    group.num_hosts = static_cast<int>(its.integer("num_hosts", 1, kMostDevices));
    group.devices_per_host = static_cast<int>(its.integer("devices_per_host", 1, kMostDevices));
    if (its.has("devices")) take_mixed(its, cluster, index_of, group);
    else group.device = kind_named(its, "device", its.text("device"), cluster, index_of);
    num_devices += static_cast<int64_t>(group.num_hosts) * group.devices_per_host;
    if (num_devices > kMostDevices) its.refuse("", "that makes ", num_devices, " devices; at most ", kMostDevices, " are accepted");
    cluster.hosts.push_back(group);
  }
}

bool has_several_devices(const Cluster& cluster) {
  return std::any_of(cluster.hosts.begin(), cluster.hosts.end(), [](const HostGroup& group) { return group.devices_per_host > 1; });
}
bool has_several_hosts(const Cluster& cluster) { return cluster.hosts.size() > 1 || cluster.hosts.at(0).num_hosts > 1; }

void take_links(const ClusterFields& fields, Cluster& cluster) {
  const bool needs_inside = has_several_devices(cluster), needs_across = has_several_hosts(cluster);
  const auto missing = [](const char* name, const char* why) { return concat("'links.", name, "' is missing: ", why); };
  const std::string no_inside = missing("inside", "a host has several devices"), no_across = missing("across", "there are several hosts");
  if (!fields.has("links")) {
    if (needs_inside) fields.refuse("", no_inside);
    if (needs_across) fields.refuse("", no_across);
    return;
  }
  const ClusterFields links = fields.part("links", fields.place().table("links"), {"inside", "across"});
  if (needs_inside && !links.has("inside")) fields.refuse("", no_inside);
  if (needs_across && !links.has("across")) fields.refuse("", no_across);
  if (links.is_empty()) links.refuse("", "is empty; leave it out or give 'inside' or 'across'");
  if (links.has("inside")) cluster.inside = links_from(links, "inside");
  if (links.has("across")) cluster.across = links_from(links, "across");
}

Cluster cluster_from(const Json& json, const toml::table* table, const Place& place) {
  const char* devices_key = place.is_toml ? "device" : "devices";
  const ClusterFields fields(json, table, place, "", cluster_keys(place.is_toml));
  Cluster cluster;
  cluster.name = fields.name("name");
  if (fields.has("source")) cluster.source = fields.text("source");
  if (fields.has("shared_memory")) cluster.shared_memory = fields.flag("shared_memory");
  cluster.forecast_low = fields.number("forecast_low", 0, 1, 1);
  cluster.forecast_high = fields.number("forecast_high", 1, kMostShare, 1);
  std::unordered_map<std::string, int> index_of;
  take_devices(fields, devices_key, cluster, index_of);
  take_hosts(fields, cluster, index_of);
  take_links(fields, cluster);
  return cluster;
}

/// Dates and times, which no key takes, become null.
Json json_of(const toml::node& node, const Place& place, int depth) {
  if (depth > kMostDepth) fail(ErrorCode::kBadInput, place.at(&node), ": nested deeper than ", kMostDepth, " levels");
  if (const toml::table* table = node.as_table()) {
    Json out = Json::object();
    auto& members = out.get_ref<Json::object_t&>();  // Keys are unique already, and operator[] would search them all.
    members.reserve(table->size());
    for (const auto& [key, value] : *table)
      static_cast<std::vector<Json::object_t::value_type>&>(members).emplace_back(std::string(key.str()), json_of(value, place, depth + 1));
    return out;
  }
  if (const toml::array* array = node.as_array()) {
    Json out = Json::array();
    for (const toml::node& value : *array) out.push_back(json_of(value, place, depth + 1));
    return out;
  }
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* whole = node.as_integer()) return whole->get();
  if (const auto* number = node.as_floating_point()) return number->get();
  if (const auto* flag = node.as_boolean()) return flag->get();
  return nullptr;
}

Cluster read_toml_cluster(const std::string& text, const std::string& path) {
  check_toml_dots(text, path, kMostDots);
  if (!text.empty() && text.back() != '\n')
    fail(ErrorCode::kBadInput, path, ":", 1 + std::count(text.begin(), text.end(), '\n'),
         ": the last line has no end: the file may be cut off; where it is whole, end the line");
  const Place place{path, true};
  toml::table table;
  try {
    table = toml::parse(text, std::string_view(path));
  } catch (const toml::parse_error& error) {
    std::string description = printable(error.description().substr(0, 300));
    std::replace_if(description.begin(), description.end(), [](char at) { return at == '\n' || at == '\t'; }, ' ');  // It quotes the file.
    fail(ErrorCode::kBadInput, path, ":", error.source().begin.line, ": ", description);
  }
  return cluster_from(json_of(table, place, 0), &table, place);
}

/// The keys of `link` that differ from `of_all`; all keys where that is null.
Json link_json(const Link& link, const Link* of_all, bool is_hand_over) {
  Json out = Json::object();
  if (!of_all || link.latency_seconds != of_all->latency_seconds) out["latency_seconds"] = link.latency_seconds;
  if (!of_all || (!is_hand_over && link.rank_seconds != of_all->rank_seconds)) out["rank_seconds"] = link.rank_seconds;
  if (!of_all || link.bytes_per_second != of_all->bytes_per_second) out["bytes_per_second"] = link.bytes_per_second;
  return out;
}

Json links_json(const Links& links) {
  const Link& of_all = links.of(Exchange::kAllReduce);
  Json out = link_json(of_all, nullptr, false);
  for (size_t i = 0; i < links.by_exchange.size(); ++i)
    if (Json own = link_json(links.by_exchange[i], &of_all, i == static_cast<size_t>(Exchange::kHandOver)); !own.empty())
      out[exchange_names()[i]] = std::move(own);
  return out;
}

/// Keys with default values are left out.
Json device_json(const DeviceKind& device) {
  Json out{{"name", device.name}, {"memory_bytes", device.memory_bytes}};
  if (device.reserved_bytes != 0) out["reserved_bytes"] = device.reserved_bytes;
  if (device.allocator_overhead != 0) out["allocator_overhead"] = device.allocator_overhead;
  Json& rates = out["rates"] = Json::object();
  for (const DeviceKind::Rate& rate : device.rates) rates[rate.precision] = rate.flops_per_second;
  if (device.half_rate_elements != 0) out["half_rate_elements"] = device.half_rate_elements;
  if (device.half_rate_width != 0) out["half_rate_width"] = device.half_rate_width;
  out["memory_bytes_per_second"] = device.memory_bytes_per_second;
  if (device.launch_seconds != 0) out["launch_seconds"] = device.launch_seconds;
  if (!device.source.empty()) out["source"] = device.source;
  return out;
}

Json host_json(const Cluster& cluster, const HostGroup& group) {
  const auto name = [&](int kind) { return cluster.devices.at(static_cast<size_t>(kind)).name; };
  Json out{{"num_hosts", group.num_hosts}, {"devices_per_host", group.devices_per_host}};
  if (group.mixed.empty()) out["device"] = name(group.device);
  for (const int kind : group.mixed) out["devices"].push_back(name(kind));
  return out;
}

bool is_free(const Links& links) {
  return std::all_of(links.by_exchange.begin(), links.by_exchange.end(),
                     [](const Link& link) { return link.latency_seconds == 0 && link.rank_seconds == 0 && link.bytes_per_second == 0; });
}

}  // namespace

Cluster cluster_from_json(const Json& json, const std::string& where) {
  const Place place{where, false};
  return cluster_from(json, nullptr, place);
}

Json to_json(const Cluster& cluster) {
  Json out{{"name", cluster.name}};
  if (!cluster.source.empty()) out["source"] = cluster.source;
  out["shared_memory"] = cluster.shared_memory;
  out["forecast_low"] = cluster.forecast_low;
  out["forecast_high"] = cluster.forecast_high;
  Json devices = Json::array(), hosts = Json::array(), links = Json::object();
  for (const DeviceKind& device : cluster.devices) devices.push_back(device_json(device));
  for (const HostGroup& group : cluster.hosts) hosts.push_back(host_json(cluster, group));
  if (has_several_devices(cluster) || !is_free(cluster.inside)) links["inside"] = links_json(cluster.inside);
  if (has_several_hosts(cluster) || !is_free(cluster.across)) links["across"] = links_json(cluster.across);
  out["devices"] = std::move(devices);
  out["hosts"] = std::move(hosts);
  if (!links.empty()) out["links"] = std::move(links);
  return out;
}

Cluster read_cluster(const std::string& path) {
  if (!path.ends_with(".toml") && !path.ends_with(".json"))
    fail(ErrorCode::kBadInput, path, ": a cluster is a file whose name ends in .toml or .json");
  const std::string text = read_small_file(path, kMostFileBytes);
  if (path.ends_with(".toml")) return read_toml_cluster(text, path);
  return cluster_from_json(parse_strict_ordered_json(text, {.path = path, .max_depth = kMostDepth}), path);
}

}  // namespace cohort
