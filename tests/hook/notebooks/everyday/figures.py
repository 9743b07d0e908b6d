# %%
%matplotlib inline
import matplotlib.pyplot as plt
import numpy as np
x = np.linspace(0, 3, 20)
# %%
plt.plot(x, x ** 2);
# %%
fig, axes = plt.subplots(1, 2, figsize=(4, 2), sharey=True)
axes[0].hist(np.sin(x), bins=5)
axes[1].bar(["a", "b"], [1, 2])
fig.suptitle("two")
# %%
plt.gcf().number, plt.get_fignums()
# %%
fig, ax = plt.subplots()
ax.scatter(x, -x)
plt.close(fig)
"closed"
# %%
from IPython.display import display
fig = plt.figure(figsize=(1, 1))
display(fig)
fig.savefig("out.png")
import os
os.path.getsize("out.png") > 100
# %%
plt.plot([1, 2], [1, 2, 3])
