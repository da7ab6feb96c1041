// Ranks are taken from the fastest on; each joins the class before it unless it is slower than that class's fastest rank, round by round.
// So ranks of one class are within kSlower of one another, and noise, which hits now one rank and now another, makes no class.
#include "cohort/tune/speed_classes.h"

#include <algorithm>
#include <numeric>

#include "cohort/base/statistics.h"

namespace cohort {
namespace {

/// Of rank to rank, a number a size and round.
std::vector<double> ratios(const std::vector<std::vector<double>>& of, const std::vector<std::vector<double>>& to) {
  std::vector<double> out;
  for (size_t size = 0; size < of.size(); ++size)
    for (size_t round = 0; round < of[size].size(); ++round)
      if (to[size][round] > 0) out.push_back(of[size][round] / to[size][round]);
  return out;
}

bool is_slower(const std::vector<double>& all) {
  const auto slower = std::count_if(all.begin(), all.end(), [](double ratio) { return ratio > SpeedClasses::kSlower; });
  return !all.empty() && static_cast<double>(slower) >= SpeedClasses::kMostRounds * static_cast<double>(all.size());
}

}  // namespace

SpeedClasses::SpeedClasses(const std::vector<std::vector<std::vector<double>>>& seconds) : of_rank_(seconds.size(), 0) {
  std::vector<double> slower_than_first;
  for (const auto& rank : seconds) slower_than_first.push_back(median(ratios(rank, seconds.front())));
  std::vector<size_t> order(seconds.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return slower_than_first[a] < slower_than_first[b]; });
  std::vector<size_t> fastest_of;  // Of each class, from the fastest on.
  std::vector<int> found(seconds.size());
  for (const size_t rank : order) {
    if (fastest_of.empty() || is_slower(ratios(seconds[rank], seconds[fastest_of.back()]))) fastest_of.push_back(rank);
    found[rank] = static_cast<int>(fastest_of.size()) - 1;
  }
  std::vector<int> number(fastest_of.size(), -1);
  for (size_t rank = 0; rank < seconds.size(); ++rank) {
    int& its = number[static_cast<size_t>(found[rank])];
    if (its < 0) {
      its = num_classes();
      first_rank_.push_back(static_cast<int>(rank));
      times_slower_.push_back(std::max(1.0, median(ratios(seconds[rank], seconds[order.front()]))));
    }
    of_rank_[rank] = its;
  }
}

}  // namespace cohort
