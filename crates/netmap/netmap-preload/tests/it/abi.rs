//! netmap's interface request by request: C programs under the library, each with checks of one topic (`c/`), and a comparison
//! of their header with the layouts of this project.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::mem::offset_of;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::support::Program;
use netmap::client::Client;
use netmap::csb;
use netmap::layout::{self, Interface, RingHeader};
use netmap::protocol::BODY;
use netmap::request::{self as request, Header, Kind, LegacyRequest, Mode, PortInfo, Register, register};
use netmap::{Flags, Slot};
use ringpass_lab::{run, wait_until};

const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c");
/// Time for a program of checks, whose topics have a limit each.
const LIMIT: Duration = Duration::from_secs(300);

/// Compiles one of the programs.
fn compile(name: &str, folder: &Path) -> String {
    let [source, output] = [format!("{SOURCES}/{name}.c"), folder.join(name).display().to_string()];
    let options = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-g", "-pthread"];
    run(&[&["cc"], &options[..], &["-o", &output, &source]].concat());
    output
}

/// Runs a program of checks against a server of its own, which has a native port with two rings each way. The program exits
/// with 1 if a check differs, or if one that is pending passes.
fn passes(name: &str, options: &[&str]) {
    let folder = tempfile::tempdir().expect("a folder");
    let program = compile(name, folder.path());
    let path = |name| folder.path().join(name);
    let socket = path("netmap.sock");
    let mut netmapd = Command::new(crate::support::ringpass());
    netmapd
        .args([
            "netmapd",
            "--port",
            "nic=null",
            "--host",
            "nic=null",
            "--queues",
            "2",
            "--hugepages",
            "off",
            "--socket",
        ])
        .arg(&socket)
        .args(options)
        .stdout(Stdio::null());
    let mut netmapd = Program(netmapd.spawn().expect("netmapd"));
    wait_until("the serving process", || Client::connect(&socket).is_ok());
    let mut command = Command::new(program);
    command.env("LD_PRELOAD", crate::support::library()).env("RINGPASS_NETMAP_SOCKET", &socket);
    command.stdout(File::create(path("lines")).expect("a file")).stderr(File::create(path("errors")).expect("a file"));
    let status = Program(command.spawn().expect("a program")).ends_within(LIMIT);
    let [lines, errors] = ["lines", "errors"].map(|name| fs::read_to_string(path(name)).expect("text"));
    println!("{lines}");
    let failed: Vec<_> = lines.lines().filter(|line| line.starts_with("FAILED")).collect();
    assert!(status.success() && failed.is_empty(), "{status}: {failed:#?}; what the library said:\n{errors}");
    assert!(lines.lines().filter(|line| line.starts_with("ok ")).count() > 0, "no checks");
    assert!(netmapd.0.try_wait().expect("a child").is_none(), "netmapd has ended");
}

macro_rules! programs {
    ($options:expr; $($name:ident)*) => {$(
        #[test]
        fn $name() {
            passes(stringify!($name), $options);
        }
    )*};
}

programs! { &[]; registers information names pipes native options extmem kloop rings descriptors sharing kills }
// A port that programs may attach is opened when they do so, for which there is no way in the sandbox.
programs! { &["--no-sandbox", "--allow", "null"]; vale legacy }

/// Returns what `layout.c` prints of the header: sizes, offsets and numbers by name.
fn header() -> BTreeMap<String, u64> {
    let folder = tempfile::tempdir().expect("a folder");
    let lines = run(&[&compile("layout", folder.path())]);
    let pair =
        |line: &str| line.split_once(' ').map(|(name, value)| (name.to_owned(), value.parse().expect("a number")));
    lines.lines().map(|line| pair(line).expect("a name and a number")).collect()
}

/// Checks that the header has these numbers.
fn compare(header: &BTreeMap<String, u64>, ours: &[(&str, u64)]) {
    for &(name, value) in ours {
        assert_eq!(header.get(name), Some(&value), "{name}");
    }
}

#[test]
fn shared_memory_has_the_headers_layout() {
    let header = header();
    let sizes = [
        ("netmap_slot", layout::SLOT_BYTES),
        ("netmap_ring", size_of::<RingHeader>()),
        ("netmap_if", size_of::<Interface>()),
        ("nm_csb_atok", csb::ENTRY),
        ("nm_csb_ktoa", csb::ENTRY),
        ("netmap_ring.buf_ofs", offset_of!(RingHeader, buffers)),
        ("netmap_ring.num_slots", offset_of!(RingHeader, slots)),
        ("netmap_ring.nr_buf_size", offset_of!(RingHeader, buffer_size)),
        ("netmap_ring.ringid", offset_of!(RingHeader, id)),
        ("netmap_ring.dir", offset_of!(RingHeader, direction)),
        ("netmap_ring.head", offset_of!(RingHeader, head)),
        ("netmap_ring.cur", offset_of!(RingHeader, cur)),
        ("netmap_ring.tail", offset_of!(RingHeader, tail)),
        ("netmap_ring.flags", offset_of!(RingHeader, flags)),
        ("netmap_ring.ts", offset_of!(RingHeader, time)),
        ("netmap_ring.offset_mask", offset_of!(RingHeader, offset_mask)),
        ("netmap_ring.buf_align", offset_of!(RingHeader, alignment)),
        ("netmap_ring.slot", size_of::<RingHeader>()),
        ("netmap_if.ni_name", offset_of!(Interface, name)),
        ("netmap_if.ni_version", offset_of!(Interface, version)),
        ("netmap_if.ni_flags", offset_of!(Interface, flags)),
        ("netmap_if.ni_tx_rings", offset_of!(Interface, tx_rings)),
        ("netmap_if.ni_rx_rings", offset_of!(Interface, rx_rings)),
        ("netmap_if.ni_bufs_head", offset_of!(Interface, extra_buffers)),
        ("netmap_if.ni_host_tx_rings", offset_of!(Interface, host_tx_rings)),
        ("netmap_if.ni_host_rx_rings", offset_of!(Interface, host_rx_rings)),
        ("netmap_if.ring_ofs", layout::RING_OFFSETS),
    ];
    compare(&header, &sizes.map(|(name, size)| (name, size as u64)));
    compare(
        &header,
        &[
            ("NETMAP_API", layout::API.into()),
            ("NETMAP_MIN_API", (*layout::API_RANGE.start()).into()),
            ("NETMAP_MAX_API", (*layout::API_RANGE.end()).into()),
            ("NI_PRIV_MEM", layout::PRIVATE.into()),
            ("NR_TIMESTAMP", layout::TIMESTAMP.into()),
            ("NR_FORWARD", layout::FORWARD.into()),
            ("NS_BUF_CHANGED", Flags::BUFFER_CHANGED.0.into()),
            ("NS_REPORT", Flags::REPORT.0.into()),
            ("NS_FORWARD", Flags::FORWARD.0.into()),
            ("NS_NO_LEARN", Flags::NO_LEARN.0.into()),
            ("NS_INDIRECT", Flags::INDIRECT.0.into()),
            ("NS_MOREFRAG", Flags::MORE_FRAGMENTS.0.into()),
        ],
    );
}

/// Slots lie in memory as the header has their fields.
#[test]
fn slots_have_the_headers_layout() {
    let header = header();
    let mut region = netmap::Region::new(crate::support::POOLS, &Default::default()).expect("a region");
    let (ring, offset) = region.ring(netmap::Direction::Tx, 0, 4, false).expect("a ring");
    ring.set(1, Slot { buffer: 0x0403_0201, len: 0x0605, flags: Flags(0x0807), pointer: 0x100f_0e0d_0c0b_0a09 });
    let slot = offset + size_of::<RingHeader>() + layout::SLOT_BYTES;
    let words = region.memory().cells::<std::sync::atomic::AtomicU64>(slot, 2).expect("a slot");
    let load = |at: usize| words[at].load(std::sync::atomic::Ordering::Relaxed).to_le_bytes();
    let bytes = [load(0), load(1)].concat();
    for (field, value) in [("buf_idx", 1), ("len", 5), ("flags", 7), ("ptr", 9)] {
        assert_eq!(bytes[header[&format!("netmap_slot.{field}")] as usize], value, "{field}");
    }
}

#[test]
fn requests_have_the_headers_layout() {
    let header = header();
    compare(
        &header,
        &[
            ("NIOCCTRL", request::NIOCCTRL),
            ("NIOCTXSYNC", request::NIOCTXSYNC),
            ("NIOCRXSYNC", request::NIOCRXSYNC),
            ("NIOCREGIF", request::NIOCREGIF),
            ("NIOCGINFO", request::NIOCGINFO),
            ("nmreq_header", Header::LEN as u64),
            ("nmreq_register", Register::LEN as u64),
            ("nmreq_port_info_get", PortInfo::LEN as u64),
            ("nmreq", LegacyRequest::LEN as u64),
            ("nmreq_pools_info", BODY as u64),
            ("nmreq_vale_attach", BODY as u64),
            ("NR_MONITOR_TX", register::MONITOR_TX),
            ("NR_MONITOR_RX", register::MONITOR_RX),
            ("NR_ZCOPY_MON", register::ZERO_COPY_MONITOR),
            ("NR_EXCLUSIVE", register::EXCLUSIVE),
            ("NR_RX_RINGS_ONLY", register::RX_ONLY),
            ("NR_TX_RINGS_ONLY", register::TX_ONLY),
            ("NR_ACCEPT_VNET_HDR", register::ACCEPTS_VNET_HEADER),
            ("NR_DO_RX_POLL", register::DO_RX_POLL),
            ("NR_NO_TX_POLL", register::NO_TX_POLL),
        ],
    );
    let kinds = [
        ("REGISTER", Kind::Register),
        ("PORT_INFO_GET", Kind::PortInfoGet),
        ("VALE_ATTACH", Kind::ValeAttach),
        ("VALE_DETACH", Kind::ValeDetach),
        ("VALE_LIST", Kind::ValeList),
        ("PORT_HDR_SET", Kind::PortHdrSet),
        ("PORT_HDR_GET", Kind::PortHdrGet),
        ("VALE_NEWIF", Kind::ValeNewif),
        ("VALE_DELIF", Kind::ValeDelif),
        ("VALE_POLLING_ENABLE", Kind::ValePollingEnable),
        ("VALE_POLLING_DISABLE", Kind::ValePollingDisable),
        ("POOLS_INFO_GET", Kind::PoolsInfoGet),
        ("SYNC_KLOOP_START", Kind::SyncKloopStart),
        ("SYNC_KLOOP_STOP", Kind::SyncKloopStop),
        ("CSB_ENABLE", Kind::CsbEnable),
    ];
    for (name, kind) in kinds {
        assert_eq!(header[&format!("NETMAP_REQ_{name}")], kind as u64, "{name}");
    }
    let modes = [
        ("ALL_NIC", Mode::AllNic),
        ("SW", Mode::Host),
        ("NIC_SW", Mode::NicAndHost),
        ("ONE_NIC", Mode::OneNic),
        ("PIPE_MASTER", Mode::PipeMaster),
        ("PIPE_SLAVE", Mode::PipeSlave),
        ("NULL", Mode::Null),
        ("ONE_SW", Mode::OneHost),
    ];
    for (name, mode) in modes {
        assert_eq!(header[&format!("NR_REG_{name}")], mode as u64, "{name}");
    }
}

/// Each field of a registration and of a port's properties, by the first byte of its value.
#[test]
fn bodies_have_the_headers_layout() {
    let header = header();
    let register = Register {
        offset: 1,
        memory_size: 2,
        slots: [3, 4],
        rings: [5, 6],
        host_rings: [7, 8],
        memory_id: 9,
        ring: 10,
        mode: Mode::OneNic,
        extra_buffers: 11,
        flags: 12,
    };
    let fields = [
        ("nr_offset", 1),
        ("nr_memsize", 2),
        ("nr_tx_slots", 3),
        ("nr_rx_slots", 4),
        ("nr_tx_rings", 5),
        ("nr_rx_rings", 6),
        ("nr_host_tx_rings", 7),
        ("nr_host_rx_rings", 8),
        ("nr_mem_id", 9),
        ("nr_ringid", 10),
        ("nr_mode", Mode::OneNic as u8),
        ("nr_extra_bufs", 11),
        ("nr_flags", 12),
    ];
    let at = |name: &str, field: &str| header[&format!("{name}.{field}")] as usize;
    for (field, value) in fields {
        assert_eq!(register.bytes()[at("nmreq_register", field)], value, "{field}");
    }
    let info = PortInfo { memory_size: 1, slots: [2, 3], rings: [4, 5], host_rings: [6, 7], memory_id: 8 };
    let fields = [
        ("nr_memsize", 1),
        ("nr_tx_slots", 2),
        ("nr_rx_slots", 3),
        ("nr_tx_rings", 4),
        ("nr_rx_rings", 5),
        ("nr_host_tx_rings", 6),
        ("nr_host_rx_rings", 7),
        ("nr_mem_id", 8),
    ];
    for (field, value) in fields {
        assert_eq!(info.bytes()[at("nmreq_port_info_get", field)], value, "{field}");
    }
    let mut bytes = [0; LegacyRequest::LEN];
    bytes[..4].copy_from_slice(b"name");
    let fields = [
        ("nr_version", 14),
        ("nr_tx_slots", 3),
        ("nr_rx_slots", 4),
        ("nr_tx_rings", 5),
        ("nr_rx_rings", 6),
        ("nr_ringid", 7),
        ("nr_cmd", 8),
        ("nr_arg1", 9),
        ("nr_arg2", 10),
        ("nr_arg3", 11),
        ("nr_flags", Mode::OneNic as u8),
    ];
    for (field, value) in fields {
        bytes[at("nmreq", field)] = value;
    }
    let LegacyRequest { name, command, argument, register, .. } = LegacyRequest::parse(&bytes).expect("a request");
    let wanted = Register {
        slots: [3, 4],
        rings: [5, 6],
        ring: 7,
        memory_id: 10,
        extra_buffers: 11,
        mode: Mode::OneNic,
        ..Register::default()
    };
    assert_eq!((name.as_str(), command, argument, register), ("name", 8, 9, wanted));
}
