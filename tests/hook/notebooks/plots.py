# %%
%matplotlib inline
import matplotlib.pyplot as plt
import numpy as np
x = np.linspace(0, 6.28, 50)
# %%
fig, ax = plt.subplots(figsize=(3, 2))
ax.plot(x, np.sin(x), label="sin")
ax.legend()
plt.show()
# %%
len(fig.axes), ax.get_legend_handles_labels()[1]
