# %%
def documented(n: int = 3) -> str:
    """What it promises."""
    return str(n)
documented(7)
# %%
_, __ if "__" in globals() else None, Out[1], In[1][:3]
# %%
get_ipython().run_cell("nested = 5; nested")
nested
# %%
seen = []
def before(info):
    seen.append(info.raw_cell.splitlines()[0])
get_ipython().events.register("pre_run_cell", before)
# %%
"a cell"
# %%
get_ipython().events.unregister("pre_run_cell", before)
seen
# %%
from IPython.core.magic import register_cell_magic, register_line_magic
@register_line_magic
def shout(line):
    return line.upper()
@register_cell_magic
def reverse(line, cell):
    return cell[::-1]
# %%
%shout quietly
# %%
%%reverse
abc
# %%
get_ipython().display_formatter.formatters["text/plain"].for_type(complex, lambda value, printer, cycle: printer.text("complex!"))
1j
# %%
get_ipython().user_global_ns is globals(), get_ipython().execution_count
# %%
get_ipython().ast_node_interactivity = "all"
# %%
1
2
# %%
sorted(name for name in dir() if not name.startswith("_"))
# %%
%reset -f
"documented" in dir()
# %%
import builtins
input is not builtins.__dict__.get("raw"), callable(display)
# %%
exec("made = 1", globals()); eval("made + 1")
