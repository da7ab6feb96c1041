#include "cohort/infer/predict.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/softmax.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>

#include "cohort/base/fail.h"
#include "cohort/base/files/csv.h"
#include "cohort/base/files/safetensors.h"
#include "cohort/base/text/log.h"
#include "cohort/base/text/text.h"
#include "cohort/comm/compute_threads.h"
#include "cohort/data/images/image_source.h"
#include "cohort/data/images/mnist.h"
#include "cohort/data/images/picture_file.h"
#include "cohort/data/tensors/npy.h"
#include "cohort/infer/trained_file.h"
#include "cohort/models/graph/layer_graph.h"
#include "cohort/models/graph/model_errors.h"
#include "cohort/train/model/evaluate.h"

namespace cohort {
namespace {

namespace fs = std::filesystem;

constexpr const char* kStandardInput = "-";
constexpr size_t kMostLineBytes = size_t{1} << 26;

void check_is_file(const std::string& path) {
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) fail(ErrorCode::kBadInput, path, " is a folder; give the files in it, as ", path, "/*");
  if (!fs::exists(path, ignored)) fail(ErrorCode::kBadInput, path, " does not exist");
}

/// IDX files have no usual extension; they are recognised by their first bytes, or by those of gzip, which pictures do not use.
bool is_idx(const std::string& path) {
  std::array<char, 4> head{};
  std::ifstream(path, std::ios::binary).read(head.data(), head.size());
  return (head[0] == '\x1f' && head[1] == '\x8b') || (head[0] == 0 && head[1] == 0 && head[2] == 8 && head[3] == 3);
}

bool read_line(std::istream& in, std::string& line) {
  line.clear();
  std::streambuf& bytes = *in.rdbuf();
  int next = bytes.sbumpc();
  if (next == std::char_traits<char>::eof()) return false;
  for (; next != std::char_traits<char>::eof() && next != '\n'; next = bytes.sbumpc()) {
    if (line.size() == kMostLineBytes)
      fail(ErrorCode::kBadInput, "standard input: a line of more than ", kMostLineBytes, " bytes, which is the longest that is read");
    line.push_back(static_cast<char>(next));
  }
  if (line.ends_with('\r')) line.pop_back();
  return true;
}

InputSource single_input(NamedInput made) {
  return [left = std::optional(std::move(made))](NamedInput& input) mutable {
    if (!left) return false;
    input = std::move(*left);
    left.reset();
    return true;
  };
}

class Inputs {
 public:
  Inputs(const DataDescription& description, std::vector<std::string> words, std::istream& standard_input)
      : description_(description), words_(std::move(words)), standard_input_(standard_input) {
    if (std::count(words_.begin(), words_.end(), kStandardInput) > 1)
      fail(ErrorCode::kBadInput, "predict: '-' is given twice, and there is one standard input");
  }

  bool next(NamedInput& input) {
    while (!current_ || !current_(input)) {
      if (next_word_ == words_.size()) return false;
      current_ = open(words_[next_word_++]);
    }
    return true;
  }

 private:
  InputSource open(const std::string& word) {
    constexpr int kFirstOfGzip = 0x1f;  // No text begins with it.
    if (word == kStandardInput && standard_input_.peek() == kFirstOfGzip)
      fail(ErrorCode::kBadInput, "stdin: is compressed with gzip, and lines are expected; put 'gzip -dc |' in front");
    switch (description_.input) {
      case DataDescription::Input::kText:
        if (word == kStandardInput) return lines([this](const std::string& line, const std::string&) { return text(line); });
        return text(word);
      case DataDescription::Input::kRow:
        return rows(word);
      case DataDescription::Input::kPicture:
        if (word == kStandardInput) return lines([this](const std::string& line, const std::string&) { return picture(line); });
        return picture(word);
      case DataDescription::Input::kTensor:
        if (word == kStandardInput)
          return lines([this](const std::string& line, const std::string& name) { return numbers_of_line(line, name); });
        return tensors(word);
    }
    return {};
  }

  /// Opens a source for each line of standard input.
  InputSource lines(const std::function<InputSource(const std::string&, const std::string&)>& source_of_line) {
    return [this, source_of_line, current = InputSource(), number = int64_t{0}](NamedInput& input) mutable {
      std::string line;
      while (!current || !current(input)) {
        int64_t first_empty = 0;
        do {
          if (!read_line(standard_input_, line)) return false;
          ++number;
          if (line.empty() && first_empty == 0) first_empty = number;
        } while (line.empty());
        if (first_empty > 0)
          log_warning(concat("stdin:", first_empty, " is an empty line, which gets no prediction; the others keep their numbers"));
        current = source_of_line(line, concat("stdin:", number));
      }
      return true;
    };
  }

  InputSource picture(const std::string& path) const {
    check_is_file(path);
    if (is_idx(path)) return pictures_of_idx(path);
    const std::vector<uint8_t> bytes = read_picture_file(path);
    return single_input({.name = path, .encoded = encode_picture(description_, bytes, path)});
  }

  InputSource pictures_of_idx(const std::string& path) const {
    IdxImages images = read_idx_images(path);
    DataShape shape{DataShape::Kind::kImage, {1, images.rows, images.columns}, 1, {}};
    auto pixels = std::make_shared<ImagePixels>(ImagePixels{std::move(images.pixels), ByteBuffer(images.count, path)});
    if (description_.resized && shape.input != description_.shape)
      *pixels = resized(path, std::move(*pixels), shape, description_.shape.back());
    if (shape.input != description_.shape)
      fail(ErrorCode::kBadInput, path, " has pictures of ", shape_text(shape.input), ", and the training had ",
           shape_text(description_.shape));
    return samples(path, images.count, [pixels](int64_t element) { return pixels->values.data()[element] / 255.0; });
  }

  /// Inputs "path:0", "path:1", ... of a file that stores its samples one behind the other; `element` gives a number of the file.
  InputSource samples(const std::string& path, int64_t count, const std::function<double(int64_t)>& element) const {
    const int64_t elements = std::accumulate(description_.shape.begin(), description_.shape.end(), int64_t{1}, std::multiplies<int64_t>());
    return [this, path, count, element, elements, index = int64_t{0}](NamedInput& input) mutable {
      if (index == count) return false;
      std::vector<double> numbers(static_cast<size_t>(elements));
      for (int64_t i = 0; i < elements; ++i) numbers[static_cast<size_t>(i)] = element(index * elements + i);
      const std::string name = concat(path, ":", index++);
      input = {.name = name, .encoded = encode_numbers(description_, numbers, name)};
      return true;
    };
  }

  InputSource rows(const std::string& path) {
    std::shared_ptr<CsvReader> reader;
    const bool is_standard = path == kStandardInput;
    if (is_standard) {
      const auto read = [this](uint8_t* out, int64_t num_bytes) -> int64_t {
        standard_input_.read(reinterpret_cast<char*>(out), num_bytes);
        return standard_input_.gcount();
      };
      reader = std::make_shared<CsvReader>(read, "stdin");
    } else {
      check_is_file(path);
      reader = std::make_shared<CsvReader>(path);
    }
    return [this, reader, has_rows = false](NamedInput& input) mutable {
      TableRow row;
      if (!reader->next(row)) {
        if (!has_rows) fail(ErrorCode::kBadInput, reader->path(), " has a header and no row: there is nothing to predict");
        return false;
      }
      has_rows = true;
      const std::string name = concat(reader->path(), ":", row.line);
      if (!row.fault.empty()) fail(ErrorCode::kBadInput, name, ": ", row.fault);
      input = {.name = name, .encoded = encode_row(description_, reader->header(), row.fields, name)};
      return true;
    };
  }

  InputSource text(const std::string& word) const {
    return single_input({.name = word,
                         .encoded = encode_text(description_, word, "an INPUT"),
                         .num_bytes = std::min<int64_t>(std::ssize(word), description_.shape.front())});
  }

  InputSource tensors(const std::string& path) const {
    check_is_file(path);
    if (!path.ends_with(".npy"))
      fail(ErrorCode::kBadInput, path, ": the model was trained on tensors of ", shape_text(description_.shape),
           ", which are read from .npy files, or from standard input (-) as a line of numbers each");
    auto array = std::make_shared<const NpyArray>(read_npy(path));
    const bool is_one = array->shape == description_.shape;
    std::vector<int64_t> many = description_.shape;
    if (!is_one && !array->shape.empty()) many.insert(many.begin(), array->shape.front());
    if (array->shape != many)
      fail(ErrorCode::kBadInput, path, " has the shape ", shape_text(array->shape), ", and a sample of the training ",
           shape_text(description_.shape), "; give one sample, or several along a new first dimension");
    const auto element = [array](int64_t index) { return number_of(array->dtype, array->data.data(), index); };
    if (!is_one) return samples(path, array->shape.front(), element);
    NamedInput input;
    samples(path, 1, element)(input);
    input.name = path;
    return single_input(std::move(input));
  }

  InputSource numbers_of_line(const std::string& line, const std::string& name) const {
    std::string blanks = line;
    std::replace_if(blanks.begin(), blanks.end(), [](char c) { return c == ',' || c == '\t'; }, ' ');
    std::vector<double> numbers;
    for (const std::string& word : split(blanks, ' ')) {
      if (word.empty()) continue;
      const std::optional<double> number = parse_number(word);
      if (!number) fail(ErrorCode::kBadInput, name, ": '", printable(word), "' is not a number");
      numbers.push_back(*number);
    }
    return single_input({.name = name, .encoded = encode_numbers(description_, numbers, name)});
  }

  const DataDescription& description_;
  std::vector<std::string> words_;
  std::istream& standard_input_;
  size_t next_word_ = 0;
  InputSource current_;
};

bool is_text(const DataDescription& description) { return description.input == DataDescription::Input::kText; }

at::Tensor batch_of(const DataDescription& description, const std::vector<NamedInput>& inputs) {
  std::vector<int64_t> sizes{std::ssize(inputs)};
  sizes.insert(sizes.end(), description.shape.begin(), description.shape.end());
  at::Tensor batch = at::empty(sizes, is_text(description) ? at::kLong : at::kFloat);
  const auto fill = [&](auto* to, const auto& values_of) {
    for (const NamedInput& input : inputs) to = std::copy(values_of(input).begin(), values_of(input).end(), to);
  };
  if (is_text(description)) fill(batch.data_ptr<int64_t>(), [](const NamedInput& input) -> const auto& { return input.encoded.tokens; });
  else fill(batch.data_ptr<float>(), [](const NamedInput& input) -> const auto& { return input.encoded.values; });
  return batch;
}

std::vector<LikelyClass> likeliest(const at::Tensor& odds, int64_t count) {
  std::vector<LikelyClass> classes;
  for (const double* p = odds.const_data_ptr<double>(); std::ssize(classes) < odds.numel(); ++p)
    classes.push_back({std::ssize(classes), *p});
  const auto kept = classes.begin() + std::min(count, std::ssize(classes));
  std::partial_sort(classes.begin(), kept, classes.end(), [](const LikelyClass& a, const LikelyClass& b) {
    return a.probability != b.probability ? a.probability > b.probability : a.label < b.label;
  });
  classes.erase(kept, classes.end());
  return classes;
}

}  // namespace

InputSource open_inputs(const DataDescription& description, const std::vector<std::string>& words, std::istream& standard_input) {
  const auto inputs = std::make_shared<Inputs>(description, words, standard_input);
  return [inputs](NamedInput& input) { return inputs->next(input); };
}

Predictor::Predictor(const TrainedFile& file, DataDescription description, int threads) : description_(std::move(description)) {
  use_compute_threads(threads);
  model_ = restore_model(file, shape_of(description_));
}

std::vector<Prediction> Predictor::predict(const std::vector<NamedInput>& inputs, int64_t num_classes) {
  at::NoGradGuard no_grad;
  const auto count = std::ssize(inputs);
  const at::Tensor output = model_->forward(batch_of(description_, inputs)).to(at::kDouble);
  const int64_t positions = is_text(description_) ? description_.shape.front() : 1;
  if (output.numel() != count * positions * description_.num_outputs ||
      (!description_.regression && !description_.labels && output.size(-1) != description_.num_outputs))
    fail(ErrorCode::kBadInput, model_->title(), " answers ", describe_tensor(output), " for ", count, " samples, and not ",
         description_.num_outputs,
         description_.regression ? " numbers each"
         : description_.labels   ? " scores of labels each"
                                 : " scores of classes each",
         ", so it cannot predict");
  std::vector<Prediction> predictions(inputs.size());
  if (description_.regression || description_.labels) {
    const at::Tensor numbers = (description_.labels ? at::sigmoid(output) : output).reshape({count, description_.num_outputs}).contiguous();
    const double* at = numbers.data_ptr<double>();
    for (Prediction& prediction : predictions)
      for (int64_t target = 0; target < description_.num_outputs; ++target, ++at)
        prediction.values.push_back(description_.labels ? *at : decode_target(description_, static_cast<size_t>(target), *at));
    return predictions;
  }
  const at::Tensor scores = output.reshape({count, positions, description_.num_outputs});
  for (int64_t i = 0; i < count; ++i) {
    const int64_t position = is_text(description_) ? inputs[static_cast<size_t>(i)].num_bytes - 1 : 0;
    predictions[static_cast<size_t>(i)].classes = likeliest(at::softmax(scores[i][position], -1).contiguous(), num_classes);
  }
  return predictions;
}

std::string class_name(const DataDescription& description, int64_t label) {
  if (static_cast<size_t>(label) < description.class_names.size()) return description.class_names[static_cast<size_t>(label)];
  if (!is_text(description)) return std::to_string(label);
  if (description.vocabulary) return printable(description.vocabulary->bytes_of(static_cast<Token>(label)));
  if (label > 32 && label < 127) return std::string(1, static_cast<char>(label));
  if (label == 32) return " ";
  char out[8];
  std::snprintf(out, sizeof out, "\\x%02x", static_cast<unsigned>(label));
  return out;
}

std::string sample_trained(const TrainedFile& file, const DataDescription& trained, const SampleRequest& request) {
  if (trained.input != DataDescription::Input::kText)
    fail(ErrorCode::kBadInput, "sample: ", file.given(), " (", file.config().model, " on ", file.config().data,
         ") is not a model of text; `cohort predict` gives its classes or numbers");
  use_compute_threads(request.threads);
  const std::shared_ptr<LayerGraph> model = restore_model(file, shape_of(trained));
  const std::optional<std::string> text = sample_text(*model, shape_of(trained), request.prompt,
                                                      {.num_bytes = request.num_bytes,
                                                       .temperature = request.temperature,
                                                       .top_k = request.top_k,
                                                       .seed = request.seed,
                                                       .written = request.written,
                                                       .vocabulary = trained.vocabulary});
  if (!text)
    fail(ErrorCode::kBadInput, "sample: ", model->title(), " does not output next-byte scores ({samples, context, ", trained.num_outputs,
         "}), so it cannot write text");
  return *text;
}

}  // namespace cohort
