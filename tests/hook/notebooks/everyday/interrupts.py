# %%
import os, signal, time
try:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(60)
except KeyboardInterrupt:
    print("stopped")
# %%
os.kill(os.getpid(), signal.SIGINT)
time.sleep(60)
# %%
print("the kernel lives")
# %%
rang = []
signal.signal(signal.SIGALRM, lambda *_: rang.append("ring"))
signal.setitimer(signal.ITIMER_REAL, 0.01)
while not rang:
    time.sleep(0.001)
rang
# %%
def too_slow(*_):
    raise TimeoutError("too slow")
signal.signal(signal.SIGALRM, too_slow)
signal.setitimer(signal.ITIMER_REAL, 0.01)
time.sleep(60)
# %%
for n in range(3):
    try:
        if n == 1:
            raise KeyboardInterrupt
        print(n)
    finally:
        print("finally", n)
# %%
print("after it")
