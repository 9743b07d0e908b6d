# %%
!echo one; echo two >&2
# %%
lines = !seq 3
lines
# %%
word = "interpolated"
!echo {word} $word
# %%
!exit 3
_exit_code
# %%
%%bash
set -e
for n in 1 2; do echo "n=$n"; done
# %%
%%bash
echo before; false
# %%
%%sh --out collected
echo quiet
# %%
collected
# %%
import subprocess, sys
process = subprocess.Popen([sys.executable, "-c", "print(input()[::-1])"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
process.communicate("abc\n")
# %%
subprocess.run([sys.executable, "-c", "import os; print('PYTHONPATH' in os.environ, 'carrel_kernel' in __import__('sys').modules)"], capture_output=True, text=True).stdout
# %%
subprocess.run(["no-such-program"])
# %%
subprocess.run(["false"], check=True)
# %%
import multiprocessing
def square(n):
    return n * n
with multiprocessing.get_context("fork").Pool(2) as pool:
    print(pool.map(square, range(4)))
# %%
import os
reading, writing = os.pipe()
if os.fork() == 0:
    os.write(writing, b"from a child")
    os._exit(0)
os.wait()[1], os.read(reading, 100)
# %%
%%script cat
as it is
