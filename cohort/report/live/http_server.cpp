// cpp-httplib accepts and answers. Of a request it sees the first line alone: head, method and token are looked at here first, on a stream
// that has a deadline and a limit, as its own has neither, and its parsers of headers (ranges, by regular expressions) are not for
// strangers. Each connection is one request and has a thread of its own, at most kMostConnections; one more is closed at once.

#include "cohort/report/live/http_server.h"

#include <httplib.h>
#include <poll.h>
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
#include <cstring>
#include <list>
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
constexpr double kHeadSeconds = 5, kWriteSeconds = 10, kLingerSeconds = 0.3;
constexpr size_t kMostConnections = 16, kMostStreams = 8;
constexpr double kLookSeconds = 0.25;  // Between two looks for something new.
constexpr double kAliveSeconds = 15;   // Between two lines that show a proxy or a tunnel that there is somebody.
constexpr char kHost[] = "127.0.0.1";
constexpr char kPlain[] = "text/plain; charset=utf-8";

/// Whether `events` came before the deadline.
bool wait_for(int socket, short events, double deadline) {
  for (;;) {
    const double left = deadline - steady_seconds();
    if (left <= 0) return false;
    pollfd one{socket, events, 0};
    const int ready = ::poll(&one, 1, static_cast<int>(1000 * left) + 1);
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return false;
  }
}

/// A head that ends with an empty line; "" where it is too long, too slow, or the client has gone.
std::string read_head(int socket) {
  const double deadline = steady_seconds() + kHeadSeconds;
  std::string head;
  while (head.find("\r\n\r\n") == std::string::npos) {
    char bytes[1024];
    if (head.size() >= kMostHeadBytes || !wait_for(socket, POLLIN, deadline)) return "";
    const ssize_t count = ::recv(socket, bytes, sizeof bytes, MSG_DONTWAIT);
    if (count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR)) return "";
    if (count > 0) head.append(bytes, static_cast<size_t>(count));
  }
  return head;
}

/// Takes what the client still sends, a while, so that closing does not take back the answer.
void linger(int socket) {
  ::shutdown(socket, SHUT_WR);
  const double deadline = steady_seconds() + kLingerSeconds;
  char bytes[4096];
  while (wait_for(socket, POLLIN, deadline) && ::recv(socket, bytes, sizeof bytes, MSG_DONTWAIT) > 0) {
  }
}

/// What httplib reads: one request that is known already; what it writes goes to the socket, or is given up.
class RequestStream : public httplib::Stream {
 public:
  RequestStream(int socket, std::string request) : socket_(socket), request_(std::move(request)) {}

  bool is_readable() const override { return read_ < request_.size(); }
  bool is_writable() const override { return wait_for(socket_, POLLOUT, steady_seconds() + kWriteSeconds); }
  ssize_t read(char* out, size_t size) override {
    const size_t count = std::min(size, request_.size() - read_);
    std::memcpy(out, request_.data() + read_, count);
    read_ += count;
    return static_cast<ssize_t>(count);
  }
  ssize_t write(const char* data, size_t size) override {
    const double deadline = steady_seconds() + kWriteSeconds;
    for (size_t done = 0; done < size;) {
      if (!wait_for(socket_, POLLOUT, deadline)) return -1;
      const ssize_t count = ::send(socket_, data + done, size - done, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (count > 0) done += static_cast<size_t>(count);
      else if (errno != EAGAIN && errno != EINTR) return -1;
    }
    return static_cast<ssize_t>(size);
  }
  void get_remote_ip_and_port(std::string& ip, int& port) const override { ip = kHost, port = 0; }
  void get_local_ip_and_port(std::string& ip, int& port) const override { ip = kHost, port = 0; }
  socket_t socket() const override { return socket_; }

 private:
  int socket_;
  std::string request_;
  size_t read_ = 0;
};

thread_local bool turns_away = false;  // Set while a connection too many is dealt with.

/// A thread for each connection, and no more of them than kMostConnections.
class ThreadsOfConnections : public httplib::TaskQueue {
 public:
  void enqueue(std::function<void()> connection) override {
    threads_.remove_if([](One& one) {
      if (!one.ended->load()) return false;
      one.thread.join();
      return true;
    });
    if (threads_.size() >= kMostConnections) {
      turns_away = true;
      connection();
      turns_away = false;
      return;
    }
    auto ended = std::make_shared<std::atomic<bool>>(false);
    try {
      threads_.push_back({std::thread([connection, ended] {
                            connection();
                            *ended = true;
                          }),
                          ended});
    } catch (const std::system_error&) {  // No thread to be had.
      turns_away = true;
      connection();
      turns_away = false;
    }
  }
  void shutdown() override {
    for (One& one : threads_) one.thread.join();
    threads_.clear();
  }

 private:
  struct One {
    std::thread thread;
    std::shared_ptr<std::atomic<bool>> ended;
  };
  std::list<One> threads_;  // Of the thread that accepts.
};

void set_headers(httplib::Response& response) {
  response.headers = {{"Cache-Control", "no-store"},
                      {"Referrer-Policy", "no-referrer"},
                      {"X-Content-Type-Options", "nosniff"},
                      {"Content-Security-Policy",
                       "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; connect-src 'self'; "
                       "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"}};
}

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

/// httplib's server with sockets that are read and closed here, so that they can be cut.
class HttpServer::Connections : public httplib::Server {
 public:
  Connections(std::string token, LiveContent& content) : token_(std::move(token)), content_(content) {
    new_task_queue = [] { return new ThreadsOfConnections; };
    set_pre_routing_handler([this](const httplib::Request& request, httplib::Response& response) {
      answer(request, response);
      return HandlerResponse::Handled;
    });
  }

  /// Cuts what is open; nothing new is taken after that.
  void cut() {
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
    const bool may_serve = !turns_away && add(socket);
    if (may_serve) serve(socket);
    if (may_serve) remove(socket);
    ::close(socket);
    return may_serve;
  }

  bool add(int socket) {
    const std::lock_guard lock(mutex_);
    if (ends_) return false;
    open_.insert(socket);
    return true;
  }
  void remove(int socket) {
    const std::lock_guard lock(mutex_);
    open_.erase(socket);
  }

  void serve(int socket) {
    const std::string head = read_head(socket);
    const std::string line = head.substr(0, head.find("\r\n"));
    RequestStream stream(socket, concat(line, "\r\nHost: ", kHost, "\r\n\r\n"));
    const auto refuse = [&](const char* status) {
      const std::string text = concat(status, "\n");
      const std::string answer = concat("HTTP/1.1 ", status, "\r\nContent-Type: ", kPlain, "\r\nContent-Length: ", text.size(),
                                        "\r\nConnection: close\r\n\r\n", text);
      stream.write(answer.data(), answer.size());
    };
    if (head.empty() || line.size() > kMostLineBytes || line.find('\0') != std::string::npos) {
      refuse("400 Bad Request");
    } else if (!line.starts_with("GET ")) {
      refuse("405 Method Not Allowed");
    } else {
      bool is_closed = false;
      process_request(stream, /*close_connection=*/true, is_closed, nullptr);
    }
    linger(socket);
  }

  void answer(const httplib::Request& request, httplib::Response& response) {
    set_headers(response);
    if (!equal_secrets(request.get_param_value("token"), token_)) {
      response.status = 403;
      response.set_content("The token is missing or wrong: open the whole address that the training printed.\n", kPlain);
    } else if (request.path == "/") {
      try {
        response.set_content(content_.page(), "text/html; charset=utf-8");
        response.status = 200;
      } catch (const std::exception& error) {
        response.status = 500;
        response.set_content(concat(error.what(), "\n"), kPlain);
      }
    } else if (request.path == "/events") {
      stream_events(parse_integer(request.get_param_value("seen")).value_or(0), response);
    } else {
      response.status = 404;
      response.set_content("There is nothing here but the page itself.\n", kPlain);
    }
  }

  void stream_events(int64_t seen, httplib::Response& response) {
    {
      const std::lock_guard lock(mutex_);
      if (num_streams_ >= kMostStreams) {
        response.status = 503;
        return response.set_content("Too many pages of this run are open.\n", kPlain);
      }
      ++num_streams_;
    }
    response.status = 200;
    auto last_write = std::make_shared<double>(0);
    response.set_chunked_content_provider(
        "text/event-stream",
        [this, seen, last_write](size_t, httplib::DataSink& sink) mutable {
          const LiveContent::News news = content_.newer_than(seen);
          std::string text;
          if (news.version != 0) text = event_text(news), seen = news.version;
          else if (steady_seconds() > *last_write + kAliveSeconds) text = ": still here\n\n";
          if (!text.empty()) {
            if (!sink.write(text.data(), text.size())) return false;
            *last_write = steady_seconds();
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
  connections.set_address_family(AF_INET);
  connections.set_socket_options(reuse_address);  // Not SO_REUSEPORT, by which two runs would share a port.
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
  parts_->connections.cut();
  parts_->connections.stop();
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
