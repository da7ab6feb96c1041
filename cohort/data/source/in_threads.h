#pragma once
// Work on many samples by several threads, for as long as the call lasts: a source may be read before and after a fork.

#include <cstdint>
#include <functional>

namespace cohort {

/// Calls work(i) for each i in [0, count), in any order, on up to `num_threads` threads of which the caller is one. Where calls throw, the
/// exception of the lowest i is thrown once all have ended, so that the message does not depend on which thread was first.
void in_threads(int num_threads, int64_t count, const std::function<void(int64_t i)>& work);

}  // namespace cohort
