//! The vhost-user front-end: a virtio network card for programs and containers.
