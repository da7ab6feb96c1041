#include "cohort/parallel/local/state_names.h"

#include <string_view>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"

namespace cohort {
namespace {

constexpr std::string_view kWorker = "worker-", kOuter = "outer/", kState = "optimizer/";

}  // namespace

std::string name_of_worker(int64_t worker, const std::string& name) { return concat(kWorker, worker, "/", name); }

std::string name_of_outer(const std::string& name) { return concat(kOuter, name); }

StateName split_state_name(const std::string& name) {
  const size_t slash = name.find('/');
  const std::string rest = slash == std::string::npos ? "" : name.substr(slash + 1);
  if (!rest.starts_with(kState)) return {.worker = {}, .name = name};
  if (name.starts_with(kOuter)) return {.worker = {}, .of_outer = true, .name = rest};
  const auto worker = name.starts_with(kWorker) ? parse_integer(name.substr(kWorker.size(), slash - kWorker.size())) : std::nullopt;
  if (!worker || *worker < 0) return {.worker = {}, .name = name};
  return {.worker = worker, .name = rest};
}

}  // namespace cohort
