#include "cohort/report/live/live_report.h"

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <thread>
#include <vector>

#include "cohort/base/fail.h"
#include "cohort/base/files/file.h"
#include "cohort/base/text/json.h"

namespace cohort::report {
namespace {

/// A connection to a port of this host; -1 where nobody listens.
class Client {
 public:
  explicit Client(int port) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    is_connected_ = ::connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  }
  ~Client() { ::close(socket_); }
  Client(const Client&) = delete;

  bool is_connected() const { return is_connected_; }
  Client& send(const std::string& text) {
    (void)!::send(socket_, text.data(), text.size(), MSG_NOSIGNAL);
    return *this;
  }
  Client& get(const std::string& target) { return send("GET " + target + " HTTP/1.1\r\nHost: x\r\n\r\n"); }
  /// Until the other side closes, or `stop` stands in what came, behind `start`.
  std::string read(const std::string& stop = "", const std::string& start = "") {
    std::string text;
    char bytes[4096];
    while (stop.empty() || text.find(start) == std::string::npos || text.find(stop, text.find(start)) == std::string::npos) {
      const ssize_t count = ::recv(socket_, bytes, sizeof bytes, 0);
      if (count <= 0) break;
      text.append(bytes, static_cast<size_t>(count));
    }
    return text;
  }

 private:
  int socket_;
  bool is_connected_ = false;
};

/// Counts up; the third version is the last.
class Counting : public LiveContent {
 public:
  std::string page() override { return "<main>page</main>"; }
  News newer_than(int64_t version) override {
    const int64_t newest = newest_;
    return newest > version ? News{newest, concat("news ", newest, "\nof two lines"), newest == 3} : News{};
  }
  std::atomic<int64_t> newest_ = 1;
};

std::string status(const std::string& answer) { return answer.substr(0, answer.find("\r\n")); }

}  // namespace

TEST_CASE("http: a page for who has the token, and nothing for others") {
  Counting content;
  const HttpServer server(0, "secret", content);
  const auto ask = [&](const std::string& request) { return Client(server.port()).send(request).read(); };
  const std::string page = Client(server.port()).get("/?token=secret").read();
  CHECK(status(page) == "HTTP/1.1 200 OK");
  CHECK(page.ends_with("<main>page</main>"));
  CHECK(page.find("Connection: close") != std::string::npos);
  for (const char* target : {"/", "/?token=", "/?token=secre", "/?token=secret0", "/?token=SECRET", "/?x=secret", "/events?token=no", "/x"})
    CHECK(status(Client(server.port()).get(target).read()).starts_with("HTTP/1.1 403"));
  CHECK(status(Client(server.port()).get("/x?token=secret").read()).starts_with("HTTP/1.1 404"));
  for (const char* method : {"POST", "HEAD", "PUT", "DELETE", "OPTIONS", "CONNECT", "PRI"})
    CHECK(status(ask(concat(method, " /?token=secret HTTP/1.1\r\n\r\n"))).starts_with("HTTP/1.1 405"));
  CHECK(status(ask("get /?token=secret HTTP/1.1\r\n\r\n")).starts_with("HTTP/1.1 400"));
  CHECK(status(ask("GET /?token=secret\r\n\r\n")).starts_with("HTTP/1.1 400"));
  CHECK(status(ask("GET " + std::string(3000, 'x') + " HTTP/1.1\r\n\r\n")).starts_with("HTTP/1.1 400"));
  // A head without an end is given up once it is too long.
  CHECK(ask("GET /?token=secret HTTP/1.1\r\nX: " + std::string(100'000, 'x')).find("200 OK") == std::string::npos);
  CHECK(status(Client(server.port()).get("/?token=secret").read()) == "HTTP/1.1 200 OK");
}

TEST_CASE("http: events come as they are made, and the stream ends with the last") {
  Counting content;
  HttpServer server(0, "secret", content);
  Client client(server.port());
  client.get("/events?token=secret");
  const std::string first = client.read("\n\n");
  CHECK(first.find("Content-Type: text/event-stream") != std::string::npos);
  CHECK(first.find("event: page\nid: 1\ndata: news 1 of two lines\n\n") != std::string::npos);
  content.newest_ = 2;
  CHECK(client.read("\n\n").find("data: news 2") != std::string::npos);
  content.newest_ = 3;
  server.wait_for_last(60);
  CHECK(client.read().find("event: end\n") != std::string::npos);
  // Who has seen it is told no more of it.
  Client seen(server.port());
  content.newest_ = 2;
  seen.get("/events?token=secret&seen=2");
  content.newest_ = 3;
  const std::string only = seen.read();
  CHECK(only.find("news 2") == std::string::npos);
  CHECK(only.find("news 3") != std::string::npos);
}

TEST_CASE("http: the end waits for no client, and places for streams are limited") {
  Counting content;
  std::vector<std::unique_ptr<Client>> clients;
  int port = 0;
  {
    const HttpServer server(0, "secret", content);
    port = server.port();
    for (int i = 0; i < 8; ++i) {
      clients.push_back(std::make_unique<Client>(port));
      clients.back()->get("/events?token=secret").read("news 1");
    }
    CHECK(status(Client(port).get("/events?token=secret").read()).starts_with("HTTP/1.1 503"));
    for (int i = 0; i < 20; ++i) clients.push_back(std::make_unique<Client>(port));  // Say nothing.
    CHECK_THROWS_WITH_AS(HttpServer(port, "other", content), doctest::Contains(concat("127.0.0.1:", port).c_str()), Error);
    CHECK_THROWS_WITH_AS(check_port(port), doctest::Contains("give another port"), Error);
  }
  CHECK_FALSE(Client(port).is_connected());
  check_port(port);
  struct sigaction pipe{};
  ::sigaction(SIGPIPE, nullptr, &pipe);
  CHECK((pipe.sa_handler == SIG_DFL));
}

TEST_CASE("live report: the page follows metrics.jsonl, and its last version is that of report.html") {
  const TemporaryFolder folder;
  const std::string run = folder / "run", metrics = run + "/metrics.jsonl";
  std::filesystem::create_directory(run);
  LiveReport report(run, 0);
  const std::string query = report.address().substr(report.address().find('?'));
  CHECK(report.address().starts_with(concat("http://127.0.0.1:", report.port(), "/?token=")));
  CHECK(status(Client(report.port()).get("/" + query).read()).starts_with("HTTP/1.1 500"));  // Nothing is there yet.
  std::string lines = R"({"event":"start","world_size":2,"layout":{"dp":2},"model":"cnn","data":"d&<d","steps":9})"
                      "\n";
  const auto step = [&](int number) {
    lines += concat(R"({"event":"step","step":)", number, R"(,"loss":1,"step_seconds":0.1,"samples_per_second":10})", "\n");
    write_file_atomically(metrics, lines + R"({"event":"st)");  // As a reader in the middle of a write sees it.
  };
  step(1);
  Client client(report.port());
  client.get("/events" + query);
  const std::string first = client.read("\n\n", "event: page");  // Not only that the server is still here.
  const size_t data = first.find("\ndata: ") + 7;
  const Json news = Json::parse(first.substr(data, first.find('\n', data) - data));
  CHECK(news["title"].get<std::string>().starts_with("cnn on d&<d:"));
  CHECK(news["main"].get<std::string>().starts_with("<main data-version=\"1\">"));
  CHECK(news["main"].get<std::string>().find("class=\"state open\">training<") != std::string::npos);
  CHECK(news["main"].get<std::string>().find("No end is recorded") == std::string::npos);
  step(2);
  CHECK(client.read("\n\n", "event: page").find("data-version=\\\"2\\\"") != std::string::npos);
  const std::string page = Client(report.port()).get("/" + query).read();
  CHECK(page.find("EventSource") != std::string::npos);
  write_file_atomically(run + "/report.html", "<title>t &amp; t</title><main>the last</main>");
  std::thread reader([&] {
    const std::string last = client.read();
    CHECK(last.find(R"("title":"t & t","main":"<main>the last</main>")") != std::string::npos);
    CHECK(last.find("event: end") != std::string::npos);
  });
  report.finish();
  reader.join();
}

}  // namespace cohort::report
