"""Shardwright beside its peers, judged by the compiler: `make peers`, docs/peers.md."""
