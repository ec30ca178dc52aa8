//! Two guests on one Ringpass process, whose cards are connected by `ringpass fwd`.

use std::time::Duration;

use crate::common::guest::{answered, tcp_by};
use crate::common::vhost::{serve, socket, up, vhost, with_servers, wrong_checksums};
use crate::common::{Program, RINGPASS, folder, wait_until};
use ringpass_lab::{Builder, Guest, VhostUser};
use serde_json::Value;

/// Cards of the guests and options of the forwarder. The guests have different kinds, so that split rings meet
/// packed ones.
const KINDS: [([&str; 2], &str); 2] = [
    (["virtio-net-pci", "virtio-net-pci,packed=on"], "--offloads all"),
    (["virtio-net-pci,packed=on,mrg_rxbuf=off", "virtio-net-pci"], "--map"),
];

#[test]
fn two_guests_on_one_back_end_program() {
    let folder = folder();
    let mut builders = [(); 2].map(|()| with_servers(Guest::new()));
    let mut forwarders = Vec::new();
    for (number, (devices, options)) in (0..).zip(KINDS) {
        let sockets = [0, 1].map(|guest| socket(&folder, 2 * number + guest));
        let [a, b] = sockets.each_ref().map(|socket| vhost(socket));
        let mut command = vec![RINGPASS, "fwd", &a, &b, "--json", "--hugepages", "off"];
        command.extend(options.split_whitespace());
        let program = Program::spawn(&command);
        wait_until("the forwarder's first line", || program.line().contains("stats"));
        forwarders.push(program);
        let mut each = sockets.iter().zip(devices);
        builders = builders.map(|builder| {
            let (socket, device) = each.next().expect("one for each guest");
            builder.vhost_user_nic(device, &VhostUser::at(socket))
        });
    }
    let guests = Builder::boot_all(builders);
    for (who, guest) in guests.iter().enumerate() {
        serve(guest);
        for number in 0..KINDS.len() {
            up(guest, number, number as u8);
            let host = 2 + who;
            guest.run(&format!(
                "ip link set v{number} address 02:00:00:00:0{host}:0{number}
                 ip address flush dev v{number}; ip address add 198.18.{number}.{host}/24 dev v{number}"
            ));
        }
    }
    let [a, _] = &guests;
    for (number, (devices, options)) in KINDS.iter().enumerate() {
        let far = format!("198.18.{number}.3");
        wait_until("the first ping", || {
            a.output(&format!("ping -c 1 -W 1 {far}"), Duration::from_secs(60)).status == 0
        });
        for size in [16, 700, 1472] {
            let text = a.run(&format!("ping -c 100 -i 0.01 -s {size} -M do -w 60 {far}"));
            assert!(answered(&text, 100), "{text}");
        }
        for direction in ["", "-R"] {
            let rate = tcp_by(|| a.run(&format!("iperf3 -c {far} -t 1 -J {direction}")));
            eprintln!("{devices:?} {options} {direction}: {rate:.0} Mbit/s");
        }
    }
    for guest in &guests {
        assert_eq!(wrong_checksums(&guest.run("cat /proc/net/snmp")), 0);
    }
    for (forwarder, (_, options)) in forwarders.into_iter().zip(KINDS) {
        let summary = forwarder.summary();
        for port in summary["ports"].as_array().expect("ports") {
            assert_eq!(port["extended"]["guest_faults"], Value::from(0), "{summary}");
            let mapped = port["extended"]["mapped_packets"].as_u64();
            assert_eq!(mapped > Some(100), options == "--map", "{summary}");
        }
    }
}
