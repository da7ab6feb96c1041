#include "cohort/data/encode_input.h"

#include <algorithm>
#include <cmath>

#include "cohort/base/fail.h"
#include "cohort/base/text/text.h"
#include "cohort/data/images/image_source.h"
#include "cohort/data/images/picture_source.h"
#include "cohort/data/table/table.h"

namespace cohort {
namespace {

using Input = DataDescription::Input;

void check_kind(const DataDescription& description, Input input, const char* given, const std::string& what) {
  if (description.input == input) return;
  const char* const expected[] = {"pictures", "rows of a table", "text", "tensors"};
  fail(ErrorCode::kBadInput, what, " is ", given, ", and the model was trained on ", expected[static_cast<int>(description.input)]);
}

int64_t num_elements(const DataDescription& description) {
  int64_t elements = 1;
  for (const int64_t size : description.shape) elements *= size;
  return elements;
}

}  // namespace

EncodedInput encode_picture(const DataDescription& description, std::span<const uint8_t> file, const std::string& what) {
  check_kind(description, Input::kPicture, "a picture", what);
  const PictureForm form{{description.shape.at(0), description.shape.at(1), description.shape.at(2)}, description.resized};
  const Picture picture = shaped_picture(file, what, form);
  const int64_t plane = form.size.height * form.size.width;
  EncodedInput out;
  out.values.reserve(picture.bytes.size());
  for (int64_t c = 0; c < form.size.channels; ++c) {
    const std::array<float, 256> table = normalised_bytes(description.mean_at(c), description.deviation_at(c));
    for (int64_t at = 0; at < plane; ++at) out.values.push_back(table[picture.bytes[static_cast<size_t>(c * plane + at)]]);
  }
  return out;
}

EncodedInput encode_row(const DataDescription& description, std::span<const std::string> names, std::span<const std::string> fields,
                        const std::string& what) {
  check_kind(description, Input::kRow, "a row of a table", what);
  if (names.size() != fields.size()) fail(ErrorCode::kBadInput, what, ": ", fields.size(), " fields, and ", names.size(), " columns");
  EncodedInput out;
  out.values.resize(static_cast<size_t>(num_elements(description)));
  float* to = out.values.data();
  for (const DataColumn& column : description.columns) {
    const auto found = std::find(names.begin(), names.end(), column.name);
    if (found == names.end()) fail_without_column(what, column.name, {names.begin(), names.end()}, ", which the model was trained on");
    double cell = 0;
    const std::string fault = read_cell(column, fields[static_cast<size_t>(found - names.begin())], cell);
    if (!fault.empty()) fail(ErrorCode::kBadInput, what, ": ", fault);
    write_cell(column, cell, to);
    to += column.width();
  }
  return out;
}

EncodedInput encode_text(const DataDescription& description, std::string_view text, const std::string& what) {
  check_kind(description, Input::kText, "text", what);
  if (text.empty()) fail(ErrorCode::kBadInput, what, " is empty: expected at least one byte of text");
  const auto context = static_cast<size_t>(description.shape.at(0));
  if (description.vocabulary) {
    std::vector<Token> pieces;
    TextEncoder(*description.vocabulary).encode(text, pieces);
    EncodedInput out;
    out.tokens.assign(pieces.end() - static_cast<std::ptrdiff_t>(std::min(pieces.size(), context)), pieces.end());
    out.tokens.resize(context);
    return out;
  }
  if (text.size() > context) text.remove_prefix(text.size() - context);
  EncodedInput out;
  out.tokens.resize(context);
  for (size_t i = 0; i < text.size(); ++i) out.tokens[i] = static_cast<unsigned char>(text[i]);
  return out;
}

EncodedInput encode_numbers(const DataDescription& description, std::span<const double> numbers, const std::string& what) {
  if (description.input != Input::kPicture) check_kind(description, Input::kTensor, "a tensor", what);
  const int64_t elements = num_elements(description);
  if (std::ssize(numbers) != elements)
    fail(ErrorCode::kBadInput, what, " has ", numbers.size(), " numbers, and a sample of the training ", elements);
  EncodedInput out;
  out.values.reserve(numbers.size());
  const int64_t plane = elements / description.shape.front();
  for (int64_t i = 0; i < elements; ++i) {
    const double number = numbers[static_cast<size_t>(i)];
    if (!std::isfinite(number)) fail(ErrorCode::kBadInput, what, ": number ", i, " is not finite");
    out.values.push_back(static_cast<float>((number - description.mean_at(i / plane)) / description.deviation_at(i / plane)));
  }
  return out;
}

double decode_target(const DataDescription& description, size_t output, double answer) {
  const DataTarget& target = description.targets.at(output);
  return answer * target.deviation + target.mean;
}

}  // namespace cohort
