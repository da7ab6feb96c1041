"""A worker whose connection to the training goes through a proxy that delays, cuts, resets, damages and dribbles: the worker comes again and works, the training goes on, and each sample counts once."""
import os
import random
import signal
import socket
import struct
import subprocess
import threading
import time

from support import COHORT, Folder, check, finish, main, needs_own_process_ids, session_members, start, steps_in, wait_for
from test_async import record, samples_of
from test_hosts import TOKEN
from test_join import TINY, begin

SECRET = {**os.environ, "COHORT_TOKEN": TOKEN}
KEEP_FAR = b"the connection to the training stays, and the worker's ends"


class Proxy:
    """Passes bytes on in both directions. `fault` is asked for every piece: (the two sockets, bytes in this direction of this connection with it, piece) -> what to pass on, or None to close the connection."""

    def __init__(self, where, fault):
        host, port = where.rsplit(":", 1)
        self.there, self.fault, self.sockets, self.num_bytes, self.num_connections, self.kept = (host, int(port)), fault, [], 0, 0, set()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.where = f"127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                near = self.listener.accept()[0]
                far = socket.create_connection(self.there)
            except OSError:
                return
            self.num_connections += 1
            self.sockets += [near, far]
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self.copy, args=(source, sink, [0], far), daemon=True).start()

    def copy(self, source, sink, passed, far):
        try:
            while piece := source.recv(1 << 16):
                passed[0] += len(piece)
                piece = self.fault((source, sink), passed[0], piece)
                if piece == KEEP_FAR:
                    self.kept.add(far)
                if piece in (None, KEEP_FAR):
                    return
                sink.sendall(piece)
                self.num_bytes += len(piece)
        except OSError:
            pass
        finally:
            for one in (source, sink):
                if one not in self.kept:
                    one.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for one in (self.listener, *self.sockets):
            one.close()


def joins_from_elsewhere(where):
    """In a process-id space of its own, so that it shares no memory with the training and all that it learns goes over the connection."""
    return subprocess.Popen(["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", COHORT, "join", where, "--threads", "1", "--timeout", "5"],
                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=SECRET, start_new_session=True)


def delay(_sockets, _passed, piece):
    time.sleep(0.01)
    return piece


def cut_after(most):
    return lambda _sockets, passed, piece: piece if passed < most else None


def reset_after(most):
    def fault(sockets, passed, piece):
        if passed < most:
            return piece
        for one in sockets:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return None
    return fault


def damage_after(most):
    def fault(_sockets, passed, piece):
        if passed < most:
            return piece
        damaged = bytearray(piece)
        damaged[random.randrange(len(damaged))] ^= 1 << random.randrange(8)
        return bytes(damaged)
    return fault


def half_a_piece_after(most):
    """And then silence: the connection stays."""
    def fault(_sockets, passed, piece):
        if passed < most:
            return piece
        return piece[:len(piece) // 2] if passed - len(piece) < most else b""
    return fault


def one_end_after(most):
    return lambda _sockets, passed, piece: piece if passed < most else KEEP_FAR


def test_faults_of_a_connection():
    needs_own_process_ids()
    with Folder() as folder:
        process, where = begin(folder, "p", "--workers", 1)
        errors = []
        threading.Thread(target=lambda: errors.extend(process.stderr), daemon=True).start()
        for number, (name, fault) in enumerate((("delay", delay), ("cut", cut_after(60_000)), ("reset", reset_after(60_000)), ("damage", damage_after(60_000)), ("half", half_a_piece_after(60_000)), ("one end", one_end_after(60_000))), start=1):
            with Proxy(where, fault) as proxy:
                joiner = joins_from_elsewhere(proxy.where)
                wait_for(lambda: any(f"worker {number} joins" in line for line in errors), f"{name}: it is let in")
                if name != "delay":  # It comes again by another connection, with its number.
                    again = f"worker {number} comes again by another connection after"  # In one line where the training had not seen yet that the old one ended.
                    wait_for(lambda: any(f"worker {number} is lost after" in line or again in line for line in errors), f"{name}: the training names it")
                    wait_for(lambda: any(f"worker {number} is back" in line or again in line for line in errors), f"{name}: it comes back")
                    check(name != "one end" or any(again in line for line in errors), f"{name}: {errors}")
                while "first push" not in (line := joiner.stderr.readline()):
                    check(line != "", f"{name}: it ended before it worked")
                before = steps_in(folder / "p")
                wait_for(lambda: steps_in(folder / "p") > before + 5, f"{name}: the training goes on")
                check(joiner.poll() is None, f"{name}: it ended")
                num_losses = sum(f"worker {number} is lost after" in line for line in errors)
                os.killpg(joiner.pid, signal.SIGKILL)
                wait_for(lambda: not session_members(joiner.pid), f"{name}: all of its processes are gone")  # They die one after the other.
                finish(joiner)
                check((proxy.num_connections > 3) == (name != "delay"), f"{name}: {proxy.num_connections} connections")
            # What it had in hand is another's only when the training knows.
            wait_for(lambda: sum(f"worker {number} is lost after" in line for line in errors) > num_losses, f"{name}: the training names the death")
            before = steps_in(folder / "p")
            wait_for(lambda: steps_in(folder / "p") > before + 3, f"{name}: the training goes on alone")
        process.send_signal(signal.SIGINT)
        process.wait(30)
        check(process.returncode == 130, f"{process.returncode} {errors}")
        check(not any("is gone" in line or "has come again" in line for line in errors), f"it is said twice: {errors}")
        account = record(folder / "p", "async")
        check(account["samples"] == samples_of(folder / "p", steps_in(folder / "p")), f"{account}")
        check(all(worker["pushes"] > 0 for worker in account["workers"]), f"{account['workers']}")


def test_a_stranger_that_dribbles_holds_nobody_up():
    with Folder() as folder:
        process, where = begin(folder, "d", "--workers", 1)
        host, port = where.rsplit(":", 1)
        dribblers = [socket.create_connection((host, int(port))) for _ in range(20)]
        for one in dribblers:
            one.sendall(b"\xff")
        before = steps_in(folder / "d")
        joiner = start(["join", where, "--threads", 1], env=SECRET)
        for beat in range(20):
            for one in dribblers:
                try:
                    one.sendall(bytes([beat]))
                except OSError:
                    pass
            time.sleep(0.05)
        wait_for(lambda: steps_in(folder / "d") > before + 5, "the training goes on")
        process.send_signal(signal.SIGINT)
        code, _, err = finish(process)
        check(code == 130, f"{code} {err}")
        code, _, said = finish(joiner)
        check(code == 0 and "first push" in said, f"{code} {said}")
        for one in dribblers:
            one.close()


if __name__ == "__main__":
    main(globals())
