#include "cohort/job/specs/hint.h"

#include <algorithm>

#include "cohort/base/fail.h"
#include "cohort/base/text/strict_json.h"
#include "cohort/base/text/text.h"

namespace cohort {

std::vector<HintPair> parse_hints(const std::string& text) {
  std::vector<HintPair> pairs;
  if (text.empty() || text == "none") return pairs;
  for (const std::string& part : split(text, ',')) {
    const size_t colon = part.find(':');
    HintPair pair{.student = part.substr(0, colon), .teacher = colon == std::string::npos ? "" : part.substr(colon + 1)};
    if (pair.student.empty() || pair.teacher.empty() || pair.teacher.find(':') != std::string::npos)
      fail(ErrorCode::kBadInput, name_settings("--hint "), quote_text(text),
           ": expected a layer of the student and one of the teacher, as conv2:conv2, several with commas, or none");
    if (std::any_of(pairs.begin(), pairs.end(), [&](const HintPair& other) { return other.student == pair.student; }))
      fail(ErrorCode::kBadInput, name_settings("--hint "), quote_text(text), ": it names the student's layer ", quote_text(pair.student),
           " twice");
    pairs.push_back(std::move(pair));
  }
  return pairs;
}

}  // namespace cohort
