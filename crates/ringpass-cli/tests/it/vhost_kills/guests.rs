//! Guests are killed together with QEMU: before their firmware runs, while Linux boots, when its driver starts,
//! under traffic.

use std::time::Duration;

use ringpass_lab::{Builder, Guest, VhostUser};

use crate::common::vhost::{Backend, serve, socket, up, vhost, with_servers};
use crate::common::{Random, folder};
use crate::vhost_kills::Held;

/// Kinds of cards, and the port and options of the back-end of each: one has a card that receives into the
/// guest's buffers.
const CARDS: [(&str, &str, &str); 2] =
    [("virtio-net-pci", "model:tap:", "--map"), ("virtio-net-pci,packed=on", "tap:", "--offloads all")];

/// Starts the driver.
const BEGIN: &str = "modprobe virtio_net
                     for name in $(ls /sys/class/net); do ip link set $name up; done";

/// Numbers of guests that are killed early, when the driver starts, and under traffic.
const EARLY: usize = 28;
const BEGINNING: usize = 8;
const AT_WORK: usize = 4;

#[test]
fn guests_under_traffic() {
    let folder = folder();
    let mut back_ends = Vec::new();
    for (number, (_, far, options)) in (5..).zip(CARDS) {
        let back_end = Backend::between(number, &vhost(&socket(&folder, number)), far, options);
        // Frames arrive at a guest that has not announced its address.
        let mac = ringpass_lab::nic_mac(usize::from(number) - 5);
        back_end.host.neighbour(&back_end.tap, &back_end.guest(), &mac);
        back_ends.push(back_end);
    }
    let pings: Vec<_> = back_ends.iter().map(Backend::flood).collect();
    let builder = || -> Builder {
        let cards = (5..).zip(CARDS);
        cards.fold(with_servers(Guest::new()), |guest, (number, (device, ..))| {
            guest.vhost_user_nic(device, &VhostUser::at(&socket(&folder, number)))
        })
    };
    let at_work = || {
        let guest = builder().boot();
        serve(&guest);
        for (card, number) in (5..8).take(CARDS.len()).enumerate() {
            up(&guest, card, number);
            back_ends[card].first_ping();
            back_ends[card].pings(50, 1000);
        }
    };
    at_work();
    let held: Vec<_> = back_ends.iter().map(|back_end| Held::without_peers(back_end.id())).collect();
    let mut random = Random::new(6);
    for _ in 0..EARLY {
        let guest = builder().launch();
        std::thread::sleep(Duration::from_millis(50 + random.below(700)));
        drop(guest);
    }
    for _ in 0..BEGINNING {
        let guest = builder().boot();
        guest.send_script(BEGIN);
        std::thread::sleep(Duration::from_millis(random.below(600)));
        drop(guest);
    }
    (1..AT_WORK).for_each(|_| at_work());
    held.iter().for_each(Held::no_more);
    drop(pings);
    for back_end in back_ends {
        assert_eq!(back_end.wrong_checksums(), 0);
        let (summary, log) = back_end.end();
        let port = &summary["ports"][1]["extended"];
        eprintln!("{} guests: {port}", EARLY + BEGINNING + AT_WORK);
        assert!(port["guest_faults"] == 0 && port["sessions"].as_u64() > Some(AT_WORK as u64), "{summary}{log}");
    }
}
