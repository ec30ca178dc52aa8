//! Tests of invalid input: each gives one line with cause and remedy, exit status 1, and no partial effects.

use std::fs::{self, File};

use crate::common::ringpass;
use memmap2::{MmapOptions, MmapRaw};
use ringpass_memory::{PageSize, huge_pages_free};
use rustix::fs::{FlockOperation, MemfdFlags, flock, ftruncate, memfd_create};

/// Runs a command that must fail with status 1 and print one line that contains all of `parts`.
fn refused(arguments: &[&str], parts: &[&str]) {
    let (status, out, errors) = ringpass(arguments);
    assert_eq!((status, out.as_str()), (Some(1), ""), "{arguments:?}: {errors}");
    let line = errors.lines().last().unwrap_or_default();
    assert!(line.starts_with("ringpass: "), "{arguments:?}: {errors}");
    assert_eq!(errors.lines().filter(|line| line.starts_with("ringpass: ")).count(), 1, "{errors}");
    for part in parts {
        assert!(line.contains(part), "{arguments:?}: '{part}' is not in: {line}");
    }
}

#[test]
fn addresses() {
    refused(&["fwd", "eth0", "null"], &["eth0", "packet:NAME"]);
    refused(&["fwd", "tap:", "null"], &["tap:NAME"]);
    // The kernel would turn this name into `ho0`.
    refused(&["fwd", "tap:ho%d", "null"], &["ho%d", "is not an interface name"]);
    refused(&["fwd", "packet:does-not-exist", "null"], &["does-not-exist"]);
    refused(&["fwd", "model,device=1234:null", "null"], &["1234", "10fb"]);
    refused(&["fwd", "ffff:ff:1f.7", "null"], &["ffff:ff:1f.7", "ringpass list"]);
    // A model's frames lie in the model's own memory, which a DMA device on its wire has not been given.
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("card");
    for wire in ["model:null", "virtio-user:/nowhere", "vfio-user:/nowhere", "0000:01:00.0"] {
        let words = [wire, "far end of a model's wire", "TAP"];
        refused(&["fwd", &format!("model:{wire}"), "null"], &words);
        refused(&["fwd", &format!("model:faults,drop=0.1:{wire}"), "null"], &words);
        refused(&["model", "82599", "--no-sandbox", "--socket", socket.to_str().unwrap(), "--wire", wire], &words);
    }
    refused(&["fwd", "model:null", "null", "--queues", "17"], &["17", "1 to 16"]);
}

#[test]
fn cards_of_others() {
    // Any PCI device of this machine that is not a network card, so that no working network card is touched.
    let mut devices = fs::read_dir("/sys/bus/pci/devices").into_iter().flatten().flatten();
    let class = |device: &fs::DirEntry| fs::read_to_string(device.path().join("class")).unwrap_or_default();
    let Some(device) = devices.find(|device| !class(device).starts_with("0x02")) else {
        println!("this machine has no PCI device to be refused");
        return;
    };
    let address = device.file_name().into_string().unwrap();
    let driver = || fs::read_link(device.path().join("driver")).ok();
    let before = driver();
    refused(&["fwd", &address, "null"], &[&address]);
    assert_eq!(driver(), before, "the kernel driver of a refused card");
}

/// Reserves all but a few of the free huge pages of 2 MiB, by mappings that are never touched. Tests that use
/// huge pages must not run at the same time.
fn without_huge_pages() -> (Option<File>, Vec<MmapRaw>) {
    let lock = File::open("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages").ok();
    lock.iter().for_each(|lock| flock(lock, FlockOperation::LockExclusive).expect("a lock"));
    let mut held = Vec::new();
    for _ in 0..1000 {
        let (free, _) = huge_pages_free(PageSize::Huge2M);
        if free <= 8 {
            return (lock, held);
        }
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
        let file = memfd_create("held", flags).expect("a file on huge pages");
        ftruncate(&file, (free as u64) << 21).expect("a file on huge pages");
        // Fails if another process was faster: then fewer pages are left.
        held.extend(MmapOptions::new().len(free << 21).map_raw(&file));
    }
    panic!("others keep giving huge pages back");
}

#[test]
fn too_few_huge_pages() {
    let _held = without_huge_pages();
    refused(
        &[
            "fwd",
            "model:null",
            "null",
            "--hugepages",
            "on",
            "--queues",
            "16",
            "--rxd",
            "4096",
            "--txd",
            "4096",
            "-t",
            "1",
        ],
        &["huge pages", "are needed", "are free", "nr_hugepages"],
    );
}

#[test]
fn a_bench_measures_what_needs_no_huge_pages() {
    let _held = without_huge_pages();
    let large = ["--ring", "4096", "--batch", "256", "--rounds", "2", "--json"];
    let (status, rows, errors) = ringpass(&[&["bench", "driver"][..], &large].concat());
    assert_eq!(status, Some(0), "{errors}");
    assert!(rows.contains(r#""pages":"ordinary""#) && !rows.contains("huge2m"), "{rows}");
    assert!(errors.contains("left out huge2m pages: ") && errors.contains("nr_hugepages"), "{errors}");
}

#[test]
fn permissions() {
    // Without capabilities: inside a user namespace the process is root, but has no rights over interfaces
    // outside.
    let (_folder, program) = crate::common::for_everybody();
    let Ok(output) = std::process::Command::new("setpriv")
        .args(["--reuid", "65534", "--regid", "65534", "--clear-groups"])
        .args([crate::common::text(&program), "fwd", "tap:rpdenied", "null"])
        .output()
    else {
        panic!("this test needs the program setpriv (util-linux)");
    };
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains("root") && errors.lines().last().unwrap().starts_with("ringpass: "), "{errors}");
}

#[test]
fn command_line() {
    let (status, _, errors) = ringpass(&["fwd", "null", "null", "--batch", "0"]);
    assert_eq!(status, Some(2), "{errors}");
    let (status, _, errors) = ringpass(&["fwd", "null", "null", "--rxd", "100"]);
    assert_eq!(status, Some(2), "{errors}");
    assert!(errors.contains("power of two"), "{errors}");
    for command in ["demo", "fwd", "pktgen", "dump", "echo", "ping", "list", "doctor", "bench"] {
        let (status, out, _) = ringpass(&[command, "--help"]);
        assert_eq!(status, Some(0));
        assert!(out.contains("EXAMPLES"), "{command} --help has no examples");
    }
}

/// Checks the messages for what newcomers mistype: each names the cause and what to write.
#[test]
fn mistakes_get_messages_that_say_what_to_write() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (number, range) = (file("a.toml", "[[port]]\naddress = 5"), file("b.toml", "[[port]]\nvlan = 99999"));
    for (line, message) in [
        ("fwd vale0: null", "address 'vale0:': the port is missing; write vale0:PORT"),
        (
            "fwd eth0 null",
            "address 'eth0': no kind of port; for a kernel interface of this name write packet:eth0, else",
        ),
        ("fwd model,device=abcd:null null", "model:null: there is no model of the device abcd; write device=10fb"),
        ("fwd pcap:/nosuch null", "capture file /nosuch: there is no such file or folder; check the path"),
        ("fwd pcap:/tmp null", "capture file /tmp: no regular file; copy what it holds into one"),
        (
            "fwd pcap:,out=/nosuch/a.pcap null",
            "capture file /nosuch/a.pcap: there is no such file or folder; check the path",
        ),
        ("switch --config /nosuch", "--config /nosuch: there is no such file or folder; check the path"),
        (&format!("switch --config {number}"), ":2: 'address = 5': invalid type: integer `5`, expected a string"),
        (
            &format!("switch --config {range}"),
            ":2: 'vlan = 99999': invalid value: integer `99999`, expected a number from 0 to 65535",
        ),
        ("switch null null", "two ports are called 'null'; give them names, in a file (--config)"),
        ("switch tap:x tap:x", "two ports are called 'tap:x'; give them names, in a file (--config)"),
        (
            "model 82599 --wire null --socket /nosuch/socket",
            "/nosuch/socket: there is no folder /nosuch; create it, or take another path",
        ),
    ] {
        refused(&line.split(' ').collect::<Vec<_>>(), &[message]);
    }
    for (line, message) in [
        ("fwd null null --cpu x", "'--cpu <LIST>': write numbers of CPUs, such as 2,3"),
        ("pktgen null --burst 8", "--rate <RATE>"),
        ("pktgen null --vary ttl=count", "unknown field 'ttl'; known: src-ip, dst-ip"),
        ("pktgen null --pcap a.pcap --vary src-ip=count", "cannot be used with"),
        ("pktgen null --rate 101%", "percent of the link (40%)"),
        ("pktgen null --vlan 4095", "'--vlan <ID[:PRIO]>': write a VLAN id, 0 to 4094"),
        ("pktgen null --vlan 1:8", "a priority, 0 to 7: 100 or 100:5"),
        ("pktgen null --src-ip 1.2.3", "'--src-ip <IP>': write an IP address, such as 198.18.0.1 or 2001:2::1"),
        (
            "fwd null null --take-over foo",
            "'--take-over <ADDRESS>': write the PCI address of a card, such as 0000:01:00.0",
        ),
    ] {
        let (status, out, errors) = ringpass(&line.split(' ').collect::<Vec<_>>());
        assert_eq!((status, out.as_str()), (Some(2), ""), "{line}: {errors}");
        assert!(errors.contains(message), "{line}: {errors}");
    }
}

#[test]
fn the_program_says_its_name_and_all_kinds_of_ports() {
    let (status, out, _) = ringpass(&["--version"]);
    assert_eq!((status, out), (Some(0), format!("ringpass {}", env!("CARGO_PKG_VERSION"))));
    let (status, out, _) = ringpass(&["--help"]);
    assert_eq!(status, Some(0));
    for kind in [
        "0000:01:00.0",
        "model:",
        "vfio-user:",
        "vhost:",
        "virtio-user:",
        "vale0:",
        "netmap:",
        "tap:",
        "packet:",
        "xdp:",
    ] {
        assert!(out.contains(&format!("  {kind}")), "{kind}: {out}");
    }
}

#[test]
fn files_without_an_end() {
    refused(&["switch", "--config", "/dev/zero"], &["--config /dev/zero", "1048576 bytes"]);
}

#[test]
fn frames_longer_than_the_mtu() {
    refused(&["pktgen", "model:null", "--size", "1514", "--mtu", "1000"], &["1514", "--mtu 1000", "1014"]);
    refused(&["ping", "null", "--size", "1514", "--mtu", "1000"], &["1514", "1014"]);
    refused(&["pktgen", "null", "--size", "1019", "--mtu", "1000", "--vlan", "1"], &["1019", "--mtu 1000", "1018"]);
}

#[test]
fn frames_and_rates_that_cannot_be() {
    let pktgen = |options: &[&str], parts: &[&str]| refused(&[&["pktgen", "null"], options].concat(), parts);
    pktgen(&["--size", "71", "--tcp"], &["TCP over IPv4 takes 72", "--size 72"]);
    pktgen(&["--size", "60", "--src-ip", "2001:2::5", "--vlan", "7"], &["UDP over IPv6 with a VLAN tag takes 84"]);
    pktgen(&["--vary", "src-port=count", "--flows", "2"], &["both set the source port", "leave one out"]);
    pktgen(&["--vary", "src-ip=random", "--flows", "16385"], &["leaves source ports", "write --flows 16384"]);
    pktgen(&["--vary", "vlan=count"], &["needs frames with a tag", "write --vlan ID"]);
    let folder = crate::common::folder();
    let file = folder.path().join("streams.toml");
    let streams = |text: &str, more: &[&str], parts: &[&str]| {
        std::fs::write(&file, text).expect("a file");
        pktgen(&[&["--streams", crate::common::text(&file)], more].concat(), parts);
    };
    streams("[[stream]]\nsizes = 60", &[], &["streams.toml:2: 'sizes = 60'", "did you mean 'size'?"]);
    streams("[[stream]]\n[[stream]]\ntcp = true\nsize = 60", &[], &["stream 2: frames of 60 bytes", "takes 72"]);
    streams("[[stream]]\nrate = \"max\"", &[], &["stream 1: its rate has no limit", "write a weight"]);
    streams("[[stream]]\nrate = \"40%\"", &[], &["stream 1: the link speed of null is not known"]);
    let many = "[[stream]]\nflows = 65536\n".repeat(17);
    streams(&many, &[], &["1,114,112 flows of all streams together", "at most 1,048,576"]);
    streams("[[stream]]\nrate = 5", &["--rate", "5"], &["--rate is that of streams without one", "leave it out"]);
    pktgen(&["--streams", "missing.toml"], &["--streams missing.toml"]);
    pktgen(&["--rate", "max", "--burst", "2"], &["--burst needs pauses", "lower --rate"]);
    pktgen(&["--rate", "40%"], &["the link speed of null is not known", "--rate in frames a second (100k)"]);
    pktgen(&["--src-ip", "2001:2::5", "--dst-ip", "198.19.0.1"], &["two families", "both as IPv6"]);
}
