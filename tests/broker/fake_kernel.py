"""A process that speaks the leases' protocol and nothing else: what it reads on stdin goes to the broker, and back.

Standard library only: a stand-in for the kernel hook. It connects again by itself when the connection is lost,
says hello again, and repeats what it still waits for. Lines on stdin that start with "!" are for itself:
"!close" closes the connection for good, "!deaf" does not answer `prepare` any more, "!stop reading" reads no more.
"""

import contextlib
import ctypes
import json
import os
import select
import socket
import subprocess
import sys
import time

#: A process beside it with a state of known value, which may have mapped a file before.
CHILD = """
import mmap, sys
file = sys.argv.pop()
opened = [open(file, "r+b")] if file else []
kept = [mmap.mmap(one.fileno(), 0) for one in opened]
from carrel.node.suspension.specimen_main import main
sys.exit(main())
"""


class Kernel:
    def __init__(self, path, hello):
        self.path, self.hello = path, hello
        self.waiting = {}
        self.children = []
        self.hoarders = []
        self.deaf = False
        self.closed = False
        self.reading = True
        self.connect()

    def connect(self):
        while True:
            self.socket = socket.socket(socket.AF_UNIX)
            try:
                self.socket.connect(self.path)
                break
            except OSError:
                self.socket.close()
                time.sleep(0.01)
        self.data = b""
        self.send({"op": "hello", **self.hello})
        for message in self.waiting.values():
            self.send(message)

    def send(self, message):
        with contextlib.suppress(OSError):  # seen when reading
            self.socket.sendall(json.dumps(message).encode() + b"\n")

    def said(self, line):
        if line == "!close":
            self.closed = True
            self.socket.close()
        elif line == "!deaf":
            self.deaf = True
        elif line == "!stop reading":
            self.reading = False
        elif line.startswith("!"):
            self.compute(*line[1:].split())
        else:
            message = json.loads(line)
            if message["op"] == "acquire":
                self.waiting[message["request"]] = message
            elif message["op"] == "cancel":
                self.waiting.pop(message["request"], None)
            self.send(message)

    def compute(self, order, *words):
        """Orders for a CUDA state of known value: "!cuda SIZE DEVICE", "!check", "!where", "!run", "!stop", and "!load FILE" for
        a library; "!child SIZE DEVICE [FILE]" starts a process below this one, and "!ask WHAT" has all of these do it;
        "!hoard BYTES" starts one that keeps so much of the machine's memory. Each has an answer.
        """
        answer = {"op": order}
        if order == "cuda":
            os.environ["CUDA_VISIBLE_DEVICES"] = words[1]
            from carrel.node.suspension.specimen_main import State

            self.state = State(int(words[0]))
        elif order == "check":
            answer["same"] = self.state.same()
        elif order == "where":
            answer["device"] = self.state.where()
        elif order == "run":
            self.state.run(10**9)
        elif order == "child":
            size, device, *file = words
            arguments = ["--size", size, "--device", device, *(file or [""])]
            child = subprocess.Popen(
                [sys.executable, "-c", CHILD, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            answer |= {"pid": child.pid, "ready": child.stdout.readline()}
            self.children.append(child)
        elif order == "hoard":
            program = f"kept = b'1' * {words[0]}; print(len(kept), flush=True); input()"
            hoarder = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            hoarder.stdout.readline()
            self.hoarders.append(hoarder)
        elif order == "ask":
            for child in self.children:
                child.stdin.write(json.dumps({"do": words[0], "times": 10**9}) + "\n")
                child.stdin.flush()
            answer["answers"] = [json.loads(child.stdout.readline()) for child in self.children]
        elif order == "load":
            ctypes.CDLL(words[0])
        elif order == "stop":
            self.state.stop()
            answer["count"] = self.state.count
        print(json.dumps(answer), flush=True)

    def heard(self):
        try:
            piece = self.socket.recv(65536)
        except OSError:
            piece = b""
        if not piece:
            print(json.dumps({"op": "disconnected"}), flush=True)
            self.socket.close()
            self.connect()
            return
        *lines, self.data = (self.data + piece).split(b"\n")
        for line in lines:
            message = json.loads(line)
            if message["op"] in ("granted", "refused", "cancelled"):
                self.waiting.pop(message.get("request"), None)
            if message["op"] == "prepare" and not self.deaf:
                self.send(
                    {
                        "op": "prepared",
                        "id": message["id"],
                        "bytes": None,
                        "cached": [],
                        "blockers": self.hello.get("blockers", []),
                    }
                )
            print(line.decode(), flush=True)

    def run(self):
        commands = b""
        while True:
            ends = [sys.stdin.fileno()] + ([] if self.closed or not self.reading else [self.socket.fileno()])
            ready = select.select(ends, [], [])[0]
            if sys.stdin.fileno() in ready:
                piece = os.read(sys.stdin.fileno(), 65536)
                if not piece:
                    return
                *lines, commands = (commands + piece).split(b"\n")
                for line in lines:
                    self.said(line.decode())
            elif ready:
                self.heard()


Kernel(sys.argv[1], json.loads(os.environ["HELLO"])).run()
