# %%
import asyncio, contextlib
async def ticks(n):
    for k in range(n):
        await asyncio.sleep(0)
        yield k
[k async for k in ticks(4)]
# %%
async def shout(reader, writer):
    writer.write((await reader.readline()).upper())
    await writer.drain()
    writer.close()
server = await asyncio.start_unix_server(shout, "shout.sock")
reader, writer = await asyncio.open_unix_connection("shout.sock")
writer.write(b"hello\n")
print(await reader.readline())
writer.close(); server.close()
# %%
async def fails():
    await asyncio.sleep(0)
    raise ValueError("in a task")
results = await asyncio.gather(fails(), asyncio.sleep(0, "fine"), return_exceptions=True)
results
# %%
await fails()
# %%
background = asyncio.create_task(asyncio.sleep(3600))
background.done()
# %%
background.cancel()
with contextlib.suppress(asyncio.CancelledError):
    await background
background.cancelled()
# %%
try:
    await asyncio.wait_for(asyncio.sleep(3600), 0.01)
except asyncio.TimeoutError:
    print("too late")
# %%
asyncio.run(asyncio.sleep(0))
# %%
loop = asyncio.get_running_loop()
await loop.run_in_executor(None, sum, [1, 2, 3])
# %%
event = asyncio.Event()
loop.call_later(0.01, event.set)
await event.wait()
# %%
lock, order = asyncio.Lock(), []
async def turn(name):
    async with lock:
        order.append(name)
        await asyncio.sleep(0)
await asyncio.gather(*map(turn, "abc"))
order
# %%
@contextlib.asynccontextmanager
async def opened():
    print("open")
    yield 7
    print("close")
async with opened() as seven:
    print(seven)
# %%
await asyncio.to_thread(lambda: "from a thread")
