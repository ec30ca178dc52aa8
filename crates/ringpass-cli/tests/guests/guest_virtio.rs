//! Ringpass between two virtio cards in a guest, with the host's kernel at both far ends: every kind of virtio
//! card of two QEMU versions. The tables that this test prints are those of docs/guests.md.

use crate::common::matrix::{Kind, go_through};
use ringpass_lab::Qemu;

const fn plain(device: &'static str, says: &'static [&'static str]) -> Kind {
    Kind { device, options: "", mtu: 1500, says }
}

/// Cards that both QEMU versions have.
const KINDS: [Kind; 9] = [
    plain("disable-modern=on", &["legacy", "split rings"]),
    plain("", &["modern", "split rings", "event index", "indirect descriptors"]),
    plain("disable-legacy=on", &["modern"]),
    plain("packed=on", &["modern", "packed rings"]),
    plain("mrg_rxbuf=off", &["modern"]),
    Kind { options: "--queues 2", ..plain("mq=on", &["2 queues"]) },
    plain("event_idx=off", &["modern"]),
    plain("indirect_desc=off", &["modern"]),
    // Like VirtualBox's card: the header needs a separate descriptor.
    plain("disable-modern=on,any_layout=off,mrg_rxbuf=off,event_idx=off,indirect_desc=off", &["legacy"]),
];

/// Features that only newer versions have, and combinations.
const NEWER: [Kind; 4] = [
    plain("in_order=on", &["split rings, in order"]),
    plain("packed=on,in_order=on", &["packed rings, in order"]),
    plain("packed=on,event_idx=off,indirect_desc=off,mrg_rxbuf=off", &["packed rings"]),
    plain("queue_reset=off,rx_queue_size=1024", &["rings of 512 and 256"]),
];

#[test]
fn every_kind_of_card_of_the_newest_qemu() {
    go_through("newest", Qemu::Newest, &[&KINDS[..], &NEWER].concat());
}

#[test]
fn every_kind_of_card_of_qemu_7_2() {
    go_through("7.2", Qemu::V7_2, &KINDS);
}
