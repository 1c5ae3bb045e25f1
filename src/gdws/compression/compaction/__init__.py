"""Networks with channels that are zero, made really smaller."""
