#include "cohort/report/report.h"

#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>

#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/base/random.h"
#include "cohort/base/text/base64.h"
#include "cohort/report/sections.h"
#include "tests/support/text.h"

namespace cohort::report {
namespace {

struct Run {
  TemporaryFolder folder;
  std::string metrics, config;

  Run& line(const std::string& text) {
    metrics += text + "\n";
    return *this;
  }
  Run& start(const std::string& model, const std::string& data, int workers = 2) {
    return line(R"({"event":"start","world_size":)" + std::to_string(workers) +
                R"(,"layout":{"dp":2},"parameters":421642,"train_samples":60000,"model":")" + model + R"(","data":")" + data +
                R"(","steps":1720})");
  }
  Run& steps(int first, int last) {
    for (int i = first; i <= last; ++i)
      line(concat(
          R"({"event":"step","step":)", i, R"(,"loss":)", 2.0 / i,
          R"(,"step_seconds":0.02,"samples_per_second":6400,"data_seconds":0.001,"compute_seconds":0.014,"exchange_seconds":0.003,"optimizer_seconds":0.001,"learning_rate":0.1})"));
    return *this;
  }
  void write() const {
    std::ofstream(folder / "metrics.jsonl", std::ios::binary) << metrics;
    if (!config.empty()) std::ofstream(folder / "config.toml", std::ios::binary) << config;
  }
  RunRecord record() const {
    write();
    return read_run(folder.path());
  }
  std::string page() const { return report_page(record()); }
  std::string head() const {
    const RunRecord run = record();
    return headline(run, summarize(run)).text();
  }
};

const char kDone[] =
    R"({"event":"done","step":1720,"loss":0.2,"val_loss":0.28,"val_error":0.0991,"seconds":192.4,"predicted_step_seconds":0.018,"measured_step_seconds":0.02,"peak_memory_bytes":[100,200],"run":"r"})";
const char kRanks[] =
    R"({"event":"ranks","ranks":[{"rank":0,"host":"h<1>","pid":1,"samples":64,"data_seconds":1.72,"compute_seconds":17.2,"exchange_seconds":3.44,"optimizer_seconds":1.72,"peak_memory_bytes":1048576,"predicted_weight_bytes":1024,"predicted_gradient_bytes":1024,"predicted_optimizer_bytes":2048}]})";

TEST_CASE("headline: what was trained on what, with the result") {
  CHECK(Run().start("cnn", "fashion-mnist").steps(1, 1720).line(kDone).head() ==
        "cnn on fashion-mnist: 90.1 % validation accuracy after 1,720 steps, 2 workers, 3 min 12 s");
  CHECK(Run()
            .start("transformer", "text:/books", 1)
            .steps(1, 10)
            .line(R"({"event":"eval","step":10,"val_loss":1.3862943611,"val_error":0.4})")
            .head() == "transformer on text:/books: 2.00 bits per byte after 10 of 1,720 steps, 1 worker, about 200.0 ms");
  CHECK(Run().start("fc", "synthetic:8").steps(1, 1).head() ==
        "fc on synthetic:8: training loss 2.00 after 1 of 1,720 steps, 2 workers, about 20.0 ms");
  CHECK(Run().start("fc", "synthetic:8").head() == "fc on synthetic:8: no step was recorded");
  CHECK(Run().line(R"({"event":"step","step":3,"loss":null})").head() == "a model: the loss is not finite after 3 steps, 1 worker");
}

TEST_CASE("summary: times of lines that stand for several steps, the best evaluation, the steps since a resume") {
  Run run;
  run.start("cnn", "x")
      .line(R"({"event":"step","step":10,"loss":1,"step_seconds":0.5})")
      .line(R"({"event":"eval","step":10,"val_loss":0.2,"val_error":0.1})");
  run.line(R"({"event":"resume","step":10,"from":"c"})").line(R"({"event":"step","step":20,"loss":1,"step_seconds":0.1})");
  run.line(R"({"event":"eval","step":20,"val_loss":0.3,"val_error":0.2})");
  const Summary summary = summarize(run.record());
  CHECK(summary.seconds == doctest::Approx(6));
  CHECK(summary.seconds_are_estimated);
  CHECK(summary.steps_of_last_process == 10);
  CHECK(summary.val_error == 0.2);
  CHECK(summary.best_val_error == 0.1);
  CHECK(summary.best_val_error_step == 10);
  CHECK(contains(run.page(), "best 90.0 % at step 10"));
}

TEST_CASE("report: a whole run") {
  Run run;
  run.config = "model = \"cnn\"\nlr = 0.05\n";
  run.start("cnn", "fashion-mnist").steps(1, 1720).line(R"({"event":"eval","step":1720,"val_loss":0.28,"val_error":0.0991})");
  run.line(R"({"event":"checkpoint","step":860,"path":"c"})")
      .line(R"({"event":"confusion","step":1720,"classes":["Shirt","Coat"],"counts":[[90,10],[0,100]]})");
  run.line(kRanks).line(kDone);
  const std::string page = run.page();
  CHECK(contains(page, "90.1 % validation accuracy"));
  CHECK(contains(page, "finished"));
  CHECK(contains(page, "compute 14.0 ms (70 %)"));
  CHECK(contains(page, "other 1.00 ms (5 %)"));
  CHECK(contains(page, "10.0 ms<small>71.4 %</small>"));  // 17.2 s over 1720 steps.
  CHECK(contains(page, "forecast 18.0 ms, 10 % below"));
  CHECK(contains(page, "Most often mistaken: Shirt for Coat (10)."));
  CHECK(contains(page, "checkpoint at step 860"));
  CHECK(contains(page, "<dt>lr</dt><dd>0.05</dd>"));
  CHECK(contains(page, "h&lt;1&gt;"));
  CHECK(!contains(page, "nan"));
  // The file is the page, one file, and no temporary one stays.
  const std::string path = write_report(run.folder.path());
  CHECK(path == run.folder / "report.html");
  CHECK(read_small_file(path, 8 << 20) == page);
  size_t num_files = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(run.folder.path())) ++num_files;
  CHECK(num_files == 3);
  // It needs no network.
  for (const char* outside : {"http:", "https:", "//cdn", "@import", "url("}) {
    CAPTURE(outside);
    CHECK(count(page, outside) == count(page, "http://www.w3.org/2000/svg") * (std::string(outside) == "http:"));
  }
}

TEST_CASE("report: text of files never becomes markup") {
  const std::string evil = "</title></style></pre><script>x()</script><img src=x onerror=y>";
  Run run;
  run.config = "model = '" + evil + "'\n\"" + evil + "\" = 'v'\n";
  run.start(evil, evil)
      .steps(1, 3)
      .line(R"({"event":"confusion","step":1,"classes":[")" + evil + R"(","\" onload=z"],"counts":[[1,1],[2,2]]})");
  run.line(R"({"event":"sample","step":3,"prompt":")" + evil + R"(","text":")" + evil + evil + R"(\u0000"})");
  const std::string page = run.page();
  CHECK(count(page, "<script>") == 1);  // Our own.
  CHECK(count(page, "</style>") == 1);
  CHECK(count(page, "</pre>") == 1);
  CHECK(!contains(page, "<img"));
  CHECK(!contains(page, "\" onload=z"));
  CHECK(page.find('\0') == std::string::npos);
}

TEST_CASE("report: states of a run that did not end by itself") {
  CHECK(contains(Run().start("cnn", "x").steps(1, 5).page(), "still going, or it was killed after step 5"));
  CHECK(contains(Run().start("cnn", "x").page(), "killed before its first step"));
  CHECK(contains(Run().page(), "no step was recorded"));
  const std::string page =
      Run().start("cnn", "x").steps(1, 5).line(R"({"event":"checkpoint","step":5,"path":"c"})").line(R"({"event":"interrupted"})").page();
  CHECK(contains(page, "The run was interrupted at step 5. Its newest checkpoint is of step 5; cohort train --resume"));
  CHECK(contains(page, "No evaluation was recorded."));
  CHECK(!contains(page, "id=\"confusion\""));
}

TEST_CASE("report: a run that failed shows the cause, one that lacks lines how many, one that was changed what") {
  const std::string failed = Run()
                                 .start("cnn", "x")
                                 .steps(1, 5)
                                 .line(R"({"event":"checkpoint","step":4,"path":"c"})")
                                 .line(R"({"event":"failed","exit_code":4,"cause":"rank 1 <killed>"})")
                                 .page();
  CHECK(contains(failed, "The run failed after step 5: rank 1 &lt;killed&gt; (exit code 4). Its newest checkpoint is of step 4;"));
  CHECK(contains(failed, ">failed</span>"));
  const std::string early = Run().start("cnn", "x").line(R"({"event":"failed","exit_code":1,"cause":"no memory"})").page();
  CHECK(contains(early, "The run failed before its first step: no memory (exit code 1)."));
  const std::string gaps =
      Run().start("cnn", "x").steps(1, 5).line(R"({"event":"missing_lines","lines":7})").line(R"({"event":"done","step":5})").page();
  CHECK(contains(gaps, "7 lines of metrics.jsonl could not be written"));
  const std::string changed = Run()
                                  .start("cnn", "x")
                                  .line(R"({"event":"resume","step":5})")
                                  .line(R"({"event":"changed","step":5,"setting":"lr","from":"0.1","to":"0.2"})")
                                  .page();
  CHECK(contains(changed, "changed after step 5"));
  CHECK(contains(changed, "lr 0.1 "));
}

TEST_CASE("report: steps that fp16 skipped are counted, where there are any") {
  const auto page = [](const char* done) { return Run().start("cnn", "x").steps(1, 5).line(done).page(); };
  CHECK(contains(page(R"({"event":"done","step":5,"skipped_steps":3})"), "<dt>Skipped steps</dt><dd>3</dd>"));
  CHECK(!contains(page(R"({"event":"done","step":5,"skipped_steps":0})"), "Skipped steps"));
  CHECK(!contains(page(R"({"event":"done","step":5})"), "Skipped steps"));
}

TEST_CASE("report: bits per byte, perplexity and the generated text of a text model") {
  Run run;
  run.start("lstm", "text:x").steps(1, 30).line(R"({"event":"eval","step":30,"val_loss":0.6931471806,"val_error":0.3})");
  run.line(R"({"event":"sample","step":30,"prompt":"The ","text":"The end"})");
  const std::string page = run.page();
  CHECK(contains(page, "<dt>Bits per byte</dt><dd>1.00</dd>"));
  CHECK(contains(page, "<dt>Perplexity</dt><dd>2.00</dd>"));
  CHECK(contains(page, "<b>The </b>end</pre>"));
  Run pieces;
  pieces.start("lstm", "text:x,vocabulary=v").steps(1, 30);
  for (const char* step : {"20", "30"})
    pieces.line(concat(R"({"event":"eval","step":)", step, R"(,"val_loss":0.6931471806,"val_error":0.3})"));
  const std::string other = pieces.page();
  CHECK(mentions(pieces.head(), "1.00 bits per piece after 30"));
  for (const char* part : {"Bits per piece", "of a piece, validation", "Next piece right", "nats a piece", "Next piece wrong"})
    CHECK(contains(other, part));
  for (const char* part : {"er byte", "a byte", "Next byte"}) CHECK(!contains(other, part));
}

TEST_CASE("report: thousands of steps stay a small page, many classes become a list") {
  Run run;
  run.start("cnn", "x").steps(1, 8000);
  CHECK(run.page().size() < 150'000);
  std::string names, counts;
  for (int i = 0; i < 100; ++i) {
    names += concat(i ? "," : "", "\"class ", i, "\"");
    counts += i ? ",[" : "[";
    for (int j = 0; j < 100; ++j) counts += concat(j ? "," : "", i == j ? i : 1);
    counts += "]";
  }
  const std::string page = run.line(R"({"event":"confusion","step":1,"classes":[)" + names + R"(],"counts":[)" + counts + "]}").page();
  CHECK(!contains(page, "<table class=\"heat\">"));
  CHECK(contains(page, "The 60 hardest classes"));
}

const char kPipeline[] =
    R"({"event":"pipeline","schedule":"zb-<h1>","stages":[{"layers":["conv<1>","relu1"],"worker":0,"forward_seconds":0.001,"backward_input_seconds":0.002,"backward_weight_seconds":0.003},{"layers":["out"],"worker":1,"forward_seconds":0.004,"backward_input_seconds":0.005,"backward_weight_seconds":0.006}],"microbatches":4,"predicted_step_seconds":0.05,"predicted_bubble":0.2,"chart_svg":"<svg width=\"100%\"><g><rect x=\"1\"/><title>F0.0</title></g></svg>\n"})";
const char kParts[] =
    R"({"event":"ranks","ranks":[{"rank":0,"compute_seconds":3,"exchange_seconds":1,"predicted_weight_bytes":1024,"predicted_gradient_bytes":2048,"predicted_optimizer_bytes":0,"peak_tensor_bytes":3145728,"memory_limit_bytes":4194304,"part":{"data":"1 of 1","pipe":"1 of 2","tensor":"1 of 1","layers":["conv<1>","relu1"],"stages":[0,2],"waited_seconds":0.5,"most_kept_micro_batches":7}},{"rank":1,"compute_seconds":1,"exchange_seconds":3,"part":{"data":"1 of 1","pipe":"2 of 2","tensor":"1 of 1","layers":["out"],"stages":[1]}}]})";

TEST_CASE("report: who holds what, and the pipeline's forecast beside its measurement") {
  const std::string page = Run().start("cnn", "x").line(kPipeline).steps(1, 10).line(kParts).page();
  REQUIRE(contains(page, "<section id=\"parts\">"));
  const std::string parts =
      page.substr(page.find("<section id=\"parts\">"), page.find("<section id=\"workers\">") - page.find("<section id=\"parts\">"));
  CHECK(contains(parts, "conv&lt;1&gt;, relu1"));
  CHECK(contains(parts, "<td>0, 2</td>"));
  CHECK(contains(parts, "50.0 ms"));  // 0.5 s in 10 steps.
  CHECK(contains(parts, "<td class=\"number\">7</td>"));
  CHECK(contains(parts, "3.0 MiB<small>75 % of 4.0 MiB</small>"));
  CHECK(contains(parts, "\u2013"));  // Rank 1 tells less.
  const size_t at = page.find("<section id=\"pipeline\">");
  REQUIRE(at != std::string::npos);
  CHECK(contains(page, "Schedule zb-&lt;h1&gt; with 4 micro-batches."));
  CHECK(contains(page, "<td class=\"number\">50.0 ms</td><td class=\"number\">400 ms</td>"));
  CHECK(contains(page, "<td class=\"number\">20.0 %</td><td class=\"number\">50.0 %</td>"));
  CHECK(count(page, "<title>F0.0</title>") == 1);
  CHECK(contains(page, "<td class=\"number\">5.00 ms</td>"));
}

const char kForecast[] =
    R"({"event":"forecast","source":"--profile <p>","predicted_step_seconds":0.04,"interval":[0.03,0.05],"interval_from":"calibration: 3 runs of cnn as dp","predicted_peak_memory_bytes":2097152,"workers":[{"ranks":[0],"layers":["a"],"forward_seconds":0.01,"backward_seconds":0.02,"exposed_exchange_seconds":0.004,"update_seconds":0.001,"idle_seconds":0.005,"memory_bytes":{"total":2097152}}]})";

TEST_CASE("report: forecast and measurement are two bars each") {
  const std::string end = std::string(kDone).replace(std::string(kDone).find("0.02,\"peak"), 4, "0.045");
  const std::string page = Run().start("cnn", "x").line(kForecast).steps(1, 1720).line(kRanks).line(end).page();
  const size_t at = page.find("<section id=\"forecast\">");
  REQUIRE(at != std::string::npos);
  const std::string section = page.substr(at, page.find("</section>", at) - at);
  CHECK(contains(section, "from --profile &lt;p&gt;"));
  CHECK(contains(section, "(from calibration: 3 runs of cnn as dp); here it was."));
  CHECK(contains(section, "40.0 ms (30.0 ms to 50.0 ms)"));
  CHECK(contains(section, "45.0 ms</span>"));
  CHECK(contains(section, "30.0 ms + 9.00 ms + 1.00 ms"));  // Exposed and idle: both are waiting.
  CHECK(contains(section, "10.0 ms + 2.00 ms + 1.00 ms"));
  CHECK(contains(section, "2.0 MiB"));
  CHECK(contains(section, "1.0 MiB"));
  CHECK(count(section, "<svg") == 6);
  CHECK(!contains(Run().start("cnn", "x").line(kForecast).start("cnn", "x").steps(1, 2).page(), "id=\"forecast\""));
}

TEST_CASE("report: a forecast without the run's end has bars of its own") {
  const std::string page = Run().start("cnn", "x").line(kForecast).page();
  CHECK(contains(page, "<section id=\"forecast\">"));
  CHECK(contains(page, "40.0 ms (30.0 ms to 50.0 ms)"));
}

TEST_CASE("report: only a plain drawing gets onto the page, and a resume forgets the plan before it") {
  const std::string line = kPipeline;
  const std::string evil = std::string(line).replace(line.find("<title>"), 7, "<script>x()</script><title>");
  const std::string page = Run().start("cnn", "x").line(evil).steps(1, 2).page();
  CHECK(contains(page, "<section id=\"pipeline\">"));
  CHECK(!contains(page, "<title>F0.0"));
  CHECK(count(page, "<script>") == 1);
  CHECK(!contains(Run().start("cnn", "x").line(kPipeline).start("cnn", "x").steps(1, 2).page(), "id=\"pipeline\""));
}

TEST_CASE("report: a memory limit alone shows what ranks held, a run without either shows nothing") {
  const std::string page =
      Run().start("cnn", "x").line(R"({"event":"ranks","ranks":[{"rank":0,"peak_tensor_bytes":1024,"memory_limit_bytes":2048}]})").page();
  CHECK(contains(page, "<section id=\"parts\">"));
  CHECK(contains(page, "50 % of 2.0 KiB"));
  CHECK(!contains(page, ">pipe</th>"));
  CHECK(!contains(Run().start("cnn", "x").steps(1, 3).line(kRanks).page(), "id=\"parts\""));
}

TEST_CASE("report: damaged files end in an Error or a page, never in anything else") {
  Run run;
  run.start("cnn", "x")
      .steps(1, 3)
      .line(R"({"event":"eval","step":3,"val_loss":0.2,"val_error":0.1})")
      .line(kRanks)
      .line(kPipeline)
      .line(kParts)
      .line(kDone);
  run.line(R"({"event":"confusion","step":3,"classes":["a","b"],"counts":[[1,2],[3,4]]})");
  const std::string whole = run.metrics;
  size_t num_pages = 0, num_errors = 0;
  for (uint64_t i = 0; i < 300; ++i) {
    run.metrics = whole;
    for (uint64_t change = 0; change <= i % 3; ++change) {
      const size_t at = random_bits(7, i, change, 0) % whole.size();
      const char kLikely[] = "0123456789-e.\"{}[],:\n\0\xff";
      run.metrics[at] = kLikely[random_bits(7, i, change, 1) % (sizeof kLikely - 1)];
    }
    try {
      num_pages += contains(run.page(), "</html>");
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::kBadInput);
      ++num_errors;
    }
  }
  CHECK(num_pages + num_errors == 300);
  CHECK(num_pages > 10);
  CHECK(num_errors > 10);
}

TEST_CASE("report: pictures that were surely taken for another class; nothing but small PNGs gets into the page") {
  const std::string png = to_base64(std::string_view("\x89PNG\r\n\x1a\nrest", 12)), gif = to_base64("GIF89a and more");
  Run run;
  run.start("cnn", "fashion-mnist").steps(1, 3);
  run.line(concat(
      R"({"event":"mistakes","step":3,"pictures":[{"sample":1234,"class":"Shirt <b>","predicted":"Coat","probability":0.987,"png":")", png,
      R"("},{"sample":2,"class":"a","predicted":"x1","probability":1,"png":")", gif,
      R"("},{"sample":3,"class":"a","predicted":"x2","probability":1,"png":"\"><script>"},{"sample":4,"class":"a",)",
      R"("predicted":"x3","probability":1,"png":")", to_base64("\x89PNG\r\n\x1a\n" + std::string(100'000, 'x')), R"("}]})"));
  run.write();
  const std::string page = report_page(read_run(run.folder / ""));
  CHECK(page.find("src=\"data:image/png;base64," + png + "\"") != std::string::npos);
  CHECK(page.find("alt=\"Shirt &lt;b&gt; taken for Coat\"") != std::string::npos);
  CHECK(page.find("98.7") != std::string::npos);
  CHECK(page.find("sample 1,234") != std::string::npos);
  for (const char* left_out : {"x1", "x2", "x3", "<script>\"", "GIF"}) CHECK(page.find(concat(">", left_out)) == std::string::npos);
  // Without one that can be shown there is no section; a run that goes on undoes what came before.
  Run none;
  none.start("cnn", "fashion-mnist").steps(1, 3).line(R"({"event":"mistakes","step":3,"pictures":[]})");
  none.write();
  CHECK(report_page(read_run(none.folder / "")).find("Confident errors") == std::string::npos);
}

TEST_CASE("report: the test set has a tile of its own") {
  const auto tiles_of = [](const std::string& done) {
    Run run;
    run.start("cnn", "fashion-mnist").steps(1, 3).line(done);
    run.write();
    return report_page(read_run(run.folder / ""));
  };
  CHECK(tiles_of(R"({"event":"done","step":3,"val_error":0.1,"test_samples":10000,"test_loss":0.3,"test_error":0.125})")
            .find("<dt>Test accuracy</dt><dd>87.5 %</dd><dd class=\"note\">10,000 samples</dd>") != std::string::npos);
  CHECK(tiles_of(R"({"event":"done","step":3,"val_error":0.1,"test_samples":1,"test_loss":0.3})")
            .find("<dt>Test loss</dt><dd>0.300</dd><dd class=\"note\">1 sample</dd>") != std::string::npos);
  CHECK(tiles_of(R"({"event":"done","step":3,"val_error":0.1})").find("<dt>Test") == std::string::npos);
}

}  // namespace
}  // namespace cohort::report
