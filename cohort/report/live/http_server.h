#pragma once
// An HTTP server on 127.0.0.1 for one page that changes: the page itself, and its newer versions as Server-Sent Events, for clients that
// know the token. Torch-free.
//
// Limits: 16 connections at a time, 8 of them event streams; a read may take 2 s and a write 5 s.

#include <cstdint>
#include <memory>
#include <string>

namespace cohort::report {

/// What the server shows. Its functions are called on any thread.
class LiveContent {
 public:
  virtual ~LiveContent() = default;
  /// The current document. Error where there is none yet.
  virtual std::string page() = 0;

  struct News {
    int64_t version = 0;  ///< 0: there is nothing newer.
    std::string text;     ///< Data of the event, for the page's script.
    bool is_last = false;
  };
  /// The current version where it is newer than `version`.
  virtual News newer_than(int64_t version) = 0;
};

/// Serves from construction to destruction, on threads of the lowest priority with all signals blocked. One thread calls it.
class HttpServer {
 public:
  /// `port` 0 takes a free one. Error(kEnvironment) where the port cannot be bound. `content` must outlive it.
  HttpServer(int port, std::string token, LiveContent& content);
  /// Ends all streams and connections; waits for a read or write in progress, within its time limit.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;

  int port() const;
  /// Waits at most `seconds` until every event stream has received the last version.
  void wait_for_last(double seconds);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Error(kEnvironment) where the port of 127.0.0.1 cannot be listened on now.
void check_port(int port);

}  // namespace cohort::report
