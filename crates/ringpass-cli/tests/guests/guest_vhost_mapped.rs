//! Rx queue mapping with Linux's virtio-net in a QEMU guest: a card, which is a model, receives into the
//! guest's own buffers. Meanwhile the back-end is killed, and the guest is rebooted and killed.

use crate::common::folder;
use crate::common::vhost::{Backend, carrier, serve, socket, up, vhost, with_servers};
use ringpass_lab::{Guest, VhostUser};

/// Kinds of cards in the guest, and options of the forwarder.
const KINDS: [(&str, &str); 3] = [
    ("virtio-net-pci", "--map"),
    ("virtio-net-pci,packed=on", "--map"),
    ("virtio-net-pci,packed=on,mrg_rxbuf=off,indirect_desc=off", "--map --offloads checksum"),
];

fn boot(folder: &tempfile::TempDir) -> Guest {
    let guest =
        (0..).zip(KINDS).fold(with_servers(Guest::new().memory(512).cpus(2)), |guest, (number, (device, _))| {
            guest.vhost_user_nic(device, &VhostUser::at(&socket(folder, number)))
        });
    let guest = guest.boot();
    serve(&guest);
    guest
}

fn works(guest: &Guest, backends: &[Backend]) {
    for (number, backend) in backends.iter().enumerate() {
        up(guest, number, number as u8);
        backend.works();
    }
}

fn passes(guest: &Guest, backends: &[Backend]) {
    for (number, backend) in backends.iter().enumerate() {
        up(guest, number, number as u8);
        backend.passes();
    }
}

#[test]
fn a_card_receives_into_the_guests_buffers() {
    let folder = folder();
    let mut backends: Vec<_> = (0..)
        .zip(KINDS)
        .map(|(number, (_, options))| Backend::between(number, &vhost(&socket(&folder, number)), "model:tap:", options))
        .collect();
    let guest = boot(&folder);
    works(&guest, &backends);

    // A back-end is killed with frames in flight to lent buffers; the next one finds out which buffers those
    // were. This works for split rings only: QEMU does not know the position in packed rings.
    for _ in 0..3 {
        let _pings = backends[0].flood();
        backends[0].kill();
        guest.run(&carrier(0, 0));
        backends[0].start();
        guest.run(&carrier(0, 1));
        backends[0].passes();
    }
    eprintln!("the guest boots anew, and then it is killed; packets come all the time");
    let pings: Vec<_> = backends.iter().map(Backend::flood).collect();
    guest.reboot();
    serve(&guest);
    passes(&guest, &backends);
    drop(guest);
    let guest = boot(&folder);
    passes(&guest, &backends);
    drop(pings);
    for (number, backend) in backends.into_iter().enumerate() {
        assert_eq!(backend.wrong_checksums(), 0);
        let (summary, log) = backend.end();
        let port = &summary["ports"][1];
        eprintln!("{}: {port}\n{log}", KINDS[number].0);
        let extended = |name: &str| port["extended"][name].as_u64().unwrap_or_else(|| panic!("no {name}: {port}"));
        let sent = port["tx_packets"].as_u64().expect("a count");
        assert_eq!(extended("guest_faults"), 0, "{port}");
        // At the start of a session, the card uses some of the host's buffers.
        assert!(extended("mapped_packets") + 300 > sent * 9 / 10, "{port}");
        assert!(extended("mapped_host_buffers") < sent / 10 + 5000, "{port}");
    }
}
