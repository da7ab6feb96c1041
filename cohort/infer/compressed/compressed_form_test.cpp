#include "cohort/infer/compressed/compressed_form.h"

#include <doctest/doctest.h>

#include "cohort/base/text/json.h"
#include "cohort/base/text/strict_json.h"
#include "tests/support/errors.h"
#include "tests/support/mutation.h"

namespace cohort {
namespace {

using Form = CompressedLayer::Form;

CompressedForm example() {
  return {.method = "quantize static int8",
          .layers = {{.name = "conv", .form = Form::kStatic, .relu = true, .input = {0.5, 3}, .output = {0.25, 0}},
                     {.name = "norm", .form = Form::kAbsorbed},
                     {.name = "pool", .form = Form::kThrough},
                     {.name = "add", .form = Form::kSum, .output = {1.5, 64}},
                     {.name = "hidden", .form = Form::kDynamic},
                     {.name = "output", .form = Form::kStatic, .floats = true, .input = {0.125, 127}}},
          .tensors = {{"conv.weight", {.shape = {2, 3, 1, 1}}},
                      {"hidden.weight", {.shape = {4, 5}, .bits = 4, .group = 2}},
                      {"sparse", {.shape = {3, 7}, .bits = 32, .kept = 9}}}};
}

CompressedForm read(const std::string& text) { return compressed_form_from_json(parse_strict_ordered_json(text, {.path = "f"}), "f"); }

TEST_CASE("a form is read as it was written") {
  const std::string text = to_json(example()).dump();
  const CompressedForm form = read(text);
  CHECK(to_json(form).dump() == text);
  REQUIRE(form.layers.size() == 6);
  CHECK(form.layers[0].relu);
  CHECK(form.layers[0].input.zero_point == 3);
  CHECK(form.layers[5].floats);
  CHECK(form.tensors.at("hidden.weight").groups() == 3);
  CHECK(form.tensors.at("conv.weight").columns() == 3);
  CHECK(form.tensors.at("sparse").kept == 9);
  CHECK(!form.is_exact());
  CHECK(CompressedForm{.method = "prune", .layers = {}, .tensors = {{"sparse", form.tensors.at("sparse")}}}.is_exact());
  CHECK(!CompressedForm{.method = "x", .layers = {}, .tensors = {{"w", form.tensors.at("conv.weight")}}}.is_exact());
}

TEST_CASE("JSON that is not a form is refused") {
  const auto with = [](const std::string& part, const std::string& by) {
    std::string text = to_json(example()).dump();
    const size_t at = text.find(part);
    REQUIRE_MESSAGE(at != std::string::npos, part);
    return error_of([&] { read(text.replace(at, part.size(), by)); });
  };
  CHECK(with("\"version\":1", "\"version\":2").find("this program reads 1") != std::string::npos);
  CHECK(with("\"form\":\"sum\"", "\"form\":\"summ\"").find("f, layer 3") != std::string::npos);
  CHECK(with("[0.5,3]", "[0,3]").find("\"input\"") != std::string::npos);
  CHECK(with("[0.5,3]", "[1e99,3]").find("\"input\"") != std::string::npos);
  CHECK(with("[0.5,3]", "[0.5,256]").find("zero point") != std::string::npos);
  CHECK(with("[0.5,3]", "[0.5]").find("zero point") != std::string::npos);
  CHECK(with("[1.5,64]", "null").find("\"output\"") != std::string::npos);
  CHECK(with("\"layer\":\"norm\"", "\"layer\":\"conv\"").find("occurs twice") != std::string::npos);
  CHECK(with("\"bits\":4", "\"bits\":3").find("8, 4 and 32") != std::string::npos);
  CHECK(with("\"kept\":9", "\"kept\":22").find("\"kept\" is 22, of 21 numbers") != std::string::npos);
  CHECK(with("\"kept\":9", "\"kept\":-1").find("kept") != std::string::npos);
  CHECK(with("\"kept\":9", "\"keep\":9").find("kept") != std::string::npos);
  CHECK(with("\"kept\":9", "\"kept\":9,\"group\":2").find("has no \"group\"") != std::string::npos);
  CHECK(with("\"group\":2", "\"group\":0").find("\"group\" is 0") != std::string::npos);
  CHECK(with("\"group\":2", "\"group\":6").find("rows with 5") != std::string::npos);
  CHECK(with("[4,5]", "[20]").find("not a matrix") != std::string::npos);
  CHECK(with("[4,5]", "[4611686018427387904,5]").find("\"shape\"") != std::string::npos);
  CHECK(with("\"form\":\"through\"", "\"form\":\"through\",\"relu\":true").find("no \"relu\"") != std::string::npos);
}

TEST_CASE("mutation: forms") {
  const std::string whole = to_json(example()).dump();
  int refused = 0, accepted = 0;
  const auto take = [&](const std::string& text) {
    try {
      const CompressedForm form = read(text);
      REQUIRE(to_json(read(to_json(form).dump())) == to_json(form));
      ++accepted;
    } catch (const Error& error) {
      REQUIRE(error.code() == ErrorCode::kBadInput);
      REQUIRE(std::string(error.what()).find('\n') == std::string::npos);
      ++refused;
    }
  };
  for (size_t length = 0; length < whole.size(); ++length) take(whole.substr(0, length));
  const uint64_t count = mutation_count(5000);
  for (uint64_t seed = 1; seed <= count; ++seed) take(mutated(whole, seed));
  CHECK(refused > 1000);
  CHECK(accepted > 10);
}

}  // namespace
}  // namespace cohort
