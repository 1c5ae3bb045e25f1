"""Make pruned networks smaller by removing channels that are zero."""
