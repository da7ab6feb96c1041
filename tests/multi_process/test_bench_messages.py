"""`cohort bench messages`: that all arrive is checked by the program itself; here, that each way has a line."""
import signal
import time

from support import check, finish, main, run, run_ok, start

WAYS = ["encrypted", "not-encrypted", "encrypted-without-port", "socket"]


def test_every_way_has_a_line():
    lines = run_ok(["bench", "messages", "--rounds", 1, "--json"])
    check([line["way"] for line in lines] == WAYS, lines)
    for line in lines:
        check(line["op"] == "messages" and line["small_bytes"] == 64 and line["large_bytes"] == 8 << 20, line)
        check(0 < line["round_trip_seconds"] < 60 and line["bytes_per_second"] > 0, line)
    check("MB/s" in run(["bench", "messages", "--rounds", 1])[1], "no table for people")


def test_ctrl_c_ends_it_with_a_line():
    process = start(["bench", "messages", "--rounds", 1000])
    time.sleep(1.5)
    process.send_signal(signal.SIGINT)
    code, out, err = finish(process)
    check(code == 130 and not out and err.count("interrupted") == 1 and len(err.splitlines()) == 1, (code, out, err))


def test_what_does_not_act_is_refused():
    code, out, err = run(["bench", "messages", "--workers", 2])
    check(code == 2 and "--workers" in err, out + err)


if __name__ == "__main__":
    main(globals())
