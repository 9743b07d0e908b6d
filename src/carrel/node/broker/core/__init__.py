"""What a broker remembers and decides: events in, effects out. No clock, sockets, threads, files or driver."""
