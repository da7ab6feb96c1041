#include "cohort/job/specs/virtual_spec.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <iterator>
#include <optional>
#include <set>
#include <string_view>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"

namespace cohort {
namespace {

constexpr int kMostWorkers = 1 << 16;
constexpr double kMostSeconds = 1e12;

/// Splits `value` at its only colon and passes both halves to `read`; false where either fails.
template <typename Read>
bool parse_halves(const std::string& value, const Read& read) {
  const auto [first, second] = split_once(value, ':');
  return second && second->find(':') == std::string::npos && read(first, *second);
}

/// Assigns `found` to `out`; false for nullopt.
template <typename Value, typename Found>
bool take(Value& out, const std::optional<Found>& found) {
  if (found) out = static_cast<Value>(*found);
  return found.has_value();
}

/// A number with one of `units` behind it, times that unit's factor.
std::optional<double> with_unit(const std::string& text, std::initializer_list<std::pair<std::string_view, double>> units) {
  for (const auto& [name, factor] : units) {
    if (!text.ends_with(name)) continue;
    const auto number = parse_number(std::string_view(text).substr(0, text.size() - name.size()));
    return number ? std::optional(*number * factor) : std::nullopt;
  }
  return std::nullopt;
}

/// A number of seconds: 0.5, 0.5s, 1ms, 20us.
std::optional<double> seconds_in(const std::string& text, double least) {
  const auto seconds = with_unit(text, {{"us", 1e-6}, {"ms", 1e-3}, {"s", 1.0}, {"", 1.0}});
  return seconds && *seconds >= least && *seconds <= kMostSeconds ? seconds : std::nullopt;
}

/// Bytes a second: 1Gbit, 100Mbit, 56Kbit (a second), 10MB and so on.
std::optional<double> rate_in(const std::string& text) {
  const auto rate = with_unit(text, {{"Gbit", 1e9 / 8}, {"Mbit", 1e6 / 8}, {"Kbit", 1e3 / 8}, {"GB", 1e9}, {"MB", 1e6}, {"KB", 1e3}});
  return rate && *rate >= 1 && *rate <= 1e9 * kMostSeconds ? rate : std::nullopt;
}

bool add_slow(VirtualSpec& spec, const std::string& value) {
  return parse_halves(value, [&](const std::string& worker, const std::string& factor) {
    const auto index = parse_integer(worker, 0, kMostWorkers - 1);
    const auto number = parse_number(factor, 1, 1e6);
    if (!index || !number) return false;
    for (const auto& [known, unused] : spec.slow)
      if (known == *index)
        fail(ErrorCode::kBadInput, name_settings("--virtual: slow="), value, ": worker ", *index, " is slowed twice; name it once");
    spec.slow.emplace_back(static_cast<int>(*index), *number);
    return true;
  });
}

struct VirtualKey {
  const char *name, *expected;
  bool (*set)(VirtualSpec& spec, const std::string& value);  // False for a value that is not what is expected.
};
constexpr VirtualKey kVirtualKeys[] = {
    {"workers", "a whole number from 1 to 65536",
     [](VirtualSpec& spec, const std::string& value) { return take(spec.workers, parse_integer(value, 1, kMostWorkers)); }},
    {"speed", "even, or lognormal:SIGMA with SIGMA from 0 to 3, as lognormal:0.3",
     [](VirtualSpec& spec, const std::string& value) {
       return value == "even" || parse_halves(value, [&](const std::string& name, const std::string& sigma) {
                return name == "lognormal" && take(spec.speed_sigma, parse_number(sigma, 0, 3));
              });
     }},
    {"link", "LATENCY:RATE, as 1ms:1Gbit (us, ms, s; Kbit, Mbit, Gbit, KB, MB, GB a second)",
     [](VirtualSpec& spec, const std::string& value) {
       return parse_halves(value, [&](const std::string& latency, const std::string& rate) {
         return take(spec.latency_seconds, seconds_in(latency, 0)) && take(spec.bytes_per_second, rate_in(rate));
       });
     }},
    {"mtbf", "a number of seconds above 0",
     [](VirtualSpec& spec, const std::string& value) { return take(spec.mtbf_seconds, seconds_in(value, 1e-9)); }},
    {"restart", "a number of seconds from 0 on",
     [](VirtualSpec& spec, const std::string& value) { return take(spec.restart_seconds, seconds_in(value, 0)); }},
    {"compute", "a number of seconds above 0",
     [](VirtualSpec& spec, const std::string& value) { return take(spec.compute_seconds, seconds_in(value, 1e-9)); }},
    {"pauses", "EVERY:SECONDS, both above 0, as 10:2: after 10 seconds of work on average a worker stands still for 2",
     [](VirtualSpec& spec, const std::string& value) {
       return parse_halves(value, [&](const std::string& every, const std::string& length) {
         return take(spec.pause_every_seconds, seconds_in(every, 1e-9)) && take(spec.pause_seconds, seconds_in(length, 1e-9));
       });
     }},
    {"slow", "WORKER:FACTOR, a worker from 0 on and a factor of 1 or more, as 3:4", add_slow}};

std::string three_digits(double number) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2e", number);
  std::snprintf(text, sizeof text, "%.6g", std::strtod(text, nullptr));  // 1000, and not 1e+03.
  return text;
}

}  // namespace

VirtualSpec parse_virtual(const std::string& text) {
  VirtualSpec spec;
  std::set<std::string> given;
  for (const std::string& part : split(text, ',')) {
    const auto [name, value] = split_once(part, '=');
    const std::string key = trim(name);
    if (!value)
      fail(ErrorCode::kBadInput, name_settings("--virtual: '"), part, "' is not KEY=VALUE; for example workers=64,speed=lognormal:0.3");
    const auto row =
        std::find_if(std::begin(kVirtualKeys), std::end(kVirtualKeys), [&](const VirtualKey& each) { return key == each.name; });
    if (row == std::end(kVirtualKeys)) {
      std::vector<std::string> keys;
      for (const VirtualKey& each : kVirtualKeys) keys.emplace_back(each.name);
      fail(ErrorCode::kBadInput, name_settings("--virtual: unknown key '"), key, "'", did_you_mean(key, keys), "; keys: ", join(keys, " "));
    }
    if (!row->set(spec, trim(*value)))
      fail(ErrorCode::kBadInput, name_settings("--virtual: "), key, "=", trim(*value), ": expected ", row->expected);
    if (!given.insert(key).second && key != "slow")
      fail(ErrorCode::kBadInput, name_settings("--virtual "), text, ": ", key, " is given twice");
  }
  if (!given.contains("workers")) fail(ErrorCode::kBadInput, name_settings("--virtual "), text, ": how many workers? add workers=N");
  for (const auto& [worker, factor] : spec.slow)
    if (worker >= spec.workers)
      fail(ErrorCode::kBadInput, name_settings("--virtual: slow="), worker, ":", factor, ": there is no worker ", worker, ", the last of ",
           spec.workers, " is ", spec.workers - 1);
  if (given.contains("restart") && spec.mtbf_seconds == 0)
    fail(ErrorCode::kBadInput, name_settings("--virtual: restart="), spec.restart_seconds,
         " would do nothing: without mtbf=SECONDS no worker dies; add it, or leave restart out");
  return spec;
}

std::string to_text(const VirtualSpec& spec) {
  std::string text = concat("workers=", spec.workers);
  if (spec.speed_sigma > 0) text += ",speed=lognormal:" + three_digits(spec.speed_sigma);
  for (const auto& [worker, factor] : spec.slow) text += concat(",slow=", worker, ":", three_digits(factor));
  if (spec.pause_every_seconds > 0) text += ",pauses=" + three_digits(spec.pause_every_seconds) + ":" + three_digits(spec.pause_seconds);
  if (spec.bytes_per_second > 0) {
    const bool is_fast = spec.bytes_per_second >= 1e8;
    text += ",link=" + three_digits(1e6 * spec.latency_seconds) +
            "us:" + (is_fast ? three_digits(spec.bytes_per_second * 8e-9) + "Gbit" : three_digits(spec.bytes_per_second * 8e-6) + "Mbit");
  }
  if (spec.mtbf_seconds > 0) text += ",mtbf=" + three_digits(spec.mtbf_seconds) + ",restart=" + three_digits(spec.restart_seconds);
  return spec.compute_seconds > 0 ? with_compute_seconds(text, spec.compute_seconds) : text;
}

std::string with_compute_seconds(const std::string& text, double seconds) { return text + ",compute=" + three_digits(seconds); }

}  // namespace cohort
