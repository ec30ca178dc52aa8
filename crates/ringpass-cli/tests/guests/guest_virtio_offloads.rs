//! Checksums, segmentation and long frames through virtio cards in a guest, as far as each kind of card
//! supports them.

use crate::common::matrix::{Kind, go_through};
use ringpass_lab::Qemu;

const fn all(device: &'static str, says: &'static [&'static str]) -> Kind {
    Kind { device, options: "--offloads all", mtu: 1500, says }
}

const fn long(device: &'static str, says: &'static [&'static str]) -> Kind {
    Kind { device, options: "--mtu 9000", mtu: 9000, says }
}

const KINDS: [Kind; 10] = [
    all("", &["mergeable buffers"]),
    all("packed=on,in_order=on", &["mergeable buffers"]),
    long("packed=on,in_order=on", &["mergeable buffers"]),
    all("mrg_rxbuf=off", &["no segments are received"]),
    long("mrg_rxbuf=off", &["buffers for each frame"]),
    long("packed=on,mrg_rxbuf=off,indirect_desc=off", &["buffers for each frame"]),
    all("disable-modern=on,any_layout=off,indirect_desc=off", &["legacy", "mergeable buffers"]),
    long("disable-modern=on,any_layout=off,mrg_rxbuf=off,indirect_desc=off", &["legacy", "buffers for each frame"]),
    all("csum=off,host_tso4=off,guest_csum=off", &["in software: checksums, segmentation"]),
    Kind { options: "--offloads all --queues 2", ..all("mq=on,packed=on", &["2 queues"]) },
];

#[test]
fn offloads_and_long_frames_of_every_kind_of_card() {
    go_through("newest", Qemu::Newest, &KINDS);
}
