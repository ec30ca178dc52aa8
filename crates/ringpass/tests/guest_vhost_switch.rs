//! Two guests, a process with namespaces of its own as containers have, and a card on one `ringpass switch`.

mod common;

use common::guest::answered;
use common::vhost::{serve, socket, up, vhost, with_servers};
use common::{Namespace, Program, RINGPASS, folder, run, text, unique, until};
use ringpass_lab::{Builder, Guest, VhostUser, alone};
use serde_json::Value;

/// Somebody at the switch: how a command is run there, and the address.
struct Station<'a> {
    address: &'static str,
    run: Box<dyn Fn(&str) -> String + 'a>,
}

#[test]
fn guests_a_container_and_a_card_on_one_switch() {
    let _alone = alone();
    let folder = folder();
    let sockets = [0, 1, 2].map(|number| socket(&folder, number));
    let (host, tap) = (Namespace::new(), unique("ts"));
    let ports = sockets.each_ref().map(|socket| vhost(socket));
    let card = format!("model:tap:{tap}");
    let [first, second, third] = &ports;
    let switch = [RINGPASS, "switch", first, second, third, &card, "--json", "--hugepages", "off"];
    let switch = host.spawn(&switch);
    until("the switch's first line", || switch.line().contains("stats"));
    host.run(&["ip", "address", "add", "198.18.0.1/24", "dev", &tap]);

    // Users, mounts and network of its own; in it a TAP, whose packets go to the switch.
    let container = format!("virtio-user:{}", text(&sockets[2]));
    let container = Program::spawn(&[
        "unshare",
        "--user",
        "--map-root-user",
        "--mount",
        "--net",
        RINGPASS,
        "fwd",
        &container,
        "tap:c0",
        "--json",
        "--hugepages",
        "off",
        "--no-sandbox",
    ]);
    until("the container's first line", || container.line().contains("stats"));
    let id = container.id().to_string();
    let enter = ["nsenter", "--target", &id, "--user", "--net", "--mount", "--preserve-credentials", "sh", "-c"];
    let inside = |script: &str| run(&[&enter[..], &[script]].concat());
    inside("ip address add 198.18.0.4/24 dev c0; ip link set c0 up");

    let mut sockets = sockets.iter();
    let builders = ["virtio-net-pci", "virtio-net-pci,packed=on"].map(|device| {
        with_servers(Guest::new()).vhost_user_nic(device, &VhostUser::at(sockets.next().expect("one for each")))
    });
    let guests = Builder::boot_all(builders);
    for (guest, host) in guests.iter().zip(2..) {
        serve(guest);
        up(guest, 0, 0);
        guest.run(&format!(
            "ip link set v0 address 02:00:00:00:04:0{host}
             ip address flush dev v0; ip address add 198.18.0.{host}/24 dev v0"
        ));
    }

    let [a, b] = &guests;
    let stations = [
        Station { address: "198.18.0.1", run: Box::new(|script| host.run(&["sh", "-c", script])) },
        Station { address: "198.18.0.2", run: Box::new(|script| a.run(script)) },
        Station { address: "198.18.0.3", run: Box::new(|script| b.run(script)) },
        Station { address: "198.18.0.4", run: Box::new(inside) },
    ];
    for from in &stations {
        for Station { address: to, .. } in stations.iter().filter(|to| to.address != from.address) {
            (from.run)(&format!("ping -c 1 -w 10 {to}"));
            let text = (from.run)(&format!("ping -c 50 -i 0.01 -s 1000 -w 20 {to} || true"));
            assert!(answered(&text, 50), "from {} to {to}: {text}", from.address);
        }
    }
    // TCP from everybody else to the first guest.
    for from in stations.iter().filter(|from| from.address != "198.18.0.2") {
        let mut text = String::new();
        until("the iperf3 server", || {
            text = (from.run)("iperf3 -c 198.18.0.2 -t 1 -J || true");
            !text.contains("unable to connect")
        });
        let result: Value = serde_json::from_str(&text).expect("JSON");
        let bits = result["end"]["sum_received"]["bits_per_second"].as_f64().unwrap_or(0.0);
        assert!(bits > 1e6, "{text}");
        eprintln!("from {}: {:.0} Mbit/s", from.address, bits / 1e6);
    }
    drop(stations);
    let summary = switch.summary();
    for port in summary["ports"].as_array().expect("ports") {
        assert!(port["rx_packets"].as_u64() > Some(150) && port["tx_packets"].as_u64() > Some(150), "{port}");
        assert_eq!(port["extended"]["guest_faults"].as_u64().unwrap_or(0), 0, "{port}");
    }
}
