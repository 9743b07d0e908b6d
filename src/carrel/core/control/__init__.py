"""The loop that turns decisions into deeds: snapshot, policy, store, engine, observe. And the lab as its callers see it."""
