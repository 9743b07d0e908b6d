"""The lab's own process: what it remembers, its API and pages, who may come in, and how it is put together."""
