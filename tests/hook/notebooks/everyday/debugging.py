# %%
import logging, sys, traceback, warnings
logging.basicConfig(level=logging.INFO, format="%(levelname)s:%(message)s", force=True)
logging.info("to the log")
# %%
%xmode Minimal
1 / 0
# %%
%xmode Context
# %%
calls = []
def tracer(frame, event, argument):
    if frame.f_code.co_name == "traced":
        calls.append(event)
    return tracer
def traced():
    return 1
before = sys.gettrace()
sys.settrace(tracer); traced(); sys.settrace(before)
calls
# %%
import io, contextlib
with contextlib.redirect_stdout(io.StringIO()) as text:
    print("not shown")
text.getvalue()
# %%
warnings.simplefilter("error")
warnings.warn("now an error")
# %%
try:
    raise ValueError("kept")
except ValueError:
    kept = sys.exc_info()
traceback.format_exception(*kept)[-1]
# %%
import cProfile, pstats
profile = cProfile.Profile()
profile.runcall(sorted, [3, 1, 2])
len(pstats.Stats(profile).stats) > 0
# %%
import gc, weakref
class Thing:
    pass
thing = Thing(); gone = weakref.ref(thing); del thing; gc.collect()
gone() is None
# %%
stack = traceback.extract_stack()
stack[-1].name
# %%
get_ipython().showtraceback(kept)
# %%
sys.excepthook.__name__ != "", sys.last_type.__name__
