#include "cohort/parallel/local/fragments.h"

#include <algorithm>
#include <numeric>
#include <string_view>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"

namespace cohort {

std::vector<FragmentPiece> pieces_of_fragment(const std::vector<int64_t>& elements, int fragment, int num_fragments) {
  const int64_t all = std::accumulate(elements.begin(), elements.end(), int64_t{0});
  // Avoids the product of `all` and a fragment's number, which might overflow.
  const auto cut = [&](int64_t number) { return all / num_fragments * number + std::min(number, all % num_fragments); };
  const int64_t begin = cut(fragment), end = cut(fragment + 1);
  std::vector<FragmentPiece> pieces;
  int64_t first = 0;
  for (size_t parameter = 0; parameter < elements.size(); ++parameter) {
    const int64_t from = std::max(begin, first), to = std::min(end, first + elements[parameter]);
    if (from < to) pieces.push_back({parameter, from - first, to - from});
    first += elements[parameter];
  }
  return pieces;
}

int64_t step_of_fragment(int fragment, int num_fragments, int64_t steps) { return (fragment + int64_t{1}) * steps / num_fragments; }

namespace {

constexpr std::string_view kWorker = "worker-", kOuter = "outer/", kState = "optimizer/", kWeights = "weights/", kRound = "round/";

}  // namespace

std::string name_of_worker(int64_t worker, const std::string& name) { return concat(kWorker, worker, "/", name); }

std::string name_of_outer(const std::string& name) { return concat(kOuter, name); }

std::string name_of_own_weights(int64_t worker, const std::string& parameter) {
  return name_of_worker(worker, concat(kWeights, parameter));
}

std::string name_of_round(int64_t worker, int num_fragments) { return name_of_worker(worker, concat(kRound, num_fragments, "/samples")); }

StateName split_state_name(const std::string& name) {
  const size_t slash = name.find('/');
  const std::string rest = slash == std::string::npos ? "" : name.substr(slash + 1);
  const bool is_state = rest.starts_with(kState), is_weights = rest.starts_with(kWeights), is_round = rest.starts_with(kRound);
  if (is_state && name.starts_with(kOuter)) return {.worker = {}, .of_outer = true, .name = rest};
  const auto worker = name.starts_with(kWorker) ? parse_integer(name.substr(kWorker.size(), slash - kWorker.size())) : std::nullopt;
  if (!worker || *worker < 0 || !(is_state || is_weights || is_round)) return {.worker = {}, .name = name};
  return {.worker = worker, .of_fragments = !is_state, .name = is_weights ? concat("model/", rest.substr(kWeights.size())) : rest};
}

}  // namespace cohort
