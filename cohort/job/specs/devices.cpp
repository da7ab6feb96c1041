#include "cohort/job/specs/devices.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"

namespace cohort {
namespace {

constexpr const char* kForms = "; it is cpu, cuda, cuda:N, or one of them a rank with commas between, as cuda:0,cpu,cpu";
constexpr const char* kShareForms = "; it is equal, auto, or one positive number a rank as in 3:1:1";
constexpr size_t kMostEntries = 4096;  // As many as there can be workers.
constexpr int kMostGpus = 127;         // LibTorch keeps the index in a byte.

DeviceChoice parse_choice(const std::string& part, const std::string& text) {
  const auto refuse = [&](const auto&... why) {
    fail(ErrorCode::kBadInput, name_settings("--device "), text, part == text ? "" : concat(": '", part, "'"), why..., kForms);
  };
  if (part == "cpu") return {};
  if (part == "cuda") return {.is_gpu = true};
  if (!part.starts_with("cuda:")) {
    const std::string meant = part.starts_with("gpu") ? " (did you mean 'cuda'?)" : did_you_mean(part, {"cpu", "cuda"});
    refuse(" is not a device", meant);
  }
  const std::string digits = part.substr(5);
  const auto index = parse_integer(digits, 0, 999);
  if (!index || digits.size() > 3 || digits.find_first_not_of("0123456789") != std::string::npos)
    refuse(" has no whole number after 'cuda:'");
  if (*index > kMostGpus) refuse(": a host has no GPU ", *index);
  return {.is_gpu = true, .index = static_cast<int>(*index)};
}

}  // namespace

bool Devices::all_cpu() const {
  return std::none_of(entries.begin(), entries.end(), [](const DeviceChoice& one) { return one.is_gpu; });
}
bool Devices::any_cpu() const {
  return std::any_of(entries.begin(), entries.end(), [](const DeviceChoice& one) { return !one.is_gpu; });
}

void Devices::check(int num_ranks) const {
  if (!is_list() || static_cast<int>(entries.size()) == num_ranks) return;
  fail(ErrorCode::kBadInput, name_settings("--device"), " has ", entries.size(), " entries, and there ", num_ranks == 1 ? "is " : "are ",
       num_ranks, num_ranks == 1 ? " rank" : " ranks", "; give one entry a rank, or one for all", name_settings(" (--device "),
       to_text(entries.front()), name_settings("), or start --workers "), entries.size());
}

const DeviceChoice& Devices::of(int rank) const { return entries[is_list() ? static_cast<size_t>(rank) : 0]; }

Devices parse_devices(const std::string& text) {
  const std::vector<std::string> parts = split(text, ',');
  if (parts.size() > kMostEntries)
    fail(ErrorCode::kBadInput, name_settings("--device"), " has ", parts.size(), " entries, more than there can be ranks");
  Devices devices{.entries = {}};
  for (const std::string& part : parts) devices.entries.push_back(parse_choice(trim(part), text));
  if (devices.entries.empty()) fail(ErrorCode::kBadInput, name_settings("--device says nothing"), kForms);
  return devices;
}

std::string to_text(const DeviceChoice& choice) {
  return !choice.is_gpu ? "cpu" : choice.index < 0 ? "cuda" : concat("cuda:", choice.index);
}

std::string first_devices(const std::string& text, int num_ranks) {
  const Devices devices = parse_devices(text);
  if (!devices.is_list()) return text;
  std::vector<std::string> parts;
  for (int rank = 0; rank < std::min<int>(num_ranks, static_cast<int>(devices.entries.size())); ++rank)
    parts.push_back(to_text(devices.of(rank)));
  return join(parts, ",");
}

int gpu_of_rank(const Devices& devices, int rank, int first_of_host, int ranks_of_host, int num_gpus) {
  const DeviceChoice& mine = devices.of(rank);
  if (mine.index >= 0) return mine.index;
  std::vector<int> free;
  int turn = 0;
  for (int gpu = 0; gpu < num_gpus; ++gpu) free.push_back(gpu);
  for (int each = first_of_host; each < first_of_host + ranks_of_host; ++each) {
    const DeviceChoice& other = devices.of(each);
    if (other.is_gpu && other.index >= 0) std::erase(free, other.index);
    if (other.is_gpu && other.index < 0 && each < rank) ++turn;
  }
  return free.empty() ? turn % num_gpus : free[static_cast<size_t>(turn) % free.size()];
}

bool Shares::are_equal() const { return std::adjacent_find(weights.begin(), weights.end(), std::not_equal_to<>()) == weights.end(); }

std::vector<double> Shares::of(int num_ranks) const {
  if (weights.empty()) return std::vector<double>(static_cast<size_t>(num_ranks), 1.0);
  if (std::ssize(weights) != num_ranks)
    fail(ErrorCode::kBadInput, name_settings("--shares: "), weights.size(), " numbers for ", num_ranks, " ranks", kShareForms);
  return weights;
}

Shares parse_shares(const std::string& text) {
  if (text == "equal" || text == "auto") return {text == "auto", {}};
  Shares shares;
  for (const std::string& part : split(text, ':')) {
    const auto number = parse_number(part);
    if (!number)
      fail(ErrorCode::kBadInput, name_settings("--shares "), text, ": '", part, "' is not a number", did_you_mean(part, {"equal", "auto"}),
           kShareForms);
    if (!(*number > 0) || !std::isfinite(*number))
      fail(ErrorCode::kBadInput, name_settings("--shares "), text, ": ", part, " is not a positive number", kShareForms);
    shares.weights.push_back(*number);
  }
  if (shares.weights.empty()) fail(ErrorCode::kBadInput, name_settings("--shares says nothing"), kShareForms);
  return shares;
}

}  // namespace cohort
