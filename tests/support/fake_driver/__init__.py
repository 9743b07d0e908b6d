"""A fake NVIDIA driver: `libcuda.so.1` and `libnvidia-ml.so.1` of our own, on which the real cuda-bindings and nvidia-ml-py run.

There is no hardware behind it, but device memory has real contents, is really moved by the checkpoint calls, runs out, and
belongs to processes; calls wait while a process is locked; and any call can be made to fail (`FakeDriver.inject`). It knows

* devices, primary and other contexts, peers; what addresses are (cuPointerGetAttribute, cuMemGetAddressRange);
* memory: cuMemAlloc, cuMemAllocPitch, cuMemAllocManaged; addresses and memory apart (cuMemAddressReserve, cuMemCreate, cuMemMap,
  cuMemSetAccess and what belongs to them: only of devices, whole handles from their beginning, exported but not imported); pools
  (cuMemAllocAsync, cuMemPool..., which keep nothing); memory of other processes (cuIpc...); host memory, own and registered;
* work: copies and fills, also Async; cuLaunchHostFunc; cuLaunchKernel and cuLaunchKernelEx of the kernels in launches.c; streams,
  events, capture and graphs. Each stream has a thread that does its work in order; streams.c says what the default streams do,
  graphs.c what captures forbid. Work whose memory is not there when its turn comes ends the context with 700 for all that follows
  (`FakeDriver.broken`), and a process has one such fate for all its contexts;
* the checkpoint calls, which refuse processes with managed or shared memory; NVML as far as it lists devices and processes, and
  cuts GPUs into slices by the rules of real ones (mig.c).

Not: kernels of one's own, arrays and textures, copies of rectangles, graphs that are built by hand or do things side by side.
Calls are found by both forms of cuGetProcAddress, also for the per-thread default stream, and by their names (first_names.ld).

    from support.fake_driver import build

    driver = build(tmp_path, gpus=2)            # compiles (about a second); driver.another(path) reuses the libraries
    subprocess.Popen([sys.executable, ...], env=driver.environment())
    driver.inject("cuCheckpointProcessRestore", "hang", -1)

Two variables make a process see it, and have to be there when it starts: LD_LIBRARY_PATH (the libraries first) and
CARREL_FAKE_DRIVER (the directory in which all of them meet). CUDA_VISIBLE_DEVICES works as usual. A running process - pytest
itself, say - cannot switch over: start what shall see the driver as a child. The libraries clear away what dead processes left.

`start_specimen` starts a small program with CUDA state, driven through pipes; `start_worker` one in C that allocates, trains,
captures and looks calls up as frameworks do, and knows nothing of us.
"""

from support.fake_driver.build import STATE_VARIABLE, FakeDriver, FakeGpu, build, find_compiler
from support.fake_driver.specimen import start_specimen
from support.fake_driver.worker import Worker, start_worker

__all__ = ["STATE_VARIABLE", "FakeDriver", "FakeGpu", "Worker", "build", "find_compiler", "start_specimen", "start_worker"]
