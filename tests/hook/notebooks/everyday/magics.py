# %%
%%time
total = sum(range(1000))
total
# %%
%timeit -n 2 -r 1 sum(range(10))
# %%
%%capture caught
print("to stdout")
import sys; print("to stderr", file=sys.stderr)
from IPython.display import HTML, display
display(HTML("<b>kept</b>"))
# %%
caught.stdout, caught.stderr, len(caught.outputs)
# %%
caught()
# %%
%%writefile helper.py
def double(n):
    return 2 * n
# %%
%load_ext autoreload
%autoreload 2
import helper
helper.double(21)
# %%
%%writefile helper.py
def double(n):
    return n + n + 1
# %%
helper.double(21)
# %%
%%writefile script.py
import sys
print("script", sys.argv[1:])
value = 5
# %%
%run script.py one two
value
# %%
%who int
# %%
%env ANSWER=42
%env ANSWER
# %%
%%html
<em>hello</em>
# %%
%precision 3
3.14159265
# %%
%history -n 1-2
# %%
%%no_such_magic
x
# %%
names = !printf 'a\nb\n'
names.n
# %%
%sx echo shell
# %%
%prun -q -T profile.txt sum(range(10))
# %%
%%python3 -c "print('elsewhere')"
# %%
_ = %pwd
type(_).__name__
