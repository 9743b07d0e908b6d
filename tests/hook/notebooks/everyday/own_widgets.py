# %%
from comm import create_comm
class Slider:
    def __init__(self, value):
        self.value, self.comm = value, create_comm(target_name="own.slider", data={"value": value})
        self.comm.on_msg(self.heard)
    def heard(self, message):
        self.value = message["content"]["data"]["value"]
    def move(self, value):
        self.value = value
        self.comm.send({"value": value})
    def _repr_mimebundle_(self, **_):
        return {"text/plain": f"Slider({self.value})", "application/x-slider": {"value": self.value}}
slider = Slider(3)
slider
# %%
slider.move(5)
slider.value
# %%
slider.heard({"content": {"data": {"value": 9}}})
slider
# %%
slider.comm.send({"method": "custom"}, metadata={"own": True}, buffers=[b"bytes"])
# %%
slider.comm.close()
# %%
from IPython.display import display
progress = display("0 %", display_id="progress")
for percent in (50, 100):
    progress.update(f"{percent} %")
# %%
Slider()
