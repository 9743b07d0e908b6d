# %%
def divide(a, b):
    return a / b
divide(1, 0)
# %%
print("goes on")
# %%
for = 1
# %%
raise KeyError("no such key")
# %%
class Wrong(Exception):
    pass
try:
    raise Wrong("caught")
except Wrong as error:
    print(error)
# %%
%time _ = sum(range(10))
# %%
%nonsense
# %%
import time
try:
    time.sleep(0)
    raise KeyboardInterrupt
except KeyboardInterrupt:
    print("interrupted")
