#include "cohort/job/sync_mode.h"

#include <optional>
#include <utility>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"

namespace cohort {
namespace {

struct Named {
  const char* name;
  SyncKind kind;
  int64_t least;  // Of the number after the colon; -1: there is none.
};
constexpr Named kModes[] = {{"step", SyncKind::kStep, -1},
                            {"async", SyncKind::kAsync, -1},
                            {"stale", SyncKind::kStale, 0},
                            {"local", SyncKind::kLocal, 1},
                            {"diloco", SyncKind::kDiloco, 1}};

}  // namespace

SyncMode parse_sync(const std::string& text) {
  for (const bool newest : {false, true})
    for (const bool replaces : {false, true})
      if (const SyncMode mode{.kind = SyncKind::kQueue, .newest = newest, .replaces = replaces}; text == to_text(mode)) return mode;
  const size_t colon = text.find(':');
  const std::string name = text.substr(0, colon);
  for (const Named& mode : kModes) {
    if (name != mode.name || (colon == std::string::npos) != (mode.least < 0)) continue;
    const auto number = mode.least < 0 ? std::optional<int64_t>(0) : parse_integer(text.substr(colon + 1));
    if (number && *number >= mode.least) return {.kind = mode.kind, .number = *number};
  }
  fail(ErrorCode::kBadInput, name_settings("--layout: sync="), text,
       " is none of: step async stale:K local:H diloco:H queue queue:newest queue:replace queue:newest:replace (K from 0, H from 1)");
}

std::string to_text(const SyncMode& mode) {
  if (mode.kind == SyncKind::kQueue) return concat("queue", mode.newest ? ":newest" : "", mode.replaces ? ":replace" : "");
  for (const Named& one : kModes)
    if (one.kind == mode.kind) return one.least < 0 ? one.name : concat(one.name, ":", mode.number);
  return "step";
}

bool has_late_gradients(const SyncMode& mode) { return mode.kind == SyncKind::kAsync || mode.kind == SyncKind::kStale; }

bool has_server(const SyncMode& mode) { return has_late_gradients(mode) || mode.kind == SyncKind::kQueue; }

bool is_local(const SyncMode& mode) { return mode.kind == SyncKind::kLocal || mode.kind == SyncKind::kDiloco; }

int64_t steps_between_exchanges(const SyncMode& mode) { return is_local(mode) ? mode.number : 1; }

}  // namespace cohort
