#pragma once
// Calls in words, for messages.

#include <string>
#include <vector>

#include "cohort/comm/transport/transport.h"

namespace cohort {

/// Count of an all-to-all whose pieces differ.
inline constexpr uint64_t kUnevenCount = ~uint64_t{0};

/// "all-reduce #7 of conv1.weight (100 Float, sum)".
std::string describe(const Signature& signature);
/// Whether two ranks make the same call; names only where both gave one, and not `sequence` unless asked.
bool same_call(const Signature& one, const Signature& other, bool compare_sequence = true);
/// "rank 2", "ranks 0 and 3", "ranks 0, 1 and 3".
std::string describe_ranks(const std::vector<int>& ranks);
/// Copies `name` into the 40 bytes at `to`, filled up with zeros. One that is too long loses words at its end, or, where it has no spaces
/// (the path of a tensor), at its beginning; "..." stands for them. Allocates nothing.
void copy_name(char* to, const char* name);

}  // namespace cohort
