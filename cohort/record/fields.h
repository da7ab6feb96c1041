#pragma once
// Serialization of records. Each has describe(fields), which visits its keys in the order of the file, for the writer and the reader
// (run_event.cpp). How an absent value is written depends on the function:
//
//   count(int64_t), required_list, count_rows           required: a line without it is refused
//   number, text, texts, counts, numbers, list          non-finite numbers are null; others are written even if empty
//   count(optional), number(optional), object, json,    the key is left out
//   number_if_known, text_if_any, texts_if_any, counts_if_any, named_numbers_if_any
//
// A reader treats a missing key and null as unknown or empty, and ignores unknown keys.

#include <limits>

namespace cohort {

/// An unknown number, or one that was not finite when written.
inline constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

}  // namespace cohort
