"""Real devices: each a process on a host of its own, that talks to its neighbours only, over mutual TLS.

certificates   the deployment's own authority: keys, signing requests, certificates
deployment     a folder that says who there is: one TOML file per device
messages       what goes over a link, and the checks on what comes
links          a device's neighbours, and the exchange of numbers with them
transport      how messages travel: zenoh, and whom it lets in
node           one device, from its TOML file to its record
monitor        its log, its status, its metrics for Prometheus
joined         the devices' records as one
together       all devices of a deployment on one machine, a process each
commands       what `drdsgd network` does

`drdsgd.network.engine` is the gossip over such links. Needs `pip install drdsgd[network]`.
"""

__all__: list[str] = []
