// Every setting and every key of --layout, through the program: where the tables of job/option_rules.h say that it means nothing
// it is refused, and where they say that it does, something changes: what is trained, or what each row below names. A setting without a row
// fails.
#include <ATen/Parallel.h>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/text.h"
#include "cohort/cli/options/verb.h"
#include "cohort/data/source/source.h"
#include "cohort/job/config.h"
#include "cohort/job/layout.h"
#include "cohort/job/option_rules.h"
#include "cohort/run/trainer.h"
#include "tests/support/data_files.h"

namespace cohort {
namespace {

namespace fs = std::filesystem;

const char* const kPictures = "--model fc:hidden=8 --data synthetic:1x8x8,classes=4,samples=96";
const char* const kKernels = "--model cnn:conv1=2,conv2=2,hidden=4 --data synthetic:1x8x8,classes=4,samples=96";
const char* const kText = "--model transformer:width=8,layers=1,heads=1 --data synthetic:text,samples=64";
const char* const kNorm = "--model vgg11:width=2,hidden=8,norm=batch --data synthetic:1x16x16,classes=4,samples=96";

std::string read_all(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

/// What one call of the program left.
struct Outcome {
  int code = -1;
  std::string out, err, threads, folder;  ///< folder: where the run went, "" where nowhere.
  std::string weights;                    ///< All files of tensors of the newest checkpoint.
  std::string written;                    ///< The run's config.toml.
  int num_checkpoints = 0;
  std::vector<Json> lines;  ///< Of metrics.jsonl.

  Json first(const std::string& event) const {
    for (const Json& line : lines)
      if (line.value("event", "") == event) return line;
    return nullptr;
  }
};

Outcome read_outcome(const fs::path& folder, int code) {
  Outcome outcome{.code = code, .out = read_all(folder / "out"), .err = read_all(folder / "err"), .threads = read_all(folder / "threads")};
  fs::path checkpoint;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name == "config.toml") outcome.written = read_all(entry.path());
    if (name == "metrics.jsonl") {
      outcome.folder = entry.path().parent_path().filename().string();
      std::istringstream lines(read_all(entry.path()));
      for (std::string line; std::getline(lines, line);) outcome.lines.push_back(Json::parse(line));
    }
    if (!entry.is_directory() || entry.is_symlink() || !name.starts_with("step-")) continue;
    ++outcome.num_checkpoints;
    if (name > checkpoint.filename().string()) checkpoint = entry.path();
  }
  std::vector<fs::path> files;
  if (!checkpoint.empty())
    for (const auto& entry : fs::directory_iterator(checkpoint))
      if (entry.path().extension() == ".safetensors") files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  for (const fs::path& file : files) outcome.weights += read_all(file);
  return outcome;
}

/// `cohort train WORDS` in a process and a folder of its own.
Outcome run_train(const std::string& words) {
  const TemporaryFolder folder;
  std::vector<std::string> arguments = {"cohort", "train"};
  for (const std::string& word : split(words, ' '))
    if (!word.empty()) arguments.push_back(word);
  std::fflush(nullptr);  // Or the child would write it once more.
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const std::string home = folder / "";
    if (::chdir(home.c_str()) != 0) ::_exit(99);
    if (words.find(" mnist:files") != std::string::npos) {
      fs::create_directory("files");
      std::ofstream("files/train-images-idx3-ubyte") << testing::idx_images(96, 8, 8);
      std::ofstream("files/train-labels-idx1-ubyte") << testing::idx_labels(96);
      std::ofstream("files/t10k-images-idx3-ubyte") << testing::idx_images(16, 8, 8);
      std::ofstream("files/t10k-labels-idx1-ubyte") << testing::idx_labels(16);
    }
    if (words.find(" csv:table") != std::string::npos) {
      std::ofstream table("table.csv");
      table << "a,b,y\n";
      for (int i = 0; i < 96; ++i) table << i << ',' << (i % 10 == 7 ? "" : std::to_string(i * i)) << ',' << "pq"[i % 2] << '\n';
    }
    ::dup2(::open("out", O_CREAT | O_WRONLY, 0600), STDOUT_FILENO);
    ::dup2(::open("err", O_CREAT | O_WRONLY, 0600), STDERR_FILENO);
    std::vector<char*> pointers;
    for (std::string& argument : arguments) pointers.push_back(argument.data());
    const int code = run_verbs({train_verb()}, static_cast<int>(pointers.size()), pointers.data());
    std::fflush(stdout);
    std::ofstream("threads") << at::get_num_threads();
    ::_exit(code);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return read_outcome(folder / "", WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
}

/// A run that students of `pictures` can learn from, made once.
std::string teacher_run(const std::string& pictures = kPictures) {
  static const TemporaryFolder folder;
  static std::map<std::string, std::string> made;
  if (const auto found = made.find(pictures); found != made.end()) return found->second;
  return made[pictures] = [&] {
    std::string run = folder / concat("teacher", made.size());
    const std::string words = concat("train ", pictures, " --global-batch 16 --threads 1 --steps 4 --quiet --run ", run);
    std::fflush(nullptr);
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      std::vector<std::string> arguments = {"cohort"};
      for (const std::string& word : split(words, ' ')) arguments.push_back(word);
      std::vector<char*> pointers;
      for (std::string& argument : arguments) pointers.push_back(argument.data());
      ::_exit(run_verbs({train_verb()}, static_cast<int>(pointers.size()), pointers.data()));
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    REQUIRE(status == 0);
    return run;
  }();
}

// What may change -------------------------------------------------------------------------------------------------------------------

std::string weights(const Outcome& o) { return o.weights; }
std::string exit_code(const Outcome& o) { return std::to_string(o.code); }
std::string threads(const Outcome& o) { return o.threads; }
/// What it is for is shown by world/launch_test.cpp.
std::string written_grace(const Outcome& o) { return o.written.substr(std::min(o.written.find("grace"), o.written.size()), 11); }
std::string folder_name(const Outcome& o) { return o.folder == "r" ? "r" : "a name by date"; }
std::string num_checkpoints(const Outcome& o) { return std::to_string(o.num_checkpoints); }
std::string standard_output(const Outcome& o) { return o.out.starts_with("{") ? "lines of JSON" : "none"; }
std::string progress_notes(const Outcome& o) { return o.err.find("training fc") != std::string::npos ? "some" : "none"; }
std::string live_address(const Outcome& o) { return o.err.find("http://127.0.0.1:") != std::string::npos ? "one" : "none"; }
std::string samples(const Outcome& o) { return o.first("sample").dump(); }
/// Which lines of metrics there are, by step.
std::string events(const Outcome& o) {
  std::string text;
  for (const Json& line : o.lines) text += concat(line.value("event", ""), " ", line.value("step", 0), "; ");
  return text;
}
/// How many samples of the test set were evaluated.
std::string test_set(const Outcome& o) { return o.first("done").value("test_samples", Json()).dump(); }
std::string metrics_told(const Outcome& o) { return o.first("done").contains("metrics") ? "some" : "none"; }
std::string start_line(const Outcome& o) {
  Json start = o.first("start");
  for (const char* changing : {"started", "layout"}) start.erase(changing);
  return start.dump();
}
std::string pipeline(const Outcome& o) {
  const Json line = o.first("pipeline");
  return line.is_null() ? "" : line.value("schedule", "");
}
/// Samples, parts and bytes of the ranks.
std::string ranks(const Outcome& o) {
  std::string text;
  for (const Json& rank : o.first("ranks").value("ranks", Json::array())) {
    for (const char* key :
         {"samples", "predicted_weight_bytes", "predicted_gradient_bytes", "predicted_optimizer_bytes", "peak_tensor_bytes"})
      text += concat(key, " ", rank.value(key, Json()).dump(), "; ");
    if (!rank.contains("part")) continue;
    for (const char* key : {"data", "pipe", "tensor", "layers"}) text += rank["part"].value(key, Json()).dump();
  }
  return text;
}

using View = std::string (*)(const Outcome&);

struct Case {
  std::string name, value;           ///< Of a setting; a flag has no value. Of a layout's key: the key, and the whole layout.
  std::vector<std::string> ignored;  ///< Where it means nothing: options of `train` beside it.
  std::vector<std::string> acts;     ///< Where it does; the same options without it are what it is compared with.
  View view;
};

std::vector<Case> setting_cases() {
  const std::string adam = concat(kPictures, " --optimizer adam"), momentum = concat(kPictures, " --optimizer momentum");
  const std::string two = concat(kPictures, " --workers 2"), linear = concat(kPictures, " --schedule-lr linear"), alone = kPictures;
  const std::string taught = concat(kPictures, " --teacher ", teacher_run());
  const std::string looked_at = concat(kKernels, " --teacher ", teacher_run(kKernels));
  return {
      {"model", "fc:hidden=9", {}, {alone}, weights},
      {"data", "synthetic:1x8x8,classes=4,samples=96,noise=2", {}, {alone}, weights},
      {"context", "12", {alone}, {kText}, weights},
      {"image-size", "12", {alone, kText}, {"--model fc:hidden=8 --data mnist:files"}, weights},
      {"val-samples", "20", {}, {alone}, start_line},
      {"skip-bad",
       "",
       {alone, kText, "--model fc:hidden=8 --data mnist:files"},
       {"--model fc:hidden=8 --data csv:table.csv,target=y"},
       exit_code},
      {"test-samples", "8", {alone, kText}, {"--model fc:hidden=8 --data mnist:files"}, test_set},
      {"augment", "crop,flip", {kText}, {alone}, weights},
      {"init-from", "none", {}, {alone}, exit_code},
      {"freeze", "hidden1", {}, {alone}, weights},
      {"teacher", teacher_run(), {}, {alone}, weights},
      {"temperature", "4", {alone}, {taught}, weights},
      {"alpha", "0.9", {alone}, {taught}, weights},
      {"teacher-answers", "cached", {alone}, {taught}, exit_code},  // Tests have no cache.
      {"hint", "conv2:conv1", {alone}, {looked_at}, weights},
      {"hint-weight", "0.1", {alone, taught}, {looked_at + " --hint conv2:conv1"}, weights},
      {"prune", "weight:0.5", {}, {alone, two, two + " --layout zero=3", alone + " --layout pp=2"}, weights},
      {"prune", "2:4", {}, {alone}, weights},
      {"prune", "weight:0.5:uniform", {}, {alone}, weights},
      {"prune-until", "0.1", {alone}, {alone + " --prune weight:0.5"}, weights},
      {"quantize-aware",
       "8",
       {},
       {alone, two, two + " --layout zero=3", alone + " --layout pp=2", alone + " --layout sync=async --virtual workers=2,compute=1"},
       weights},
      {"quantize-aware", "4:8", {}, {alone, "--model lstm:width=8,hidden=8 --data synthetic:text,samples=64"}, weights},
      {"plugin", "none.so", {}, {alone}, exit_code},
      {"workers", "2", {}, {alone}, start_line},
      {"layout", "dp=2", {}, {alone}, start_line},
      {"backend", "gloo", {alone}, {two}, start_line},
      {"weights", "private", {alone, two + " --layout zero=1", alone + " --layout pp=2", two + " --backend gloo"}, {two}, ranks},
      {"shares", "3:1", {}, {two}, ranks},
      {"shares", "auto", {alone}, {}, ranks},
      {"outer-lr", "0.3", {alone, two, two + " --layout sync=local:3"}, {two + " --layout sync=diloco:3"}, weights},
      {"outer-momentum", "0.3", {alone, two, two + " --layout sync=local:3"}, {two + " --layout sync=diloco:3"}, weights},
      {"remedy",
       "rate:0.5",
       {alone, alone + " --layout sync=queue --virtual workers=2,compute=1",
        alone + " --layout sync=diloco:1:quorum=1 --virtual workers=2,compute=1",
        alone + " --layout sync=stale:0 --virtual workers=2,compute=1"},
       {alone + " --layout sync=async --virtual workers=2,compute=1"},
       weights},
      {"virtual", "workers=3,compute=1", {}, {alone}, events},
      {"listen",
       "127.0.0.1:0",
       {alone, two, alone + " --layout sync=async --virtual workers=2,compute=1"},
       {alone + " --layout sync=async"},
       exit_code},
      {"sync-batch-norm", "", {}, {concat(kNorm, " --workers 2 --shares 1:1")}, weights},
      {"device", "cuda", {}, {alone}, exit_code},
      {"threads", "2", {}, {alone}, threads},
      {"bucket-bytes", "64", {alone, two, alone + " --layout tp=2"}, {two + " --layout zero=3 --memory-limit 1000000000"}, ranks},
      {"timeout", "0.3", {alone}, {two + " --inject pause:1:1.5"}, exit_code},
      {"grace", "0.3", {alone}, {two}, written_grace},
      {"global-batch", "24", {}, {alone}, weights},
      {"batch-schedule",
       "1:2",
       {},
       {alone, two, two + " --layout zero=3", two + " --layout pp=2", two + " --layout sync=local:1"},
       weights},
      {"study", "none", {}, {alone}, exit_code},
      {"accumulate", "3", {}, {alone}, weights},
      {"optimizer", "adam", {}, {alone}, weights},
      {"lr", "0.02", {}, {alone}, weights},
      {"momentum", "0.5", {alone, adam}, {momentum, concat(kPictures, " --optimizer nesterov")}, weights},
      {"beta1", "0.5", {alone, momentum}, {adam, concat(kPictures, " --optimizer adamw")}, weights},
      {"beta2", "0.5", {alone, momentum}, {adam}, weights},
      {"eps", "0.1", {alone, momentum}, {adam}, weights},
      {"schedule-lr", "linear", {}, {alone}, weights},
      {"lr-end-factor", "0.5", {alone}, {linear, concat(kPictures, " --schedule-lr cosine")}, weights},
      {"decay-steps", "2", {alone}, {linear}, weights},
      {"warmup-steps", "2", {}, {alone}, weights},
      {"weight-decay", "0.1", {}, {alone}, weights},
      {"loss", "mse", {}, {alone}, weights},
      {"label-smoothing", "0.1", {}, {alone}, weights},
      {"label-smoothing-over", "others", {alone}, {alone + " --label-smoothing 0.1"}, weights},
      {"clip-norm", "0.01", {}, {alone}, weights},
      {"precision", "bf16", {}, {alone}, weights},
      {"loss-scale", "0.000001", {alone, concat(kPictures, " --precision bf16")}, {concat(kPictures, " --precision fp16")}, weights},
      {"steps", "2", {}, {alone}, events},
      {"epochs", "0.5", {}, {alone}, events},
      {"metrics", "perplexity", {}, {alone}, metrics_told},
      {"goal", "val_loss<100", {}, {alone + " --eval-every 1"}, events},
      {"patience", "1", {}, {alone + " --eval-every 1 --lr 30"}, events},
      {"eval-every", "1", {}, {alone}, events},
      {"checkpoint-every", "1", {}, {alone}, events},
      {"keep-checkpoints", "3", {alone + " --checkpoint-every end"}, {alone + " --checkpoint-every 1"}, num_checkpoints},
      {"resume", "", {alone}, {alone + " --run r"}, exit_code},
      {"run", "r", {}, {alone}, folder_name},
      {"seed", "7", {}, {alone}, weights},
      {"memory-limit", "2000", {}, {alone}, exit_code},
      {"inject", "kill:1:1", {}, {two}, exit_code},
      {"prompt", "ab", {alone, concat(kText, " --sample-bytes 0")}, {kText}, samples},
      {"sample-bytes", "10", {alone}, {kText}, samples},
      {"noise-scale", "1", {alone}, {alone + " --accumulate 2"}, events},
      {"log-every", "3", {}, {alone}, events},
      {"serve", "", {}, {alone}, live_address},
      {"json", "", {}, {alone}, standard_output},
      {"quiet", "", {}, {alone}, progress_notes},
  };
}

std::vector<Case> layout_cases() {
  const std::string two = concat(kPictures, " --workers 2"), alone = kPictures, limit = concat(kText, " --memory-limit 1000000000"),
                    wide = "--model transformer:width=64,layers=2,heads=2 --data synthetic:text,samples=64 --memory-limit 1000000000";
  return {
      {"dp", "dp=2", {}, {alone}, start_line},
      {"pp", "pp=2", {}, {alone}, ranks},
      {"tp", "tp=2", {}, {alone}, ranks},
      {"zero", "zero=3", {alone}, {two}, ranks},
      {"zero", "pp=2,zero=1", {alone}, {}, ranks},
      {"zero", "tp=2,zero=2", {alone}, {}, ranks},
      {"sync", "dp=2,sync=local:3", {}, {two}, weights},
      {"sync", "dp=2,sync=diloco:3", {}, {two + " --layout dp=2,sync=local:3"}, weights},
      {"sync", "dp=2,sync=local:3:3", {}, {two + " --layout dp=2,sync=local:3"}, weights},
      {"sync", "sync=diloco:3:quorum=1", {}, {alone + " --layout sync=diloco:3:quorum=3 --virtual workers=3,compute=1"}, weights},
      {"sync",
       "sync=local:3:quorum=1:grace=9",
       {},
       {alone + " --layout sync=local:3:quorum=1 --virtual workers=3,compute=1,slow=1:2"},
       weights},
      {"sync", "sync=async", {}, {alone + " --virtual workers=3,compute=1"}, weights},
      {"sync", "sync=stale:1", {}, {alone + " --virtual workers=3,compute=1"}, weights},
      {"sync", "sync=queue", {}, {alone + " --virtual workers=3,compute=1"}, weights},
      {"sync", "sync=queue:newest", {}, {alone + " --virtual workers=3,compute=1,slow=1:5 --layout sync=queue"}, weights},
      {"sync", "sync=queue:replace", {}, {alone + " --virtual workers=3,compute=1 --layout sync=queue"}, weights},
      {"schedule", "schedule=gpipe", {alone, two}, {}, ranks},
      {"schedule", "pp=2,microbatches=2,schedule=gpipe", {}, {alone + " --layout pp=2,microbatches=2"}, pipeline},
      {"microbatches", "microbatches=2", {alone, two}, {}, weights},
      {"microbatches", "pp=2,microbatches=3", {}, {alone + " --layout pp=2"}, weights},
      {"accumulate", "accumulate=3", {}, {alone}, weights},
      {"precision", "precision=bf16", {}, {alone}, weights},
      {"shares", "shares=3:1", {}, {two}, ranks},
      {"shares", "shares=auto", {alone}, {}, ranks},
      {"recompute", "recompute=auto", {alone, two}, {}, ranks},
      {"recompute", "recompute=0-1", {}, {limit}, ranks},
      {"recompute", "recompute=all", {}, {limit}, ranks},
      {"compress", "compress=int8", {alone}, {two}, weights},
      {"compress", "sync=async,compress=int8", {alone}, {alone + " --virtual workers=3,compute=1 --layout sync=async"}, weights},
      {"split", "split=2", {alone, two}, {}, ranks},
      {"split", "pp=2,split=2", {}, {alone + " --layout pp=2,split=1"}, ranks},
      {"order", "dp=2,order=pp-dp-tp", {two}, {}, ranks},
      {"order", "order=tp-pp-dp", {alone}, {}, ranks},
      {"order", "dp=2,pp=2,order=pp-dp-tp", {}, {alone + " --layout dp=2,pp=2"}, ranks},
      {"sequence", "sequence=1", {alone, two}, {}, weights},
      {"sequence", "tp=2,sequence=1", {}, {wide + " --layout tp=2"}, ranks},
  };
}

const std::string kCommon = "--global-batch 16 --threads 1 ";

/// Beside steps a goal or epochs would mean something else.
std::string with_steps(const std::string& name, const std::string& words) {
  const bool has_length = name == "epochs" || name == "steps";
  return kCommon + (has_length ? "" : "--steps 3 ") + words;
}

std::string option_of(const Case& each, bool is_layout) {
  if (is_layout) return " --layout " + each.value;
  return " --" + each.name + (each.value.empty() ? "" : " " + each.value);
}

void check_case(const Case& each, bool is_layout, std::map<std::string, Outcome>& known) {
  const std::string option = option_of(each, is_layout);
  for (const std::string& words : each.ignored) {
    CAPTURE(words + option);
    const Outcome refused = run_train(with_steps(each.name, words + option));
    CHECK(refused.code == 2);
    CHECK(refused.err.find(is_layout ? each.name + "=" : "--" + each.name) != std::string::npos);
    CHECK(std::count(refused.err.begin(), refused.err.end(), '\n') == 1);
    CHECK(refused.folder.empty());
  }
  for (const std::string& words : each.acts) {
    CAPTURE(words + option);
    const std::string without = with_steps(each.name, words);
    if (!known.contains(without)) known[without] = run_train(without);
    CHECK(known[without].code == (each.name == "skip-bad" ? 2 : 0));  // Its data have a row that nothing else lets pass.
    const Outcome with = run_train(with_steps(each.name, words + option));
    CHECK((with.code == 0 || each.view == exit_code));
    CHECK(each.view(with) != each.view(known[without]));
  }
}

TEST_CASE("every setting acts, or is refused") {
  std::map<std::string, Outcome> known;
  for (const Setting& setting : settings()) {
    CAPTURE(setting.name);
    bool is_there = false, is_refused = false;
    for (const Case& each : setting_cases()) {
      if (each.name != setting.name) continue;
      is_there = true;
      is_refused |= !each.ignored.empty();
      check_case(each, /*is_layout=*/false, known);
    }
    CHECK_MESSAGE(is_there, "a new setting needs a row here: where does it mean nothing, and what does it change where it does?");
    for (const OptionRule& rule : option_rules())
      if (rule.name == setting.name) CHECK(is_refused == (rule.acts != nullptr));
  }
}

TEST_CASE("every key of --layout acts, or is refused") {
  std::map<std::string, Outcome> known;
  for (const OptionRule& rule : layout_rules()) {
    const std::string key = rule.name;
    if (key == "stages") continue;  // Of files alone.
    CAPTURE(key);
    bool is_there = false;
    for (const Case& each : layout_cases()) {
      if (each.name != key) continue;
      is_there = true;
      check_case(each, /*is_layout=*/true, known);
    }
    CHECK_MESSAGE(is_there, "a new key needs a row here");
  }
}

TEST_CASE("a file is held to the same, and train() too") {
  const TemporaryFolder folder;
  std::ofstream(folder / "c.toml")
      << "model = \"fc\"\ndata = \"synthetic:1x8x8,samples=96\"\nglobal_batch = 16\nsteps = 1\nmomentum = 0.9\n";
  const std::string file = folder / "c.toml";
  const Outcome refused = run_train(file);
  CHECK(refused.code == 2);
  CHECK(refused.err.find("--momentum 0.9 would do nothing here") != std::string::npos);
  CHECK(run_train(file + " --optimizer momentum").code == 0);

  Config config{
      .model = "fc:hidden=8", .data = "synthetic:1x8x8,classes=4,samples=96", .global_batch = 16, .steps = 1, .run = folder / "r"};
  const DataSet data = open_data(config.data);
  config.momentum = 0.5;
  CHECK_THROWS_WITH_AS(train(config, data, World{}), doctest::Contains("--momentum 0.5 would do nothing here"), Error);
  config.momentum = Config().momentum;
  config.global_batch = 97;
  CHECK_THROWS_WITH_AS(train(config, data, World{}), doctest::Contains("training samples"), Error);
  config.global_batch = 16;
  config.lr = -3;
  CHECK_THROWS_WITH_AS(train(config, data, World{}), doctest::Contains("--lr -3.0: expected a number"), Error);
  config.lr = 0.1;
  config.workers = 9;
  CHECK_THROWS_WITH_AS(train(config, data, World{}), doctest::Contains("Config::workers is 9"), Error);
  config.workers = 0;
  config.study = "/nowhere";
  CHECK_THROWS_WITH_AS(train(config, data, World{}), doctest::Contains("Config::study (/nowhere)"), Error);
  config.study = "";
  CHECK_THROWS_WITH_AS(train(config, DataSet{}, World{}), doctest::Contains("without training samples"), Error);
  CHECK_FALSE(fs::exists(folder / "r"));
}

TEST_CASE("a batch larger than the data, and a fault in no step") {
  const Outcome batch = run_train(concat(kPictures, " --global-batch 100000"));
  CHECK(batch.code == 2);
  CHECK(batch.err.find("the data has 87 training samples") != std::string::npos);
  const Outcome fault = run_train(concat(kCommon, kPictures, " --steps 3 --workers 2 --inject kill:1:3"));
  CHECK(fault.code == 2);
  CHECK(fault.err.find("the last of 3 is 2") != std::string::npos);
  const Outcome never = run_train(concat(kCommon, kPictures, " --steps 3 --accumulate 2 --noise-scale 4"));
  CHECK(never.code == 2);
  CHECK(never.err.find("use --noise-scale 3 or less") != std::string::npos);
}

TEST_CASE("more pieces than samples are refused; the last batch of an epoch may have fewer") {
  const Outcome refused = run_train(concat(kCommon, kPictures, " --steps 3 --workers 2 --accumulate 9"));
  CHECK(refused.code == 2);
  CHECK(refused.err.find("--accumulate 9 cuts --global-batch 16 into 18 pieces (9 for each of 2 shares)") != std::string::npos);
  // Of 87 samples the sixth batch has 7.
  for (const char* layout : {"", " --layout zero=1", " --layout zero=2", " --layout zero=3"}) {
    CAPTURE(layout);
    CHECK(run_train(concat(kCommon, kPictures, " --epochs 1 --workers 2 --accumulate 8", layout)).code == 0);
  }
  CHECK(run_train(concat(kCommon, kPictures, " --epochs 1 --layout pp=2,microbatches=16")).code == 0);
}

TEST_CASE("pieces that a batch norm does not let be are refused where none is left, and told where some are") {
  const Outcome none = run_train(concat(kCommon, kNorm, " --steps 1 --accumulate 2"));
  CHECK(none.code == 2);
  CHECK(none.err.find("--accumulate 2 would do nothing here: this model's batch norm takes a batch of 16 whole") != std::string::npos);
  CHECK(none.weights.empty());
  const Outcome some =
      run_train(concat(kCommon, "--model vgg11:width=2,hidden=8,norm=ghost,ghost=8 --data synthetic:1x16x16,classes=4,samples=96 ",
                       "--steps 1 --accumulate 4"));
  CHECK(some.code == 0);
  CHECK(some.err.find("groups of 8 samples together, so a step has 2 pieces and not 4") != std::string::npos);
  CHECK(run_train(concat(kCommon, kNorm, " --steps 1 --accumulate 2 --sync-batch-norm")).code == 0);
}

TEST_CASE("a run's own configuration passes again, also beside an option that takes the ground from under some of it") {
  const TemporaryFolder folder;
  const std::string run = folder / "run";
  REQUIRE(run_train(concat(kCommon, kPictures, " --steps 2 --optimizer momentum --momentum 0.8 --run ", run)).code == 0);
  const Outcome again = run_train(concat(run, "/config.toml --run r"));
  CHECK(again.code == 0);
  CHECK(again.weights == run_train(concat(kCommon, kPictures, " --steps 2 --optimizer momentum --momentum 0.8")).weights);
  const Outcome other = run_train(concat(run, "/config.toml --run r --optimizer sgd"));
  CHECK(other.code == 0);
  CHECK(other.err.find("mean nothing and are left out: momentum") != std::string::npos);
}

}  // namespace
}  // namespace cohort
