# %%
for n in range(20000):
    print(n, "x" * 40)
# %%
"y" * 2_000_000
# %%
from IPython.display import HTML, display
for n in range(50):
    display(HTML(f"<b>{n}</b>"))
# %%
import sys
sys.stderr.write("to stderr\n")
