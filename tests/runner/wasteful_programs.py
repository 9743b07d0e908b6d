"""Small programs that hold a GPU and waste it, each in its own way; and some that do not. They run on the fake driver."""

_GPU = """\
import ctypes, os, sys, threading, time
cuda = ctypes.CDLL("libcuda.so.1")

def open_gpu(size=1 << 20):
    context, at = ctypes.c_void_p(), ctypes.c_uint64()
    assert cuda.cuInit(0) == 0
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert cuda.cuCtxSetCurrent(context) == 0
    assert cuda.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(size)) == 0
    data = bytes(size)
    return lambda: cuda.cuMemcpyHtoD_v2(at, data, ctypes.c_size_t(size))

"""

#: Its loader has one worker, which is slow.
ONE_WORKER = (
    _GPU
    + """\
import multiprocessing

class DataLoader:
    def __init__(self):
        self.batches, theirs = multiprocessing.get_context("fork").Pipe(duplex=False)
        multiprocessing.get_context("fork").Process(target=prepare, args=(theirs,), daemon=True).start()

    def __iter__(self):
        return self

    def __next__(self):
        return self.batches.recv()

def prepare(batches):
    while True:
        time.sleep(0.02)
        batches.send(b"batch")

step = open_gpu()
for batch in DataLoader():
    step()  # the line above is the one that waits
"""
)

#: Many short calls, with more of Python than of the GPU between them.
TINY_BATCHES = (
    _GPU
    + """\
step = open_gpu()
def train():
    while True:
        begin = time.perf_counter()
        step()
        took = time.perf_counter() - begin
        while time.perf_counter() < begin + 16 * took:
            pass
train()
"""
)

#: Computes with what looks like PyTorch to the system, a build without CUDA.
CPU_TORCH = """\
import mmap, os
os.makedirs("torch/lib")
with open("torch/lib/libtorch_cpu.so", "w+b") as library:
    library.write(bytes(4096))
    library.flush()
    mapped = mmap.mmap(library.fileno(), 4096)
while True:
    pass
"""

#: Two threads that each wait for what the other holds.
DEADLOCK = (
    _GPU
    + """\
open_gpu()()
one, other, both = threading.Lock(), threading.Lock(), threading.Barrier(2)

def take(first, second):
    with first:
        both.wait()
        with second:
            pass

threading.Thread(target=take, args=(one, other), daemon=True).start()
take(other, one)
"""
)

#: Reads what does not stay in memory, as a program does that is swapped out.
SWAPPING = (
    _GPU
    + """\
import mmap
open_gpu()()
with open("data", "wb") as file:
    file.write(os.urandom(32 << 20))
    file.flush()
    os.fsync(file.fileno())
with open("data", "rb") as file:
    while True:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            mapped.madvise(mmap.MADV_RANDOM)
            for page in range(0, 32 << 20, 4096):
                mapped[page]
"""
)

#: Has a GPU, and computes without it.
NEVER_OPENED = """\
def train():
    while True:
        sum(range(10_000))
train()
"""

#: Asks a server that never answers.
NETWORK = (
    _GPU
    + """\
import socket, urllib.request
open_gpu()()
server = socket.create_server(("127.0.0.1", 0))
urllib.request.urlopen("http://127.0.0.1:%d/data" % server.getsockname()[1])
"""
)

#: Keeps its GPU busy.
BUSY = (
    _GPU
    + """\
step = open_gpu(8 << 20)
while True:
    step()
"""
)

#: Reads for a part of the time that is looked at, and keeps its GPU busy then.
READS_FIRST = (
    _GPU
    + """\
step = open_gpu(8 << 20)
time.sleep(3)
while True:
    step()
"""
)

_FOR_A_WHILE = """\
def compute(seconds):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        step()

"""

#: Its loader has four workers, which are faster than the GPU.
ENOUGH_WORKERS = (
    _GPU
    + _FOR_A_WHILE
    + """\
import multiprocessing

class DataLoader:
    def __init__(self, workers):
        fork = multiprocessing.get_context("fork")
        self.batches = fork.Queue(2 * workers)
        for _ in range(workers):
            fork.Process(target=prepare, args=(self.batches,), daemon=True).start()

    def __iter__(self):
        return self

    def __next__(self):
        return self.batches.get()

def prepare(batches):
    while True:
        time.sleep(0.02)
        batches.put(b"batch")

loader = DataLoader(workers=4)
step = open_gpu(8 << 20)
for batch in loader:
    compute(0.03)
"""
)

#: Trains, and between epochs is evaluated on a processor, which takes two fifths of the time.
EVALUATES = (
    _GPU
    + _FOR_A_WHILE
    + """\
step = open_gpu(8 << 20)
while True:
    compute(0.3)
    until = time.monotonic() + 0.2
    while time.monotonic() < until:
        sum(range(1000))
"""
)

#: Is hardly busy, and over before there is something to say.
SHORT = _GPU + "open_gpu()()\ntime.sleep(1)\n"
