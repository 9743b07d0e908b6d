# %%
import asyncio
async def fetch(n):
    await asyncio.sleep(0.01)
    return n * n
await fetch(3)
# %%
await asyncio.gather(*(fetch(n) for n in range(4)))
# %%
task = asyncio.create_task(fetch(5))
print("made")
# %%
await task
# %%
queue = asyncio.Queue()
async def produce():
    for n in range(3):
        await queue.put(n)
    await queue.put(None)
found = []
producer = asyncio.create_task(produce())
while (item := await queue.get()) is not None:
    found.append(item)
found
