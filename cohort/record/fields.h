#pragma once
// How records name their keys. Each has describe(fields), which goes once through its keys in the order of the file, for the writer and the
// reader alike (run_event.cpp). The call says what stands in the file for a value that is not there:
//
//   count(int64_t), required_list, count_rows           it is always there: a line without it is refused
//   number, text, texts, counts, numbers, list          a number that is not finite is null; the rest is written as it is, empty or not
//   count(optional), number(optional), object, json,    the key is left out
//   number_if_known, text_if_any, texts_if_any, counts_if_any, named_numbers_if_any
//
// A reader takes a missing key and null for one that is not known, or empty, and ignores keys that no record has.

#include <limits>

namespace cohort {

/// A number that is not known, or that was not finite when it was written.
inline constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

}  // namespace cohort
