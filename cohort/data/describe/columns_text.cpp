#include "cohort/base/text/text.h"
#include "cohort/data/source/description.h"

namespace cohort {
namespace {

constexpr size_t kMostNamed = 8;

/// The first names; how many more there are.
std::string listed(std::vector<std::string> names) {
  const size_t count = names.size();
  if (count > kMostNamed) names.resize(kMostNamed);
  return concat(" (", join(names, ", "), count > kMostNamed ? concat(", and ", count - kMostNamed, " more") : "", ")");
}

}  // namespace

std::string columns_text(const DataDescription& description) {
  std::vector<std::string> numbers, categories;
  for (const DataColumn& column : description.columns)
    if (!column.is_category) numbers.push_back(printable(column.name));
    else categories.push_back(concat(printable(column.name), ": ", column.values.size(), column.values.size() == 1 ? " value" : " values"));
  if (numbers.empty() && categories.empty()) return "";
  std::string text;
  if (!numbers.empty()) text = concat(numbers.size(), numbers.size() == 1 ? " column" : " columns", " of numbers", listed(numbers));
  if (!categories.empty())
    text += concat(text.empty() ? "" : ", ", categories.size(), text.empty() ? (categories.size() == 1 ? " column" : " columns") : "",
                   " of categories", listed(categories));
  return text;
}

}  // namespace cohort
