# %%
from IPython.display import HTML, JSON, SVG, Image, Latex, Markdown, clear_output, display, update_display
HTML("<h3>Title</h3>")
# %%
display(Markdown("*text*"), Latex("$x^2$"), JSON({"a": [1, 2]}))
# %%
SVG('<svg xmlns="http://www.w3.org/2000/svg"><rect width="1" height="1"/></svg>')
# %%
import base64
Image(base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="))
# %%
shown = display("first", display_id="fixed")
shown.update("second")
update_display("third", display_id="fixed")
# %%
for step in range(3):
    clear_output(wait=True)
    print("step", step)
# %%
class Point:
    def __init__(self, x):
        self.x = x
    def _repr_html_(self):
        return f"<i>{self.x}</i>"
    def __repr__(self):
        return f"Point({self.x})"
[Point(1), Point(2)]
# %%
Point(3)
# %%
class Bundle:
    def _repr_mimebundle_(self, include=None, exclude=None):
        return {"text/plain": "plain", "application/x-own+json": {"k": 1}}
Bundle()
# %%
class Broken:
    def _repr_html_(self):
        raise ValueError("no html")
    def __repr__(self):
        return "Broken()"
Broken()
# %%
import sys, time
for percent in (0, 50, 100):
    sys.stdout.write(f"\r{percent} %")
    sys.stdout.flush()
# %%
print("out"); print("err", file=sys.stderr); print("out again")
# %%
display({"text/plain": "raw", "text/html": "<b>raw</b>"}, raw=True)
# %%
sys.displayhook(5)
