//! What netmap answers to requests, and what the user is told, in programs with the library preloaded.

mod support;

use std::ptr::null_mut;

use support::netmap as nm;
use support::{Lab, Program};

/// Not a test of its own: what this binary runs when a test starts it to play a part.
#[test]
fn program() {
    support::play(&[("options", options)]);
}

/// Requests of API 14.
const PORT_INFO_GET: u16 = 2;

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
    assert_eq!(register(&[5], None), (unsupported, vec![unsupported]));
    assert_eq!(register(&[1, any, 3, any], None), (unsupported, vec![unsupported; 4]));
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
    let lab = Lab::new();
    let text = printed(&lab, "options", "1");
    for why in ["option of kind 0", "option 3 twice", "more options than", "x{1: options are not supported"] {
        assert!(text.contains(why), "{why}: {text}");
    }
    let text = printed(&lab, "options", "0");
    assert!(text.lines().all(|line| line.contains("nothing is no port")), "{text}");
    lab.all_free();
}
