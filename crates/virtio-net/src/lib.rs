//! The driver for virtio network cards.
