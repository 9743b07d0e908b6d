"""Messages over sockets and pipes, and the thread that waits for them: framing, limits, deadlines, descriptors, timers.

`framing` knows where a message ends, `channel` carries messages between two processes, `reactor` is one thread that waits for
many things. What a message means is the business of those who send and receive it.
"""
