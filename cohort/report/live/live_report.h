#pragma once
// The report of a running training in a browser on this host (--serve). Torch-free.

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "cohort/report/live/http_server.h"

namespace cohort::report {

/// Reads the run folder that a training writes; the training thread does no work for it. The page is rebuilt while a client has it open
/// and metrics.jsonl has grown, at most every second and with at most 5 % of a core, on threads of the lowest priority. One thread
/// constructs, finishes and destroys it.
class LiveReport : public LiveContent {
 public:
  /// `port` 0 takes a free one. Error(kEnvironment) where the port cannot be bound.
  LiveReport(std::string run, int port);
  /// Closes all connections as ~HttpServer() does, and abandons a page that is being built.
  ~LiveReport() override;
  LiveReport(const LiveReport&) = delete;

  /// The URL with the token, which gives access to the page.
  std::string address() const;
  int port() const { return server_->port(); }
  /// Called after the run has ended and RUN/report.html is written: open pages show that from now on. Waits at most a second until they
  /// have it.
  void finish();

 private:
  std::string page() override;
  News newer_than(int64_t version) override;
  void refresh_if_due();
  void show(const std::string& document);

  const std::string run_, token_;
  std::atomic<bool> ends_ = false;
  std::mutex mutex_;               // Guards the members below, but not server_.
  std::string document_;           // "" before the first page.
  std::string news_;               // Title and <main> of document_, as JSON.
  int64_t version_ = 0;            // Increases with each document.
  int64_t metrics_bytes_ = -1;     // Size of metrics.jsonl when it was read.
  double next_check_seconds_ = 0;  // On the clock of steady_seconds().
  bool is_final_ = false;          // document_ is the report of a run that has ended.
  std::unique_ptr<HttpServer> server_;
};

}  // namespace cohort::report
