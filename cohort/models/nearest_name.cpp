#include "cohort/models/nearest_name.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace cohort {

int edit_distance(const std::string& a, const std::string& b) {
  std::vector<int> row(b.size() + 1);  // distances of a's prefix read so far to every prefix of b
  std::iota(row.begin(), row.end(), 0);
  for (size_t i = 0; i < a.size(); ++i) {
    int diagonal = row[0];
    row[0] = static_cast<int>(i) + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const int substituted = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({substituted, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

std::string nearest_name(const std::string& name, const std::vector<std::string>& known) {
  std::string best;
  int best_distance = std::numeric_limits<int>::max();
  for (const std::string& candidate : known) {
    const int distance = edit_distance(name, candidate);
    if (distance < best_distance && 2 * distance <= static_cast<int>(std::max(name.size(), candidate.size()))) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

std::string did_you_mean(const std::string& name, const std::vector<std::string>& known) {
  const std::string best = nearest_name(name, known);
  return best.empty() ? "" : "; did you mean '" + best + "'?";
}

}  // namespace cohort
