#include "cohort/train/metrics.h"

#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "cohort/base/error.h"
#include "cohort/base/json.h"

namespace cohort {
namespace {

namespace fs = std::filesystem;

double wall_seconds() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

/// Keeps the lines that belong to steps up to `last_step`, by rename; a broken last line goes too.
template <typename Keep>
void keep_lines(const fs::path& path, Keep keep) {
  std::ifstream in(path);
  if (!in) return;
  const fs::path temporary = path.string() + ".tmp";
  std::ofstream out(temporary, std::ios::trunc);
  for (std::string line; std::getline(in, line);)
    if (keep(line)) out << line << '\n';
  out.close();
  if (!out) fail(ErrorCode::kFailed, "cannot write ", temporary.string(), ": ", std::strerror(errno));
  fs::rename(temporary, path);
}

void drop_lines_after(const fs::path& run, int64_t last_step) {
  keep_lines(run / "metrics.jsonl", [&](const std::string& line) {
    const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object()) return false;
    const std::string event = json.value("event", "");
    if (event == "done" || event == "interrupted" || event == "ranks" || event == "confusion" || event == "sample") return false;
    return !json.contains("step") || !json["step"].is_number_integer() || json["step"].get<int64_t>() <= last_step;
  });
  keep_lines(run / "metrics.csv",
             [&](const std::string& line) { return line.starts_with("step") || std::strtoll(line.c_str(), nullptr, 10) <= last_step; });
}

std::FILE* open_to_append(const fs::path& path) {
  std::FILE* file = std::fopen(path.c_str(), "ae");
  if (!file) fail(ErrorCode::kFailed, "cannot write ", path.string(), ": ", std::strerror(errno));
  std::setvbuf(file, nullptr, _IOLBF, 1 << 16);  // A line is one write, so a kill leaves whole lines.
  return file;
}

}  // namespace

Metrics::Metrics(const std::string& run, int64_t resume_step, bool to_stdout) : to_stdout_(to_stdout) {
  const fs::path folder = run;
  if (to_stdout) std::setvbuf(stdout, nullptr, _IOLBF, 1 << 16);
  const bool is_new = !fs::exists(folder / "metrics.csv");
  if (!is_new) drop_lines_after(folder, resume_step);
  jsonl_ = open_to_append(folder / "metrics.jsonl");
  csv_ = open_to_append(folder / "metrics.csv");
  if (is_new)
    std::fputs(
        "step,loss,step_seconds,samples_per_second,data_seconds,compute_seconds,exchange_seconds,optimizer_seconds,learning_rate,val_loss,"
        "val_error\n",
        csv_);
  events_ = std::make_unique<TensorBoardWriter>((folder / "events").string());
}

Metrics::~Metrics() {
  if (jsonl_) std::fclose(jsonl_);
  if (csv_) std::fclose(csv_);
}

void Metrics::event(const Json& line, bool to_stdout_too) {
  const std::string text = line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  std::fputs(text.c_str(), jsonl_);
  if (to_stdout_ && to_stdout_too) std::fputs(text.c_str(), stdout);
}

void Metrics::step(const StepMetrics& m) {
  Json line{{"event", "step"},
            {"step", m.step},
            {"loss", m.loss},
            {"step_seconds", m.step_seconds},
            {"samples_per_second", m.samples_per_second},
            {"data_seconds", m.data_seconds},
            {"compute_seconds", m.compute_seconds},
            {"exchange_seconds", m.exchange_seconds},
            {"optimizer_seconds", m.optimizer_seconds},
            {"learning_rate", m.learning_rate}};
  if (m.gradient_norm >= 0) line["gradient_norm"] = m.gradient_norm;
  event(line);
  std::fprintf(csv_, "%lld,%.9g,%.6g,%.6g,%.6g,%.6g,%.6g,%.6g,%.9g,,\n", static_cast<long long>(m.step), m.loss, m.step_seconds,
               m.samples_per_second, m.data_seconds, m.compute_seconds, m.exchange_seconds, m.optimizer_seconds, m.learning_rate);
  const double now = wall_seconds();
  events_->scalar("train/loss", m.step, m.loss, now);
  events_->scalar("train/learning_rate", m.step, m.learning_rate, now);
  events_->scalar("speed/samples_per_second", m.step, m.samples_per_second, now);
}

void Metrics::evaluation(int64_t step, double loss, double error) {
  event(Json{{"event", "eval"}, {"step", step}, {"val_loss", loss}, {"val_error", error}});
  std::fprintf(csv_, "%lld,,,,,,,,,%.9g,%.9g\n", static_cast<long long>(step), loss, error);
  const double now = wall_seconds();
  events_->scalar("validation/loss", step, loss, now);
  events_->scalar("validation/error", step, error, now);
  flush();
}

void Metrics::noise_scale(const NoiseReading& reading) {
  const bool known = std::isfinite(reading.noise_scale);
  event(Json{{"event", "noise_scale"},
             {"step", reading.step},
             {"small_batch", reading.small_batch},
             {"large_batch", reading.large_batch},
             {"small_squared", reading.small_squared},
             {"large_squared", reading.large_squared},
             {"gradient_squared", reading.gradient_squared},
             {"trace", reading.trace},
             {"noise_scale", known ? Json(reading.noise_scale) : Json(nullptr)}});
  if (known) events_->scalar("train/noise_scale", reading.step, reading.noise_scale, wall_seconds());
}

void Metrics::flush() {
  std::fflush(jsonl_);
  std::fflush(csv_);
  if (to_stdout_) std::fflush(stdout);
  events_->flush();
}

}  // namespace cohort
