"""Starts a kernel as ipykernel's own launcher does, with leases."""

import os
import sys


def main():
    """Tidy up the paths, then start. Nothing else has been imported before: see the first comment."""
    front = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    # The first entry is the working directory (python -m): a file of the user's must not take the place of a module.
    if sys.path and sys.path[0] in ("", os.getcwd()):
        del sys.path[0]
    # Programs that cells start have nothing to do with this package.
    rest = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part and os.path.abspath(part) != front]
    if rest:
        os.environ["PYTHONPATH"] = os.pathsep.join(rest)
    else:
        os.environ.pop("PYTHONPATH", None)
    from ipykernel.kernelapp import IPKernelApp

    from carrel_kernel.kernel import CarrelKernel
    from carrel_kernel.source import name_notebook

    name_notebook()
    IPKernelApp.launch_instance(kernel_class=CarrelKernel)


if __name__ == "__main__":
    main()
