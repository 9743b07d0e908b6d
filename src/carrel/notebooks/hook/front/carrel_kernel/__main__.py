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
    from carrel_kernel.descriptors import Descriptors

    try:
        descriptors = Descriptors()
    except OSError:  # no process more; a kernel with ipykernel's own way is better than no kernel
        descriptors = None
    import zmq
    from ipykernel.kernelapp import IPKernelApp

    from carrel_kernel.kernel import CarrelKernel
    from carrel_kernel.source import name_notebook

    class KernelApp(IPKernelApp):
        """Loses no output: ZeroMQ drops what a busy reader has not taken after 1000 messages."""

        def init_iopub(self, context):
            context.setsockopt(zmq.SNDHWM, 0)
            super().init_iopub(context)

        def init_io(self):
            super().init_io()
            if descriptors is not None:
                descriptors.show({1: sys.stdout, 2: sys.stderr}, self.log)

        def init_kernel(self):
            super().init_kernel()
            self.kernel.descriptors = descriptors

    name_notebook()
    KernelApp.launch_instance(kernel_class=CarrelKernel, capture_fd_output=descriptors is None)


if __name__ == "__main__":
    main()
