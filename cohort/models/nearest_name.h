#pragma once
// "Did you mean": the known name nearest to a mistyped one.

#include <string>
#include <vector>

namespace cohort {

/// Fewest insertions, deletions and substitutions of one character that turn a into b. O(|a| |b|).
int edit_distance(const std::string& a, const std::string& b);

/// The known name that is nearest to `name`, or an empty string when none is near enough to be meant (more than half of the longer of
/// the two would have to change).
std::string nearest_name(const std::string& name, const std::vector<std::string>& known);

/// "; did you mean 'conv1'?" or nothing.
std::string did_you_mean(const std::string& name, const std::vector<std::string>& known);

}  // namespace cohort
