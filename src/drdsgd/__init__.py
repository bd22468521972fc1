"""Train one model over a graph of devices, without a server, good for the worst-off device."""
