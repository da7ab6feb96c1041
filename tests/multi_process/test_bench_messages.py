"""`cohort bench messages`: that all arrive is checked by the program itself; here, that each way has a line."""
from support import check, main, run, run_ok

WAYS = ["encrypted", "not-encrypted", "encrypted-without-port", "socket"]


def test_every_way_has_a_line():
    lines = run_ok(["bench", "messages", "--rounds", 1, "--json"])
    check([line["way"] for line in lines] == WAYS, lines)
    for line in lines:
        check(line["op"] == "messages" and line["small_bytes"] == 64 and line["large_bytes"] == 8 << 20, line)
        check(0 < line["round_trip_seconds"] < 60 and line["bytes_per_second"] > 0, line)
    check("MB/s" in run(["bench", "messages", "--rounds", 1])[1], "no table for people")


def test_what_does_not_act_is_refused():
    code, out, err = run(["bench", "messages", "--workers", 2])
    check(code == 2 and "--workers" in err, out + err)


if __name__ == "__main__":
    main(globals())
