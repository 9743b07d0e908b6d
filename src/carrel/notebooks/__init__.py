"""Notebooks: the kernel hook, sessions of JupyterLab and the way to them, from notebook to task."""
