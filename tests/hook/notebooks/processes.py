# %%
import subprocess, sys
subprocess.run([sys.executable, "-c", "print(6 * 7)"], capture_output=True, text=True).stdout
# %%
!echo from the shell
# %%
%%bash
for n in 1 2 3; do echo $n; done
# %%
import multiprocessing as mp
with mp.get_context("fork").Pool(2) as pool:
    print(pool.map(abs, [-1, -2, -3]))
# %%
from concurrent.futures import ProcessPoolExecutor
with ProcessPoolExecutor(2, mp_context=mp.get_context("spawn")) as pool:
    print(list(pool.map(abs, [-4, -5])))
# %%
import os
pid = os.fork()
if pid == 0:
    os._exit(7)
os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
