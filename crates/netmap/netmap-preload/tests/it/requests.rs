//! Answers to requests, and lines for the user, in programs with the library preloaded.

use std::ptr::null_mut;

use crate::support::netmap as nm;
use crate::support::{Lab, Program};
use netmap_sys::netmap::{NETMAP_BDG_LIST, NIOCGINFO, NIOCREGIF, nmreq};

/// Not a test of its own: what this binary runs when a test starts it to play a part.
#[test]
fn program() {
    crate::support::play(&[
        ("options", options),
        ("registers", registers),
        ("legacy", legacy),
        ("nulls", nulls),
        ("balance", balance),
    ]);
}

/// Requests of API 14.
const PORT_INFO_GET: u16 = 2;
const POOLS_INFO_GET: u16 = 12;

/// An option, as a program has it in its memory.
#[repr(C)]
#[derive(Clone, Copy)]
struct RequestOption {
    next: u64,
    kind: u32,
    status: i32,
    size: u64,
    payload: [u64; 9],
}

/// A status that a program has written.
const BEFORE: i32 = 77;

/// Makes a request with options of these kinds, of which the last is linked to the one with the number `back`.
/// Returns the error, and each option's status.
fn with_options(kind: u16, name: &str, kinds: &[u32], back: Option<usize>) -> (i32, Vec<i32>) {
    let option = |kind: &u32| RequestOption { next: 0, kind: *kind, status: BEFORE, size: 0, payload: [0; 9] };
    let mut options: Vec<_> = kinds.iter().map(option).collect();
    let at = |number: usize| (options.as_ptr() as usize + number * size_of::<RequestOption>()) as u64;
    let next: Vec<u64> =
        (1..=kinds.len()).map(|number| if number < kinds.len() { at(number) } else { back.map_or(0, at) }).collect();
    options.iter_mut().zip(next).for_each(|(option, next)| option.next = next);
    let fd = nm::open();
    let mut registration = nm::registration(nm::ALL_NIC, 0, 0, 0);
    let mut info = [0; 32];
    let body: &mut [u8] = if kind == nm::REGISTER { &mut registration } else { &mut info };
    let first = std::hint::black_box(options.as_mut_ptr()).cast();
    let error = nm::control(fd, 14, kind, name, first, body);
    // SAFETY: this program's own descriptor.
    unsafe { libc::close(fd) };
    (error, options.iter().map(|option| option.status).collect())
}

/// Lists of options, from the program's first to endless ones.
fn options(_: &[String]) {
    let [any, twice, none] = [1000, 3, 0];
    let register = |kinds: &[u32], back| with_options(nm::REGISTER, "x{1", kinds, back);
    let [unsupported, invalid] = [libc::EOPNOTSUPP, libc::EINVAL];
    assert_eq!(register(&[5], None), (0, vec![0]));
    assert_eq!(register(&[any, 5, any], None), (unsupported, vec![unsupported, 0, unsupported]));
    // A memory of the program, which is nowhere.
    assert_eq!(register(&[1, any], None), (libc::EFAULT, vec![libc::EFAULT, unsupported]));
    // A CSB needs an exclusive port.
    assert_eq!(register(&[any, 3], None), (invalid, vec![unsupported, invalid]));
    assert_eq!(register(&[any, none, 3], None), (invalid, vec![0, invalid, BEFORE]));
    assert_eq!(register(&[twice, any, twice, any], None), (invalid, vec![invalid, 0, invalid, BEFORE]));
    assert_eq!(register(&[any], Some(0)), (libc::EMSGSIZE, vec![BEFORE]));
    assert_eq!(register(&[any, any, 3], Some(1)), (invalid, vec![0, 0, invalid]));
    assert_eq!(register(&[any; 127], None).0, unsupported);
    assert_eq!(register(&[any; 128], None), (libc::EMSGSIZE, vec![BEFORE; 128]));
    // What is wrong with the registration itself comes first.
    assert_eq!(with_options(nm::REGISTER, "nothing", &[5], None), (libc::ENXIO, vec![unsupported]));
    // Other requests ignore options.
    assert_eq!(with_options(PORT_INFO_GET, "x{1", &[any, 3], None), (0, vec![unsupported; 2]));
    // Nothing stays registered.
    let fd = nm::open();
    let mut body = nm::registration(nm::ALL_NIC, 0, 0, 0);
    assert_eq!(nm::control(fd, 14, nm::REGISTER, "x{1", null_mut(), &mut body), 0);
    let mut option = RequestOption { next: 0, kind: 5, status: BEFORE, size: 0, payload: [0; 9] };
    let again = nm::control(fd, 14, nm::REGISTER, "x{1", (&raw mut option).cast(), &mut body);
    // SAFETY: a local that the library has written by its address.
    let status = unsafe { (&raw const option.status).read_volatile() };
    assert_eq!((again, status), (libc::EBUSY, unsupported));
}

/// Runs a part that must succeed. Returns what it has printed to standard error.
fn printed(lab: &Lab, part: &str, log: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("printed");
    let file = std::fs::File::create(&path).unwrap();
    let child = lab.part(part).env("RINGPASS_NETMAP_LOG", log).stderr(file).spawn().unwrap();
    let status = Program(child).ends_within(std::time::Duration::from_secs(60));
    let text = std::fs::read_to_string(path).unwrap();
    assert!(status.success(), "{part}: {text}");
    text
}

#[test]
fn options_are_answered_as_by_netmap() {
    let lab = Lab::new(module_path!());
    let text = printed(&lab, "options", "1");
    for why in [
        "option of kind 0",
        "option 3 twice",
        "more options than",
        "option 1000 is not supported by this request",
        "x{1: CSB mode needs NR_EXCLUSIVE",
    ] {
        assert!(text.contains(why), "{why}: {text}");
    }
    let text = printed(&lab, "options", "0");
    assert!(text.lines().all(|line| line.contains("nothing is not a port")), "{text}");
    lab.all_free();
}

/// Opens a descriptor and registers a port. Returns the descriptor and the error.
fn register(name: &str, mode: u32, ring: u16, flags: u64) -> (i32, i32) {
    let fd = nm::open();
    let mut body = nm::registration(mode, ring, flags, 0);
    (fd, nm::control(fd, 14, nm::REGISTER, name, null_mut(), &mut body))
}

fn close(fd: i32) {
    // SAFETY: this program's own descriptor.
    unsafe { libc::close(fd) };
}

/// Information about ports and memories, before and after a port is registered, and registrations that exclude others.
fn registers(_: &[String]) {
    let fd = nm::open();
    let info = |name: &str, memory: u16| {
        let mut body = [0; 32];
        body[24..26].copy_from_slice(&memory.to_le_bytes());
        let error = nm::control(fd, 14, PORT_INFO_GET, name, null_mut(), &mut body);
        (error, body)
    };
    let pools = |name: &str, memory: u16| {
        let mut body = [0; 64];
        body[8..10].copy_from_slice(&memory.to_le_bytes());
        (nm::control(fd, 14, POOLS_INFO_GET, name, null_mut(), &mut body), body)
    };
    let mut before = Vec::new();
    for registered in [false, true] {
        if registered {
            let mut body = nm::registration(nm::ALL_NIC, 0, 0, 0);
            body[32..34].copy_from_slice(&1_u16.to_le_bytes());
            assert_eq!(nm::control(fd, 14, nm::REGISTER, "x{1", null_mut(), &mut body), 0);
        }
        assert_eq!(info("y{1", 0).1[24..26], [3, 0], "a memory of its own");
        let told = [info("x{1", 1).1, info("x}1", 1).1, info("", 0).1, info("", 1).1];
        assert!(told.iter().all(|body| body[..8] == told[0][..8] && body[24..26] == [1, 0]), "{told:?}");
        assert_eq!((&told[0][16..20], &told[2][8..24]), (&[1, 0, 1, 0][..], &[0; 16][..]));
        let (error, body) = pools("x{1", 1);
        assert_eq!((error, &body[..8], &body[8..10]), (0, &told[0][..8], &[1, 0][..]));
        assert!(!registered || pools("x{1", 0) == (0, body), "the memory that it lies in");
        assert_eq!([info("x{1", 77).0, info("", 77).0, pools("x{1", 77).0], [libc::EINVAL; 3]);
        assert_eq!([info("eth9", 0).0, pools("eth9", 0).0, pools("", 0).0], [libc::ENXIO; 3]);
        before.push((told, body));
    }
    assert!(before[0] == before[1], "a registered port makes no difference");
    close(fd);
    // Pipes have no rings of the host's stack. Modes of pipes belong to legacy requests.
    let refused = [2, 3, 5, 6, 8].map(|mode| register("x{1", mode, 0, 0));
    assert_eq!(refused.map(|(_, error)| error), [libc::EINVAL; 5]);
    refused.into_iter().for_each(|(fd, _)| close(fd));
    assert_eq!([register("x{", 1, 0, 0).1, register("{1", 1, 0, 0).1], [libc::EINVAL; 2]);
    assert_eq!([register("x-1", 1, 0, 0).1, register("", 1, 0, 0).1], [libc::ENXIO; 2]);
    assert_eq!([register("x{1", nm::ONE_NIC, 0, 0).1, register("x{1", nm::ONE_NIC, 1, 0).1], [0, libc::EINVAL]);
    // Rings are exclusive one by one.
    let [exclusive, rx, tx] = [0x800, 0x2000, 0x4000];
    let opened = [register("y{1", 1, 0, exclusive | tx), register("y{1", 1, 0, exclusive | rx)];
    assert_eq!(opened.map(|(_, error)| error), [0; 2]);
    assert_eq!([0, exclusive, rx, tx].map(|flags| register("y{1", 1, 0, flags).1), [libc::EBUSY; 4]);
    close(opened[0].0);
    let start = std::time::Instant::now();
    // The server notices a little later.
    let shared = loop {
        let (fd, error) = register("y{1", 1, 0, tx);
        match error {
            0 => break fd,
            _ => assert!(error == libc::EBUSY && start.elapsed().as_secs() < 20, "{error}"),
        }
        close(fd);
    };
    assert_eq!([exclusive, rx, exclusive | tx].map(|flags| register("y{1", 1, 0, flags).1), [libc::EBUSY; 3]);
    close(shared);
}

#[test]
fn ports_tell_what_they_have_and_exclude_each_other() {
    let lab = Lab::new(module_path!());
    let text = printed(&lab, "registers", "1");
    for why in ["there is no memory 77", "without a name", "host's stack", "ended with API", "exclusively"] {
        assert!(text.contains(why), "{why}: {text}");
    }
    lab.all_free();
}

/// Requests from before API 14, with the struct of `netmap_sys`.
fn legacy(_: &[String]) {
    let fd = nm::open();
    let ask = |ioctl, name: &str, change: &dyn Fn(&mut nmreq)| {
        // SAFETY: a struct of integers, for which zeros are valid.
        let mut request = unsafe { std::mem::zeroed::<nmreq>() };
        for (to, from) in request.nr_name.iter_mut().zip(name.bytes()) {
            *to = from as libc::c_char;
        }
        request.nr_version = 14;
        change(&mut request);
        (nm::errno(nm::ioctl(fd, ioctl, (&raw mut request).cast())), request)
    };
    for (version, right) in [(11, libc::EINVAL), (13, libc::EINVAL), (14, 0), (15, 0), (16, 0)] {
        let (error, info) = ask(NIOCGINFO, "x{1", &|request| request.nr_version = version);
        assert_eq!(error, right, "{version}");
        assert!(
            error != 0 || (info.nr_tx_rings, info.nr_rx_slots, info.nr_arg2) == (1, 1024, 3) && info.nr_memsize > 0
        );
    }
    assert_eq!(ask(NIOCGINFO, "nothing", &|_| ()).0, libc::ENXIO);
    assert_eq!(ask(NIOCGINFO, "", &|_| ()).0, 0, "the first memory");
    assert_eq!(ask(NIOCGINFO, "", &|request| request.nr_cmd = NETMAP_BDG_LIST as u16).0, libc::ENOENT);
    let command = |command| ask(NIOCREGIF, "x{1", &|request| request.nr_cmd = command).0;
    // Lists are queries; 3 and 99 are no commands; passthrough is not in netmap any more.
    assert_eq!([4, 3, 99].map(command), [libc::EINVAL; 3]);
    assert_eq!([8, 9].map(command), [libc::ENOMEM; 2]);
    let flags = |flags| ask(NIOCREGIF, "x{1", &|request| request.nr_flags = flags).0;
    assert_eq!([2, 3, 8, 9, 15].map(flags), [libc::EINVAL; 5], "modes with the host's rings, or unknown");
    assert_eq!(ask(NIOCREGIF, "x{1", &|request| request.nr_ringid = 0x2000).0, libc::EINVAL, "the host's rings");
    let (error, granted) = ask(NIOCREGIF, "em0", &|request| {
        (request.nr_flags, request.nr_ringid, request.nr_arg3) = (5, 0x1007, 58);
    });
    assert_eq!((error, granted.nr_arg2, granted.nr_arg3, granted.nr_ringid, granted.nr_flags), (0, 3, 58, 0x1007, 5));
    assert_eq!(granted.nr_name[..4].iter().map(|byte| *byte as u8).collect::<Vec<_>>(), b"em0\0");
    assert!(granted.nr_offset > 0 && granted.nr_memsize > 0);
    // The pipe that the mode of old has named.
    let mut info = [0; 32];
    assert_eq!(nm::control(fd, 14, PORT_INFO_GET, "em0}7", null_mut(), &mut info), 0);
    assert_eq!(ask(NIOCREGIF, "em0{8", &|_| ()).0, libc::EBUSY, "one port for each descriptor");
    close(fd);
}

#[test]
fn requests_from_before_api_14_are_answered() {
    let lab = Lab::new(module_path!());
    let text = printed(&lab, "legacy", "1");
    for why in ["version 13", "command 99", "passthrough", "mode 15"] {
        assert!(text.contains(why), "{why}: {text}");
    }
    lab.all_free();
}

/// Fields of a registration by their offsets.
fn field(body: &[u8; 56], at: usize) -> u16 {
    u16::from_le_bytes([body[at], body[at + 1]])
}

/// Registers with a memory, and with rings, slots and extra buffers. Returns the descriptor, the error and what
/// was granted.
fn register_in(
    name: &str,
    (mode, flags): (u32, u64),
    memory: u16,
    (rings, slots): ([u16; 2], [u32; 2]),
    extra: u32,
) -> (i32, i32, [u8; 56]) {
    let mut body = nm::registration(mode, 0, flags, 0);
    body[16..24].copy_from_slice(&slots.map(u32::to_le_bytes).concat());
    body[24..28].copy_from_slice(&rings.map(u16::to_le_bytes).concat());
    body[32..34].copy_from_slice(&memory.to_le_bytes());
    body[40..44].copy_from_slice(&extra.to_le_bytes());
    let fd = nm::open();
    (fd, nm::control(fd, 14, nm::REGISTER, name, null_mut(), &mut body), body)
}

/// Null ports: rings that nobody serves, no rings at all, and extra buffers alone.
fn nulls(_: &[String]) {
    const NULL: (u32, u64) = (7, 0);
    let (some, none) = (([10, 5], [256, 100]), ([0; 2], [0; 2]));
    assert_eq!(register_in("a", NULL, 0, some, 0).1, libc::EINVAL, "no memory is named");
    assert_eq!(register_in("a", NULL, 9, some, 0).1, libc::EINVAL, "there is no memory 9");
    assert_eq!(register_in("a", NULL, 1, ([1, 0], [1, 0]), 0).1, libc::EINVAL, "a ring of one slot");
    for (name, (rings, slots), extra) in [("a", some, 0), ("a", some, 0), ("", none, 0), ("eth0", none, 100)] {
        let (fd, error, body) = register_in(name, NULL, 1, (rings, slots), extra);
        assert_eq!((error, field(&body, 32)), (0, 1), "{name}");
        assert_eq!(([field(&body, 24), field(&body, 26)], [field(&body, 28), field(&body, 30)]), (rings, [0; 2]));
        assert_eq!([field(&body, 16), field(&body, 20)].map(u32::from), slots);
        assert_eq!(field(&body, 40), extra as u16);
        assert_eq!([0x6994, 0x6995].map(|sync| nm::errno(nm::ioctl(fd, sync, null_mut()))), [0; 2]);
        assert_eq!(nm::poll(&mut [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }], 20), [0]);
        // Others like it may exist at the same time: it stays open.
    }
}

#[test]
fn null_ports_have_rings_that_nobody_serves() {
    let lab = Lab::new(module_path!());
    lab.play(&["nulls"]);
    lab.all_free();
}

/// The requests of netmap's load balancer: pipes in the memory of its VALE port.
fn balance(_: &[String]) {
    let usual = ([0; 2], [0; 2]);
    let (port, error, granted) = register_in("vale0:lb", (1, 0), 0, usual, 100);
    let memory = field(&granted, 32);
    assert_eq!((error, field(&granted, 40), memory > 1), (0, 100, true));
    let mut groups = Vec::new();
    for group in 0..2 {
        let (fd, error, pipe) = register_in(&format!("grp{{{group}"), (1, 0), memory, usual, 0);
        assert_eq!((error, field(&pipe, 32)), (0, memory));
        assert_eq!(pipe[8..16], granted[8..16], "the size of the memory");
        groups.push(fd);
    }
    assert_eq!(register_in("grp{9", (1, 0), 77, usual, 0).1, libc::EINVAL);
    assert_eq!(register_in("grp}0", (1, 0), 1, usual, 0).1, libc::EINVAL, "the pipe is in another memory");
    assert_eq!(register_in("grp{9", (1, 0), memory, usual, 0).1, libc::ENOMEM, "there is room for two");
    let ends = [nm::Port::new("grp{1"), nm::Port::new("grp}1")];
    for round in 0..2_u64 {
        for first in (0..10_000).step_by(500) {
            let frames = round * 10_000 + first..round * 10_000 + first + 500;
            ends[0].send(frames.clone(), 64);
            ends[1].receive(frames);
        }
        // The memory stays until the last pipe is closed.
        if round == 0 {
            groups.drain(..).for_each(close);
            close(port);
        }
    }
    drop(ends);
    // A pipe lies in the memory of its port without asking.
    let (port, _, granted) = register_in("vale0:b", (1, 0), 0, usual, 0);
    let (pipe, error, in_port) = register_in("vale0:b{x", (1, 0), 0, usual, 0);
    assert_eq!((error, field(&in_port, 32)), (0, field(&granted, 32)));
    let (other, error, shared) = register_in("vale0:c", (1, 0), 1, usual, 0);
    assert_eq!((error, field(&shared, 32)), (0, 1));
    [port, pipe, other].into_iter().for_each(close);
}

#[test]
fn pipes_lie_in_the_memory_of_their_port() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = crate::support::part_at(module_path!(), "balance", &folder.path().join("netmap.sock"));
    command.env("RINGPASS_NETMAPD", crate::support::ringpass());
    let status = Program(command.spawn().unwrap()).ends_within(std::time::Duration::from_secs(60));
    assert!(status.success(), "{status}");
}
