# %% [markdown]
# # Arrays with NumPy
# %%
import numpy as np
rng = np.random.default_rng(7)
data = rng.normal(size=(200, 3))
data.shape
# %%
mean, cov = data.mean(axis=0), np.cov(data.T)
print(np.round(mean, 4), np.round(np.linalg.eigvalsh(cov), 4))
# %%
with np.printoptions(precision=3, suppress=True):
    print(np.linalg.svd(data, compute_uv=False))
