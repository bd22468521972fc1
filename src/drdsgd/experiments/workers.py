"""Several runs at once, each in a process of its own, on threads of its own.

A worker is `python -m drdsgd.experiments.workers`. The process that starts the workers does runs itself, too. They are
joined by pairs of sockets, because a model may print to standard output. Both sides speak lines of JSON:

    ["ready", null]                                                          from it: its modules are loaded
    {"path": "out/dsgd/seed-0", "experiment": {...}, "log": ["mlflow"]}      to it: begin this run, or continue it
    ["round", 17]                                                            from it: how far the run is
    ["say", "--log mlflow: ..."]                                             a line for the user
    ["over", null]                                                           finished or diverged: its folder says which
    ["interrupted", null], ["input", "--p 0.1: ..."], ["system", [28, "No space left on device", "/x"]],
    ["memory", "..."]                                                        what else may end it

A worker that hears no more finishes its round, saves a checkpoint and ends: so it is asked to stop, and so it notices
that nobody is there any more.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from drdsgd.errors import Died, Diverged, InputError, Interrupted, out_of_memory
from drdsgd.experiments import loggers
from drdsgd.experiments.config import Experiment
from drdsgd.experiments.records import Folder
from drdsgd.experiments.run import run, stop_requests

__all__ = ["Job", "Team", "carry_out", "main", "serve", "team"]

Job = tuple[Experiment, Path]

# seconds between two words of a worker on how far it is, and at most until a Ctrl-C is seen
SAY_EVERY, LOOK_EVERY = 0.1, 0.2
# seconds that a process may take to end when all is said
END_WITHIN = 20.0


def carry_out(
    e: Experiment,
    path: Path,
    watch: Callable[[int], None],
    stop: Callable[[], bool] = lambda: False,
    log: loggers.Make = loggers.no_log,
) -> None:
    """Begin a run, or continue it. `watch` sees the round reached; a run that diverges counts as at its last.

    >>> import tempfile
    >>> reached = []
    >>> e = Experiment(dataset="synthetic", devices=4, rounds=3, graph="ring", threads=1)
    >>> carry_out(e, Path(tempfile.mkdtemp()) / "run", reached.append)
    >>> reached
    [0, 1, 2, 3]
    """
    try:
        again = Folder(path).config.exists()
        run(e, path, resume=again, watch=lambda progress: watch(progress.state.t), stop=stop, log=log)
    except Diverged:  # its summary says so
        watch(e.rounds)


# ------------------------------------------------------------------- the side that starts them


class Worker:
    """A process, and which job it has in hand."""

    def __init__(self, threads: int) -> None:
        self.job: int | None = None
        self.ready = self.stopped = self.silent = False
        self.channel, theirs = socket.socketpair()
        with theirs:
            self.process = _start(theirs.fileno(), threads)
        self._unread = b""

    def give(self, e: Experiment, path: Path, log: Sequence[str] = ()) -> None:
        """Let it begin or continue a run."""
        about = {"path": str(path), "experiment": e.model_dump(exclude_none=True), "log": list(log)}
        line = json.dumps(about) + "\n"
        with suppress(ConnectionError):  # it has died; we hear of that when we listen
            self.channel.sendall(line.encode())

    def stop(self) -> None:
        """Ask it to end: after its round, if it is in one."""
        self.stopped = True
        if not self.ready:
            self.process.kill()  # it would load all its modules first
        with suppress(OSError):  # it has ended already
            self.channel.shutdown(socket.SHUT_WR)

    def hear(self) -> list[tuple[str, Any]]:
        """What it said; waits until it says something, or is silent."""
        heard = b""
        with suppress(ConnectionError):  # it has died
            heard = self.channel.recv(2**16)
        self.silent = not heard
        *lines, self._unread = (self._unread + heard).split(b"\n")
        return [(kind, value) for kind, value in map(json.loads, lines)]

    def end(self) -> int:
        """See that the process is no more, and how it ended."""
        self.channel.close()
        try:
            return self.process.wait(END_WITHIN)
        except subprocess.TimeoutExpired:  # somebody's model has left a thread that does not end
            self.process.kill()
            return self.process.wait()


class Team:
    """Runs that are shared out between this process and workers."""

    _selector: selectors.BaseSelector

    def __init__(
        self,
        jobs: Sequence[Job],
        watch: Callable[[int, int], None],
        workers: Sequence[Worker],
        log: Sequence[str] = (),
    ) -> None:
        self._jobs, self._watch, self._workers, self._log = jobs, watch, workers, log
        self._waiting, self._done = iter(range(len(jobs))), 0
        self._failure: BaseException | None = None

    def run(self) -> None:
        """All runs, each as soon as somebody is free for it.

        Whatever goes wrong with one of them, the others finish their round and save it before it is raised. So they
        do on a first Ctrl-C or SIGTERM; a second Ctrl-C is a `KeyboardInterrupt` at once.
        """
        with selectors.DefaultSelector() as self._selector:
            with stop_requests() as asked_to_stop:

                def stopping() -> bool:
                    if asked_to_stop() and self._failure is None:
                        self._failure = Interrupted()
                    return self._failure is not None

                for worker in self._workers:
                    self._selector.register(worker.channel, selectors.EVENT_READ, worker)
                while not stopping() and (job := next(self._waiting, None)) is not None:
                    self._run_here(job, stopping)
                for worker in self._workers:
                    if not worker.ready:  # nothing is left for it
                        worker.stop()
                while not stopping() and self._selector.get_map():
                    self._listen(LOOK_EVERY)
            # here the next Ctrl-C is a second one
            for worker in self._workers:
                worker.stop()
            while self._selector.get_map():
                self._listen(LOOK_EVERY)
        if isinstance(self._failure, Interrupted):
            left = len(self._jobs) - self._done
            raise Interrupted(f"stopped with {left} {'run' if left == 1 else 'runs'} unfinished")
        if self._failure is not None:
            raise self._failure

    def _run_here(self, job: int, stopping: Callable[[], bool]) -> None:
        """A run in this process, which now and then hears what the workers have to say."""
        listen = _seldom(lambda t: self._listen(0))

        def watch(t: int) -> None:
            self._watch(job, t)
            listen(t)

        try:
            carry_out(*self._jobs[job], watch, stopping, loggers.of(self._log))
            self._done += 1
        except (Exception, Interrupted) as error:
            self._failure = self._failure or error

    def _listen(self, timeout: float) -> None:
        """Hear what the workers have to say, and give their next run to those that are free."""
        for key, _ in self._selector.select(timeout):
            worker: Worker = key.data
            for kind, value in worker.hear():
                if kind == "ready":  # not before: until then, short runs are done here
                    worker.ready = True
                    self._next(worker)
                    continue
                assert worker.job is not None
                if kind == "round":
                    self._watch(worker.job, value)
                elif kind == "say":
                    loggers.complain(value)
                elif kind == "over":
                    self._watch(worker.job, self._jobs[worker.job][0].rounds)
                    self._done += 1
                    self._next(worker)
                else:
                    self._failure, worker.job = self._failure or _failure(kind, value), None
            if worker.silent:
                self._selector.unregister(worker.channel)
                status = worker.end()
                if worker.job is not None:
                    self._failure = self._failure or _death(status, f"of the run in {self._jobs[worker.job][1]}")
                elif not worker.stopped:
                    self._failure = self._failure or _death(status, "of a worker")

    def _next(self, worker: Worker) -> None:
        """Give a worker the next run, if one is to be begun."""
        worker.job = next(self._waiting, None) if self._failure is None else None
        if worker.job is None:
            worker.stop()
        else:
            worker.give(*self._jobs[worker.job], self._log)


@contextmanager
def team(
    jobs: Sequence[Job], at_once: int, watch: Callable[[int, int], None], log: Sequence[str] = ()
) -> Iterator[Team]:
    """This process and as many workers as it takes for so many runs at once; after the block the workers are gone.

    They start now, to be ready when `Team.run` is called. `watch` sees the index of a run and the round it reached.
    Runs are copied to the logs of these names.
    """
    workers: list[Worker] = []
    try:
        for _ in range(at_once - 1):
            workers.append(Worker(threads=jobs[0][0].threads))
        yield Team(jobs, watch, workers, log)
    except BaseException:
        for worker in workers:
            worker.process.kill()  # those that `run` asked to stop are gone by now
        raise
    finally:
        for worker in workers:
            worker.end()


def _start(number: int, threads: int) -> subprocess.Popen[bytes]:
    """The process of a worker for runs on so many threads, which gets the socket of that number."""
    return subprocess.Popen(
        # -P: else modules in the working directory come before all others
        [sys.executable, "-P", "-m", "drdsgd.experiments.workers", str(number)],
        stdin=subprocess.DEVNULL,
        pass_fds=[number],
        start_new_session=True,  # the terminal's Ctrl-C is for us alone; we ask them to stop
        env={
            **os.environ,
            "OMP_NUM_THREADS": str(threads),
            "MKL_NUM_THREADS": str(threads),
            "OPENBLAS_NUM_THREADS": str(threads),
            "OMP_WAIT_POLICY": "PASSIVE",  # see cli.main
            "PYTHONPATH": os.pathsep.join(str(Path(path).absolute()) for path in sys.path),
        },
    )


def _failure(kind: str, value: Any) -> BaseException:
    """The exception that ended a worker's run."""
    if kind == "system":
        return OSError(*value)
    return {"input": InputError, "memory": MemoryError, "interrupted": Interrupted}[kind](value)


def _death(status: int, whose: str) -> Died:
    """What to say of a worker that ended though nobody asked it to."""
    if status < 0:
        how = f"was killed (signal {-status}, {signal.strsignal(-status)}); if memory was short, use fewer --threads"
    else:
        how = f"ended with status {status}; what it said stands above"
    return Died(f"the process {whose} {how}")


# ------------------------------------------------------------------------------ a worker's side


def main() -> None:
    """The program `python -m drdsgd.experiments.workers NUMBER`, where the number is that of an open socket."""
    with socket.socket(fileno=int(sys.argv[1])) as channel:
        channel.set_inheritable(False)  # what a model starts must not keep it open
        serve(channel)


def serve(channel: socket.socket) -> None:
    """Carry out what the other side asks for, one run after the other, until it asks for no more."""
    jobs: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
    stop = threading.Event()

    def listen() -> None:
        with suppress(ConnectionError), channel.makefile("rb") as lines:
            for line in lines:
                jobs.put(json.loads(line))
        stop.set()
        jobs.put(None)

    def say(kind: str, value: Any = None) -> None:
        with suppress(ConnectionError):  # nobody listens: then we hear no more, either, and stop
            channel.sendall(json.dumps([kind, value]).encode() + b"\n")

    threading.Thread(target=listen, daemon=True).start()
    say("ready")
    while (job := jobs.get()) is not None and not stop.is_set():
        watch = _seldom(partial(say, "round"))
        log = loggers.of(job["log"], partial(say, "say"))
        say(*_outcome(Experiment(**job["experiment"]), Path(job["path"]), watch, stop.is_set, log))


def _outcome(
    e: Experiment, path: Path, watch: Callable[[int], None], stop: Callable[[], bool], log: loggers.Make
) -> tuple[str, Any]:
    """Carry out a run, and how it ended; a bug is not caught, so that one sees where it is."""
    try:
        carry_out(e, path, watch, stop, log)
        return "over", None
    except InputError as error:
        return "input", str(error)
    except KeyboardInterrupt:
        return "interrupted", None
    except OSError as error:
        if error.errno is None:
            return "system", [str(error)]
        return "system", [error.errno, error.strerror, str(error.filename) if error.filename else None]
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        return "memory", str(error)


def _seldom(watch: Callable[[int], None]) -> Callable[[int], None]:
    """Sees the round reached, but not more often than is of use."""
    last = float("-inf")

    def seldom(t: int) -> None:
        nonlocal last
        if (now := time.monotonic()) - last >= SAY_EVERY:
            last = now
            watch(t)

    return seldom


if __name__ == "__main__":
    main()
