#include "cohort/infer/predict.h"

#include <cstdio>

#include "cohort/base/fail.h"
#include "cohort/base/text/json.h"
#include "cohort/base/text/text.h"
#include "cohort/cli/options/output.h"
#include "cohort/cli/options/verb.h"
#include "cohort/cli/trained/trained.h"
#include "cohort/infer/trained_file.h"

namespace cohort {
namespace {

int run_sample(const Arguments& arguments) {
  const TrainedFile file = open_trained(arguments, "sample");
  const DataDescription trained = description_of(file);
  SampleRequest request{.prompt = arguments.config.prompt,
                        .num_bytes = arguments.integer_option("bytes", 400, 1, 10'000'000),
                        .temperature = arguments.number_option("temperature", 0.8, 0, 1000),
                        .top_k = arguments.integer_option("top-k", 0, 0, trained.num_outputs),
                        .seed = arguments.config.seed,
                        .threads = arguments.config.threads};
  if (request.temperature == 0)
    for (const char* name : {"top-k", "seed"})
      if (arguments.options.contains(name) || arguments.was_given(name))
        fail(ErrorCode::kBadInput, "--", name,
             " would do nothing here: with --temperature 0 the likeliest byte or piece is taken; leave it out");
  // Bytes are written as soon as they are drawn, so that a reader sees them at once and ends the command when it leaves.
  bool has_begun = false;
  if (!arguments.config.json)
    request.written = [&](char byte) {
      if (!has_begun) std::fwrite(request.prompt.data(), 1, request.prompt.size(), stdout);
      has_begun = true;
      std::fputc(byte, stdout);
      std::fflush(stdout);
    };
  const std::string text = sample_trained(file, trained, request);
  if (arguments.config.json) {
    const Json line{{"event", "sample"}, {"step", file.step()}, {"prompt", request.prompt}, {"text", text}};
    print_line(line);
    return 0;
  }
  std::fputc('\n', stdout);
  return 0;
}

}  // namespace

Verb sample_verb() {
  return {
      .name = "sample",
      .summary = "Text that a trained model writes, by bytes or by pieces of a vocabulary.",
      .examples = {"cohort train --model transformer --data text:/usr/share/common-licenses --optimizer adamw --steps 300 --run runs/text",
                   "cohort sample runs/text --prompt 'This program is' --bytes 200",
                   "cohort sample runs/text --prompt 'You may' --temperature 0.5 --top-k 20 --seed 7 --json",
                   "cohort sample runs/text --checkpoint best --temperature 0"},
      .positional_help = "run folder (or one of its checkpoints), or a FILE.safetensors that checkpoint export or compress wrote",
      .settings = {"prompt", "seed", "plugin", "threads", "json"},
      .most_words = 1,
      .options = {{"bytes", "N", "how many bytes are written (default 400)"},
                  {"temperature", "T", "below 1 likelier bytes, or pieces, come oftener; 0: always the likeliest (default 0.8)"},
                  {"top-k", "K", "only the K likeliest bytes, or pieces of a vocabulary, are drawn from (0, the default: all)"},
                  checkpoint_option()},
      .run = run_sample};
}

}  // namespace cohort
