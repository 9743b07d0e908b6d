# %%
def outer(n):
    try:
        return 1 / n
    except ZeroDivisionError as error:
        raise KeyError("outer") from error
outer(0)
# %%
print(undefined_name)
# %%
if True:
print("indent")
# %%
"unterminated
# %%
assert 1 == 2, "not equal"
# %%
import warnings
warnings.warn("careful", UserWarning)
# %%
import sys
sys.exit(3)
# %%
class Own(Exception):
    def _render_traceback_(self):
        return ["own words"]
raise Own
# %%
def deep(n):
    return deep(n + 1)
try:
    deep(0)
except RecursionError as error:
    print("too deep:", "recursion" in str(error))
# %%
try:
    int("x")
except ValueError as error:
    import traceback
    print(traceback.format_exc().splitlines()[-1])
# %%
raise BaseException("not even an Exception")
# %%
[][1]
# %%
lambda: (yield)
# %%
return 5
# %%
await 5
# %%
print("still here", _oh is Out)
