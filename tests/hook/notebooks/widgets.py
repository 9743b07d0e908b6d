# %%
import ipywidgets as widgets
slider = widgets.IntSlider(value=3, min=0, max=10)
seen = []
slider.observe(lambda change: seen.append(change["new"]), names="value")
# %%
slider.value = 7
seen
# %%
out = widgets.Output()
with out:
    print("inside")
len(out.outputs)
# %%
from tqdm.auto import tqdm
sum(n for n in tqdm(range(50), disable=True))
# %%
from tqdm import tqdm as plain
import io
text = io.StringIO()
for _ in plain(range(3), file=text):
    pass
"3/3" in text.getvalue()
