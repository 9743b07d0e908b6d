# %%
import queue, threading
from concurrent.futures import ThreadPoolExecutor, as_completed
from multiprocessing.pool import ThreadPool
jobs, done = queue.Queue(), queue.Queue()
def work():
    while (job := jobs.get()) is not None:
        done.put(job ** 2)
worker = threading.Thread(target=work, name="squares")
worker.start()
# %%
for n in range(5):
    jobs.put(n)
[done.get() for _ in range(5)]
# %%
jobs.put(None)
worker.join()
worker.is_alive()
# %%
with ThreadPoolExecutor(3) as pool:
    print(list(pool.map(str.upper, ["a", "b", "c"])))
# %%
with ThreadPoolExecutor(2) as pool:
    futures = [pool.submit(divmod, 7, n) for n in (0, 2)]
sorted(type(future.exception()).__name__ for future in as_completed(futures))
# %%
futures[0].result()
# %%
with ThreadPool(2) as pool:
    print(pool.map(abs, [-1, -2]))
# %%
def fails():
    raise RuntimeError("in a thread")
threading.excepthook = lambda arguments: print("hook:", arguments.exc_value)
thread = threading.Thread(target=fails); thread.start(); thread.join()
# %%
local = threading.local()
local.value = 1
seen = []
def look():
    seen.append(hasattr(local, "value"))
thread = threading.Thread(target=look); thread.start(); thread.join()
seen
# %%
flag = threading.Event()
timer = threading.Timer(0.01, flag.set); timer.start()
flag.wait(60)
# %%
from functools import wraps
pool = ThreadPoolExecutor(1, initializer=lambda: None)
future = pool.submit(lambda: threading.current_thread().name.rsplit("_", 1)[-1])
future.result()
# %%
pool.shutdown()
pool.submit(print)
