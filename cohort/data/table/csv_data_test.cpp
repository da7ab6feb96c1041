#include "cohort/data/source/openers.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "cohort/data/encode_input.h"
#include "cohort/data/source/fingerprint.h"
#include "tests/support/data_files.h"
#include "tests/support/mutation.h"
#include "tests/support/text.h"

using namespace cohort;
using namespace cohort::testing;

namespace {

/// Rows i = 0 .. n - 1: area i, town a, b or c, price 2 i + 1.
std::string houses(int n) {
  std::string text = "id,area,town,price\n";
  for (int i = 0; i < n; ++i)
    text += "r" + std::to_string(i) + "," + std::to_string(i) + "," + std::string(1, static_cast<char>('a' + i % 3)) + "," +
            std::to_string(2 * i + 1) + "\n";
  return text;
}

}  // namespace

TEST_CASE("csv data: numbers normalised over the training rows, categories one-hot, the target too") {
  TempFolder folder;
  const std::string path = folder.write("h.csv", houses(20)), val = folder.write("v.csv", "price,town,area\n7,c,3\n");
  const DataSet data = open_csv(path + ",target=price,task=regression,drop=id,val=" + val, {});
  REQUIRE(data.train->num_samples() == 20);
  CHECK(data.train->shape().input == std::vector<int64_t>{4});
  CHECK(data.train->shape().regression);
  CHECK(data.train->shape().num_classes == 1);
  const double mean = 9.5, deviation = std::sqrt((20.0 * 20 - 1) / 12);
  const Batch train = all_of(*data.train), validation = all_of(*data.validation);
  for (size_t i = 0; i < 20; ++i) {
    CHECK(train.values[4 * i] == static_cast<float>((static_cast<double>(i) - mean) / deviation));
    for (size_t town = 0; town < 3; ++town) CHECK(train.values[4 * i + 1 + town] == (i % 3 == town ? 1.0F : 0.0F));
    CHECK(train.numbers[i] == doctest::Approx((static_cast<double>(i) - mean) / deviation));
  }
  CHECK(train.targets.empty());
  // Columns are found by name; the normalisation is that of the training rows.
  CHECK(validation.values == std::vector<float>{static_cast<float>((3 - mean) / deviation), 0, 0, 1});
  const DataDescription description = data.train->describe();
  CHECK(description.targets[0].name == "price");
  CHECK(decode_target(description, 0, static_cast<double>(train.numbers[4])) == doctest::Approx(9));
  // What a user asks later is encoded to the same floats.
  const std::vector<std::string> names{"town", "unknown", "area"}, fields{"b", "?", "4"};
  CHECK(encode_row(description, names, fields, "row 1").values == std::vector<float>(train.values.begin() + 16, train.values.begin() + 20));
  const std::vector<std::string> wrong{"d", "?", "4"};
  CHECK(error_of([&] { encode_row(description, names, wrong, "row 1"); }) ==
        "row 1: town is 'd', expected one of the 3 values that the training had");
}

TEST_CASE("csv data: another number to predict is other data") {
  TempFolder folder;
  const std::string rows = "a,y\n1,2\n2,4\n3,5\n4,9\n", path = folder.write("a.csv", rows),
                    other = folder.write("b.csv", "a,y\n1,2\n2,4\n3,6\n4,9\n");
  const auto fingerprint = [](const std::string& file) {
    return data_fingerprint(open_csv(file + ",target=y,task=regression,seed=1", {}));
  };
  CHECK(fingerprint(path) == fingerprint(folder.write("c.csv", rows)));
  CHECK(fingerprint(path) != fingerprint(other));
}

TEST_CASE("csv data: classes in order, whatever the order of rows; the split by seed") {
  TempFolder folder;
  const std::string path = folder.write("h.csv", houses(30));
  const DataSet data = open_csv(path + ",target=town,drop=id,seed=4", {.validation_samples = 6});
  CHECK(data.train->shape().class_names == std::vector<std::string>{"a", "b", "c"});
  CHECK(data.train->num_samples() == 24);
  std::vector<int64_t> counts(3);
  for (const DataSource* part : {data.train.get(), data.validation.get()})
    for (const int64_t target : all_of(*part).targets) ++counts[static_cast<size_t>(target)];
  CHECK(counts == std::vector<int64_t>{10, 10, 10});
  const auto fingerprint = [&](const std::string& more, const DataOptions& options) {
    return data_fingerprint(open_csv(path + ",target=town,drop=id" + more, options));
  };
  CHECK(fingerprint(",seed=4", {.validation_samples = 6}) == data_fingerprint(data));
  CHECK(fingerprint("", {.validation_samples = 6, .seed = 4}) == data_fingerprint(data));
  CHECK(fingerprint(",seed=5", {.validation_samples = 6}) != data_fingerprint(data));
  const std::string numbers = folder.write("n.csv", "x,y\n1,10\n2,9\n3,10\n4,9\n");
  CHECK(open_csv(numbers + ",target=y,task=classification", {}).train->shape().class_names == std::vector<std::string>{"9", "10"});
}

TEST_CASE("csv data: categories as indices, columns that are named as categories, kept mean and deviation") {
  TempFolder folder;
  const std::string path = folder.write("z.csv", "zip,x,y\n200,1,p\n30,2,q\n200,3,p\n30,5,q\n");
  const std::string how = path + ",target=y,category=zip,encode=index,seed=1";
  const DataSet data = open_csv(how, {});
  CHECK(data.train->shape().input == std::vector<int64_t>{2});
  const DataDescription description = data.train->describe();
  CHECK(description.columns[0].values == std::vector<std::string>{"30", "200"});
  auto kept = std::make_shared<DataDescription>(description);
  kept->columns[1].mean = 100;
  CHECK(open_csv(how, {.kept = kept}).train->describe().columns[1].mean == 100);
  CHECK(data_fingerprint(open_csv(how, {.kept = std::make_shared<DataDescription>(description)})) == data_fingerprint(data));
}

TEST_CASE("csv data: for a trained model columns are looked for by name, and values that are missing stay values") {
  TempFolder folder;
  const std::string path = folder.write("t.csv", "zip,x,town,y\n1,1,a,p\n2,2,b,q\n1,3,c,p\n2,5,a,r\n");
  const DataSet trained = open_csv(path + ",target=y,drop=zip,seed=1", {});
  const auto kept = std::make_shared<DataDescription>(trained.train->describe());
  REQUIRE(kept->class_names == std::vector<std::string>{"p", "q", "r"});
  // One class, one town, another order, and a column that nobody asks for.
  const std::string few = folder.write("few.csv", "more,town,y,x\n7,b,q,4\n8,b,q,6\n");
  const DataSet data = open_csv(few + ",target=y,seed=1", {.kept = kept});
  CHECK(data.train->shape().input == trained.train->shape().input);
  CHECK(data.train->shape().num_classes == 3);
  const Batch batch = all_of(*data.validation);
  REQUIRE(batch.values.size() == 4);
  CHECK(batch.targets == std::vector<int64_t>{1});
  CHECK(batch.values[2] == 1);  // x, then a, b, c.
  const auto refusal = [&](const std::string& text, const std::string& how) {
    const std::string other = folder.write("o.csv", text);
    return error_of([&] { open_csv(other + how, {.kept = kept}); });
  };
  CHECK(mentions(refusal("town,y,x\nd,q,4\na,q,5\n", ",target=y"), ":2: town is 'd'"));
  CHECK(mentions(refusal("town,y\na,q\n", ",target=y"), "there is no column 'x'"));
  CHECK(mentions(refusal("town,y\na,q\n", ",target=y"), ", which the model was trained on"));
  CHECK(mentions(refusal("town,y,x\na,q,4\n", ""), "which column has the classes? Add target=COLUMN; columns: town, y, x"));
}

TEST_CASE("csv data: what is wrong with a row is said with its line, or it is left out and counted") {
  TempFolder folder;
  const std::string path = folder.write("h.csv", "a,b,y\n1,k,p\n,k,q\n3,k,p\nx,l,q\n5,k\n6,k,p\n7,l,q\n");
  const auto refusal = [&](const std::string& more) { return error_of([&] { open_csv(path + more, {}); }); };
  CHECK(refusal(",target=y").starts_with(path + ":3: a is empty, expected a number; "));
  const DataSet data = open_csv(path + ",target=y,seed=1", {.skip_bad = true});
  CHECK(data.skipped.count == 3);
  CHECK(data.skipped.first[1] == path + ":5: a is 'x', expected a number");
  CHECK(data.skipped.first[2] == path + ":6: 2 fields, and the header has 3");
  CHECK(data.train->num_samples() + data.validation->num_samples() == 4);
  CHECK(mentions(refusal(""), "which column is to be predicted? Add target=COLUMN; columns: a, b, y"));
  CHECK(mentions(error_of([&] { open_csv(folder.write("t.csv", "a,y\n1,p\n2,\n3,q\n") + ",target=y", {}); }),
                 ":3: y is empty, and it is the target"));
  CHECK(mentions(refusal(",target=pryce"), "there is no column 'pryce'; columns: a, b, y"));
  CHECK(mentions(refusal(",target=y,separator=semicolon"), "columns: a,b,y; is it separator=comma?"));
  CHECK(mentions(refusal(",target=a"), "is a column of numbers: add task=regression, or task=classification"));
  CHECK(mentions(refusal(",target=y,task=regression"), "task=regression needs a target of numbers, and y is a category"));
  CHECK(mentions(refusal(",target=y,drop=a+b"), "no column beside the target"));
  CHECK(mentions(refusal(",target=y,drop=y"), "dropped and also the target"));
  CHECK(mentions(refusal(",target=y,tsak=regression"), "unknown setting 'tsak' (did you mean 'task'?)"));
  CHECK(mentions(refusal(",target=y,target=a"), "target is given twice"));
  const std::string good = folder.write("g.csv", "a,b,y\n1,k,p\n2,l,q\n3,k,p\n");
  CHECK(mentions(error_of([&] { open_csv(good + ",target=y,val=" + good + ",seed=2", {}); }), "seed=2 would do nothing"));
  const std::string other = folder.write("v.csv", "a,b,y\n1,m,p\n");
  CHECK(mentions(error_of([&] { open_csv(good + ",target=y,val=" + other, {}); }),
                 other + ":2: b is 'm', expected one of the 2 values that the training had; "));
  CHECK(mentions(error_of([&] { open_csv(folder.write("e.csv", "a,y\n"), {}); }), "which column"));
  CHECK(mentions(error_of([&] { open_csv(folder.write("e.csv", "a,y\n") + ",target=y", {}); }),
                 "e.csv has no rows: expected at least one after the header"));
  const std::string bad = folder.write("e.csv", "a,y\n1\n");
  CHECK(mentions(error_of([&] { open_csv(bad + ",target=y", {}); }), "e.csv:2: 1 field, and the header has 2; --skip-bad"));
  CHECK(mentions(error_of([&] { open_csv(bad + ",target=y", {.skip_bad = true}); }), "e.csv has no rows that can be read: expected"));
  CHECK(mentions(error_of([&] { open_csv(folder.write("e.csv", "a,y\n,p\n") + ",target=y", {}); }), "'a' is empty in every row"));
  CHECK(mentions(error_of([&] { open_csv(folder.write("o.csv", "a,y\n1,p\n2,p\n") + ",target=y", {}); }), "nothing to learn"));
  CHECK(mentions(error_of([&] { open_csv(folder.write("i.csv", "a,y\n1e308,p\n1e308,q\n1e308,q\n") + ",target=y", {}); }),
                 "too large to be summed"));
}

TEST_CASE("csv data: labels are columns of 0 and 1, in the order in which the target names them") {
  TempFolder folder;
  const std::string path = folder.write("l.csv", "sun,a,rain,b\n1,0.5,0,x\n0,1,1,y\n1,2,1,x\n0,3,0,y\n");
  const std::string val = folder.write("v.csv", "b,rain,sun,a\nx,1.0,0,2\n");
  const DataSet data = open_csv(path + ",target=rain+sun,task=labels,val=" + val, {});
  const DataShape& shape = data.train->shape();
  CHECK(shape.labels);
  CHECK(!shape.regression);
  CHECK(shape.num_classes == 2);
  CHECK(shape.class_names == std::vector<std::string>{"rain", "sun"});
  CHECK(shape.input == std::vector<int64_t>{3});
  const Batch train = all_of(*data.train);
  CHECK(train.numbers == std::vector<float>{0, 1, 1, 0, 1, 1, 0, 0});
  CHECK(train.targets.empty());
  CHECK(train.values[1] == 1);  // Town x of the first row, behind the number.
  CHECK(all_of(*data.validation).numbers == std::vector<float>{1, 0});
  // A trained model finds its labels by name, in whatever order the settings name them.
  const auto kept = std::make_shared<const DataDescription>(data.train->describe());
  CHECK(all_of(*open_csv(path + ",val=" + val, {.kept = kept}).train).numbers == train.numbers);
  CHECK(all_of(*open_csv(path + ",target=sun+rain,val=" + val, {.kept = kept}).train).numbers == train.numbers);
  const auto refusal = [&](const std::string& more, DataOptions options = {}) { return error_of([&] { open_csv(path + more, options); }); };
  CHECK(mentions(refusal(",target=sun", {.kept = kept}), "target=sun names 1 label, and the model was trained on 2"));
  CHECK(mentions(refusal(",target=sun+snow", {.kept = kept}), "the model knows no label 'snow'; it was trained on rain, sun"));
  CHECK(mentions(refusal(",target=sun,task=regression", {.kept = kept}),
                 "task=regression, and the model was trained on labels; leave it out"));
  CHECK(mentions(refusal(",target=sun+rain"), "there is no column 'sun+rain'; several columns of 0 and 1 are task=labels"));
  CHECK(mentions(refusal(",target=sun+sun,task=labels"), "target= names 'sun' twice"));
  CHECK(mentions(refusal(",target=sun,task=labels,category=sun"), "is a label, 0 or 1, and also a category"));
  CHECK(mentions(refusal(",target=sun+a,task=labels"), "l.csv:2: a is '0.5', expected 0 or 1, as of a label"));
  CHECK(mentions(refusal(",target=sun+b,task=labels"), "l.csv:2: b is 'x', expected 0 or 1, as of a label"));
  const std::string slips = folder.write("s.csv", "a,y\n1,1\n2,x\n3,0\n4,\n5,2\n");
  CHECK(open_csv(slips + ",target=y,task=labels,seed=1", {.skip_bad = true}).skipped.count == 3);
  CHECK(mentions(error_of([&] { open_csv(folder.write("o.csv", "a,y,z\n1,1,0\n2,1,0\n") + ",target=y+z,task=labels", {}); }),
                 "every row has the same y+z"));
}

TEST_CASE("mutation: a table that is damaged is refused with one line, or becomes finite samples") {
  TempFolder folder;
  const std::string whole = houses(12);
  int64_t opened = 0, refused = 0;
  for (uint64_t seed = 1; seed <= mutation_count(600); ++seed) {
    const std::string path = folder.write("m.csv", mutated(whole, seed));
    const bool skips = seed % 2 == 0;
    ++(succeeds_or_is_refused([&] {
      const DataSet data = open_csv(path + ",target=price,task=regression,drop=id", {.skip_bad = skips});
      for (const float value : all_of(*data.train).values) REQUIRE(std::isfinite(value));
    })
           ? opened
           : refused);
  }
  CHECK(opened > 100);
  CHECK(refused > 100);
}
