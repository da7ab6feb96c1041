#include "cohort/model_compression/calibration/range_methods.h"

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"

namespace cohort {

const std::vector<RangeMethod>& range_methods() {
  static const std::vector<RangeMethod> methods = {min_max_range(), percentile_range(), squared_error_range(), entropy_range()};
  return methods;
}

const RangeMethod& find_range_method(const std::string& name) {
  std::vector<std::string> names;
  for (const RangeMethod& method : range_methods()) {
    if (method.name == name) return method;
    names.push_back(method.name);
  }
  fail(ErrorCode::kBadInput, "--calibration ", name, did_you_mean(name, names), ": expected one of ", join(names, " "));
}

}  // namespace cohort
