"""`cohort bench handover`: what arrives is checked by the program itself; here, that each size has a line."""
from support import check, main, run, run_ok

SIZES = [4 * 16**i for i in range(7)]


def test_every_size_has_a_line():
    lines = run_ok(["bench", "handover", "--rounds", 1, "--json"])
    check([line["bytes"] for line in lines] == SIZES, lines)
    for line in lines:
        check(line["op"] == "handover" and line["backend"] == "shm" and line["workers"] == 2, line)
        check(all(0 < line[key] < 60 for key in ("seconds", "message_seconds", "copy_seconds")), line)


def test_other_numbers_of_workers_are_refused():
    code, out, err = run(["bench", "handover", "--workers", 3])
    check(code == 2 and "--workers 3" in err, out + err)


if __name__ == "__main__":
    main(globals())
