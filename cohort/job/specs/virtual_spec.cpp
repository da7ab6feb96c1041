#include "cohort/job/specs/virtual_spec.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <set>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"

namespace cohort {
namespace {

constexpr int kMostWorkers = 1 << 16;
constexpr double kMostSeconds = 1e12;
const std::vector<std::string> kKeys = {"workers", "speed", "link", "mtbf", "restart", "compute", "pauses", "slow"};

[[noreturn]] void refuse(const std::string& key, const std::string& value, const char* expected) {
  fail(ErrorCode::kBadInput, name_settings("--virtual: "), key, "=", value, ": expected ", expected);
}

/// A number of seconds: 0.5, 0.5s, 1ms, 20us.
double seconds_of(const std::string& key, const std::string& value, const std::string& part, double least, const char* expected) {
  std::string number = part;
  double unit = 1;
  for (const auto& [name, factor] : {std::pair("us", 1e-6), std::pair("ms", 1e-3), std::pair("s", 1.0)}) {
    if (!number.ends_with(name)) continue;
    number.resize(number.size() - std::string(name).size());
    unit = factor;
    break;
  }
  const auto found = parse_number(number);
  if (!found || !(*found * unit >= least) || *found * unit > kMostSeconds) refuse(key, value, expected);
  return *found * unit;
}

/// 1Gbit, 100Mbit, 56Kbit (a second), 10MB and so on: bytes a second.
double rate_of(const std::string& value, const std::string& part, const char* expected) {
  for (const auto& [name, factor] : {std::pair("Gbit", 1e9 / 8), std::pair("Mbit", 1e6 / 8), std::pair("Kbit", 1e3 / 8),
                                     std::pair("GB", 1e9), std::pair("MB", 1e6), std::pair("KB", 1e3)}) {
    if (!part.ends_with(name)) continue;
    const auto number = parse_number(part.substr(0, part.size() - std::string(name).size()));
    if (!number || !(*number * factor >= 1) || *number > kMostSeconds) break;
    return *number * factor;
  }
  refuse("link", value, expected);
}

std::pair<std::string, std::string> halves(const std::string& key, const std::string& value, const char* expected) {
  const size_t colon = value.find(':');
  if (colon == std::string::npos || value.find(':', colon + 1) != std::string::npos) refuse(key, value, expected);
  return {value.substr(0, colon), value.substr(colon + 1)};
}

void set_speed(VirtualSpec& spec, const std::string& value) {
  constexpr const char* kExpected = "even, or lognormal:SIGMA with SIGMA from 0 to 3, as lognormal:0.3";
  if (value == "even") return;
  const auto [name, number] = halves("speed", value, kExpected);
  const auto sigma = parse_number(number);
  if (name != "lognormal" || !sigma || !(*sigma >= 0) || *sigma > 3) refuse("speed", value, kExpected);
  spec.speed_sigma = *sigma;
}

void set_link(VirtualSpec& spec, const std::string& value) {
  constexpr const char* kExpected = "LATENCY:RATE, as 1ms:1Gbit (us, ms, s; Kbit, Mbit, Gbit, KB, MB, GB a second)";
  const auto [latency, rate] = halves("link", value, kExpected);
  spec.latency_seconds = seconds_of("link", value, latency, 0, kExpected);
  spec.bytes_per_second = rate_of(value, rate, kExpected);
}

void set_pauses(VirtualSpec& spec, const std::string& value) {
  constexpr const char* kExpected = "EVERY:SECONDS, both above 0, as 10:2: after 10 seconds of work on average a worker stands still for 2";
  const auto [every, length] = halves("pauses", value, kExpected);
  spec.pause_every_seconds = seconds_of("pauses", value, every, 1e-9, kExpected);
  spec.pause_seconds = seconds_of("pauses", value, length, 1e-9, kExpected);
}

void add_slow(VirtualSpec& spec, const std::string& value) {
  constexpr const char* kExpected = "WORKER:FACTOR, a worker from 0 on and a factor of 1 or more, as 3:4";
  const auto [worker, factor] = halves("slow", value, kExpected);
  const auto index = parse_integer(worker);
  const auto number = parse_number(factor);
  if (!index || *index < 0 || *index >= kMostWorkers || !number || !(*number >= 1) || *number > 1e6) refuse("slow", value, kExpected);
  for (const auto& [known, unused] : spec.slow)
    if (known == *index)
      fail(ErrorCode::kBadInput, name_settings("--virtual: slow="), value, ": worker ", *index, " is slowed twice; name it once");
  spec.slow.emplace_back(static_cast<int>(*index), *number);
}

void set_key(VirtualSpec& spec, const std::string& key, const std::string& value) {
  constexpr const char* kSeconds = "a number of seconds above 0";
  if (key == "workers") {
    const auto number = parse_integer(value);
    if (!number || *number < 1 || *number > kMostWorkers) refuse(key, value, "a whole number from 1 to 65536");
    spec.workers = static_cast<int>(*number);
  } else if (key == "speed") {
    set_speed(spec, value);
  } else if (key == "link") {
    set_link(spec, value);
  } else if (key == "mtbf") {
    spec.mtbf_seconds = seconds_of(key, value, value, 1e-9, kSeconds);
  } else if (key == "restart") {
    spec.restart_seconds = seconds_of(key, value, value, 0, "a number of seconds from 0 on");
  } else if (key == "compute") {
    spec.compute_seconds = seconds_of(key, value, value, 1e-9, kSeconds);
  } else if (key == "pauses") {
    set_pauses(spec, value);
  } else {
    add_slow(spec, value);
  }
}

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
    const size_t equals = part.find('=');
    const std::string key = trim(part.substr(0, equals));
    if (equals == std::string::npos)
      fail(ErrorCode::kBadInput, name_settings("--virtual: '"), part, "' is not KEY=VALUE; for example workers=64,speed=lognormal:0.3");
    if (std::find(kKeys.begin(), kKeys.end(), key) == kKeys.end())
      fail(ErrorCode::kBadInput, name_settings("--virtual: unknown key '"), key, "'", did_you_mean(key, kKeys),
           "; keys: ", join(kKeys, " "));
    set_key(spec, key, trim(part.substr(equals + 1)));
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
