#pragma once
// Answers a browser on this host while something else is done: a page, and Server-Sent Events that say what is new in it. Torch-free.
//
// On 127.0.0.1 alone, and only to who knows the token. A stranger, or a client that is slow, cannot hold it up or fill its memory: a head
// of a request has at most 8 KiB and 10 s, an answer that is not taken for 10 s is given up, and there are at most 16 connections, 8 of
// them with events.

#include <cstdint>
#include <memory>
#include <string>

namespace cohort::report {

/// What is shown. Any thread.
class LiveContent {
 public:
  virtual ~LiveContent() = default;
  /// The whole document as it is now. Error where there is none.
  virtual std::string page() = 0;

  struct News {
    int64_t version = 0;  ///< Of what is shown; 0: nothing newer than what was asked about.
    std::string text;     ///< For the script of the page.
    bool is_last = false;
  };
  /// What is newer than `version`, if there is something now.
  virtual News newer_than(int64_t version) = 0;
};

/// Serves from its construction to its end, on threads of the lowest priority which take no signals. One thread calls it.
class HttpServer {
 public:
  /// `port` 0: a free one. Error(kEnvironment) where it cannot be had. `content` must outlive it.
  HttpServer(int port, std::string token, LiveContent& content);
  /// Cuts all connections.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;

  int port() const;
  /// Waits until every client with events has got the last of them, `seconds` at most.
  void wait_for_last(double seconds);

 private:
  class Connections;
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

/// Error(kEnvironment) where nobody can listen on that port of 127.0.0.1 now.
void check_port(int port);

}  // namespace cohort::report
