// The live page by cpp-httplib 0.11.4, used by its public interface alone: a handler before the routes checks method and token, the two
// routes answer with the page and with a chunked stream of Server-Sent Events, and the library's time limits bound each read and write.
//
// What the library does not bound, for any program of this host that can connect: the number of headers, and how long a client takes that
// sends a byte within each read timeout; such a client also delays the end. A Range header, of at most 8 KiB, is parsed before the token
// is checked, by a regular expression that recurses with its length; the threads have stacks for that.

#include "cohort/report/live/http_server.h"

#include <httplib.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <mutex>
#include <thread>
#include <utility>

#include "cohort/base/clock.h"
#include "cohort/base/fail.h"
#include "cohort/base/secrets.h"
#include "cohort/base/text/text.h"

namespace cohort::report {
namespace {

constexpr int kIdleSeconds = 1, kReadSeconds = 2, kWriteSeconds = 5;
constexpr size_t kMaxConnections = 16, kMaxStreams = 8;
constexpr size_t kStackBytes = size_t{32} << 20;
constexpr double kPollSeconds = 0.25;
constexpr double kKeepAliveSeconds = 15;  // Proxies and tunnels close streams that stay silent for longer.
constexpr char kHost[] = "127.0.0.1";

/// Threads get the default stack, which under `ulimit -s unlimited` is too small for the longest Range header.
httplib::TaskQueue* make_thread_pool() {
  pthread_attr_t before, larger;
  ::pthread_getattr_default_np(&before);
  ::pthread_getattr_default_np(&larger);
  ::pthread_attr_setstacksize(&larger, kStackBytes);
  ::pthread_setattr_default_np(&larger);
  auto* const pool = new httplib::ThreadPool(kMaxConnections);
  ::pthread_setattr_default_np(&before);
  ::pthread_attr_destroy(&larger);
  ::pthread_attr_destroy(&before);
  return pool;
}

/// An event's text is one line: line breaks would begin further fields.
std::string event_text(const LiveContent::News& news) {
  std::string text = news.text;
  std::replace(text.begin(), text.end(), '\n', ' ');
  return concat("event: page\nid: ", news.version, "\ndata: ", text, "\n\n", news.is_last ? "event: end\ndata: \n\n" : "");
}

int reuse_address(int socket) {
  const int on = 1;
  return ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
}

void answer(httplib::Response& response, int status, const std::string& text) {
  response.status = status;
  response.set_content(text, "text/plain; charset=utf-8");
}

[[noreturn]] void refuse_port(int port, int reason) {
  fail(ErrorCode::kEnvironment, name_settings("--serve "), port, ": cannot listen on ", kHost, ":", port, " (",
       std::generic_category().message(reason), "); give another port, or none, which takes a free one");
}

/// Threads started while it lives have all signals blocked; a write to a closed connection then returns an error instead of SIGPIPE.
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

struct HttpServer::State {
  State(std::string token, LiveContent& content) : token(std::move(token)), content(content) {}
  void configure();
  void stream_events(int64_t seen, httplib::Response& response);

  const std::string token;
  LiveContent& content;
  httplib::Server server;
  int port = 0;
  std::thread thread;
  std::mutex mutex;  // Guards num_streams and ends.
  std::condition_variable changed;
  size_t num_streams = 0;
  bool ends = false;
};

void HttpServer::State::configure() {
  server.set_address_family(AF_INET);
  server.set_socket_options(reuse_address);  // Not SO_REUSEPORT, by which two runs would share a port.
  server.set_keep_alive_max_count(1);
  server.set_keep_alive_timeout(kIdleSeconds);
  server.set_read_timeout(kReadSeconds);
  server.set_write_timeout(kWriteSeconds);
  server.set_payload_max_length(0);
  server.new_task_queue = make_thread_pool;
  server.set_default_headers(
      {{"Cache-Control", "no-store"},
       {"Referrer-Policy", "no-referrer"},
       {"X-Content-Type-Options", "nosniff"},
       {"Content-Security-Policy",
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; connect-src 'self'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'"}});
  server.set_pre_routing_handler([this](const httplib::Request& request, httplib::Response& response) {
    if (request.method != "GET") {
      answer(response, 405, "405 Method Not Allowed\n");
    } else if (!equal_secrets(request.get_param_value("token"), token)) {
      answer(response, 403, "The token is missing or wrong: open the whole address that the training printed.\n");
    } else {
      return httplib::Server::HandlerResponse::Unhandled;
    }
    return httplib::Server::HandlerResponse::Handled;
  });
  server.Get("/", [this](const httplib::Request&, httplib::Response& response) {
    response.set_content(content.page(), "text/html; charset=utf-8");
  });
  server.Get("/events", [this](const httplib::Request& request, httplib::Response& response) {
    stream_events(parse_integer(request.get_param_value("seen")).value_or(0), response);
  });
  server.set_error_handler([](const httplib::Request&, httplib::Response& response) {
    if (response.status == 404) answer(response, 404, "There is nothing here but the page itself.\n");
    if (response.status == 400) answer(response, 400, "400 Bad Request\n");
  });
  server.set_exception_handler([](const httplib::Request&, httplib::Response& response, std::exception_ptr problem) {
    try {
      std::rethrow_exception(std::move(problem));
    } catch (const std::exception& error) {
      answer(response, 500, concat(error.what(), "\n"));
    }
  });
}

void HttpServer::State::stream_events(int64_t seen, httplib::Response& response) {
  {
    const std::lock_guard lock(mutex);
    if (num_streams >= kMaxStreams) return answer(response, 503, "Too many pages of this run are open.\n");
    ++num_streams;
  }
  response.set_chunked_content_provider(
      "text/event-stream",
      [this, seen, last_write = 0.0](size_t, httplib::DataSink& sink) mutable {
        const LiveContent::News news = content.newer_than(seen);
        std::string text;
        if (news.version != 0) text = event_text(news), seen = news.version;
        else if (steady_seconds() > last_write + kKeepAliveSeconds) text = ": still here\n\n";
        if (!text.empty()) {
          if (!sink.write(text.data(), text.size())) return false;
          last_write = steady_seconds();
        }
        if (news.is_last) return sink.done(), true;
        std::unique_lock lock(mutex);
        changed.wait_for(lock, std::chrono::duration<double>(kPollSeconds), [&] { return ends; });
        return !ends;
      },
      [this](bool) {
        const std::lock_guard lock(mutex);
        --num_streams;
        changed.notify_all();
      });
}

HttpServer::HttpServer(int port, std::string token, LiveContent& content) {
  // httplib ignores SIGPIPE in the whole process; its former handler is restored.
  struct sigaction pipe_before{};
  ::sigaction(SIGPIPE, nullptr, &pipe_before);
  state_ = std::make_unique<State>(std::move(token), content);
  ::sigaction(SIGPIPE, &pipe_before, nullptr);
  state_->configure();
  httplib::Server& server = state_->server;
  errno = 0;
  state_->port = port == 0 ? server.bind_to_any_port(kHost) : server.bind_to_port(kHost, port) ? port : -1;
  if (state_->port <= 0) refuse_port(port, errno != 0 ? errno : EADDRINUSE);
  const SignalsBlocked blocked;
  state_->thread = std::thread([&server] {
    ::pthread_setname_np(::pthread_self(), "cohort-live");
    ::setpriority(PRIO_PROCESS, 0, 19);  // The threads of the pool inherit it.
    server.listen_after_bind();
  });
  while (!server.is_running()) std::this_thread::sleep_for(std::chrono::milliseconds(1));  // Before that stop() does nothing.
}

HttpServer::~HttpServer() {
  state_->server.stop();
  {
    const std::lock_guard lock(state_->mutex);
    state_->ends = true;
    state_->changed.notify_all();
  }
  state_->thread.join();
}

int HttpServer::port() const { return state_->port; }

void HttpServer::wait_for_last(double seconds) {
  std::unique_lock lock(state_->mutex);
  state_->changed.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return state_->num_streams == 0; });
}

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
