#pragma once
// What the actions of `cohort compress` say of the one file that they wrote.

#include <string>

#include "cohort/cli/verb.h"
#include "cohort/model_compression/compression_result.h"

namespace cohort {

/// Before the work: Error(kBadInput) where --report names no place for a page.
void check_compression_report(const Arguments& arguments);
/// A table, or lines with --json, and the page that --report asks for. `headline`: which model, for people.
void print_compression(const Arguments& arguments, const CompressionResult& result, bool regression, const std::string& headline);

}  // namespace cohort
