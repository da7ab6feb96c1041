// cpp-httplib accepts, takes a request apart, routes it, and writes answers and streams. What is not its own: version 0.11.4 limits neither
// the length of a head nor the time that it takes, reads ranges by a regular expression that recurses with their text before anybody's
// token is known, and lets its end wait for clients. So one call is overridden: it reads the head within limits, gives httplib the first
// line alone, and keeps the socket where the end can cut it.

#include "cohort/report/live/http_server.h"

#include <httplib.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "cohort/base/clock.h"
#include "cohort/base/fail.h"
#include "cohort/base/secrets.h"
#include "cohort/base/text/text.h"

namespace cohort::report {
namespace {

constexpr size_t kMostHeadBytes = size_t{8} * 1024;
constexpr size_t kMostLineBytes = size_t{2} * 1024;  // Of the first: method and address.
constexpr int kHeadSeconds = 5, kWriteSeconds = 10;
constexpr size_t kMostConnections = 16, kMostStreams = 8;
constexpr double kLookSeconds = 0.25;  // Between two looks for something new.
constexpr double kAliveSeconds = 15;   // Between two lines that show a proxy or a tunnel that there is somebody.
constexpr char kHost[] = "127.0.0.1";
constexpr char kPlain[] = "text/plain; charset=utf-8";

/// A request of one line, and the socket that its answer goes to. How long either may wait is the socket's own, set by httplib.
class OneLineRequest : public httplib::Stream {
 public:
  /// The line of a head that does not end within its limits is none, which httplib refuses.
  explicit OneLineRequest(int socket) : socket_(socket) {
    const double deadline = steady_seconds() + kHeadSeconds;
    std::string head;
    while (head.find("\r\n\r\n") == std::string::npos) {
      char bytes[1024];
      const ssize_t count = ::recv(socket, bytes, sizeof bytes, 0);
      if (count > 0) head.append(bytes, static_cast<size_t>(count));
      if (count <= 0 || head.size() > kMostHeadBytes || steady_seconds() > deadline) head = "\r\n\r\n";
    }
    const size_t size = head.find("\r\n");
    text_ = concat(size > kMostLineBytes ? "" : head.substr(0, size), "\r\nHost: ", kHost, "\r\n\r\n");
  }

  bool is_readable() const override { return read_ < text_.size(); }
  bool is_writable() const override { return true; }
  ssize_t read(char* out, size_t size) override {
    const size_t count = text_.copy(out, size, read_);
    read_ += count;
    return static_cast<ssize_t>(count);
  }
  ssize_t write(const char* data, size_t size) override { return ::send(socket_, data, size, MSG_NOSIGNAL); }
  void get_remote_ip_and_port(std::string& ip, int& port) const override { ip = kHost, port = 0; }
  void get_local_ip_and_port(std::string& ip, int& port) const override { ip = kHost, port = 0; }
  socket_t socket() const override { return socket_; }

 private:
  int socket_;
  std::string text_;
  size_t read_ = 0;
};

thread_local bool turns_away = false;  // Set while a connection too many is dealt with.

/// httplib's threads; a connection that would have to wait for one is closed at once.
class Places : public httplib::TaskQueue {
 public:
  void enqueue(std::function<void()> connection) override {
    turns_away = num_taken_ >= kMostConnections;
    if (turns_away) return connection();
    ++num_taken_;
    threads_.enqueue([this, connection = std::move(connection)] {
      connection();
      --num_taken_;
    });
  }
  void shutdown() override { threads_.shutdown(); }

 private:
  std::atomic<size_t> num_taken_ = 0;
  httplib::ThreadPool threads_{kMostConnections};
};

/// As an event has it: a text of several lines would be several fields.
std::string event_text(const LiveContent::News& news) {
  std::string text = news.text;
  std::replace(text.begin(), text.end(), '\n', ' ');
  return concat("event: page\nid: ", news.version, "\ndata: ", text, "\n\n", news.is_last ? "event: end\ndata: \n\n" : "");
}

int reuse_address(int socket) {
  const int on = 1;
  return ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
}

void say(httplib::Response& response, int status, const char* text) {
  response.status = status;
  response.set_content(text, kPlain);
}

[[noreturn]] void refuse_port(int port, int reason) {
  fail(ErrorCode::kEnvironment, name_settings("--serve "), port, ": cannot listen on ", kHost, ":", port, " (",
       std::generic_category().message(reason), "); give another port, or none, which takes a free one");
}

/// Threads that are made while it lives take no signals.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_{};
};

}  // namespace

class HttpServer::Connections : public httplib::Server {
 public:
  Connections(std::string token, LiveContent& content) : token_(std::move(token)), content_(content) {
    set_address_family(AF_INET);
    set_socket_options(reuse_address);  // Not SO_REUSEPORT, by which two runs would share a port.
    set_read_timeout(kHeadSeconds);
    set_write_timeout(kWriteSeconds);
    new_task_queue = [] { return new Places; };
    set_default_headers({{"Cache-Control", "no-store"},
                         {"Referrer-Policy", "no-referrer"},
                         {"X-Content-Type-Options", "nosniff"},
                         {"Content-Security-Policy",
                          "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; connect-src 'self'; "
                          "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"}});
    set_pre_routing_handler([this](const httplib::Request& request, httplib::Response& response) {
      if (request.method != "GET") {
        say(response, 405, "405 Method Not Allowed\n");
      } else if (!equal_secrets(request.get_param_value("token"), token_)) {
        say(response, 403, "The token is missing or wrong: open the whole address that the training printed.\n");
      } else {
        return HandlerResponse::Unhandled;
      }
      return HandlerResponse::Handled;
    });
    Get("/", [this](const httplib::Request&, httplib::Response& response) {
      response.set_content(content_.page(), "text/html; charset=utf-8");
    });
    Get("/events", [this](const httplib::Request& request, httplib::Response& response) {
      stream_events(parse_integer(request.get_param_value("seen")).value_or(0), response);
    });
    set_error_handler([](const httplib::Request&, httplib::Response& response) {
      if (response.status == 404) say(response, 404, "There is nothing here but the page itself.\n");
      if (response.status == 400) say(response, 400, "400 Bad Request\n");
    });
    set_exception_handler([](const httplib::Request&, httplib::Response& response, std::exception_ptr problem) {
      try {
        std::rethrow_exception(std::move(problem));
      } catch (const std::exception& error) {
        say(response, 500, concat(error.what(), "\n").c_str());
      }
    });
  }

  /// Takes nothing new, and cuts what is open.
  void end() {
    stop();
    const std::lock_guard lock(mutex_);
    ends_ = true;
    for (const int socket : open_) ::shutdown(socket, SHUT_RDWR);
    changed_.notify_all();
  }
  void wait_for_streams(double seconds) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return num_streams_ == 0; });
  }

 private:
  bool process_and_close_socket(socket_t socket) override {
    if (!turns_away && add(socket)) {
      OneLineRequest request(socket);
      bool is_closed = false;
      process_request(request, /*close_connection=*/true, is_closed, nullptr);
      remove(socket);
    }
    ::close(socket);
    return true;
  }

  bool add(int socket) {
    const std::lock_guard lock(mutex_);
    if (!ends_) open_.insert(socket);
    return !ends_;
  }
  void remove(int socket) {
    const std::lock_guard lock(mutex_);
    open_.erase(socket);
  }

  void stream_events(int64_t seen, httplib::Response& response) {
    {
      const std::lock_guard lock(mutex_);
      if (num_streams_ >= kMostStreams) return say(response, 503, "Too many pages of this run are open.\n");
      ++num_streams_;
    }
    response.set_chunked_content_provider(
        "text/event-stream",
        [this, seen, last_write = 0.0](size_t, httplib::DataSink& sink) mutable {
          const LiveContent::News news = content_.newer_than(seen);
          std::string text;
          if (news.version != 0) text = event_text(news), seen = news.version;
          else if (steady_seconds() > last_write + kAliveSeconds) text = ": still here\n\n";
          if (!text.empty()) {
            if (!sink.write(text.data(), text.size())) return false;
            last_write = steady_seconds();
          }
          if (news.is_last) return sink.done(), true;
          std::unique_lock lock(mutex_);
          changed_.wait_for(lock, std::chrono::duration<double>(kLookSeconds), [&] { return ends_; });
          return !ends_;
        },
        [this](bool) {
          const std::lock_guard lock(mutex_);
          --num_streams_;
          changed_.notify_all();
        });
  }

  const std::string token_;
  LiveContent& content_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::set<int> open_;
  size_t num_streams_ = 0;
  bool ends_ = false;
};

struct HttpServer::Parts {
  Parts(std::string token, LiveContent& content) : connections(std::move(token), content) {}

  Connections connections;
  int port = 0;
  std::thread thread;
};

HttpServer::HttpServer(int port, std::string token, LiveContent& content) {
  // httplib ignores SIGPIPE in the whole process, which is not ours to change.
  struct sigaction pipe_before{};
  ::sigaction(SIGPIPE, nullptr, &pipe_before);
  parts_ = std::make_unique<Parts>(std::move(token), content);
  ::sigaction(SIGPIPE, &pipe_before, nullptr);
  Connections& connections = parts_->connections;
  errno = 0;
  parts_->port = port == 0 ? connections.bind_to_any_port(kHost) : connections.bind_to_port(kHost, port) ? port : -1;
  if (parts_->port <= 0) refuse_port(port, errno != 0 ? errno : EADDRINUSE);
  const SignalsBlocked blocked;
  parts_->thread = std::thread([&connections] {
    ::pthread_setname_np(::pthread_self(), "cohort-live");
    ::setpriority(PRIO_PROCESS, 0, 19);  // Of this thread and of those that it makes.
    connections.listen_after_bind();
  });
  while (!connections.is_running()) std::this_thread::sleep_for(std::chrono::milliseconds(1));  // Or stop() would do nothing.
}

HttpServer::~HttpServer() {
  parts_->connections.end();
  parts_->thread.join();
}

int HttpServer::port() const { return parts_->port; }

void HttpServer::wait_for_last(double seconds) { parts_->connections.wait_for_streams(seconds); }

void check_port(int port) {
  if (port == 0) return;
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (socket < 0) refuse_port(port, errno);
  reuse_address(socket);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const bool is_free = ::bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 && ::listen(socket, 1) == 0;
  const int reason = errno;
  ::close(socket);
  if (!is_free) refuse_port(port, reason);
}

}  // namespace cohort::report
