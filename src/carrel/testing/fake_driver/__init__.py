"""A fake NVIDIA driver: `libcuda.so.1` and `libnvidia-ml.so.1` of our own, on which the real cuda-bindings and nvidia-ml-py run.

There is no hardware behind it, but device memory has real contents, is really moved by the checkpoint calls, runs out, and
belongs to processes; it can be mapped at addresses of one's choice (cuMemCreate, cuMemMap); streams, events, graphs and a few
kernels (launches.c) do their work in order, in threads, when the call has returned, and work whose memory is not there then ends
the context; calls wait while a process is locked; and any call can be told to go wrong. What it does not know: kernels of one's
own, arrays and textures, copies of rectangles, graphs that are built by hand, memory of the host by cuMemCreate.

    from carrel.testing.fake_driver import build

    driver = build(tmp_path, gpus=2)            # compiles (about a second); driver.another(path) reuses the libraries
    subprocess.Popen([sys.executable, ...], env=driver.environment())
    driver.inject("cuCheckpointProcessRestore", "hang", -1)

Two variables make a process see it, and have to be there when it starts: LD_LIBRARY_PATH (the libraries first) and
CARREL_FAKE_DRIVER (the directory in which all of them meet). CUDA_VISIBLE_DEVICES works as usual. A running process - pytest
itself, say - cannot switch over: start what shall see the driver as a child. The libraries clear away what dead processes left.

`start_specimen` starts a small program with CUDA state, driven through pipes.
"""

from carrel.testing.fake_driver.build import STATE_VARIABLE, FakeDriver, FakeGpu, build, find_compiler
from carrel.testing.fake_driver.specimen import start_specimen

__all__ = ["STATE_VARIABLE", "FakeDriver", "FakeGpu", "build", "find_compiler", "start_specimen"]
