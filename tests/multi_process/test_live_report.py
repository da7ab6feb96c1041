"""train --serve: the report of a run in a browser while it trains, over real sockets."""
import http.client
import json
import os
import queue
import re
import signal
import socket
import threading
import time

from support import TINY, Folder, check, main, run, run_ok, start, wait_for

# Slow steps, so that a page of them is soon made on any machine.
LONG = ["--steps", "1000000", "--checkpoint-every", "end", "--quiet", "--threads", "1", "--inject", "slow:0:5"]
ADDRESS = re.compile(r"live report: http://127\.0\.0\.1:(\d+)/\?token=([0-9a-f]{32}) ")


class Training:
    """One that serves; its stderr is read all along, as its address is in it."""

    def __init__(self, arguments):
        self.process = start(["train", *arguments])
        self.lines, self.text = queue.Queue(), []
        threading.Thread(target=self._read, daemon=True).start()
        end = time.monotonic() + 60
        while True:
            line = self.lines.get(timeout=max(0.1, end - time.monotonic()))
            check(line is not None, "it ended before it said where its report is:\n" + "".join(self.text))
            if found := ADDRESS.search(line):
                self.port, self.token = int(found.group(1)), found.group(2)
                break

    def _read(self):
        for line in self.process.stderr:
            self.text.append(line)
            self.lines.put(line)
        self.lines.put(None)

    def get(self, path, method="GET", headers={}, token=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        token = self.token if token is None else token
        connection.request(method, path + (f"?token={token}" if token else ""), headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read().decode()

    def end(self, timeout=60):
        code = self.process.wait(timeout=timeout)
        self.process.stdout.close()
        return code


class Events:
    """The stream of one client, read event by event."""

    def __init__(self, training, seen=0):
        self.connection = http.client.HTTPConnection("127.0.0.1", training.port, timeout=30)
        self.connection.request("GET", f"/events?token={training.token}&seen={seen}")
        self.answer = self.connection.getresponse()

    def next(self):
        """(name, data); None where the stream ended."""
        fields = {}
        while line := self.answer.readline().decode():
            line = line.rstrip("\n")
            if not line and fields:
                return fields.get("event"), fields.get("data", "")
            if line and not line.startswith(":"):
                name, _, value = line.partition(": ")
                fields[name] = value
        return None

    def rest(self):
        found = []
        while event := self.next():
            found.append(event)
        return found


def port_of_nobody():
    """Below those that a kernel hands out, so that no connection of another program takes it between two uses."""
    for port in range(20000 + os.getpid() % 10000, 32000):
        with socket.socket() as one:
            try:
                one.bind(("127.0.0.1", port))
                return port
            except OSError:
                pass
    raise AssertionError("no port is free")


def is_closed(port):
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) != 0


def steps_of(main_part):
    """0 before the first."""
    found = re.search(r"after\s+([\d,]+)", main_part.replace("\u00a0", " "))
    return int(found.group(1).replace(",", "")) if found else 0


def test_page_events_and_an_end_by_ctrl_c():
    with Folder() as folder:
        training = Training([*TINY, *LONG, "--workers", "2", "--serve", "--run", folder / "run"])
        wait_for(lambda: training.get("/")[0] == 200, "the page")
        status, headers, page = training.get("/")
        check(status == 200 and "training</span>" in page and "EventSource" in page, page[:2000])
        check("default-src 'none'" in headers["Content-Security-Policy"] and headers["Cache-Control"] == "no-store" and headers["Referrer-Policy"] == "no-referrer", headers)
        check(training.token not in page, "the token stands in the page")

        events = Events(training)
        check(events.answer.status == 200 and events.answer.headers["Content-Type"] == "text/event-stream", events.answer.headers)
        name, data = events.next()
        first = json.loads(data)
        check(name == "page" and first["main"].startswith("<main") and first["title"].startswith("fc:hidden=16"), data[:500])
        second = json.loads(events.next()[1])
        check(steps_of(second["main"]) > steps_of(first["main"]), (steps_of(first["main"]), steps_of(second["main"])))

        for path in ("/", "/events", "/metrics.jsonl"):
            for token in ("0" * 32, training.token[:-1], "", "%00"):
                status, _, text = training.get(path, token=token or "&")
                check(status == 403 and "<main" not in text, (path, token, status))
        check(training.get("/../config.toml")[0] == 404 and training.get("/metrics.jsonl")[0] == 404, "there is more than the page")
        for method in ("POST", "PUT", "DELETE", "HEAD", "OPTIONS"):
            check(training.get("/", method=method)[0] == 405, method)

        # The client stays while the run ends, and gets to see how it ended.
        began = time.monotonic()
        training.process.send_signal(signal.SIGINT)
        last = events.rest()
        check(training.end() == 130, "".join(training.text))
        check(time.monotonic() - began < 30, "a client held the end up")
        check(last[-1][0] == "end" and "interrupted</span>" in json.loads(last[-2][1])["main"], last[-1])
        check(is_closed(training.port), "the port is open after the end")
        check("".join(training.text).count("token=") == 1, "the address was printed more than once")
        check("serve = \"none\"" in (folder / "run/config.toml").read_text(), "a run that goes on would serve unasked")


def test_a_run_that_ends_by_itself_shows_its_last_page():
    with Folder() as folder:
        training = Training([*TINY, "--steps", "3000", "--eval-every", "1000", "--quiet", "--serve", "0", "--run", folder / "run"])
        last = Events(training).rest()
        check(training.end() == 0, "".join(training.text))
        check(last[-1][0] == "end" and "finished</span>" in json.loads(last[-2][1])["main"], last[-1:])
        check(is_closed(training.port), "the port is open after the end")
        # The page itself is the one of every run.
        check("EventSource" not in (folder / "run/report.html").read_text(), "report.html asks a server that has gone")


def test_clients_that_are_slow_or_large_hold_nobody_up():
    with Folder() as folder:
        training = Training([*TINY, *LONG, "--serve", "--run", folder / "run"])
        large = http.client.HTTPConnection("127.0.0.1", training.port, timeout=20)
        try:
            large.request("GET", f"/?token={training.token}", headers={f"X-{i}": "x" * 1000 for i in range(100)})
            check(large.getresponse().status == 400, "a head of 100 KB was taken")
        except (ConnectionError, http.client.HTTPException):
            pass  # Cut before it was read: refused as well.
        # Ranges are not for strangers: see http_server.cpp.
        check(training.get("/", headers={"Range": "bytes=" + "0-," * 2000})[0] == 200, "ranges")
        check(training.get("/", headers={"Range": "bytes=0-1," * 500}, token="0" * 32)[0] == 403, "ranges")
        # More than there are places for. They are closed after their seconds, and then the page comes again.
        silent = [socket.create_connection(("127.0.0.1", training.port)) for _ in range(30)]
        for one in silent[:5]:
            one.sendall(b"GET /?to")

        def loads():
            try:
                return training.get("/")[0] == 200
            except (OSError, http.client.HTTPException):
                return False

        wait_for(loads, "the page, after silent clients", timeout=40)
        for one in silent:
            one.close()
        # Streams that nobody reads, at the end.
        unread = []

        def opens():
            try:
                unread.append(Events(training))
                return True
            except (OSError, http.client.HTTPException):  # The silent ones' places are not free yet.
                return False

        for _ in range(8):
            wait_for(opens, "a stream, after silent clients", timeout=40)
        check(Events(training).answer.status == 503, "more streams than there are places for")
        training.process.send_signal(signal.SIGTERM)
        check(training.end() == 130, "".join(training.text))
        check(is_closed(training.port), "the port is open after the end")
        del unread


def test_two_runs_at_once_and_ports():
    with Folder() as folder:
        one = Training([*TINY, *LONG, "--serve", port_of_nobody(), "--run", folder / "one"])
        two = Training([*TINY, *LONG, "--serve", "--run", folder / "two"])
        check(one.port != two.port and one.token != two.token, "two runs share a port or a token")
        wait_for(lambda: one.get("/")[0] == 200 and two.get("/")[0] == 200, "both pages")
        check(one.get("/", token=two.token)[0] == 403, "a token opens another run")
        check("/one" in one.get("/")[2] and "/two" in two.get("/")[2], "a page of the other run")
        # A port that is taken ends the command before anything is written.
        code, out, err = run(["train", *TINY, "--steps", "2", "--serve", one.port, "--run", folder / "three"])
        check(code == 4 and out == "" and err.count("\n") == 1 and f"--serve {one.port}" in err and "free one" in err, err)
        check(not (folder / "three").exists(), "a run that was refused left a folder")
        for each in (one, two):
            each.process.send_signal(signal.SIGINT)
            check(each.end() == 130, "".join(each.text))
        # Free again.
        three = Training([*TINY, *LONG, "--serve", str(one.port), "--run", folder / "three"])
        check(three.port == one.port, "another port than the one that was asked for")
        three.process.send_signal(signal.SIGINT)
        check(three.end() == 130, "".join(three.text))


def test_values_and_verbs_that_do_not_serve():
    with Folder() as folder:
        for value in ("70000", "-1", "http"):
            code, out, err = run(["train", *TINY, "--steps", "2", "--serve", value, "--run", folder / "run"])
            check(code == 2 and out == "" and err.count("\n") == 1 and "--serve" in err, (value, code, err))
        code, _, err = run(["verify", *TINY, "--steps", "1", "--serve"])
        check(code == 2 and "verify does not read --serve" in err and err.count("\n") == 1, err)
        # A file may ask for it, and the command line take it back.
        (folder / "c.toml").write_text("serve = 0\nsteps = 2\n")
        check("live report" not in run(["train", folder / "c.toml", *TINY, "--serve", "none", "--run", folder / "a"])[2], "it serves")
        check("live report" in run(["train", folder / "c.toml", *TINY, "--run", folder / "b"])[2], "it does not serve")
        lines = run_ok(["train", *TINY, "--steps", "2", "--serve", "--json", "--run", folder / "c"])
        check(lines[-1]["event"] == "done", lines[-1])


if __name__ == "__main__":
    main(globals())
