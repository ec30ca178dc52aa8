//! Memory that is plugged into a running guest and unplugged again, under traffic: our vhost-user back-end maps
//! and unmaps it, and so does a card that receives into that memory.

use std::fs;
use std::time::Duration;

use crate::common::guest::answered;
use crate::common::vhost::{Backend, serve, socket, up, vhost, with_servers};
use crate::common::{folder, wait_until};
use ringpass_lab::{Ended, Guest, VhostUser};

/// Size of a plugged memory module in MiB: the unit in which Linux onlines memory.
const MORE: u64 = 128;

/// Returns how many parts of a guest's memory a back-end has mapped.
fn mapped(backend: &Backend) -> usize {
    let maps = fs::read_to_string(format!("/proc/{}/maps", backend.id())).expect("a running back-end");
    maps.lines().filter(|line| line.contains("memfd:memory-backend-memfd")).count()
}

/// Returns whether QEMU's memory module of `MORE` MiB contains these bytes.
fn holds(guest: &Guest, bytes: &[u8]) -> bool {
    let files = fs::read_dir(format!("/proc/{}/fd", guest.id())).expect("a running QEMU");
    let paths = files.map(|file| file.expect("a descriptor").path());
    let memory = paths.filter(|path| {
        fs::read_link(path).is_ok_and(|name| name.to_string_lossy().contains("memfd:memory-backend-memfd"))
            && fs::metadata(path).is_ok_and(|memory| memory.len() == MORE << 20)
    });
    let memory = fs::read(memory.last().expect("the plugged memory")).expect("its bytes");
    memory.chunks(4096).any(|page| page.windows(bytes.len()).any(|window| window == bytes))
}

/// Kinds of cards in the guest, ports behind the back-end up to the TAP's name, options of the forwarder.
const KINDS: [(&str, &str, &str); 4] = [
    ("virtio-net-pci", "tap:", "--offloads all"),
    ("virtio-net-pci,packed=on", "tap:", "--offloads all"),
    ("virtio-net-pci", "model:tap:", "--map"),
    ("virtio-net-pci,packed=on", "model:tap:", "--map"),
];

#[test]
fn memory_comes_and_goes_under_traffic() {
    let folder = folder();
    let mut builder = with_servers(Guest::new().cpus(2));
    let mut backends = Vec::new();
    for (number, (device, far, options)) in (0..).zip(KINDS) {
        let socket = socket(&folder, number);
        backends.push(Backend::between(number, &vhost(&socket), far, options));
        builder = builder.vhost_user_nic(device, &VhostUser::at(&socket));
    }
    let guest = builder.boot();
    serve(&guest);
    for (number, backend) in (0..).zip(&backends) {
        up(&guest, number, number as u8);
        backend.first_ping();
    }
    let before: Vec<usize> = backends.iter().map(mapped).collect();
    let all_have = |more: usize| backends.iter().zip(&before).all(|(backend, before)| mapped(backend) == before + more);

    // Pings run all the time. None is lost, except those in a card that is stopped because it has to release
    // memory. The rate is low enough that the rings have room for all pings while a guest stands still for some
    // time.
    let count = 300;
    let pings: Vec<_> = backends
        .iter()
        .map(|backend| {
            backend.host.spawn(&["ping", "-c", &count.to_string(), "-i", "0.02", "-w", "60", &backend.guest()])
        })
        .collect();
    const BLOCKS: &str = "ls -d /sys/devices/system/memory/memory[0-9]* | wc -l";
    let blocks: usize = guest.run(BLOCKS).trim().parse().expect("a number of blocks");
    for module in ["first", "second"] {
        guest.monitor(&format!("object_add memory-backend-memfd,id={module},size={MORE}M,share=on"));
        guest.monitor(&format!("device_add pc-dimm,id={module}-dimm,memdev={module}"));
    }
    wait_until("the new memory in the back-ends", || all_have(2));
    // Linux refuses to remove a module that it is still adding.
    let there = |guest: &Guest| guest.run(BLOCKS).trim().parse::<usize>().expect("a number of blocks");
    wait_until("both modules in the guest", || there(&guest) >= blocks + 2);
    guest.monitor("device_del second-dimm");
    wait_until("the second module's end in the back-ends", || all_have(1));
    guest.monitor("object_del second");
    // Linux onlines the first module. It is above 4 GiB, which drivers prefer.
    guest.run(
        "cd /sys/devices/system/memory; for part in memory*; do
                   [ $(cat $part/state) = online ] || echo online_kernel >$part/state || exit
               done; grep MemTotal /proc/meminfo",
    );
    for (pings, (.., options)) in pings.into_iter().zip(KINDS) {
        let Ended { lines, .. } = pings.wait(Duration::from_secs(180));
        let text = lines.join("\n");
        let answers = text.matches(" bytes from ").count();
        eprintln!("{options}: {answers} of {count} pings are answered");
        assert!(answered(&text, count) || options == "--map" && answers > count * 9 / 10, "{text}");
    }
    for (number, backend) in (0..).zip(&backends) {
        backend.works();
        let pattern = format!("52494e4750415353{number:02x}");
        backend.host.run(&[
            "ping",
            "-c",
            "300",
            "-i",
            "0.002",
            "-s",
            "1000",
            "-p",
            &pattern,
            "-w",
            "20",
            &backend.guest(),
        ]);
        let bytes = [&b"RINGPASS"[..], &[number as u8]].concat().repeat(4);
        assert!(holds(&guest, &bytes), "packets in the new memory");
    }
    for (backend, (.., options)) in backends.into_iter().zip(KINDS) {
        let (summary, log) = backend.end();
        let port = &summary["ports"][1];
        assert!(!log.contains("WARN"), "{log}");
        assert_eq!(port["extended"]["guest_faults"], 0, "{port}");
        let (sent, mapped) = (port["tx_packets"].as_u64(), port["extended"]["mapped_packets"].as_u64());
        assert_eq!(mapped > sent.map(|sent| sent * 9 / 10), options == "--map", "{port}");
    }
}
