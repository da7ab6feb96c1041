#include "cohort/job/specs/sync_mode.h"

#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"

namespace cohort {
namespace {

struct Named {
  const char* name;
  SyncKind kind;
  int64_t least;  // Minimum of the number after the colon; -1: none.
};
constexpr Named kModes[] = {{"step", SyncKind::kStep, -1},
                            {"async", SyncKind::kAsync, -1},
                            {"stale", SyncKind::kStale, 0},
                            {"local", SyncKind::kLocal, 1},
                            {"diloco", SyncKind::kDiloco, 1}};
constexpr int64_t kMostFragments = 1 << 16, kMostQuorum = 1 << 20;
constexpr double kMostGraceSeconds = 86400;

/// Parses what follows "local:" or "diloco:"; nullopt for invalid text.
std::optional<SyncMode> parse_rounds(SyncKind kind, const std::string& text) {
  const std::vector<std::string> words = split(text, ':');
  SyncMode mode{.kind = kind};
  bool has_grace = false;
  for (size_t at = 0; at < words.size(); ++at) {
    const size_t equals = words[at].find('=');
    const std::string key = equals == std::string::npos ? "" : words[at].substr(0, equals);
    const std::string value = words[at].substr(equals == std::string::npos ? 0 : equals + 1);
    const auto number = parse_integer(value);
    if (key.empty() && at <= 1) {
      if (!number || *number < 1 || (at == 1 && *number > kMostFragments)) return std::nullopt;
      if (at == 0) mode.number = *number;
      else mode.fragments = static_cast<int>(*number);
    } else if (key == "quorum" && at > 0 && mode.quorum == 0) {
      if (!number || *number < 1 || *number > kMostQuorum) return std::nullopt;
      mode.quorum = static_cast<int>(*number);
    } else if (key == "grace" && mode.quorum > 0 && !has_grace) {
      const auto seconds = parse_number(value);
      if (!seconds || !(*seconds >= 0) || *seconds > kMostGraceSeconds) return std::nullopt;
      mode.grace_seconds = *seconds;
      has_grace = true;
    } else {
      return std::nullopt;
    }
  }
  return mode;
}

void check_rounds(const SyncMode& mode, const std::string& text) {
  if (mode.fragments > mode.number)
    fail(ErrorCode::kBadInput, name_settings("--layout: sync="), text, ": of ", mode.fragments,
         " fragments each is exchanged after a step of its own, and a round has ", mode.number, "; use ", mode.number, " or fewer");
  if (mode.fragments > 1 && mode.quorum > 0)
    fail(ErrorCode::kBadInput, name_settings("--layout: sync="), text,
         ": with a quorum the model is exchanged whole, so far; leave out the ", mode.fragments, " fragments, or the quorum");
}

}  // namespace

SyncMode parse_sync(const std::string& text) {
  for (const bool newest : {false, true})
    for (const bool replaces : {false, true})
      if (const SyncMode mode{.kind = SyncKind::kQueue, .newest = newest, .replaces = replaces}; text == to_text(mode)) return mode;
  const std::vector<std::string> words = split(text, ':');
  for (const Named& named : kModes) {
    const size_t num_numbers = named.least < 0 ? 0 : 1;
    if (words.size() < 1 + num_numbers || words[0] != named.name) continue;
    if (has_rounds(SyncMode{.kind = named.kind})) {
      const auto rounds = parse_rounds(named.kind, text.substr(words[0].size() + 1));
      if (!rounds) continue;
      check_rounds(*rounds, text);
      return *rounds;
    }
    const auto number = num_numbers == 0 ? std::optional<int64_t>(0) : parse_integer(words[1]);
    if (number && *number >= named.least && words.size() == 1 + num_numbers) return {.kind = named.kind, .number = *number};
  }
  fail(ErrorCode::kBadInput, name_settings("--layout: sync="), text,
       " is none of: step async stale:K local:H local:H:F local:H:quorum=Q[:grace=SECONDS] diloco:H diloco:H:F "
       "diloco:H:quorum=Q[:grace=SECONDS] queue queue:newest queue:replace queue:newest:replace (K from 0, H and Q from 1, F from "
       "1 to H)");
}

std::string to_text(const SyncMode& mode) {
  if (mode.kind == SyncKind::kQueue) return concat("queue", mode.newest ? ":newest" : "", mode.replaces ? ":replace" : "");
  for (const Named& one : kModes) {
    if (one.kind != mode.kind) continue;
    return concat(one.name, one.least < 0 ? "" : concat(":", mode.number), mode.fragments > 1 ? concat(":", mode.fragments) : "",
                  mode.quorum > 0 ? concat(":quorum=", mode.quorum) : "",
                  mode.grace_seconds > 0 ? concat(":grace=", mode.grace_seconds) : "");
  }
  return "step";
}

std::ostream& operator<<(std::ostream& out, const SyncMode& mode) { return out << to_text(mode); }

}  // namespace cohort
