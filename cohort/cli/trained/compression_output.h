#pragma once
// What the actions of `cohort compress` say of the one file that they wrote.

#include <string>

#include "cohort/cli/options/verb.h"
#include "cohort/compress/compression_result.h"
#include "cohort/data/source/source.h"

namespace cohort {

/// Before the work: Error(kBadInput) where --report names no place for a page.
void check_compression_report(const Arguments& arguments);
/// A table, or lines with --json, and the page that --report asks for. `headline`: which model, for people. `validation`: what it was
/// measured on. Where a training ended no better than a constant answer, the last line says so.
void print_compression(const Arguments& arguments, const CompressionResult& result, const DataSource& validation,
                       const std::string& headline);

}  // namespace cohort
