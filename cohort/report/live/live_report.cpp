// The page is report.html with a script that replaces its whole <main> by newer versions: Server-Sent Events carry title and <main> as
// JSON. So the browser makes no further requests, and keeps the last version although the server ends with the run.

#include "cohort/report/live/live_report.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "cohort/base/clock.h"
#include "cohort/base/error.h"
#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/base/secrets.h"
#include "cohort/base/text/json.h"
#include "cohort/report/run_reader.h"
#include "cohort/report/sections.h"

namespace cohort::report {
namespace {

constexpr double kCheckSeconds = 0.2, kMinPageSeconds = 1;
constexpr double kMaxCoreShare = 0.05;
constexpr double kLastVersionSeconds = 1;
constexpr size_t kTokenBytes = 16, kMaxReportBytes = size_t{64} << 20;

/// Keeps the scroll positions. After the last version it does not reconnect.
constexpr char kScript[] = R"js(
(() => {
  const query = new URLSearchParams(location.search);
  query.set("seen", document.querySelector("main").dataset.version);
  const source = new EventSource("events?" + query);
  const boxes = () => [...document.querySelectorAll(".scroll")];
  source.addEventListener("page", event => {
    const news = JSON.parse(event.data), left = boxes().map(box => box.scrollLeft), top = window.scrollY;
    const holder = document.createElement("template");
    holder.innerHTML = news.main;
    document.title = news.title;
    document.querySelector("main").replaceWith(holder.content);
    boxes().forEach((box, i) => { box.scrollLeft = left[i] || 0; });
    window.scrollTo(window.scrollX, top);
    addReadouts();
  });
  source.addEventListener("end", () => source.close());
  source.addEventListener("error", () => {
    const state = document.querySelector(".state.open");
    if (state) state.textContent = "no connection";
  });
})();
)js";

/// The text from the first `begin` to the last `end`, both included; "" where one is missing.
std::string between(const std::string& document, const std::string& begin, const std::string& end) {
  const size_t first = document.find(begin), last = document.rfind(end);
  return first == std::string::npos || last == std::string::npos || last < first ? "" : document.substr(first, last + end.size() - first);
}

std::string without_tags(const std::string& element) {
  const size_t first = element.find('>'), last = element.rfind('<');
  return first == std::string::npos || last == std::string::npos || last <= first ? "" : element.substr(first + 1, last - first - 1);
}

/// Reverts escape_html().
std::string unescaped(std::string text) {
  for (const auto& [entity, character] :
       {std::pair("&lt;", "<"), std::pair("&gt;", ">"), std::pair("&quot;", "\""), std::pair("&#39;", "'"), std::pair("&amp;", "&")})
    for (size_t at = 0; (at = text.find(entity, at)) != std::string::npos; ++at) text.replace(at, std::string(entity).size(), character);
  return text;
}

}  // namespace

LiveReport::LiveReport(std::string run, int port)
    : run_(std::move(run)), token_(hexadecimal(secret_bytes(kTokenBytes))), server_(std::make_unique<HttpServer>(port, token_, *this)) {}

LiveReport::~LiveReport() {
  ends_ = true;
  server_.reset();
}

std::string LiveReport::address() const { return concat("http://127.0.0.1:", server_->port(), "/?token=", token_); }

void LiveReport::finish() {
  ends_ = true;  // Abandons a page that is being built.
  {
    const std::lock_guard lock(mutex_);
    try {
      show(read_small_file(run_ + "/report.html", kMaxReportBytes));
    } catch (const Error&) {  // No report.html: the current document is the last.
      ++version_;
    }
    is_final_ = true;
  }
  server_->wait_for_last(kLastVersionSeconds);
}

void LiveReport::show(const std::string& document) {
  document_ = document;
  ++version_;
  news_ =
      Json{{"title", unescaped(without_tags(between(document, "<title>", "</title>")))}, {"main", between(document, "<main", "</main>")}}
          .dump(-1, ' ', false, Json::error_handler_t::replace);
}

void LiveReport::refresh_if_due() {
  const double began = steady_seconds();
  if (is_final_ || ends_ || began < next_check_seconds_) return;
  std::error_code error;
  const auto bytes = static_cast<int64_t>(std::filesystem::file_size(run_ + "/metrics.jsonl", error));
  next_check_seconds_ = began + kCheckSeconds;
  if (error || bytes == metrics_bytes_) return;
  RunRecord run = read_run(run_, &ends_);
  if (ends_) return;
  metrics_bytes_ = bytes;
  show(live_page(run, version_ + 1, kScript));
  const double now = steady_seconds();
  next_check_seconds_ = now + std::max(kMinPageSeconds, (now - began) / kMaxCoreShare);
}

std::string LiveReport::page() {
  const std::lock_guard lock(mutex_);
  try {
    refresh_if_due();
  } catch (const Error&) {
    if (document_.empty()) throw;
  }
  if (document_.empty()) fail(ErrorCode::kFailed, "The run has written nothing yet; load the page again.");
  return document_;
}

LiveContent::News LiveReport::newer_than(int64_t version) {
  const std::lock_guard lock(mutex_);
  try {
    refresh_if_due();
  } catch (const Error&) {  // The document stays; the next check tries again.
  }
  return version_ > version ? News{version_, news_, is_final_} : News{};
}

}  // namespace cohort::report
