#include "cohort/infer/evaluate_trained.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

namespace cohort {
namespace {

Evaluation three_classes() {
  Evaluation evaluation;
  evaluation.confusion = {{5, 1, 2}, {0, 0, 0}, {4, 0, 1200}};
  return evaluation;
}

TEST_CASE("class results: rows are true classes, columns what they were taken for") {
  const std::vector<ClassResult> classes = class_results(three_classes(), {"cat", "dog"});
  REQUIRE(classes.size() == 3);
  CHECK(classes[0].samples == 8);
  CHECK(classes[0].right == 5);
  CHECK(classes[0].taken_for == 9);
  CHECK(classes[0].confused_with == "2");  // It has no name.
  CHECK(classes[0].num_confused == 2);
  CHECK(classes[1].samples == 0);
  CHECK(classes[1].taken_for == 1);
  CHECK(classes[1].confused_with == "");
  CHECK(classes[2].confused_with == "cat");
  CHECK(class_results({}, {}).empty());
}

TEST_CASE("class table: figures of each class, and a dash where there is nothing to divide by") {
  const std::string table = class_table(class_results(three_classes(), {"cat", "a\nb"}));
  CHECK(table ==
        "class  samples  recognised  precision  most often taken for\n"
        "cat          8      62.5 %     55.6 %  2 (2)\n"
        "a?b          0           -      0.0 %\n"
        "2        1,204      99.7 %     99.8 %  cat (4)\n");
}

TEST_CASE("confusion table: nothing where it would not fit") {
  const Evaluation evaluation = three_classes();
  CHECK(confusion_table(evaluation, class_results(evaluation, {"cat", "dog", "emu"})) ==
        "taken for:    0    1    2\n"
        " 0  cat       5    1    2\n"
        " 1  dog       .    .    .\n"
        " 2  emu       4    . 1200\n");
  Evaluation large;
  large.confusion.assign(21, std::vector<int64_t>(21));
  CHECK(confusion_table(large, class_results(large, {})).empty());
}

}  // namespace

}  // namespace cohort
