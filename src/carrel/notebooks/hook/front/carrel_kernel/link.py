"""The connection to the broker of the node, in a thread of its own. It speaks the protocol of ``carrel.node.leases.protocol``."""

import json
import os
import socket
import threading
import time
import uuid
from collections import deque
from contextlib import suppress

VERSION = 1
#: Seconds between two tries to reach the broker.
RETRY = (0.05, 1.0)
_ORDINALS = {1: "1st", 2: "2nd", 3: "3rd"}


class Refused(Exception):
    """The broker will not do this; the text says why and what can be done."""


class Question:
    """A request for a lease. `granted` or `refused` is set in the end; `heard(question)` is called at news, in the lock."""

    def __init__(self, request, gpus, cell, heard):
        self.request = request
        self.gpus = gpus
        self.cell = cell
        self.line = ""
        self.granted = None
        self.refused = None
        self._heard = heard

    @property
    def settled(self):
        return self.granted is not None or self.refused is not None

    def tell(self):
        """There is something new."""
        self._heard(self)


class Link:
    """The connection to the broker, in a thread of its own; it connects again for as long as the process lives."""

    def __init__(self, path, token, kernel_id, label, on_message):
        self._path = path
        self._hello = {"v": VERSION, "role": "kernel", "token": token, "kernel": kernel_id, "label": label}
        if address := os.environ.get("CARREL_SESSION_ADDRESS"):
            self._hello["attempt"] = os.path.dirname(address)
        elif attempt := os.environ.get("CARREL_ATTEMPT_DIR"):
            self._hello["attempt"] = attempt
        self._on_message = on_message
        #: Held while anything changes that is known of leases.
        self.lock = threading.RLock()
        self._socket = None
        self._questions = {}
        self._answers = {}
        self.pid = os.getpid()
        self.welcome = {}
        self.greeted = threading.Event()
        #: Why there will never be a connection, or None.
        self.refused = None
        self.thread = threading.Thread(target=self._run, name="carrel-leases", daemon=True)

    def start(self):
        """Begin to connect."""
        self.thread.start()
        os.register_at_fork(after_in_child=self._leave)

    def acquire(self, gpus, cell, heard):
        """Ask for a lease. The answer comes to the question that is returned."""
        question = Question(uuid.uuid4().hex, gpus, cell, heard)
        with self.lock:
            if self.refused is not None:
                question.refused = self.refused
                return question
            self._questions[question.request] = question
            if not self._send("acquire", request=question.request, gpus=gpus, cell=cell):
                question.line = _AWAY
        return question

    def cancel(self, question):
        """The cell does not want it any more; what was granted meanwhile is given back."""
        with self.lock:
            self._questions.pop(question.request, None)
            if question.granted is not None:
                self.release(question.granted, outcome="aborted")
            else:
                self._send("cancel", request=question.request)

    def release(self, lease, **facts):
        """Give a lease back. While there is no connection it is remembered, and given back with the next one."""
        with self.lock:
            self._questions.pop(lease.get("request"), None)
            fields = {"lease": lease["lease"], "fence": lease.get("fence", 0), **facts}
            if not self._send("release", **fields):
                self._answers.setdefault("later", deque(maxlen=100)).append(fields)

    def say(self, op, **fields):
        """Say something that needs no answer. True when it went out."""
        with self.lock:
            return self._send(op, **fields)

    def ask(self, op, answers, seconds=3.0, **fields):
        """Say something and wait for one of `answers`. Raises `Refused`; returns None when nobody answers."""
        box = {"event": threading.Event(), "message": None, "ops": (*answers, "refused")}
        with self.lock:
            self._answers[op] = box
            sent = self._send(op, **fields)
        if sent:
            box["event"].wait(seconds)
        with self.lock:
            self._answers.pop(op, None)
        message = box["message"]
        if message is not None and message["op"] == "refused":
            raise Refused(_words(message))
        return message

    # -- the thread

    def _run(self):
        pause = RETRY[0]
        while self.refused is None and os.getpid() == self.pid:
            try:
                with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                    connection.connect(self._path)
                    pause = RETRY[0]
                    self._talk(connection)
            except (OSError, ValueError):
                pass
            finally:
                self._lost()
            if self.refused is None:
                time.sleep(pause)
                pause = min(RETRY[1], pause * 2)

    def _talk(self, connection):
        connection.sendall(_line("hello", **self._hello))
        with connection.makefile("rb") as lines:
            for line in lines:
                message = json.loads(line)
                if isinstance(message, dict):
                    self._take(message, connection)

    def _take(self, message, connection):
        op = message.get("op")
        with self.lock:
            if op == "welcome":
                self._welcomed(message, connection)
                return
            if op == "refused" and not self.greeted.is_set() and "request" not in message:
                self.refused = _words(message)
                for question in self._questions.values():
                    question.refused = self.refused
                    question.tell()
                self._questions.clear()
                self.greeted.set()
                return
            question = self._questions.get(message.get("request"))
            if question is not None:
                self._settle(question, message)
                return
            if op == "granted":  # for a cell that has stopped waiting
                self._send("release", lease=message["lease"], fence=message.get("fence", 0), outcome="aborted")
                return
            for asked, box in list(self._answers.items()):
                if asked != "later" and op in box["ops"]:
                    box["message"] = message
                    box["event"].set()
                    return
        self._on_message(message)

    def _welcomed(self, message, connection):
        self.welcome = message
        self._socket = connection
        for fields in self._answers.pop("later", ()):
            self._send("release", **fields)
        known = {lease.get("request"): lease for lease in message.get("leases") or ()}
        for question in self._questions.values():
            if question.granted is None and question.request in known:
                self._settle(question, known[question.request])
            elif question.granted is None:
                self._send("acquire", request=question.request, gpus=question.gpus, cell=question.cell)
        for request, lease in known.items():
            if request not in self._questions:  # granted while we were away, for a cell that is over
                self._send("release", lease=lease["lease"], fence=lease.get("fence", 0), outcome="aborted")
        self.greeted.set()
        self._on_message(message)

    def _settle(self, question, message):
        op = message.get("op")
        if op == "queued":
            question.line = _waiting_line(message)
        elif op == "refused":
            self._questions.pop(question.request, None)
            question.refused = _words(message)
        elif op == "cancelled":
            self._questions.pop(question.request, None)
            return
        elif "lease" in message:
            question.granted = message
        question.tell()

    def _send(self, op, **fields):
        if self._socket is None:
            return False
        try:
            self._socket.sendall(_line(op, **fields))
        except OSError:
            return False
        return True

    def _lost(self):
        with self.lock:
            self._socket = None
            for question in self._questions.values():
                if not question.settled:
                    question.line = _AWAY
                    question.tell()

    def _leave(self):
        """In a forked child: the connection is the parent's. Its descriptor is closed, so that the end of the parent shows."""
        self.lock = threading.RLock()
        connection, self._socket = self._socket, None
        self.refused = "This is a child process of the kernel."
        if connection is not None:
            with suppress(OSError):
                os.close(connection.detach())


_AWAY = "waiting for a GPU: the node's broker does not answer; it is being started again"


def _line(op, **fields):
    return json.dumps({"op": op, **fields}, separators=(",", ":")).encode() + b"\n"


def _words(message):
    return " ".join(part for part in (message.get("message"), message.get("remedy")) if part) or "refused"


def _waiting_line(message):
    if message.get("message"):
        return str(message["message"])
    position = message.get("position") or 1
    estimate = message.get("estimate")
    about = "" if estimate is None else ", about %d s" % round(estimate)
    return "waiting for a GPU: %s in line%s" % (_ORDINALS.get(position, "%dth" % position), about)
