"""Real devices: each is a process on its own host and talks only to its neighbours, over mutual TLS.

certificates   the deployment's own authority: keys, signing requests, certificates
deployment     the folder of a deployment: one TOML file per device
messages       the messages on a link, and the checks on those that come in
mailbox        a neighbour, and its messages that wait to be used
exchange       when a link counts: both ends agree
links          a device's neighbours, and the exchange of numbers with them
engine         gossip over such links
transport      how messages travel: zenoh, and whom it lets in
zenoh_log      the connections and writes that zenoh refused
monitor        a device's log, its status, its metrics for Prometheus
node           one device, from its TOML file to its record
joined         the records of all devices as one run
together       all devices of a deployment on one machine, a process each
commands       the functions behind `drdsgd network`

Needs `pip install drdsgd[network]`.
"""

__all__: list[str] = []
