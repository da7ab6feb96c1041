#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "cohort/base/files/file.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/strict_json.h"
#include "cohort/base/text/text.h"
#include "cohort/data/source/description_json.h"
#include "cohort/data/source/source.h"
#include "tests/support/data_files.h"
#include "tests/support/mutation.h"
#include "tests/support/text.h"

using namespace cohort;
using namespace cohort::testing;

namespace {

DataDescription table() {
  DataDescription made;
  made.input = DataDescription::Input::kRow;
  made.shape = {4};
  made.regression = true;
  made.num_outputs = 1;
  made.targets = {{"price", 12.5, 0.1}};
  made.columns = {{.name = "area", .mean = 1.0 / 3, .deviation = 7}, {.name = "town", .is_category = true, .values = {"A\"b", "c", ""}}};
  return made;
}

DataDescription picture() {
  return {.input = DataDescription::Input::kPicture,
          .shape = {3, 8, 9},
          .num_outputs = 2,
          .class_names = {"cat", "dog"},
          .mean = {0.1, 0.2, 0.3},
          .deviation = {1, 2, 3},
          .resized = true};
}

}  // namespace

TEST_CASE("columns_text: how each column was taken") {
  CHECK(columns_text(table()) == "1 column of numbers (area), 1 of categories (town: 3 values)");
  CHECK(columns_text(picture()).empty());
  DataDescription many = table();
  for (int i = 0; i < 20; ++i) many.columns.push_back({.name = concat("n", i)});
  CHECK(columns_text(many) == "21 columns of numbers (area, n0, n1, n2, n3, n4, n5, n6, and 13 more), 1 of categories (town: 3 values)");
}

TEST_CASE("description: as JSON and back it is the same, to the last bit of every number") {
  DataDescription labels = picture();
  labels.labels = true;
  for (const DataDescription& made : {table(), picture(), labels}) {
    const std::string text = to_json(made).dump(2);
    const DataDescription again = description_from_json(parse_strict_ordered_json(text, {.path = "x"}), "x");
    CHECK(to_json(again).dump(2) == text);
    CHECK(again.columns.size() == made.columns.size());
    if (!made.columns.empty()) CHECK(again.columns[0].mean == made.columns[0].mean);
    CHECK(again.mean == made.mean);
    CHECK(again.labels == made.labels);
  }
}

TEST_CASE("description: any bit of data.json that is flipped is noticed, and a file from before is read") {
  const TemporaryFolder folder;
  const std::string path = folder / "data.json", text = description_file_text(picture());
  const auto read = [&](const std::string& content) -> std::string {
    std::filesystem::remove(path);
    std::ofstream(path) << content;
    try {
      const DataDescription description = read_description(path);
      CHECK(to_json(description) == to_json(picture()));
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  CHECK(read(text).empty());
  CHECK(read(to_json(picture()).dump(1) + "\n").empty());  // As it was before.
  CHECK(mentions(read(std::string(text).replace(text.find("dog"), 1, "f")), "another checksum"));
  CHECK(mentions(read(text.substr(0, text.size() / 2)), "or remove it: then the data are read"));
  for (size_t at = 0; at < text.size(); ++at) {
    std::string bad = text;
    bad[at] = static_cast<char>(bad[at] ^ 1);
    read(bad);  // Refused, or the same description: blanks, and the name of the checksum, mean nothing.
  }
}

TEST_CASE("description: parts that contradict each other are refused by name") {
  const auto refused = [](DataDescription made) { return error_of([&] { description_from_json(to_json(made), "run/data.json"); }); };
  DataDescription made = table();
  made.columns.pop_back();
  CHECK(refused(made) == "run/data.json: \"columns\" make 1 numbers, not the 4 of \"shape\"");
  made = table();
  made.targets.clear();
  CHECK(mentions(refused(made), "0 \"targets\" and 1 \"outputs\""));
  made = picture();
  made.mean.pop_back();
  CHECK(mentions(refused(made), "differ in length"));
  made = picture();
  made.deviation[1] = 0;
  CHECK(mentions(refused(made), "above 0 in \"deviation\""));
  made = picture();
  made.shape = {3, INT64_C(1) << 40, INT64_C(1) << 40};
  CHECK(mentions(refused(made), "\"shape\" does not have a size"));
}

TEST_CASE("mutation: a description that is damaged is refused with one line, or whole") {
  int refused = 0;
  for (const DataDescription& made : {table(), picture()}) {
    const std::string text = to_json(made).dump();
    for (uint64_t seed = 1; seed <= 2000; ++seed)
      refused +=
          !succeeds_or_is_refused([&] { description_from_json(parse_strict_ordered_json(mutated(text, seed), {.path = "x"}), "x"); });
  }
  CHECK(refused > 2000);
}

TEST_CASE("description: a source of text or numbers says its shape") {
  const DataSet text = open_data("synthetic:text,samples=40", {.context = 6}), values = open_data("synthetic:12,classes=3,samples=40");
  CHECK(text.train->describe().input == DataDescription::Input::kText);
  CHECK(text.train->describe().num_outputs == 256);
  CHECK(values.train->describe().input == DataDescription::Input::kTensor);
  CHECK(values.train->describe().shape == std::vector<int64_t>{12});
}
