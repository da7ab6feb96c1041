#pragma once
// The report of a run while it trains, in a browser on this host (--serve). Torch-free.

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "cohort/report/live/http_server.h"

namespace cohort::report {

/// Reads the run folder that a training writes; the training does nothing for it. The page is made anew when somebody has it open and
/// metrics.jsonl has grown, at most every second and so seldom that it takes a twentieth of a core, on threads of the lowest priority.
/// One thread makes, finishes and ends it.
class LiveReport : public LiveContent {
 public:
  /// `port` 0: a free one. Error(kEnvironment) where it cannot be had.
  LiveReport(std::string run, int port);
  /// Cuts all connections. Waits for no client and for no page that is being made.
  ~LiveReport() override;
  LiveReport(const LiveReport&) = delete;

  /// For the browser, with the token: whoever has it sees the page.
  std::string address() const;
  int port() const { return server_->port(); }
  /// The run has ended and RUN/report.html is written: that is what pages that are open show from now on. Waits until they have it, a
  /// second at most.
  void finish();

 private:
  std::string page() override;
  News newer_than(int64_t version) override;
  void refresh_if_due();
  void show(const std::string& document);

  const std::string run_, token_;
  std::atomic<bool> ends_ = false;
  std::mutex mutex_;       // Of what follows.
  std::string document_;   // "" before the first.
  std::string news_;       // Title and main part of it, as JSON.
  int64_t version_ = 0;    // Rises with each.
  int64_t bytes_ = -1;     // Of metrics.jsonl when it was read.
  double next_look_ = 0;   // steady_seconds()
  bool is_final_ = false;  // It is the report of a run that has ended.
  std::unique_ptr<HttpServer> server_;
};

}  // namespace cohort::report
