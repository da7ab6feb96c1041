#include "cohort/data/images/picture_source.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "cohort/data/source/openers.h"
#include "tests/support/data_files.h"
#include "tests/support/mutation.h"
#include "tests/support/pictures.h"
#include "tests/support/text.h"

using namespace cohort;
using namespace cohort::testing;

namespace {

std::string grey(int value) {
  return png_of(4, 4, [&](int, int) { return std::vector<uint8_t>{static_cast<uint8_t>(value)}; });
}

std::string repeated(const std::string& text, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += text;
  return out;
}

/// Pictures 0 to 5 of rising brightness; a label for the dark, one for those with an even number.
std::string table_of(TempFolder& folder) {
  std::string text = "even,path,dark\n";
  for (int i = 0; i < 6; ++i) {
    folder.write("p/" + std::to_string(i) + ".png", grey(20 * i));
    text += std::to_string(1 - i % 2) + "," + std::to_string(i) + ".png," + std::to_string(static_cast<int>(i < 2)) + "\n";
  }
  return folder.write("labels.csv", text);
}

}  // namespace

TEST_CASE("picture labels: files and labels are those of the table, decoded once or each time") {
  TempFolder folder;
  const std::string table = table_of(folder);
  const std::string val = folder.write("val.csv", "path,dark,even\n4.png,0,1\n1.png,1,0\n");
  for (const std::string memory : {"", ",memory=0"}) {
    const DataSet data = open_picture_folder(folder.path("p") + ",labels=" + table + ",val=" + val + ",test=" + val + memory, {});
    CHECK(data.train->shape().labels);
    CHECK(data.train->shape().class_names == std::vector<std::string>{"even", "dark"});
    CHECK(data.train->num_samples() == 6);
    CHECK(all_of(*data.train).numbers == std::vector<float>{1, 1, 0, 1, 1, 0, 0, 0, 1, 0, 0, 0});
    CHECK(all_of(*data.train).targets.empty());
    const Batch validation = all_of(*data.validation);
    CHECK(validation.numbers == std::vector<float>{1, 0, 0, 1});
    CHECK(validation.values[0] == all_of(*data.train).values[static_cast<size_t>(4 * 16)]);
    REQUIRE(data.test);
    CHECK(all_of(*data.test).numbers == validation.numbers);
    CHECK(data.train->describe().labels);
  }
  // A trained model's labels, by name.
  auto kept = std::make_shared<DataDescription>(open_picture_folder(folder.path("p") + ",labels=" + table, {}).train->describe());
  const std::string turned = folder.write("turned.csv", "dark,path,more,even\n1,0.png,0,1\n0,3.png,1,0\n0,5.png,0,0\n");
  const DataSet again = open_picture_folder(folder.path("p") + ",labels=" + turned + ",val=" + val, {.kept = kept});
  CHECK(again.train->shape().class_names == kept->class_names);
  CHECK(all_of(*again.train).numbers == std::vector<float>{1, 1, 0, 0, 0, 0});
}

TEST_CASE("picture labels: what is no row is refused by file and line, or left out") {
  TempFolder folder;
  table_of(folder);
  const auto refusal = [&](const std::string& text, const std::string& more = "") {
    const std::string table = folder.write("t.csv", text);
    return error_of([&] { open_picture_folder(folder.path("p") + ",labels=" + table + more, {}); });
  };
  CHECK(mentions(refusal("path,a\n0.png,2\n"), "t.csv:2: a is '2', expected 0 or 1, as of a label; --skip-bad"));
  CHECK(mentions(refusal("path,a\n0.png,\n"), "t.csv:2: a is empty, expected 0 or 1"));
  CHECK(mentions(refusal("path,a\n../p/0.png,1\n"), "path '../p/0.png' leaves the folder"));
  CHECK(mentions(refusal("path,a\n/0.png,1\n"), "path '/0.png' leaves the folder"));
  CHECK(mentions(refusal("path,a\n,1\n"), "path is empty"));
  CHECK(mentions(refusal("path,a\n0.png,1\n1.png,0\n./0.png,0\n"), "t.csv:4: 0.png is in rows 2 and 4; --skip-bad"));
  CHECK(mentions(refusal(std::string("path,a\n0.png\0x,1\n", 17)), "t.csv:2: path '0.png?x' has a control character"));
  CHECK(mentions(refusal("path,a\n\"0.png\n\",1\n"), "t.csv:2: path '0.png?' has a control character"));
  const std::string letters(60, 'x'), many(300'000, 'x'), deep = many.substr(0, 200) + "/";
  CHECK(mentions(refusal("path,a\n" + many + ",1\n"), "path '" + letters + "...' is longer than that of a file can be"));
  CHECK(mentions(refusal("path,a\n" + repeated(deep, 21) + "0.png,1\n"), "...' is longer than that of a file can be"));
  CHECK(mentions(refusal("path,a\n0.png," + many + "\n"), "a is '" + letters + "...', expected 0 or 1"));
  CHECK(mentions(refusal("path,a\n9.png,1\n1.png,0\n"), "9.png"));
  CHECK(mentions(refusal("file,a\n0.png,1\n"), "there is no column 'path': expected one with each picture's path"));
  CHECK(mentions(refusal("path\n0.png\n"), "has 0 columns beside path: expected 1 to 65535 labels"));
  CHECK(mentions(refusal("path,a\n"), "has no rows that can be read"));
  CHECK(mentions(refusal("path,a\n0.png,1\n1.png,0\n", ",val=" + folder.path("t.csv") + ",seed=1"), "seed=1 would do nothing"));
  CHECK(mentions(error_of([&] { open_picture_folder(folder.path() + ",val=x.csv", {}); }), "is a table beside that of labels=FILE.csv"));
  const std::string mixed = folder.write("m.csv", "path,a\n0.png,1\n1.png,x\n2.png,0\n9.png,1\n3.png,1\n./0.png,0\n");
  const DataSet data = open_picture_folder(folder.path("p") + ",labels=" + mixed + ",seed=1", {.skip_bad = true});
  CHECK(data.skipped.count == 3);
  CHECK(data.train->num_samples() + data.validation->num_samples() == 3);
}

TEST_CASE("picture labels: as many labels as a table may have columns are found") {
  TempFolder folder;
  table_of(folder);
  const size_t most = 65'535;
  std::string names = "path", row = "0.png", next = "1.png";
  for (size_t i = 0; i < most; ++i) {
    names += ",l" + std::to_string(i);
    row += i % 2 == 0 ? ",1" : ",0";
    next += ",0";
  }
  const std::string table = folder.write("wide.csv", names + "\n" + row + "\n" + next + "\n");
  LabelledPictures pictures;
  SkippedData skipped;
  read_picture_labels(table, folder.path("p"), false, skipped, pictures);
  CHECK(pictures.has_label.size() == 2 * most);
  CHECK(pictures.has_label[0] + pictures.has_label[2] - pictures.has_label[1] == 2);
  CHECK(
      mentions(error_of([&] { read_picture_labels(folder.write("wide.csv", names + ",z\n"), folder.path("p"), false, skipped, pictures); }),
               "has more than 65536 fields"));
}

TEST_CASE("mutation: a damaged table of pictures is refused with one line, or becomes samples") {
  TempFolder folder;
  const std::string whole = "path,a,b\n0.png,1,0\n1.png,0,1\n2.png,1,1\n";
  table_of(folder);
  int64_t opened = 0, refused = 0;
  for (uint64_t seed = 1; seed <= mutation_count(300); ++seed) {
    const std::string table = folder.write("m.csv", mutated(whole, seed));
    ++(succeeds_or_is_refused(
           [&] { all_of(*open_picture_folder(folder.path("p") + ",labels=" + table, {.skip_bad = seed % 2 == 0}).train); })
           ? opened
           : refused);
  }
  CHECK(opened > 20);
  CHECK(refused > 50);
}
