#pragma once
// What a study found, in sentences and tables.

#include <string>
#include <vector>

#include "cohort/report/study/study_page.h"

namespace cohort::report {

/// "Smin 352 (95 %: 330 to 380)": plain text. Sentences on goal, fits, regimes and what speaks against them.
std::vector<std::string> summary_sentences(const study::StudyData& study, const StudyReport& report, bool goal_is_automatic);
/// Flags with their advice, those that refuse a regime first; "" without flags. Markup.
std::string flags_section(const study::StudyData& study, const StudyReport& report);
/// One row a batch size. Markup.
std::string steps_table(const study::StudyData& study, const StudyReport& report);
/// Trials, steps and samples trained, and what stopping trials early saved. Plain text.
std::vector<std::string> work_sentences(const study::StudyData& study);
/// Beside the fitted critical batch sizes, without a verdict; none without notes. Plain text.
std::vector<std::string> noise_sentences(const std::vector<NoiseScaleNote>& notes, const study::Analysis& analysis);
/// The number of workers that is worth having, with its best batch size; null where nothing was measured.
const study::WorthRow* best_worth(const study::Worth& worth);
/// Table of the best batch size for each number of workers, and its sentence; "" where nothing was measured. Markup.
std::string worth_text(const StudyReport& report);
/// The spec's [search] with spaces widened where best trials touch a bound; "" where none does.
std::string widened_spec(const study::StudyData& study, const StudyReport& report);

}  // namespace cohort::report
