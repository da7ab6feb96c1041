#pragma once
// The results of a study, in sentences and tables.

#include <string>
#include <vector>

#include "cohort/report/study/study_page.h"

namespace cohort::report {

/// Sentences on goal, fits, regimes and objections to them, in plain text: "Smin 352 (95 %: 330 to 380)".
std::vector<std::string> summary_sentences(const study::StudyData& study, const StudyReport& report, bool goal_is_automatic);
/// Flags with their advice, those that refuse a regime first, and widened spaces for the spec; "" without flags. Markup.
std::string flags_section(const study::StudyData& study, const StudyReport& report);
/// One row per batch size. Markup.
std::string steps_table(const study::StudyData& study, const StudyReport& report);
/// Trials, steps and samples trained, and the savings by stopping trials early. Plain text.
std::vector<std::string> work_sentences(const study::StudyData& study);
/// Noise scales relative to the fitted critical batch size; empty without notes. Plain text.
std::vector<std::string> noise_sentences(const std::vector<NoiseScaleNote>& notes, const study::Analysis& analysis);
/// The row of the number of workers that is worth having; null where nothing was measured.
const study::WorthRow* best_worth(const study::Worth& worth);
/// Table of the best batch size for each number of workers, and a sentence; "" where nothing was measured. Markup.
std::string worth_text(const StudyReport& report);

}  // namespace cohort::report
